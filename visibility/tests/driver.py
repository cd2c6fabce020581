"""Drives an Engine as `cluster/shard.py` does, but at once and on a clock that stands still until it is told to go.

What a request will need is read first, then it is decided, its events go to the disk, and long polls wake. Any object
that keeps events can be the disk: `ListDisk` here, a Store in `storage/tests`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from visibility.engine import DECIDE, Engine, PageWanted
from visibility.errors import QueueDoesNotExist, QueueError
from visibility.events import (
    Event,
    MessageDeadLettered,
    MessagesDeleted,
    MessagesSent,
    QueueDropped,
    QueuePurged,
    StoredMessage,
)
from visibility.invariants import check_shard
from visibility.model import Request
from visibility.operations import ReceiveMessage
from visibility.outcomes import Answer, Deliveries, NoAnswer
from visibility.receive import wait_ms
from visibility.stamp import Stamp
from visibility.state import QueueState

START_MS = 1_700_000_000_000
NOTHING = Deliveries([], [])


class Disk(Protocol):
    """What a driver needs to keep and read events."""

    def write(self, event: Event) -> None:
        """Keep what the event says."""

    def read_page(self, page: PageWanted) -> tuple[list[tuple[int, StoredMessage]], int]:
        """The messages of the page, and the sequence up to which they are all there."""

    def read_message(self, queue_id: int, sequence: int) -> StoredMessage:
        """One message."""

    def commit(self, queues: Iterable[QueueState]) -> None:
        """End a turn that changed these queues."""


class ListDisk:
    """Messages in a dict: the least that can be paged."""

    def __init__(self) -> None:
        self.messages: dict[tuple[int, int], StoredMessage] = {}

    def write(self, event: Event) -> None:
        messages = self.messages
        if isinstance(event, MessagesSent):
            for sequence, _, message in event.numbered():
                messages[event.queue_id, sequence] = message
        elif isinstance(event, MessagesDeleted):
            for sequence in event.sequences:
                del messages[event.queue_id, sequence]
        elif isinstance(event, MessageDeadLettered):
            old = messages.pop((event.queue_id, event.sequence))
            messages[event.target_queue_id, event.target_sequence] = StoredMessage(
                old.message_id,
                old.sent_at_ms,
                old.size,
                old.data,
                old.sealed,
                event.source_arn,
                event.receive_count,
                event.first_received_at_ms,
            )
        elif isinstance(event, QueuePurged | QueueDropped):
            for name in [name for name in messages if name[0] == event.queue_id]:
                del messages[name]

    def read_page(self, page: PageWanted) -> tuple[list[tuple[int, StoredMessage]], int]:
        found = sorted(
            (sequence, message)
            for (queue_id, sequence), message in self.messages.items()
            if queue_id == page.queue_id and page.from_sequence <= sequence < page.until_sequence
        )
        if len(found) > page.messages:
            return found[: page.messages], found[page.messages][0]
        return found, page.until_sequence

    def read_message(self, queue_id: int, sequence: int) -> StoredMessage:
        return self.messages[queue_id, sequence]

    def commit(self, queues: Iterable[QueueState]) -> None:
        pass


class Reply:
    """The answer of a request, once it has one."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.until_ms = 0
        """When its waiting ends, once it has begun to wait."""
        self.answers: list[Answer | QueueError] = []

    @property
    def waits(self) -> bool:
        """Whether there is no answer yet: a long poll."""
        return not self.answers

    @property
    def answer(self) -> Answer:
        """The answer, which must be there and no refusal."""
        (answer,) = self.answers
        assert not isinstance(answer, QueueError), answer.message
        return answer

    @property
    def refusal(self) -> QueueError | None:
        """The refusal, if it was refused."""
        (answer,) = self.answers
        return answer if isinstance(answer, QueueError) else None

    @property
    def deliveries(self) -> Deliveries:
        """The answer of a receive."""
        assert isinstance(self.answer, Deliveries)
        return self.answer


