"""A model of a FIFO queue, as simple as possible: groups as lists of messages, places in a line,
time.

The order, in words: every message gets a number when it is sent. A group that may give messages has
a place in the line of groups. It gets the place when it becomes so: the number of the message that
arrived, or a fresh number when a message is no longer in flight. It loses the place at a receive,
or when its messages may not be received. A receive goes through the groups by place, and takes from
each the messages before the first one in flight.

`test_fifo_model.py` compares the engine with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from cluster.tests.standard_model import Handle, Timed
from visibility.contract.model import QueueCounters

WINDOW_MS = 300_000


@dataclass
class FifoMessage:
    """A message where it is now; `number` is its order there."""

    body: bytes
    queue_id: int
    group: str
    number: int
    sent_at_ms: int
    retained_from_ms: int
    delayed: bool = False
    visible_at_ms: int | None = None
    """The end of its time in flight, None where it is not."""
    receive_count: int = 0
    base_count: int = 0
    first_received_at_ms: int = 0
    received_at_ms: int = 0

    @property
    def received_here(self) -> int:
        return self.receive_count - self.base_count


Taken = tuple[bytes, int, int]
"""(body, receive count, first received at)."""


@dataclass
class FifoModel(Timed):
    """The queues of a shard. Bodies are unique and name the messages."""

    retention_ms: dict[int, int] = field(default_factory=dict)
    limits: dict[int, tuple[int, int]] = field(default_factory=dict)
    """(target, max receive count) by queue."""
    keeps: Callable[[bytes], bool] = lambda body: False
    """Which messages their redrive policy cannot move, by body."""
    delay_ms: dict[int, int] = field(default_factory=dict)
    messages: dict[bytes, FifoMessage] = field(default_factory=dict)
    places: dict[tuple[int, str], int] = field(default_factory=dict)
    ids: dict[tuple[int, str, str], tuple[int, object]] = field(default_factory=dict)
    attempts: dict[tuple[int, str], tuple[int, list[tuple[bytes, int, int]]]] = field(
        default_factory=dict
    )
    archived: dict[bytes, str] = field(default_factory=dict)
    """Reasons why they left, by body, until the archive has them."""
    handles: list[Handle] = field(default_factory=list)
    numbers: int = 0

    def copy(self) -> FifoModel:
        return replace(
            self,
            messages={body: replace(message) for body, message in self.messages.items()},
            delay_ms=self.delay_ms,
            places=dict(self.places),
            ids=dict(self.ids),
            attempts=dict(self.attempts),
            archived=dict(self.archived),
            handles=list(self.handles),
        )

    def _next(self) -> int:
        self.numbers += 1
        return self.numbers

    def of_queue(self, queue_id: int) -> list[FifoMessage]:
        found = [m for m in self.messages.values() if m.queue_id == queue_id]
        return sorted(found, key=lambda m: m.number)

    # -- the line of groups ------------------------------------------------------------------------

    def receivable(self, queue_id: int, group: str) -> list[FifoMessage]:
        """The group's messages before the first that is in flight."""
        found: list[FifoMessage] = []
        for message in self.of_queue(queue_id):
            if message.group == group and not message.delayed:
                if message.visible_at_ms is not None:
                    break
                found.append(message)
        return found

    def _place(self, queue_id: int, group: str, number: int | None = None) -> None:
        """Give the group a place, or take it away, depending on its receivable messages."""
        name = (queue_id, group)
        if not self.receivable(queue_id, group):
            self.places.pop(name, None)
        elif name not in self.places:
            self.places[name] = self._next() if number is None else number

    def _line(self, queue_id: int) -> list[str]:
        mine = [
            (place, group) for (owner, group), place in self.places.items() if owner == queue_id
        ]
        return [group for _, group in sorted(mine)]

    def _settle(self, messages: Iterable[FifoMessage]) -> None:
        """End the flight of these messages, which wait again or are gone."""
        for queue_id, group in dict.fromkeys((m.queue_id, m.group) for m in messages):
            self._place(queue_id, group)

    # -- time --------------------------------------------------------------------------------------

    def next_instant(self) -> int | None:
        """Time of the next spontaneous change, None for never."""
        instants = [
            at_ms
            for m in self.messages.values()
            for at_ms in (m.visible_at_ms or 0, self._due_ms(m), self._expires_ms(m))
            if at_ms > self.now_ms
        ]
        return min(instants, default=None)

    def _due_ms(self, message: FifoMessage) -> int:
        return message.sent_at_ms + self.delay_ms.get(message.queue_id, 0) if message.delayed else 0

    def _expires_ms(self, message: FifoMessage) -> int:
        return message.retained_from_ms + self.retention_ms[message.queue_id]

    def settle(self) -> None:
        """Apply everything due by now: ends of flights, then of delays, then expiry."""
        now_ms = self.now_ms
        ended = [
            m
            for m in self.messages.values()
            if m.visible_at_ms is not None and m.visible_at_ms <= now_ms
        ]
        ended.sort(key=lambda m: (m.visible_at_ms or 0, m.number))
        for message in ended:
            message.visible_at_ms = None
        self._settle(ended)
        for queue_id in self.retention_ms:
            for message in self.of_queue(queue_id):
                if message.delayed and self._due_ms(message) <= now_ms:
                    message.delayed = False
                    self._place(queue_id, message.group, message.number)
            old = [
                m
                for m in self.of_queue(queue_id)
                if not m.delayed and self._expires_ms(m) <= now_ms
            ]
            for message in old:
                del self.messages[message.body]
                self.archived[message.body] = "expired"
            self._settle(old)

    # -- calls of clients --------------------------------------------------------------------------

    def duplicate_of(self, queue_id: int, scope: str, text: str) -> object:
        """The answer to the first send with this id, None if this is the first."""
        at_ms, answer = self.ids.get((queue_id, scope, text), (0, None))
        return answer if at_ms > self.now_ms - WINDOW_MS else None

    def remember(self, queue_id: int, scope: str, text: str, answer: object) -> None:
        self.ids[queue_id, scope, text] = (self.now_ms, answer)

    def send(self, queue_id: int, body: bytes, group: str) -> None:
        number = self._next()
        delayed = bool(self.delay_ms.get(queue_id))
        self.messages[body] = FifoMessage(
            body, queue_id, group, number, self.now_ms, self.now_ms, delayed
        )
        if not delayed:
            self._place(queue_id, group, number)

    def counters(self, queue_id: int) -> QueueCounters:
        mine = self.of_queue(queue_id)
        delayed = sum(m.delayed for m in mine)
        in_flight = sum(m.visible_at_ms is not None for m in mine)
        return QueueCounters(len(mine) - delayed - in_flight, in_flight, delayed)

    def receive(
        self, queue_id: int, most: int, timeout_s: int, attempt: str | None = None
    ) -> list[Taken] | None:
        """None if it is refused."""
        until_ms = self.now_ms + timeout_s * 1000
        if attempt is not None:
            if self._is_used_up(queue_id, attempt):
                return None
            again = self._again(queue_id, attempt)
            if again and timeout_s:
                return self._deliver(queue_id, again, until_ms, attempt)
        taken: list[FifoMessage] = []
        for group in self._line(queue_id):
            for message in self.receivable(queue_id, group):
                if len(taken) == most:
                    break
                target_id, allowed = self.limits.get(queue_id, (0, 1 << 31))
                spent = message.receive_count - message.base_count >= allowed
                if spent and not self.keeps(message.body):
                    self._bury(message, target_id)
                else:
                    taken.append(message)
                    message.receive_count += 1
                    message.first_received_at_ms = message.first_received_at_ms or self.now_ms
                    message.received_at_ms = self.now_ms
        for message in taken:
            message.visible_at_ms = until_ms
        for message in taken:
            self._place(queue_id, message.group)
        answer = self._deliver(queue_id, taken, until_ms, attempt) if taken else []
        if not timeout_s:
            for message in taken:
                message.visible_at_ms = None
            self._settle(taken)
        return answer

    def _deliver(
        self, queue_id: int, messages: list[FifoMessage], until_ms: int, attempt: str | None
    ) -> list[Taken]:
        for message in messages:
            message.visible_at_ms = until_ms
        if attempt is not None:
            named = [(m.body, m.receive_count, until_ms) for m in messages]
            self.attempts[queue_id, attempt] = (self.now_ms, named)
        return [(m.body, m.receive_count, m.first_received_at_ms) for m in messages]

    def _is_used_up(self, queue_id: int, attempt: str) -> bool:
        """True if a message of the attempt is gone or got another visibility timeout before its
        first one was over, not if the attempt's answer was given back."""
        at_ms, named = self.attempts.get((queue_id, attempt), (0, []))
        if at_ms <= self.now_ms - WINDOW_MS:
            return False
        for body, receive_count, until_ms in named:
            m = self.messages.get(body)
            if until_ms <= self.now_ms:
                continue
            if m is None or m.queue_id != queue_id or m.receive_count > receive_count:
                return True
            is_latest = m.receive_count == receive_count and m.received_at_ms <= at_ms
            if is_latest and m.visible_at_ms != until_ms:
                return True
        return False

    def _again(self, queue_id: int, attempt: str) -> list[FifoMessage] | None:
        """The messages of the attempt, if nothing happened to any of them since."""
        at_ms, named = self.attempts.get((queue_id, attempt), (0, []))
        if at_ms <= self.now_ms - WINDOW_MS:
            return None
        found: list[FifoMessage] = []
        for body, receive_count, until_ms in named:
            m = self.messages.get(body)
            if m is None or (m.queue_id, m.receive_count) != (queue_id, receive_count):
                return None
            if m.visible_at_ms != until_ms or until_ms <= self.now_ms:
                return None
            found.append(m)
        return found

    def _bury(self, message: FifoMessage, target_id: int) -> None:
        source = (message.queue_id, message.group)
        message.queue_id = target_id
        message.number = self._next()
        message.base_count = message.receive_count
        message.retained_from_ms = self.now_ms
        self._place(*source)
        self._place(target_id, message.group, message.number)

    def held(self, handle: Handle) -> FifoMessage | None:
        """The message, if it is in flight by this very delivery."""
        m = self.messages.get(handle.body)
        if m is None or m.queue_id != handle.queue_id or m.visible_at_ms is None:
            return None
        return m if m.receive_count == handle.receipt.delivery else None

    def is_here(self, handle: Handle) -> bool:
        m = self.messages.get(handle.body)
        return m is not None and m.queue_id == handle.queue_id

    def delete(self, handles: list[Handle]) -> list[bool]:
        """True for each handle that succeeds: not if it expired, but also if the message is
        gone."""
        here = [self.is_here(handle) for handle in handles]
        found = [self.held(handle) for handle in handles]
        gone = {m.body: m for m in found if m is not None}
        for body in gone:
            del self.messages[body]
            self.archived[body] = "deleted"
        self._settle(gone.values())
        return [m is not None or not was for m, was in zip(found, here, strict=True)]

    def change(self, handle: Handle, timeout_s: int) -> bool:
        message = self.held(handle)
        if message is None:
            return False
        message.visible_at_ms = self.now_ms + timeout_s * 1000 if timeout_s else None
        self._settle([message])
        return True

    def give_back(self, handles: list[Handle]) -> None:
        back = {m.body: m for handle in handles if (m := self.held(handle)) is not None}
        for m in back.values():
            m.receive_count -= 1
            m.visible_at_ms = None
            if not m.receive_count:
                m.first_received_at_ms = 0
        self._settle(back.values())

    def purge(self, queue_id: int) -> None:
        for message in self.of_queue(queue_id):
            del self.messages[message.body]
            self.archived[message.body] = "deleted"
        self.places = {name: at for name, at in self.places.items() if name[0] != queue_id}
        self.ids = {name: known for name, known in self.ids.items() if name[0] != queue_id}
        self.attempts = {n: known for n, known in self.attempts.items() if n[0] != queue_id}
