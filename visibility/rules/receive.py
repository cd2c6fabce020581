"""The decision on ReceiveMessage: in-flight limit, dead-letter rule, retention, waiting.

The order of the queue offers messages (`order.py`); the receive takes them, moves them to the
dead-letter queue, or passes them by.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

import msgspec

from visibility.contract.death import MAX_RECEIVES
from visibility.contract.errors import Moved
from visibility.contract.limits import IN_FLIGHT_MAX, VISIBILITY_TIMEOUT
from visibility.contract.model import QueueSettings, Request
from visibility.contract.operations import ReceiveMessage
from visibility.contract.outcomes import Deliveries
from visibility.contract.priority import PRIORITY_TAG
from visibility.contract.retry_backoff import RETRY_MIN_TAG, retry_wait_ms
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rules.at_most_once import hidden_until_ms
from visibility.rules.closing_parts import FindMessages, gives_nothing, in_flight_max
from visibility.rules.dead_letters import DeadLetters
from visibility.rules.decided import NO_MESSAGES, NoAnswer, Outcome
from visibility.rules.events import Event
from visibility.rules.groups import GroupBook
from visibility.rules.leases import first_lease, next_lease, no_lease
from visibility.rules.levelling import hold_back, paced, receive_room, without_messages
from visibility.rules.message_events import MessagesReceived, VisibilityChanged
from visibility.rules.operation_kinds import OperationKind, Operations, Replay
from visibility.rules.order import Fate
from visibility.rules.orders import order_of, receiving_order
from visibility.rules.retention import TooOld
from visibility.state.queue_state import QueueState
from visibility.state.rows import MessagesMissing
from visibility.state.shard_state import ShardState
from visibility.state.short_answers import ShortAnswer, ShortReceive
from visibility.state.stamp import Stamp

_VISIBILITY_MAX_MS = VISIBILITY_TIMEOUT.high * 1000


def decide_receive_message(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Take the next visible messages; park or answer empty if there are none."""
    settings = request.queue.settings
    taking = _Taking(shard, request, stamp)
    if request.queue.parts and gives_nothing(shard, taking.queue, stamp.now_ms):
        return taking.nothing(), ()
    events = receiving_order(settings).choose(taking)
    if taking.leases:
        return Deliveries(taking.leases, taking.messages), events
    return taking.nothing(), events


def wait_ms(operation: ReceiveMessage | FindMessages, settings: QueueSettings) -> int:
    """Time for which this receive may wait: its own, or by default the queue's."""
    asked_s = operation.wait_time_seconds
    return settings.wait_ms if asked_s is None else asked_s * 1000


def waiting_on(request: Request, left_s: float) -> Request:
    """The same receive with the rest of its wait, rounded up to a second."""
    operation = msgspec.structs.replace(request.operation, wait_time_seconds=max(0, ceil(left_s)))
    return msgspec.structs.replace(request, operation=operation)


