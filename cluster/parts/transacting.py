"""Transacting: the way of a transaction to the shard that decides it.

That is the shard of the messages to delete, else that of the first queue's home. Where parts of
that queue changed lately, another shard may have decided an earlier try. So those with a part, or
with one until lately, are asked for the token first, by the present version of the queue: after
that none of them accepts it any more (rule 48).

If the messages to delete are in several shards, the highest of these decides. The others prepare
the deletes before, one after the other, and have the outcome asked for as soon as it is there.
Before anything is prepared, the highest is asked whether it can decide: what waits for a shard
that does not answer is hidden for as long.

A message that travels from part to part is looked for at one part after the other: a part without
it answers Moved, and the caller tries the next; one that answers Departing is asked again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec

from auth.caller import Caller
from visibility.contract.model import Content, QueueDefinition, Receipt, Request
from visibility.contract.operations import Operation
from visibility.contract.outcomes import Answer, Prepared, Transacted
from visibility.rules.archive_batches import the_shard
from visibility.rules.prepared_deletes import AskPrepared
from visibility.rules.transactions import (
    REMEMBERED_MS,
    FindTransaction,
    PrepareDeletes,
    TransactedEntry,
    TransactMessages,
)

Ask = Callable[[Request], Awaitable[Answer]]
Tell = Callable[[Request], None]


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A send or a delete; `queue` is the whole one, `delay_s` is for sends."""

    queue: QueueDefinition
    part: Content | Receipt
    delay_s: int | None = None


class Token(NamedTuple):
    """The name of a transaction, and the digest of its entries; each has 16 bytes."""

    name: bytes
    digest: bytes


class _Plan(NamedTuple):
    """The way of one try."""

    shard: int
    """The one that decides."""
    asked: QueueDefinition
    """The queue because of which it does."""
    rows: list[TransactedEntry]
    parts: tuple[Content | Receipt, ...]
    elsewhere: dict[int, list[int]]
    """The places of the deletes of other shards, by shard, in their order."""

    @property
    def takes_space(self) -> bool:
        """True if something is sent."""
        return any(isinstance(part, Content) for part in self.parts)


def _has_changed(queue: QueueDefinition) -> bool:
    """True for a queue with several parts, now or lately."""
    return bool(queue.parts or queue.gone)


