"""What a standard queue must do, said as simply as possible: a list of messages and the time.

Source: SQS.md 5.4 to 5.6 and 7. No window, no disk, no heap, no event: `test_engine_model.py` compares the engine with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from visibility.model import QueueCounters, Receipt

HOUR_MS = 3_600_000


@dataclass
class ModelMessage:
    """A message in the queue where it is now. `order` is the order of arrival there."""

    body: bytes
    queue_id: int
    order: int
    visible_at_ms: int = 0
    receive_count: int = 0
    base_count: int = 0
    first_received_at_ms: int = 0
    received_at_ms: int | None = 0
    """The latest receive; None when that one was given back."""

    @property
    def received_here(self) -> bool:
        return self.receive_count > self.base_count


@dataclass(frozen=True)
class Handle:
    """One delivery of one message, as a client knows it."""

    queue_id: int
    body: bytes
    receipt: Receipt


@dataclass(frozen=True)
class Taken:
    """What a client sees of a received message."""

    body: bytes
    receive_count: int
    first_received_at_ms: int


@dataclass
class Model:
    """All queues of a shard. Bodies are unique and name the messages."""

    now_ms: int
    messages: dict[bytes, ModelMessage] = field(default_factory=dict)
    purged_at_ms: dict[int, int] = field(default_factory=dict)
    handles: list[Handle] = field(default_factory=list)
    gone: set[bytes] = field(default_factory=set)
    arrivals: int = 0

    def copy(self) -> Model:
        return Model(
            self.now_ms,
            {body: replace(message) for body, message in self.messages.items()},
            dict(self.purged_at_ms),
            list(self.handles),
            set(self.gone),
            self.arrivals,
        )

    def send(self, queue_id: int, body: bytes, delay_s: int) -> None:
        self.arrivals += 1
        visible_at_ms = self.now_ms + delay_s * 1000
        self.messages[body] = ModelMessage(body, queue_id, self.arrivals, visible_at_ms)

    def visible(self, queue_id: int) -> list[ModelMessage]:
        """Oldest first."""
        found = [
            message
            for message in self.messages.values()
            if message.queue_id == queue_id and message.visible_at_ms <= self.now_ms
        ]
        return sorted(found, key=lambda message: message.order)

    def counters(self, queue_id: int) -> QueueCounters:
        hidden = [
            message
            for message in self.messages.values()
            if message.queue_id == queue_id and message.visible_at_ms > self.now_ms
        ]
        in_flight = sum(message.received_here for message in hidden)
        return QueueCounters(len(self.visible(queue_id)), in_flight, len(hidden) - in_flight)

    def receive(
        self, queue_id: int, most: int, timeout_s: int, dead_letters: tuple[int, int] | None
    ) -> list[Taken]:
        """`dead_letters` is (target queue id, max receive count)."""
        taken: list[Taken] = []
        for message in self.visible(queue_id):
            if len(taken) == most:
                break
            received = message.receive_count - message.base_count
            if dead_letters is not None and received >= dead_letters[1]:
                self._move(message, dead_letters[0])
                continue
            message.receive_count += 1
            message.first_received_at_ms = message.first_received_at_ms or self.now_ms
            message.received_at_ms = self.now_ms
            message.visible_at_ms = self.now_ms + timeout_s * 1000
            taken.append(Taken(message.body, message.receive_count, message.first_received_at_ms))
        return taken

    def _move(self, message: ModelMessage, target_id: int) -> None:
        self.arrivals += 1
        message.queue_id = target_id
        message.order = self.arrivals
        message.visible_at_ms = 0
        message.base_count = message.receive_count

    def _named(self, handle: Handle) -> ModelMessage | None:
        message = self.messages.get(handle.body)
        return message if message is not None and message.queue_id == handle.queue_id else None

    def delete(self, handle: Handle) -> None:
        """Unless it was received again since, or is not here any more."""
        message = self._named(handle)
        if message is not None and message.receive_count == handle.receipt.delivery:
            del self.messages[handle.body]
            self.gone.add(handle.body)

    def change(self, handle: Handle, timeout_s: int) -> bool:
        """False if it is refused: the message is not here any more, or would be hidden for over 12 hours."""
        message = self._named(handle)
        if message is None or message.receive_count < handle.receipt.delivery:
            return False
        visible_at_ms = self.now_ms + timeout_s * 1000
        limit_ms = (message.received_at_ms or self.now_ms) + 12 * HOUR_MS
        if timeout_s and visible_at_ms >= limit_ms:
            return False
        message.visible_at_ms = visible_at_ms
        return True

    def give_back(self, handle: Handle) -> None:
        """As if that delivery had not been, if it is the latest."""
        message = self._named(handle)
        if message is None or message.receive_count != handle.receipt.delivery:
            return
        message.receive_count -= 1
        if not message.receive_count:
            message.first_received_at_ms = 0
        message.received_at_ms = None
        message.visible_at_ms = self.now_ms

    def purge(self, queue_id: int) -> bool:
        """False if the last one was less than 60 s ago."""
        last_ms = self.purged_at_ms.get(queue_id)
        if last_ms is not None and self.now_ms - last_ms < 60_000:
            return False
        for body in [m.body for m in self.messages.values() if m.queue_id == queue_id]:
            del self.messages[body]
            self.gone.add(body)
        self.purged_at_ms[queue_id] = self.now_ms
        return True