class _Taking:
    """A receive while an order offers it messages."""

    __slots__ = (
        "_letters",
        "_too_old",
        "comes_again",
        "is_held_back",
        "leases",
        "limit",
        "messages",
        "operation",
        "queue",
        "request",
        "reserved",
        "shard",
        "stamp",
        "visible_at_ms",
    )

    def __init__(self, shard: ShardState, request: Request, stamp: Stamp) -> None:
        operation = request.operation
        assert isinstance(operation, ReceiveMessage)
        queue = shard.queue(request.queue.queue_id)
        hidden_s = operation.visibility_timeout
        settings = request.queue.settings
        hide_ms = settings.visibility_timeout_ms if hidden_s is None else hidden_s * 1000
        self.shard = shard
        self.queue = queue
        self.request = request
        self.operation = operation
        self.stamp = stamp
        left = in_flight_max(request.queue) if request.queue.parts else IN_FLIGHT_MAX
        left -= queue.in_flight
        self.is_held_back = False
        self.reserved = 0
        wanted = operation.max_number_of_messages or 1
        self.visible_at_ms = stamp.now_ms + hide_ms
        if settings.own_tags:
            self.visible_at_ms = hidden_until_ms(settings, operation, self.visible_at_ms)
            if left > 0:
                room = receive_room(queue, request.queue, stamp.now_ms)
                self.is_held_back = room <= 0
                if self.is_held_back and PRIORITY_TAG in settings.own_tags:
                    highest = receive_room(queue, request.queue, stamp.now_ms, highest=True)
                    self.reserved = min(wanted, left, highest)
                left = min(left, room)
        self.limit = min(wanted, left)
        self.comes_again = False
        self.leases: list[Lease] = []
        self.messages: list[StoredMessage] = []
        self._letters: DeadLetters = None  # type: ignore[assignment]
        """None unless messages are looked at one by one."""
        self._too_old: TooOld

    def look_at_each(self) -> None:
        settings = self.request.queue.settings
        target = self.request.dead_letter_queue
        self._letters = DeadLetters(
            self.shard, self.request.queue, target, self.stamp, MAX_RECEIVES
        )
        self._too_old = TooOld(self.shard, self.queue, settings, self.stamp)

    @property
    def waits(self) -> bool:
        return wait_ms(self.operation, self.request.queue.settings) > 0

    @property
    def is_over(self) -> bool:
        return len(self.leases) >= self.limit or self._letters.is_full or self._too_old.is_over

    @property
    def book(self) -> GroupBook:
        return self._letters.source_book

    def locks(self, group: bytes) -> bool:
        return self._letters.locks(group)

    def passes(self, lease: Lease) -> bool:
        return self._too_old.passes(lease)

    def take(self, untouched: Iterable[tuple[int, StoredMessage]]) -> None:
        visible_at_ms, now_ms = self.visible_at_ms, self.stamp.now_ms
        leases, messages = self.leases, self.messages
        for sequence, message in untouched:
            leases.append(first_lease(sequence, message, visible_at_ms, now_ms))
            messages.append(message)
        if RETRY_MIN_TAG in self.request.queue.settings.own_tags:
            self.leases = [self._with_wait(lease) for lease in leases]

    def offer(self, sequence: int, message: StoredMessage | None, lease: Lease | None) -> Fate:
        aged = message or lease
        assert aged is not None
        if self._too_old.passes(aged):
            return Fate.PASSED
        if lease is None:
            assert message is not None
            received = message.received_here
        else:
            received = lease.receive_count - lease.base_count
        letters, waits = self._letters, message is not None
        message = message or self._read(sequence)
        if letters.wants(received):
            before = lease or no_lease(sequence, message)
            if letters.move(before, message, waits=waits):
                return Fate.LEFT
        visible_at_ms, now_ms = self.visible_at_ms, self.stamp.now_ms
        taken = (
            first_lease(sequence, message, visible_at_ms, now_ms)
            if lease is None
            else next_lease(lease, visible_at_ms, now_ms)
        )
        if RETRY_MIN_TAG in self.request.queue.settings.own_tags:
            taken = self._with_wait(taken)
        self.leases.append(taken)
        self.messages.append(message)
        return Fate.TAKEN

    def _with_wait(self, lease: Lease) -> Lease:
        """The lease with its wait, none before the receive that makes a dead letter of the
        message."""
        settings, receives = self.request.queue.settings, lease.receive_count - lease.base_count
        policy = settings.redrive_policy
        if policy and self.request.dead_letter_queue and receives >= policy.max_receive_count:
            return lease
        wait_ms = retry_wait_ms(settings.own_tags, receives, self.stamp.bits128())
        return msgspec.structs.replace(lease, retry_ms=wait_ms)

    def _read(self, sequence: int) -> StoredMessage:
        (message,) = self.shard.rows.messages(self.queue.queue_id, [sequence])
        if message is None:
            raise MessagesMissing(self.queue.queue_id, sequence)
        return message

    def events(self) -> tuple[Event, ...]:
        letters = () if self._letters is None else self._letters.events()
        if not self.leases:
            return letters
        now_ms = self.stamp.now_ms
        received = MessagesReceived(self.queue.queue_id, now_ms, self.leases)
        if not self.request.queue.settings.own_tags:
            return (*letters, received)
        rate = paced(self.queue, self.request.queue, now_ms, len(self.leases))
        return (*letters, received, *rate)

    def nothing(self) -> Deliveries | NoAnswer:
        """The answer without messages."""
        letters = self._letters
        if self.is_held_back:
            hold_back(self.shard, self.queue, self.request.queue, self.stamp.now_ms)
        if self.comes_again or (
            letters is not None and ((letters.is_full and letters.moved) or self._too_old.is_over)
        ):
            return NoAnswer.DEFER
        if not self.waits:
            return without_messages(self.queue, is_held_back=self.is_held_back)
        if self.request.queue.parts:  # it would not hear of messages in other parts
            raise Moved()
        # A queue may be its own dead-letter queue: messages that just moved can be received.
        return NoAnswer.DEFER if letters is not None and letters.come_back else NoAnswer.PARK


