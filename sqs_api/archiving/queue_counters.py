"""Flows: messages that entered and left each queue since the last flush to the lake, and times that
deleted ones spent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import structlog

from cluster.catalog.queue_view import Kind, QueueChange, QueueView
from cluster.clock import Clock
from cluster.shards.router import Router
from cluster.shards.shard import Shard
from cluster.shards.shard_report import COUNTS, TimesReport
from sqs_api.periodic import in_slices
from visibility.contract.model import QueueDefinition

DELETED_MAX = 10_000
"""Deleted queues that are remembered until the next flush: some megabytes."""
_SLICE = 100
"""Queues that are read before others may run."""

_Life = tuple[str, str, str, int, int]
"""Account, region, name, time of creation and part of a queue. A purge changes its id, but not
these."""


class _Reading(NamedTuple):
    """A queue's counts at some time."""

    queue: QueueDefinition
    counted: TimesReport
    loaded_at_ms: int
    """Time of the shard's load; the counts begin there."""
    is_deleted: bool = False
    """True for the counts at its deletion, with which its messages departed."""

    @property
    def life(self) -> _Life:
        queue = self.queue
        part = queue.part_number
        return queue.account, queue.region, queue.name, queue.created_at_ms, part

    @property
    def stored(self) -> int:
        return self.counted.queue.stored


class _Flush(NamedTuple):
    """The readings of a shard, and which of them were noted at deletions."""

    at_ms: int
    readings: dict[_Life, _Reading]
    noted: dict[_Life, _Reading]


class Flows:
    """The difference between two readings."""

    def __init__(self, catalog: QueueView, router: Router, clock: Clock) -> None:
        self._catalog = catalog
        self._router = router
        self._log = structlog.get_logger("flows")
        self._began = _Flush(clock.now_ms(), {}, {})
        self._written: dict[int, _Flush] = {}
        """The last flush of each shard that is in the lake."""
        self._reading: dict[int, _Flush] = {}
        self._deleted: dict[_Life, _Reading] = {}
        """Deletions that are not in the lake."""
        self._left_out = 0
        """Deletions beyond DELETED_MAX."""

    def note(self, change: QueueChange) -> None:
        """Remember the counts of a queue that is deleted: the next flush may find it dropped."""
        shard = self._router.shards.get(change.queue.shard)
        if change.kind is not Kind.DELETED or shard is None:
            return
        for counted in shard.times_in_queues([change.queue.queue_id]):
            loaded_at_ms = shard.report().loaded_at_ms
            reading = _Reading(change.queue, counted, loaded_at_ms, is_deleted=True)
            if len(self._deleted) < DELETED_MAX:
                self._deleted[reading.life] = reading
            else:
                self._left_out += 1

    async def read(self, shard: Shard, now_ms: int) -> list[dict[str, Any]]:
        """A row for each queue of the shard that has messages or moved any, and for each that was
        deleted, as `archive_schema.FLOW` with milliseconds."""
        before = self._written.get(shard.number, self._began)
        flush = self._reading[shard.number] = _Flush(now_ms, {}, self._deletions(shard.number))
        times = {"from_at": before.at_ms, "until_at": now_ms}
        rows = [*_rows(before, flush, flush.noted.values(), times)]
        loaded_at_ms = shard.report().loaded_at_ms
        async for queue_ids in in_slices(list(shard.counters()), _SLICE):
            live = (
                _Reading(queue, counted, loaded_at_ms)
                for counted in shard.times_in_queues(queue_ids)
                if (queue := self._catalog.queue_of_id(counted.queue.queue_id)) is not None
            )
            rows += _rows(before, flush, live, times)
        for life in before.readings.keys() - flush.readings.keys():
            if self._may_return(before.readings[life]):
                flush.readings[life] = before.readings[life]
        if self._left_out:
            self._log.warning("flows_left_out", queues=self._left_out)
            self._left_out = 0
        return rows

    def _deletions(self, shard: int) -> dict[_Life, _Reading]:
        """The noted deletions of the shard, without those that were undone."""
        for life, reading in list(self._deleted.items()):
            if self._catalog.queue_of_id(reading.queue.queue_id) is not None:
                del self._deleted[life]
        return {
            life: reading for life, reading in self._deleted.items() if reading.queue.shard == shard
        }

    def _may_return(self, reading: _Reading) -> bool:
        """True if a later flush may have the queue, although this one does not: while it is being
        purged or deleted, and as long as it can be restored."""
        queue = self._catalog.find(reading.life[:3])
        if queue is not None and queue.created_at_ms == reading.queue.created_at_ms:
            return True
        is_kept = self._catalog.kept.get(reading.queue.queue_id) is not None
        return (reading.is_deleted and is_kept) or reading.life in self._deleted

    def written(self) -> None:
        """Note that the latest reading is in the lake."""
        for flush in self._reading.values():
            for life, reading in flush.noted.items():
                if self._deleted.get(life) is reading:
                    del self._deleted[life]
        self._written |= self._reading
        self._reading = {}


def _rows(
    before: _Flush, flush: _Flush, readings: Iterable[_Reading], times: dict[str, int]
) -> Iterator[dict[str, Any]]:
    """The rows of these readings, which are added to the flush."""
    for reading in readings:
        life, queue = reading.life, reading.queue
        row = _row(flush.readings.get(life) or before.readings.get(life), reading)
        flush.readings[life] = reading
        if row is not None:
            place = {"account": queue.account, "region": queue.region, "queue": queue.name}
            yield row | times | place


def _row(before: _Reading | None, now: _Reading) -> dict[str, Any] | None:
    queue = now.counted.queue
    known = before.counted if before and before.loaded_at_ms == now.loaded_at_ms else None
    moved = {
        name: getattr(queue, name) - (getattr(known.queue, name) if known else 0) for name in COUNTS
    }
    stored = 0 if now.is_deleted else now.stored
    moved["purged"] += now.stored - stored
    moved["moved_in"] += before.stored if before and before.is_deleted else 0
    if not stored and not any(moved.values()):
        return None
    times_before = known.times if known else {}
    times = {
        bucket: count - times_before.get(bucket, 0)
        for bucket, count in sorted(now.counted.times.items())
        if count > times_before.get(bucket, 0)
    }
    return moved | {
        "visible": queue.visible if stored else 0,
        "in_flight": queue.in_flight if stored else 0,
        "delayed": queue.delayed if stored else 0,
        "time_in_queue_buckets": list(times),
        "time_in_queue_counts": list(times.values()),
    }
