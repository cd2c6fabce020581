"""A model of a standard queue, as simple as possible: a list of messages and the time.

No window, no disk, no heap, no event: `test_standard_model.py` compares the engine
with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from visibility.contract.model import QueueCounters, Receipt

HOUR_MS = 3_600_000


@dataclass
class ModelMessage:
    """A message in the queue where it is now. `order` is its place in the line there."""

    body: bytes
    queue_id: int
    order: int
    sent_at_ms: int
    due_ms: int = 0
    """The end of its delay, 0 once it is over."""
    visible_at_ms: int = 0
    receive_count: int = 0
    base_count: int = 0
    first_received_at_ms: int = 0
    received_at_ms: int | None = None
    """The latest receive in this place; None when there was none or it was given back."""
    at_the_back: bool = False
    """True if it went to the end of the line and is untouched since."""
    lease_was_here: bool = False
    """True if it was received in this queue, even if returned since."""
    joined_at_ms: int = 0
    """When it came from another queue, 0 for one that was sent here."""
    shown: int = 0
    """The order in which clients made messages visible; 0 where time does."""

    @property
    def received_here(self) -> int:
        return self.receive_count - self.base_count


@dataclass(frozen=True)
class Handle:
    """One delivery of one message, as a client knows it."""

    queue_id: int
    body: bytes
    receipt: Receipt


@dataclass(frozen=True)
class Taken:
    """A received message as the client sees it."""

    body: bytes
    receive_count: int
    first_received_at_ms: int


@dataclass
class Timed:
    """A model in which things happen at instants."""

    now_ms: int

    def next_instant(self) -> int | None:
        raise NotImplementedError

    def settle(self) -> None:
        raise NotImplementedError

    def pass_time(self, ms: int) -> None:
        """Everything happens when it is due."""
        end_ms = self.now_ms + ms
        while (next_ms := self.next_instant()) is not None and next_ms <= end_ms:
            self.now_ms = next_ms
            self.settle()
        self.now_ms = end_ms


@dataclass
class Model(Timed):
    """All queues of a shard. Bodies are unique and name the messages."""

    retention_ms: int = 345_600_000
    limits: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Redrive policies: (target queue id, max receive count) by queue id."""
    keeps: Callable[[bytes], bool] = lambda body: False
    """Which messages their redrive policy cannot move, by body."""
    messages: dict[bytes, ModelMessage] = field(default_factory=dict)
    handles: list[Handle] = field(default_factory=list)
    gone: set[bytes] = field(default_factory=set)
    archived: dict[bytes, str] = field(default_factory=dict)
    """Reasons why they left, by body, until the archive has them."""
    arrivals: int = 0

    def copy(self) -> Model:
        return replace(
            self,
            messages={body: replace(message) for body, message in self.messages.items()},
            handles=list(self.handles),
            gone=set(self.gone),
            archived=dict(self.archived),
        )

    def _next(self) -> int:
        self.arrivals += 1
        return self.arrivals

    def _of(self, queue_id: int) -> list[ModelMessage]:
        return [message for message in self.messages.values() if message.queue_id == queue_id]

    # -- time --------------------------------------------------------------------------------------

    def next_instant(self) -> int | None:
        """Time of the next spontaneous change, None for never."""
        instants = [
            at_ms
            for message in self.messages.values()
            for at_ms in (message.due_ms, message.visible_at_ms, self._expires_ms(message))
            if at_ms > self.now_ms
        ]
        return min(instants, default=None)

    def _expires_ms(self, message: ModelMessage) -> int:
        return max(message.sent_at_ms + self.retention_ms, message.due_ms)

    def settle(self) -> None:
        """Apply everything due by now: ends of delays, then moves to the back, then expiry."""
        now_ms = self.now_ms
        due = [m for m in self.messages.values() if 0 < m.due_ms <= now_ms]
        for message in sorted(due, key=lambda m: (m.due_ms, m.order)):
            message.due_ms = 0
            message.order = self._next()
        tired = [m for m in self.messages.values() if m.visible_at_ms <= now_ms and self._tired(m)]
        for message in sorted(tired, key=lambda m: (m.visible_at_ms, m.shown, m.order)):
            self._to_the_back(message)
        for message in list(self.messages.values()):
            if not message.due_ms and self._expires_ms(message) <= now_ms:
                self._end(message)
                self.archived[message.body] = "expired"

    def _tired(self, message: ModelMessage) -> bool:
        """Received three times, and not about to become a dead letter."""
        if message.receive_count < 3 or message.at_the_back or not message.lease_was_here:
            return False
        _, allowed = self.limits.get(message.queue_id, (0, 1 << 31))
        return message.received_here < allowed

    def _to_the_back(self, message: ModelMessage) -> None:
        message.order = self._next()
        message.at_the_back = True
        message.received_at_ms = None
        message.visible_at_ms = 0

    def _end(self, message: ModelMessage) -> None:
        del self.messages[message.body]
        self.gone.add(message.body)

    # -- calls of clients --------------------------------------------------------------------------

    def send(self, queue_id: int, body: bytes, delay_s: int) -> None:
        due_ms = self.now_ms + delay_s * 1000 if delay_s else 0
        self.messages[body] = ModelMessage(body, queue_id, self._next(), self.now_ms, due_ms)

    def visible(self, queue_id: int) -> list[ModelMessage]:
        """In the order of the line."""
        found = [message for message in self._of(queue_id) if self._is_visible(message)]
        return sorted(found, key=lambda message: message.order)

    def counters(self, queue_id: int) -> QueueCounters:
        delayed = sum(m.due_ms > self.now_ms for m in self._of(queue_id))
        in_flight = sum(m.visible_at_ms > self.now_ms for m in self._of(queue_id))
        return QueueCounters(len(self.visible(queue_id)), in_flight, delayed)

    def receive(self, queue_id: int, most: int, timeout_s: int) -> list[Taken]:
        target_id, allowed = self.limits.get(queue_id, (0, 1 << 31))
        taken: list[Taken] = []
        moves = 0
        for message in self.visible(queue_id):
            if len(taken) == most or (moves == 100 and taken):
                break
            if message.received_here >= allowed and not self.keeps(message.body):
                self._move(message, target_id)
                moves = moves % 100 + 1
                continue
            taken.append(self.take(message, timeout_s))
        self.settle()
        return taken

    def take(self, message: ModelMessage, timeout_s: int) -> Taken:
        """Hand out this message. The caller settles."""
        message.receive_count += 1
        message.first_received_at_ms = message.first_received_at_ms or self.now_ms
        message.received_at_ms = self.now_ms
        self._hide(message, timeout_s)
        return Taken(message.body, message.receive_count, message.first_received_at_ms)

    def _hide(self, message: ModelMessage, timeout_s: int) -> None:
        message.at_the_back = False
        message.lease_was_here = True
        message.visible_at_ms = self.now_ms + timeout_s * 1000
        message.shown = 0 if timeout_s else self._next()

    def _move(self, message: ModelMessage, target_id: int) -> None:
        message.queue_id = target_id
        message.order = self._next()
        message.visible_at_ms = 0
        message.received_at_ms = None
        message.at_the_back = message.lease_was_here = False
        message.base_count = message.receive_count
        message.joined_at_ms = self.now_ms

    def _named(self, handle: Handle) -> ModelMessage | None:
        message = self.messages.get(handle.body)
        return message if message is not None and message.queue_id == handle.queue_id else None

    def _is_visible(self, message: ModelMessage) -> bool:
        return max(message.visible_at_ms, message.due_ms) <= self.now_ms

    def delete(self, handle: Handle) -> None:
        """Unless a newer receive holds it, or it is not here any more."""
        message = self._named(handle)
        if message is None or message.receive_count < handle.receipt.delivery:
            return
        if self._is_visible(message) or message.receive_count == handle.receipt.delivery:
            self._end(message)
            self.archived[message.body] = "deleted"

    def change(self, handle: Handle, timeout_s: int) -> bool:
        """False if it is refused: the message is not here any more, or would be hidden for over 12
        hours.

        A visible message stays so. The caller settles.
        """
        message = self._named(handle)
        if message is None or message.receive_count < handle.receipt.delivery:
            return False
        if self._is_visible(message):
            return True
        assert message.received_at_ms is not None
        visible_at_ms = self.now_ms + timeout_s * 1000
        if timeout_s and visible_at_ms >= message.received_at_ms + 12 * HOUR_MS:
            return False
        self._hide(message, timeout_s)
        return True

    def give_back(self, handle: Handle) -> None:
        """As if that delivery had not been, if it is the latest and the message is not at the back.
        The caller settles."""
        message = self._named(handle)
        if message is None or message.receive_count != handle.receipt.delivery:
            return
        if message.at_the_back:
            return
        message.receive_count -= 1
        if not message.receive_count:
            message.first_received_at_ms = 0
        if not message.received_here:
            message.received_at_ms = None
        message.visible_at_ms = self.now_ms
        message.shown = self._next()

    def purge(self, queue_id: int) -> None:
        """All of the queue's messages leave."""
        for message in self._of(queue_id):
            self._end(message)
            self.archived[message.body] = "deleted"
