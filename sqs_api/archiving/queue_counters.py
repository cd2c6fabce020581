"""Flows: messages that entered and left each queue since the last flush to the lake, and times that
deleted ones spent."""

from __future__ import annotations

from typing import Any, NamedTuple

from cluster.catalog.queue_view import QueueView
from cluster.shards.clock import Clock
from cluster.shards.report import COUNTS, TimesReport
from cluster.shards.shard import Shard
from sqs_api.periodic import in_slices

_SLICE = 100
"""Queues that are read before others may run."""


class _Flush(NamedTuple):
    """A reading of a shard, by queue id; includes deleted queues, which a restore resumes."""

    at_ms: int
    loaded_at_ms: int
    """Time of the shard's load; its counts begin there."""
    reads: dict[int, TimesReport]


class Flows:
    """The difference between two readings. Belongs to the event loop's thread."""

    def __init__(self, catalog: QueueView, clock: Clock) -> None:
        self._catalog = catalog
        self._began = _Flush(clock.now_ms(), 0, {})
        self._written: dict[int, _Flush] = {}
        """The last flush of each shard that is in the lake."""
        self._reading: dict[int, _Flush] = {}

    async def read(self, shard: Shard, now_ms: int) -> list[dict[str, Any]]:
        """A row for each queue of the shard that has messages or moved any, as
        `archive_schema.FLOW` with milliseconds."""
        rows: list[dict[str, Any]] = []
        before = self._written.get(shard.number, self._began)
        loaded_at_ms = shard.report().loaded_at_ms
        earlier = before.reads if before.loaded_at_ms == loaded_at_ms else {}
        flush = self._reading[shard.number] = _Flush(now_ms, loaded_at_ms, {})
        times = {"from_at": before.at_ms, "until_at": now_ms}
        async for queue_ids in in_slices(list(shard.counters()), _SLICE):
            for read in shard.times_in_queues(queue_ids):
                queue_id = read.queue.queue_id
                flush.reads[queue_id] = read
                queue = self._catalog.queue_of_id(queue_id)
                row = _row(earlier.get(queue_id) or earlier.get(read.queue.continues), read)
                if queue is not None and row is not None:
                    place = {"account": queue.account, "region": queue.region, "queue": queue.name}
                    rows.append(row | times | place)
        return rows

    def written(self) -> None:
        """Note that the latest reading is in the lake."""
        self._written |= self._reading
        self._reading = {}


def _row(before: TimesReport | None, read: TimesReport) -> dict[str, Any] | None:
    queue = read.queue
    moved = {
        name: getattr(queue, name) - (getattr(before.queue, name) if before else 0)
        for name in COUNTS
    }
    if not queue.stored and not any(moved.values()):
        return None
    times_before = before.times if before else {}
    times = {
        bucket: count - times_before.get(bucket, 0)
        for bucket, count in sorted(read.times.items())
        if count > times_before.get(bucket, 0)
    }
    return moved | {
        "visible": queue.visible,
        "in_flight": queue.in_flight,
        "delayed": queue.delayed,
        "time_in_queue_buckets": list(times),
        "time_in_queue_counts": list(times.values()),
    }
