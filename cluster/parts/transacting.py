"""Transacting: the way of a transaction to the shard that decides it.

That is the shard of the messages to delete, else that of the first queue's home. Where parts of
that queue changed lately, another shard may have decided an earlier try. So those with a part, or
with one until lately, are asked for the token first, by the present version of the queue: after
that none of them accepts it any more (rule 48).

A message that travels from part to part is looked for at one part after the other: a part without
it answers Moved or Departing, and the caller tries again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import msgspec

from auth.caller import Caller
from visibility.contract.errors import InvalidParameterValue
from visibility.contract.model import Content, QueueDefinition, Receipt, Request
from visibility.contract.operations import Operation
from visibility.contract.outcomes import Answer, Transacted
from visibility.rules.archive_batches import the_shard
from visibility.rules.transactions import (
    REMEMBERED_MS,
    FindTransaction,
    TransactedEntry,
    TransactMessages,
)

Ask = Callable[[Request], Awaitable[Answer]]


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A send or a delete; `queue` is the whole one, `delay_s` is for sends."""

    queue: QueueDefinition
    part: Content | Receipt
    delay_s: int | None = None


class Token(NamedTuple):
    """The name of a transaction, and the digest of its entries; each has 16 bytes."""

    name: bytes
    digest: bytes


class Transacting:
    """Belongs to the event loop's thread."""

    def __init__(self, ask: Ask, bits128: Callable[[], int], now_ms: Callable[[], int]) -> None:
        """`ask` has a shard decide a request, and raises QueueError; `now_ms` reads the time in
        epoch milliseconds."""
        self._ask_shard = ask
        self._bits128 = bits128
        self._now_ms = now_ms

    async def decide(
        self, entries: Sequence[Entry], token: Token, caller: Caller, attempt: int
    ) -> tuple[Transacted, int]:
        """The outcome, and the number of the shard that has it. `attempt` counts from 0.

        Raises InvalidParameterValue, ServiceUnavailable, IdempotentParameterMismatch; Moved and
        Departing ask for another attempt, with the present definitions.
        """
        request, asked, others = self._prepared(entries, token, caller, attempt)
        for other in others:
            question = FindTransaction(*token, asked.queue_id, asked.version)
            found = await self._ask(question, other, caller)
            if found is not None:
                return found, other
        done = await self._ask_shard(request)
        assert isinstance(done, Transacted)
        return done, request.queue.shard

    def direct(self, entries: Sequence[Entry], token: Token, caller: Caller) -> Request | None:
        """The request of the first attempt to the shard that decides; None if others are to be
        asked before. Raises InvalidParameterValue."""
        request, _, others = self._prepared(entries, token, caller, 0)
        return None if others else request

    def _prepared(
        self, entries: Sequence[Entry], token: Token, caller: Caller, attempt: int
    ) -> tuple[Request, QueueDefinition, Sequence[int]]:
        """The request to the shard that decides; the queue whose shard that is, and the shards that
        are asked before."""
        rows: list[TransactedEntry] = []
        of_deletes: dict[int, QueueDefinition] = {}
        for each in entries:
            place = queue = each.queue
            part = each.part
            if isinstance(part, Receipt):
                way = queue.way_of(part.sequence)
                place = way[attempt % len(way)]
                of_deletes.setdefault(place.shard, queue)
            rows.append(TransactedEntry(place.queue_id, queue.version, each.delay_s))
        if len(of_deletes) > 1:
            raise InvalidParameterValue(
                "The messages to delete are in different shards of the service, so one transaction "
                "cannot delete all of them."
            )
        queue = entries[0].queue
        shard, queue = next(iter(of_deletes.items()), (queue.shard, queue))
        others = self._shards_of(queue) - {shard} if queue.parts or queue.gone else ()
        parts = tuple([each.part for each in entries])
        request = self._request(TransactMessages(rows, *token), shard, caller, parts)
        return request, queue, sorted(others)

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
