"""Two shards with a queue each, and a deliverer that goes from step to step on command."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from cluster.tests.driver import Driver
from cluster.tests.row_consistency import check_rows
from visibility.contract.errors import QueueError
from visibility.contract.model import Content, QueueCounters, QueueDefinition, Receipt
from visibility.contract.operations import Operation
from visibility.contract.outcomes import Accepted, Answer, OutboxPage, Transacted
from visibility.contract.stored_message import Arrival
from visibility.rules.archive_batches import the_shard
from visibility.rules.arrivals import AcceptMessages
from visibility.rules.departures import ClearOutbox, ReadOutbox
from visibility.rules.transactions import TransactedEntry, TransactMessages
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues

TOKEN, DIGEST = b"t" * 16, b"d" * 16


class ShardPair:
    """`source` in shard 0 has its dead-letter queue `letters` in shard 1."""

    def __init__(self, suffix: str = "", *, max_receive_count: int = 1) -> None:
        self.group = "g" if suffix else None
        self.letters = in_shard(1, prepared.queue_named("letters" + suffix, 2))
        self.source = prepared.queue_named(
            "source" + suffix,
            1,
            dead_letters_to=self.letters,
            max_receive_count=max_receive_count,
            VisibilityTimeout="5",
        )
        self.queues = KnownQueues(self.source, self.letters, prepared.queue_named("other", 9))
        self.shards = [Driver(self.queues, seed=number) for number in (0, 1)]
        self._checked: dict[Driver, int] = {}
        """Turns of those that were checked."""

    def restart(self, number: int) -> None:
        """Load a shard anew from its rows."""
        old = self.shards[number]
        self.shards[number] = Driver(self.queues, store=old.store, now_ms=old.now_ms, seed=number)

    def check(self) -> None:
        """Assert that memory and rows of both agree, where there were turns since the last time."""
        for shard in self.shards:
            if self._checked.get(shard) != shard.turns:
                check_rows(shard.store, shard.state)
                self._checked[shard] = shard.turns

    # -- clients -----------------------------------------------------------------------------------

    def send(
        self, *bodies: str, to: QueueDefinition | None = None, group: str | None = None
    ) -> None:
        queue = to or self.source
        for body in bodies:
            self._of(queue).submit(prepared.send(queue, body, group=group or self.group))

    def receive(self, queue: QueueDefinition, most: int = 10) -> list[str]:
        """Receive and keep; the source's dead letters depart instead."""
        return [body for body, _ in self.received(queue, most)]

    def received(self, queue: QueueDefinition, most: int = 10) -> list[tuple[str, Receipt]]:
        target = self.queues.dead_letter_queue(queue)
        request = prepared.receive(queue, most, dead_letter_queue=target)
        found = self._of(queue).submit(request).deliveries
        self.check()
        return [
            (message.data.decode(), Receipt(lease.sequence, lease.receive_count))
            for message, lease in zip(found.messages, found.leases, strict=True)
        ]

    def spend(self, *bodies: str) -> None:
        """Send messages, receive them, and let their leases end: the next receive is one too
        many."""
        self.send(*bodies)
        self.receive(self.source)
        self.pass_time(6_000)

    def delete(self, queue: QueueDefinition, receipt: Receipt) -> None:
        self._of(queue).submit(prepared.delete(queue, receipt))
        self.check()

    def transact(
        self,
        entries: Sequence[tuple[QueueDefinition, Content | Receipt]],
        *,
        at: int = 0,
        token: bytes = TOKEN,
        digest: bytes = DIGEST,
        delay_s: int | None = None,
    ) -> Transacted | QueueError:
        """Have a shard decide a transaction of these sends and deletes."""
        rows = [
            TransactedEntry(
                queue.queue_id, queue.version, delay_s if isinstance(part, Content) else None
            )
            for queue, part in entries
        ]
        operation = TransactMessages(rows, token, digest)
        request = prepared.prepared(the_shard(at), operation, [part for _, part in entries])
        reply = self.shards[at].submit(request)
        self.check()
        if reply.refusal is not None:
            return reply.refusal
        assert isinstance(reply.answer, Transacted)
        return reply.answer

    def counters(self, queue: QueueDefinition) -> QueueCounters:
        answer = self._of(queue).submit(prepared.counters(queue)).answer
        assert isinstance(answer, QueueCounters)
        return answer

    def pass_time(self, ms: int) -> None:
        for shard in self.shards:
            shard.pass_time(ms)

    def _of(self, queue: QueueDefinition) -> Driver:
        return self.shards[queue.shard]

    # -- the deliverer -----------------------------------------------------------------------------

    def read(self, source: int = 0) -> OutboxPage:
        """The source's messages for the other shard."""
        page = self._ask(source, ReadOutbox(1 - source))
        assert isinstance(page, OutboxPage)
        return page

    def accept(
        self, arrivals: list[Arrival], floors: list[tuple[bytes, int]] | None = None, at: int = 1
    ) -> list[tuple[bytes, int, str]]:
        """Have the other shard take messages; returns the outcomes."""
        answer = self._ask(at, AcceptMessages(arrivals, floors or []))
        assert isinstance(answer, Accepted)
        return answer.outcomes

    def clear(self, outcomes: list[tuple[bytes, int, str]], source: int = 0) -> None:
        """Tell the source what became of its messages."""
        assert self._ask(source, ClearOutbox(outcomes)) is None

    def deliver(self, source: int = 0) -> None:
        """All steps, until the outbox is empty and the other shard has forgotten."""
        while (page := self.read(source)).arrivals:
            self._deliver(page, source)
        self.accept([], page.floors, at=1 - source)

    def deliver_once(self, source: int = 0) -> None:
        """The steps for one page."""
        self._deliver(self.read(source), source)

    def _deliver(self, page: OutboxPage, source: int) -> None:
        self.clear(self.accept(page.arrivals, page.floors, at=1 - source), source)

    def _ask(self, number: int, operation: Operation) -> Answer:
        answer = self.shards[number].submit(prepared.prepared(the_shard(number), operation)).answer
        self.check()
        return answer


def in_shard(number: int, queue: QueueDefinition) -> QueueDefinition:
    """The same queue in another shard."""
    return msgspec.structs.replace(queue, shard=number)
