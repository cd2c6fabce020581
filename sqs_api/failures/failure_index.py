"""FailureIndex: the failures of all dead-letter queues whose shards this process leads.

A few times a second it finds what came, reads it and counts it, for a bounded share of the time,
and has the shard keep notes of what is counted. After a start, or when this process takes the lead
of a shard, it reads the notes and counts the rest; the reports say how far it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

import msgspec

from cluster.catalog.queue_view import QueueView
from cluster.shards.router import Router
from cluster.shards.shard_report import News
from sqs_api.admin.every_host import EveryHost
from sqs_api.failures.counted_failures import Counted, Group
from sqs_api.failures.queue_pass import QueuePass
from sqs_api.failures.span_notes import SERVICE, Notes
from sqs_api.gateway.sealer import Sealer
from sqs_api.parts import Feature, Process
from sqs_api.periodic import Every, in_slices
from visibility.contract.errors import QueueError
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.outcomes import BrowsedPage
from visibility.rows.row_changes import Ops
from visibility.rows.row_keys import queue_of
from visibility.rules.browse import BrowseMessages

FAILURES = "failures"
"""The question to other hosts."""
MESSAGES_MAX = 10_000_000
"""Messages that a process counts: some 200 MB. Beyond that it counts no more of them."""
LOOK_S = 0.5
FIND_S = 5.0
"""Interval at which queues are found that became dead-letter queues."""
_SLICE = 100
_LOOK_MAX_S = 1.0
_SHARE_MIN_S = 0.05
"""Time of a look that a queue gets at least."""
_PAUSES = 4.0
"""Pauses are this many times as long as the work, so that counting takes a fifth of the time."""
_PAUSES_ASKED = 1.0
"""The same for a queue that somebody has looked at within _ASKED_S."""
_ASKED_S = 5.0
ASKED_MAX_S = 0.4
_LOADING_MAX_S = 3.0
"""Notes of five million messages are read in about a second."""
_NOTE_MAX_S = 0.2
_DETAILED_MAX = 200
"""Failures that are reported with their times; the largest of a part."""


class GroupReport(msgspec.Struct, frozen=True, array_like=True):
    """The messages of one failure in a part of a queue. Times are in seconds."""

    failure_id: str
    signs: tuple[tuple[str, str], ...]
    messages: int
    sources: dict[str, int]
    first_s: int
    last_s: int
    retained_from_s: int
    span_s: int
    spans: list[tuple[int, int]]
    """Beginnings and messages; empty for failures that are small beside others."""
    samples: list[int]
    """Sequences."""


class PartReport(msgspec.Struct, frozen=True, array_like=True):
    """The failures in a queue, or in one part of it."""

    queue_id: int
    groups: list[GroupReport]
    rest: int
    """Messages of failures beyond the bound."""
    counted: int
    stored: int
    is_exact: bool
    """False while messages are still to be counted."""


class FailureIndex:
    """The index of one process."""

    def __init__(
        self,
        queues: QueueView,
        router: Router,
        sealer: Sealer,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._queues = queues
        self._router = router
        self._sealer = sealer
        self._monotonic_s = monotonic_s
        self._passes: dict[int, QueuePass] = {}
        """By the id of the queue or part."""
        self._locks: dict[int, asyncio.Lock] = {}
        self._asked_s: dict[int, float] = {}
        """Times at which somebody looked at them last."""
        self._busy: dict[int, None] = {}
        """Those with messages to count; the first was longest not looked at."""
        self._unnoted: dict[int, None] = {}
        """Those with spans that may need a note, in the same order."""
        self._notes = Notes(router, sealer)
        self._found: tuple[int, list[int]] = (-1, [])
        """The catalog's revision, and the shards led here, as of which queues were found."""
        self._find_at_s = 0.0
        for shard in router.shards.values():
            shard.subscribe(self._on_news)

    # -- which queues ------------------------------------------------------------------------------

    def _on_news(self, number: int, news: News) -> None:
        if news is News.LEADS:
            for queue_id, each in self._passes.items():
                if each.queue.shard == number:
                    each.begin_anew()
                    self._busy[queue_id] = None

    async def _find(self) -> None:
        """Follow the dead-letter queues whose shards this process leads now."""
        self._find_at_s = self._monotonic_s() + FIND_S
        led = [number for number in self._router.shards if self._router.leads(number)]
        if self._found == (self._queues.revision, led):
            return
        self._found = (self._queues.revision, led)
        found: dict[int, QueueDefinition] = {}
        async for queues in in_slices(list(self._queues), _SLICE):
            for queue in queues:
                target = self._queues.dead_letter_queue(queue)
                for part in target.all_parts() if target is not None else ():
                    if self._router.leads(part.shard):
                        found[part.queue_id] = part
        left = self._passes.keys() - found.keys()
        for queue_id in left:
            del self._passes[queue_id], self._locks[queue_id]
            self._asked_s.pop(queue_id, None)
        for queue_id, part in found.items():
            if queue_id in self._passes:
                self._passes[queue_id].queue = part
            else:
                self._passes[queue_id] = QueuePass(part, self._notes)
                self._locks[queue_id] = asyncio.Lock()
                self._busy[queue_id] = None
        for number, shard in self._router.shards.items():
            shard.follow([each for each, part in found.items() if part.shard == number], self._see)
        for queue_id in self._led(left):  # no dead-letter queues any more
            other = self._queues.queue_of_id(queue_id)
            if other is not None:
                with suppress(QueueError):
                    await self._notes.forget(other)

    def _see(self, ops: Ops) -> None:
        """Pass on the row changes of an Entry."""
        passes, busy, unnoted = self._passes, self._busy, self._unnoted
        for key, change in zip(ops[::2], ops[1::2], strict=True):
            assert isinstance(key, bytes)
            queue_id = queue_of(key)
            if queue_id in passes:
                passes[queue_id].on_row(key, change)
                busy[queue_id] = unnoted[queue_id] = None

    # -- counting ----------------------------------------------------------------------------------

    async def look(self) -> None:
        """Count what came and take notes, for a bounded time."""
        if self._monotonic_s() >= self._find_at_s:
            await self._find()
        if self._busy:
            await self._count_some()
        if self._unnoted:
            await self._note_some()

    async def _note_some(self) -> None:
        until_s = self._monotonic_s() + _NOTE_MAX_S
        for queue_id in list(self._unnoted):
            del self._unnoted[queue_id]
            each = self._passes.get(queue_id)
            if each is None:
                continue
            async with self._locks[queue_id]:
                with suppress(QueueError):  # the shard, or a key, is away for now
                    await each.take_notes()
            if each.unnoted:
                self._unnoted[queue_id] = None
            if self._monotonic_s() >= until_s:
                return

    async def _count_some(self) -> None:
        until_s = self._monotonic_s() + _LOOK_MAX_S
        has_room = sum(each.counted.weight for each in self._passes.values()) < MESSAGES_MAX
        for queue_id in list(self._busy):
            now_s = self._monotonic_s()
            if now_s >= until_s:
                return
            share_s = max(_SHARE_MIN_S, (until_s - now_s) / len(self._busy))
            del self._busy[queue_id]
            each = self._passes.get(queue_id)
            if each is None:
                continue
            each.has_room = has_room
            if each.is_exact and each.counted.would_gain:
                each.count_anew()
            is_watched = now_s < self._asked_s.get(queue_id, -_ASKED_S) + _ASKED_S
            pauses = _PAUSES_ASKED if is_watched else _PAUSES
            await self._count(queue_id, now_s + share_s, pauses)
            if not each.is_exact:
                self._busy[queue_id] = None
            if each.unnoted:
                self._unnoted[queue_id] = None

    async def _count(self, queue_id: int, until_s: float, pauses: float) -> None:
        """Read pages of a queue until all is counted, or the time is over."""
        loading_until_s = max(until_s, self._monotonic_s() + _LOADING_MAX_S)
        while (each := self._passes.get(queue_id)) is not None and each.has_work:
            async with self._locks[queue_id]:
                begun_s = self._monotonic_s()
                try:
                    await each.step(self._browse, self._sealer.open)
                except QueueError:  # the shard, or a key, is away for now
                    return
                took_s = self._monotonic_s() - begun_s
            await asyncio.sleep(0 if each.is_loading else took_s * pauses)
            if self._monotonic_s() >= (loading_until_s if each.is_loading else until_s):
                return

    async def _browse(self, part: QueueDefinition, look: BrowseMessages) -> BrowsedPage:
        page = await self._router.ask_here(Request(look, part, SERVICE, "failures"))
        assert isinstance(page, BrowsedPage)
        return page

    # -- reports -----------------------------------------------------------------------------------

    async def answer(self, content: bytes) -> bytes:
        """The reports of queues by their ids, for any host: both in msgpack."""
        queue_ids = msgspec.msgpack.decode(content, type=list[int])
        return msgspec.msgpack.encode(await self.reports(queue_ids))

    async def reports(self, queue_ids: Collection[int]) -> list[PartReport]:
        """Those of these queues and parts that this process counts. What came just now is counted
        before, as far as that takes no time to notice."""
        led = list(self._led(queue_ids))
        if not self._passes.keys() >= set(led):
            await self._find()
        until_s = self._monotonic_s() + ASKED_MAX_S
        here = [each for each in led if each in self._passes]
        for queue_id in here:
            self._asked_s[queue_id] = self._monotonic_s()
            await self._count(queue_id, until_s, _PAUSES_ASKED)
        stored = self._stored(here)
        return [
            _report(queue_id, self._passes[queue_id], stored.get(queue_id, 0))
            for queue_id in here
            if queue_id in self._passes
        ]

    def _led(self, queue_ids: Iterable[int]) -> Iterable[int]:
        for queue_id in queue_ids:
            queue = self._queues.queue_of_id(queue_id)
            if queue is not None and self._router.leads(queue.shard):
                yield queue_id

    def _stored(self, queue_ids: Iterable[int]) -> dict[int, int]:
        return {
            report.queue_id: report.stored
            for shard in self._router.shards.values()
            for report in shard.queues(queue_ids)
        }