class Driver:
    """One shard, its disk and its time."""

    def __init__(self, disk: Disk, *, engine: Engine | None = None, now_ms: int = START_MS) -> None:
        self.disk = disk
        self.engine = engine or Engine()
        self.now_ms = now_ms
        self._wrote = False
        self._changed: dict[int, None] = {}
        self._bits = 1

    def submit(self, request: Request) -> Reply:
        """One turn with one request."""
        return self.turn([request])[0]

    def pass_time(self, ms: int) -> None:
        """Let the clock go on, stopping at every deadline as the shard's timer does."""
        end_ms = self.now_ms + ms
        while (next_ms := self.engine.next_deadline_ms()) is not None and next_ms <= end_ms:
            self.now_ms = max(self.now_ms, next_ms)
            self.turn([])
        self.now_ms = end_ms
        self.turn([])

    def turn(self, requests: Sequence[Request]) -> list[Reply]:
        """Decide the requests; all of them are answered or wait when this returns."""
        replies = [Reply(request) for request in requests]
        todo = list(replies)
        while True:
            self._advance()
            for queue_id, messages in _demand(todo).items():
                self._load(queue_id, messages)
            todo = [reply for reply in todo if not self._decide(reply, parked=False)]
            todo += self._wake()
            self._commit()
            if not todo:
                return replies

    def _commit(self) -> None:
        queues = self.engine.state.queues
        if self._wrote:
            self.disk.commit([queues[queue_id] for queue_id in self._changed if queue_id in queues])
        self._changed = {}
        self._wrote = False
        check_shard(self.engine.state)

    def _advance(self) -> None:
        for wait in self.engine.advance(self.now_ms):
            assert isinstance(wait.ticket, Reply)
            wait.ticket.answers.append(NOTHING)

    def _load(self, queue_id: int, messages: int) -> None:
        page = self.engine.wants(queue_id, messages)
        if page is not None:
            found, head = self.disk.read_page(page)
            assert self.engine.load(page, found, head) == 0, "the disk lost messages"

    def _decide(self, reply: Reply, *, parked: bool) -> bool:
        """Whether the reply has its answer or is parked; else it must be decided again."""
        request = reply.request
        self._bits = self._bits * 6364136223846793005 + 1442695040888963407 & (1 << 128) - 1
        try:
            answer, events = DECIDE[type(request.operation)](
                self.engine.state, request, Stamp(self.now_ms, self._bits)
            )
        except QueueError as refusal:
            reply.answers.append(refusal)
            return True
        for event in events:
            self._write(event)
        if answer is NoAnswer.DEFER:
            return False
        if answer is NoAnswer.PARK:
            if not parked:
                assert isinstance(request.operation, ReceiveMessage)
                wait = wait_ms(request.operation, request.queue.settings)
                reply.until_ms = reply.until_ms or self.now_ms + wait
                self.engine.park(request, reply, reply.until_ms)
            return True
        assert not isinstance(answer, NoAnswer)
        if isinstance(answer, Deliveries):
            answer = self._pinned(request.queue.queue_id, answer)
        reply.answers.append(answer)
        return True

    def _pinned(self, queue_id: int, deliveries: Deliveries) -> Deliveries:
        messages = [
            message or self.disk.read_message(queue_id, lease.sequence)
            for lease, message in zip(deliveries.leases, deliveries.messages, strict=True)
        ]
        return Deliveries(deliveries.leases, list(messages))

    def _write(self, event: Event) -> None:
        self.engine.apply(event)
        self.disk.write(event)
        self._wrote = True
        self._changed[event.queue_id] = None
        if isinstance(event, MessageDeadLettered):
            self._changed[event.target_queue_id] = None
        if isinstance(event, QueueDropped):
            for wait in self.engine.state.waits.of_queue(event.queue_id):
                self.engine.state.waits.remove(wait.number)
                assert isinstance(wait.ticket, Reply)
                wait.ticket.answers.append(QueueDoesNotExist())

    def _wake(self) -> list[Reply]:
        """Serve those who wait, longest first; returns the replies that must be decided again."""
        waits = self.engine.state.waits
        deferred: list[Reply] = []
        while self.engine.stirred:
            stirred, self.engine.stirred = self.engine.stirred, {}
            for queue_id in stirred:
                while (wait := waits.first(queue_id)) is not None:
                    assert isinstance(wait.ticket, Reply)
                    if not self._decide(wait.ticket, parked=True):
                        deferred.append(wait.ticket)
                    elif wait.ticket.waits:
                        break
                    waits.remove(wait.number)
        return deferred


def _demand(replies: Iterable[Reply]) -> dict[int, int]:
    demand: dict[int, int] = {}
    for reply in replies:
        operation = reply.request.operation
        if isinstance(operation, ReceiveMessage):
            queue_id = reply.request.queue.queue_id
            wanted = operation.max_number_of_messages or 1
            demand[queue_id] = demand.get(queue_id, 0) + wanted
    return demand
