"""Flows: what came to and left each queue since the last flush to the lake, and how long deleted messages were there."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from cluster.catalog import Catalog
from cluster.clock import Clock
from cluster.shard import Shard
from visibility.counts import Counts
from visibility.state import QueueState

_SLICE = 100
"""Queues that are read before others may run."""
_SHOWN = (
    "sent",
    "sent_bytes",
    "received",
    "deleted",
    "expired",
    "purged",
    "moved_in",
    "moved_out",
)


class _Read(msgspec.Struct):
    """A queue's counts as they were."""

    state: QueueState
    """A shard that was loaded anew counts from nothing, in another one."""
    at_ms: int
    counts: Counts
    times: dict[int, int]


class Flows:
    """The difference between two readings. Belongs to the event loop's thread."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog = catalog
        self._began_ms = clock.now_ms()
        self._written: dict[int, _Read] = {}
        self._reading: dict[int, _Read] = {}

    async def read(self, shard: Shard, now_ms: int) -> list[dict[str, Any]]:
        """A row for each queue of the shard that has messages or moved any, as `archive_schema.FLOW` with milliseconds."""
        rows: list[dict[str, Any]] = []
        for position, state in enumerate(list(shard.queues())):
            if position % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            queue = self._catalog.queue_of_id(state.queue_id)
            if queue is None:
                continue
            read = _Read(
                state, now_ms, msgspec.structs.replace(state.counts), dict(state.times_in_queue)
            )
            row = self._row(read)
            self._reading[state.queue_id] = read
            if row is not None:
                rows.append(
                    row | {"account": queue.account, "region": queue.region, "queue": queue.name}
                )
        return rows

    def _row(self, read: _Read) -> dict[str, Any] | None:
        state = read.state
        before = self._written.get(state.queue_id)
        if before is None or before.state is not state:
            from_ms = self._began_ms if before is None else before.at_ms
            before = _Read(state, from_ms, Counts(), {})
        moved = {name: getattr(read.counts, name) - getattr(before.counts, name) for name in _SHOWN}
        if not state.stored and not any(moved.values()):
            return None
        times = {
            bucket: count - before.times.get(bucket, 0)
            for bucket, count in sorted(read.times.items())
            if count > before.times.get(bucket, 0)
        }
        counters = state.counters()
        return moved | {
            "from_at": before.at_ms,
            "until_at": read.at_ms,
            "visible": counters.visible,
            "in_flight": counters.in_flight,
            "delayed": counters.delayed,
            "time_in_queue_buckets": list(times),
            "time_in_queue_counts": list(times.values()),
        }

    def written(self) -> None:
        """What was read last is in the lake."""
        self._written |= self._reading
        self._reading = {}
        for queue_id in [*self._written]:
            if self._catalog.queue_of_id(queue_id) is None:
                del self._written[queue_id]
