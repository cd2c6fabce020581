"""Readings: counters, ages and latest tasks of queues, from whichever hosts lead their shards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import msgspec

from auth.caller import Caller
from cluster.catalog.queue_view import QueueView
from cluster.shards.router import Router
from visibility.contract.errors import QueueError
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.outcomes import QueueReading, QueuesRead
from visibility.rules.queues import READ_QUEUES_MAX, ReadQueues

_FRESH_S = 2.0
"""Time for which a reading of all queues serves everyone who asks for one."""
_SERVICE = Caller("", "", "operators")
Found = dict[int, QueueReading | None]
"""By queue id; None where no shard answers. Queues that never held a message are absent."""


class Readings:
    """Asks the leaders."""

    def __init__(self, router: Router, queues: QueueView, monotonic_s: Callable[[], float]) -> None:
        self._router = router
        self._queues = queues
        self._monotonic_s = monotonic_s
        self._all: asyncio.Task[Found] | None = None
        self._all_at_s = 0.0

    async def of(self, queues: Iterable[QueueDefinition]) -> Found:
        """Readings of these queues, in bounded steps."""
        by_shard: dict[int, list[QueueDefinition]] = {}
        whole: dict[int, int] = {}
        for queue in queues:
            for part in queue.all_parts():
                by_shard.setdefault(part.shard, []).append(part)
                whole[part.queue_id] = queue.queue_id
        found: Found = {}
        for group in by_shard.values():
            for begin in range(0, len(group), READ_QUEUES_MAX):
                step = await self._step(group[begin : begin + READ_QUEUES_MAX])
                for part_id, reading in step.items():
                    queue_id = whole[part_id]
                    is_first = queue_id not in found
                    found[queue_id] = reading if is_first else _sum(found[queue_id], reading)
        return found

    async def all(self) -> Found:
        """Readings of all queues, at most two seconds old; requests at one time share one."""
        now_s = self._monotonic_s()
        if self._all is None or (self._all.done() and now_s - self._all_at_s >= _FRESH_S):
            self._all_at_s = now_s
            self._all = asyncio.create_task(self.of(list(self._queues)))
        return await asyncio.shield(self._all)

    async def _step(self, queues: list[QueueDefinition]) -> Found:
        operation = ReadQueues([queue.queue_id for queue in queues])
        try:
            answer = await self._router.ask(Request(operation, queues[0], _SERVICE, "readings"))
        except QueueError:
            return dict.fromkeys(operation.queue_ids)
        assert isinstance(answer, QueuesRead)
        return {reading.queue_id: reading for reading in answer.queues}


_SUMS = (
    "visible",
    "in_flight",
    "delayed",
    "quarantined",
    "sent",
    "received",
    "deleted",
    "expired",
    "moved_in",
    "moved_out",
    "held",
)
_OLDEST = ("oldest_stored_ms", "oldest_receivable_ms")


def _sum(one: QueueReading | None, other: QueueReading | None) -> QueueReading | None:
    """The reading of two parts together; None if one of them is not known."""
    if one is None or other is None:
        return None
    sums = {name: getattr(one, name) + getattr(other, name) for name in _SUMS}
    for name in _OLDEST:
        known = filter(None, (getattr(one, name), getattr(other, name)))
        sums[name] = min(known, default=0)
    with_task = one if one.task is not None else other
    return msgspec.structs.replace(with_task, **sums)
