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


class Entry(NamedTuple):
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
        rows: list[TransactedEntry] = []
        of_deletes: dict[int, QueueDefinition] = {}
        for queue, part, delay_s in entries:
            place = queue
            if isinstance(part, Receipt):
                way = queue.way_of(part.sequence)
                place = way[attempt % len(way)]
                of_deletes.setdefault(place.shard, queue)
            rows.append(TransactedEntry(place.queue_id, queue.version, delay_s))
        if len(of_deletes) > 1:
            raise InvalidParameterValue(
                "The messages to delete are in different shards of the service, so one transaction "
                "cannot delete all of them."
            )
        queue = entries[0].queue
        shard, queue = next(iter(of_deletes.items()), (queue.shard, queue))
        others = self._shards_of(queue) - {shard} if queue.parts or queue.gone else ()
        for other in sorted(others):
            question = FindTransaction(*token, queue.queue_id, queue.version)
            found = await self._ask(question, other, caller)
            if found is not None:
                return found, other
        transaction = TransactMessages(rows, *token)
        parts = tuple([each.part for each in entries])
        done = await self._ask(transaction, shard, caller, parts)
        assert done is not None
        return done, shard

    def _shards_of(self, queue: QueueDefinition) -> set[int]:
        """The shards of the queue's parts, and of those that went lately."""
        since_ms = self._now_ms() - REMEMBERED_MS
        gone = {part.shard for part in queue.gone if part.gone_at_ms >= since_ms}
        return {part.shard for part in queue.all_parts()} | gone - {-1}

    async def is_settled(self, token: Token, shard: int, caller: Caller) -> bool:
        """True if all that an accepted transaction sent is in its queues. Raises QueueError."""
        found = await self._ask(FindTransaction(*token, 0, 0), shard, caller)
        return found is not None and found.is_settled

    async def _ask(
        self,
        operation: Operation,
        shard: int,
        caller: Caller,
        parts: tuple[Content | Receipt, ...] = (),
    ) -> Transacted | None:
        request_id = f"{self._bits128():032x}"
        answer = await self._ask_shard(
            Request(operation, the_shard(shard), caller, request_id, parts)
        )
        assert answer is None or isinstance(answer, Transacted)
        return answer