class Transacting:
    """Takes each transaction to its shard."""

    def __init__(
        self, ask: Ask, tell: Tell, bits128: Callable[[], int], now_ms: Callable[[], int]
    ) -> None:
        """`ask` has a shard decide a request, and raises QueueError; `tell` does so without waiting
        for the answer; `now_ms` reads the time in epoch milliseconds."""
        self._ask_shard = ask
        self._tell_shard = tell
        self._bits128 = bits128
        self._now_ms = now_ms

    async def decide(
        self, entries: Sequence[Entry], token: Token, caller: Caller, attempt: int
    ) -> tuple[Transacted, int]:
        """The outcome, and the number of the shard that has it. `attempt` counts from 0.

        Raises ServiceUnavailable, IdempotentParameterMismatch; Moved asks for another attempt, with
        the present definitions, and Departing for the same one again.
        """
        plan = self._plan(entries, attempt)
        found = await self._earlier(self._others(plan), plan.asked, token, caller)
        if found is None and plan.elsewhere:
            found = await self._earlier([plan.shard], plan.asked, token, caller, plan.takes_space)
        if found is not None:
            return found
        prepared: dict[int, tuple[bytes, int]] = {}
        asked: list[int] = []
        try:
            for shard, places in plan.elsewhere.items():
                asked.append(shard)
                there = await self._ask_shard(self._prepare(plan, shard, places, token, caller))
                assert isinstance(there, Prepared)
                if there.reasons:
                    reasons = [("", "")] * len(entries)
                    for place, reason in zip(places, there.reasons, strict=True):
                        reasons[place] = reason
                    refused = Transacted([], reasons)
                    return await self._cancelled(refused, plan, entries, token, caller)
                prepared[shard] = there.origin, there.number
            request = self._request_of(plan, token, caller, list(prepared.values()))
            done = await self._ask_shard(request)
            assert isinstance(done, Transacted)
            if done.reasons:
                return await self._cancelled(done, plan, entries, token, caller)
            return done, plan.shard
        finally:
            for shard in asked:
                self._tell_shard(self._request(AskPrepared(token.name), shard, caller))

    async def _cancelled(
        self,
        done: Transacted,
        plan: _Plan,
        entries: Sequence[Entry],
        token: Token,
        caller: Caller,
    ) -> tuple[Transacted, int]:
        """The outcome of a transaction that was refused: perhaps an earlier try was accepted, and
        deleted the messages that are missed now."""
        shards = {plan.shard, *plan.elsewhere} if plan.elsewhere else set[int]()
        for each in entries:
            if isinstance(each.part, Receipt) and _has_changed(each.queue):
                shards |= self._shards_of(each.queue)
        found = await self._earlier(sorted(shards), None, token, caller)
        return (done, plan.shard) if found is None else found

    async def _earlier(
        self,
        shards: Sequence[int],
        queue: QueueDefinition | None,
        token: Token,
        caller: Caller,
        takes_space: bool = False,
    ) -> tuple[Transacted, int] | None:
        """The answer of the shard that accepted an earlier try; `queue` and `takes_space`: see
        FindTransaction."""
        name = (0, 0) if queue is None else (queue.queue_id, queue.version)
        for shard in shards:
            question = FindTransaction(*token, *name, takes_space=takes_space)
            found = await self._ask(question, shard, caller)
            if found is not None:
                return found, shard
        return None

    def direct(self, entries: Sequence[Entry], token: Token, caller: Caller) -> Request | None:
        """The request of the first attempt to the shard that decides; None if others are to be
        asked, too."""
        plan = self._plan(entries, 0)
        if plan.elsewhere or self._others(plan):
            return None
        if any(isinstance(each.part, Receipt) and _has_changed(each.queue) for each in entries):
            return None
        return self._request_of(plan, token, caller, [])

    def _plan(self, entries: Sequence[Entry], attempt: int) -> _Plan:
        rows: list[TransactedEntry] = []
        of_deletes: dict[int, QueueDefinition] = {}
        places: dict[int, list[int]] = {}
        for number, each in enumerate(entries):
            place = queue = each.queue
            part = each.part
            if isinstance(part, Receipt):
                way = queue.way_of(part.sequence)
                place = way[attempt % len(way)]
                of_deletes.setdefault(place.shard, queue)
                places.setdefault(place.shard, []).append(number)
            rows.append(TransactedEntry(place.queue_id, queue.version, each.delay_s))
        parts = tuple([each.part for each in entries])
        if not of_deletes:
            return _Plan(entries[0].queue.shard, entries[0].queue, rows, parts, {})
        shard = max(of_deletes)
        elsewhere = {each: places[each] for each in sorted(places) if each != shard}
        return _Plan(shard, of_deletes[shard], rows, parts, elsewhere)

    def _others(self, plan: _Plan) -> Sequence[int]:
        """The shards that may have accepted an earlier try."""
        if not _has_changed(plan.asked):
            return ()
        return sorted(self._shards_of(plan.asked) - {plan.shard})

    def _prepare(
        self, plan: _Plan, shard: int, places: Sequence[int], token: Token, caller: Caller
    ) -> Request:
        rows = [plan.rows[place] for place in places]
        parts = tuple([plan.parts[place] for place in places])
        return self._request(PrepareDeletes(rows, *token, plan.shard), shard, caller, parts)

    def _request_of(
        self, plan: _Plan, token: Token, caller: Caller, prepared: list[tuple[bytes, int]]
    ) -> Request:
        rows = plan.rows
        for place in chain(*plan.elsewhere.values()):
            rows[place] = msgspec.structs.replace(rows[place], is_prepared=True)
        operation = TransactMessages(rows, *token, prepared, plan.takes_space)
        return self._request(operation, plan.shard, caller, plan.parts)

    def _shards_of(self, queue: QueueDefinition) -> set[int]:
        """The shards of the queue's parts, and of those that went lately."""
        since_ms = self._now_ms() - REMEMBERED_MS
        gone = {part.shard for part in queue.gone if part.gone_at_ms >= since_ms}
        return {part.shard for part in queue.all_parts()} | gone - {-1}

    async def is_settled(self, token: Token, shard: int, caller: Caller) -> bool:
        """Wait for SETTLING_MS at most; True if all that an accepted transaction sent is in its
        queues. Raises QueueError."""
        found = await self._ask_shard(self.settling(token, shard, caller))
        return isinstance(found, Transacted) and found.is_settled

    def settling(self, token: Token, shard: int, caller: Caller) -> Request:
        """The request that waits until an accepted transaction is settled."""
        return self._request(FindTransaction(*token, waits=True), shard, caller)

    async def _ask(
        self, question: FindTransaction, shard: int, caller: Caller
    ) -> Transacted | None:
        answer = await self._ask_shard(self._request(question, shard, caller))
        assert answer is None or isinstance(answer, Transacted)
        return answer

    def _request(
        self,
        operation: Operation,
        shard: int,
        caller: Caller,
        parts: tuple[Content | Receipt, ...] = (),
    ) -> Request:
        return Request(operation, the_shard(shard), caller, f"{self._bits128():032x}", parts)