def counting(
    process: Process, queues: QueueView, router: Router, sealer: Sealer, hosts: EveryHost
) -> Feature:
    """Count the failures of the queues here, for all hosts."""
    index = FailureIndex(queues, router, sealer, process.clock.monotonic_s)
    hosts.serve(FAILURES, index.answer)
    return Feature(periodic=(Every(LOOK_S, index.look),))


def _report(queue_id: int, each: QueuePass, stored: int) -> PartReport:
    counted = each.counted
    groups = sorted(counted.groups.items(), key=lambda item: -item[1].messages)
    return PartReport(
        queue_id,
        [
            _group_report(counted, failure_id, group, with_times=place < _DETAILED_MAX)
            for place, (failure_id, group) in enumerate(groups)
        ],
        counted.rest.messages,
        counted.messages,
        stored,
        each.is_exact,
    )


def _group_report(
    counted: Counted, failure_id: str, group: Group, *, with_times: bool
) -> GroupReport:
    return GroupReport(
        failure_id,
        group.failure.signs if group.failure else (),
        group.messages,
        dict(group.sources),
        group.seen.first_s,
        group.seen.last_s,
        group.retained.first_s,
        group.seen.span_s,
        group.seen.counts() if with_times else [],
        list(counted.live_samples(group)) if with_times else [],
    )