# -- the same answer to a retry --------------------------------------------------------------------


def _short_receive(request: Request, answer: Deliveries) -> ShortAnswer:
    deliveries = [(lease.sequence, lease.receive_count) for lease in answer.leases]
    return ShortReceive(request.queue.queue_id, deliveries)


def _receive_again(
    short: ShortReceive, shard: ShardState, request: Request, stamp: Stamp
) -> Outcome:
    """Give the messages whose lease still stands, hidden for their full time from now on.

    The others count as received: their client's connection was too slow. After a purge that is
    all of them.
    """
    operation = request.operation
    assert isinstance(operation, ReceiveMessage)
    now_ms, queue = stamp.now_ms, shard.queue(request.queue.queue_id)
    hidden_s = operation.visibility_timeout
    hide_ms = request.queue.settings.visibility_timeout_ms if hidden_s is None else hidden_s * 1000
    too_old = TooOld(shard, queue, request.queue.settings, stamp)
    leases = [
        msgspec.structs.replace(
            lease,
            visible_at_ms=max(
                lease.visible_at_ms,
                min(now_ms + hide_ms, lease.received_at_ms + _VISIBILITY_MAX_MS),
            ),
        )
        for lease in _standing(queue, short, now_ms)
        if not too_old.passes(lease)
    ]
    if not leases:
        return NO_MESSAGES, ()
    found = shard.rows.messages(queue.queue_id, [lease.sequence for lease in leases])
    messages = [message for message in found if message is not None]
    if len(messages) < len(leases):
        raise MessagesMissing(queue.queue_id, leases[found.index(None)].sequence)
    changed = VisibilityChanged(queue.queue_id, now_ms, leases)
    attempt = order_of(request.queue.settings).attempt(queue, operation, leases, now_ms)
    return Deliveries(leases, messages), (changed, *attempt)


def _standing(queue: QueueState, short: ShortReceive, now_ms: int) -> list[Lease]:
    """The leases of a receive that are not over."""
    if short.queue_id != queue.queue_id:
        return []
    found = [
        (entry.lease, receive_count)
        for sequence, receive_count in short.deliveries
        if (entry := queue.entries.get(sequence)) is not None and sequence not in queue.quarantined
    ]
    return [
        lease
        for lease, receive_count in found
        if lease.receive_count == receive_count
        and lease.visible_at_ms > now_ms
        and not lease.is_held
        and not lease.is_taken  # its first answer may have reached the client
        and not lease.is_prepared
    ]


OPERATIONS: Operations = {
    ReceiveMessage: OperationKind(
        decide_receive_message,
        Deliveries,
        Replay(_short_receive, (ShortReceive,), _receive_again),
    )
}
