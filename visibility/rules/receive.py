"""The decision on ReceiveMessage: in-flight limit, dead-letter rule, retention, waiting.

The order of the queue offers messages (`order.py`); the receive takes them, moves them to the
dead-letter queue, or passes them by.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from visibility.contract.limits import IN_FLIGHT_MAX
from visibility.contract.model import QueueSettings, Request
from visibility.contract.operations import ReceiveMessage
from visibility.contract.outcomes import Deliveries
from visibility.contract.retry_backoff import RETRY_MIN_TAG, retry_wait_ms
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rules.dead_letters import DeadLetters
from visibility.rules.decided import NoAnswer, Outcome
from visibility.rules.groups import GroupBook
from visibility.rules.leases import first_lease, next_lease, no_lease
from visibility.rules.order import Fate
from visibility.rules.orders import order_of
from visibility.rules.retention import TooOld
from visibility.state.events import Event, MessagesReceived
from visibility.state.rows import MessagesMissing
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp

_NONE = Deliveries([], [])


def decide_receive_message(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Take the next visible messages; park or answer empty if there are none."""
    settings = request.queue.settings
    taking = _Taking(shard, request, stamp)
    events = order_of(settings).choose(taking)
    if taking.leases:
        return Deliveries(taking.leases, taking.messages), events
    return taking.nothing(), events


def wait_ms(operation: ReceiveMessage, settings: QueueSettings) -> int:
    """Time for which this receive may wait: its own, or by default the queue's."""
    asked_s = operation.wait_time_seconds
    return settings.wait_ms if asked_s is None else asked_s * 1000


class _Taking:
    """See `order.Taking`."""

    __slots__ = (
        "_letters",
        "_too_old",
        "comes_again",
        "leases",
        "limit",
        "messages",
        "operation",
        "queue",
        "request",
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
        self.limit = min(operation.max_number_of_messages or 1, IN_FLIGHT_MAX - queue.in_flight)
        self.visible_at_ms = stamp.now_ms + hide_ms
        self.comes_again = False
        self.leases: list[Lease] = []
        self.messages: list[StoredMessage] = []
        self._letters: DeadLetters = None  # type: ignore[assignment]
        """None unless messages are looked at one by one."""
        self._too_old: TooOld

    def look_at_each(self) -> None:
        """See `order.Taking`."""
        settings = self.request.queue.settings
        self._letters = DeadLetters(self.shard, self.request, self.stamp)
        self._too_old = TooOld(self.shard, self.queue, settings, self.stamp)

    @property
    def waits(self) -> bool:
        """See `order.Taking`."""
        return wait_ms(self.operation, self.request.queue.settings) > 0

    @property
    def is_over(self) -> bool:
        """See `order.Taking`."""
        return len(self.leases) >= self.limit or self._letters.is_full or self._too_old.is_over

    @property
    def book(self) -> GroupBook:
        """See `order.Taking`."""
        return self._letters.source_book

    def locks(self, group: bytes) -> bool:
        """See `order.Taking`."""
        return self._letters.locks(group)

    def passes(self, lease: Lease) -> bool:
        """See `order.Taking`."""
        return self._too_old.passes(lease.retained_from_ms)

    def take(self, untouched: Iterable[tuple[int, StoredMessage]]) -> None:
        """See `order.Taking`."""
        visible_at_ms, now_ms = self.visible_at_ms, self.stamp.now_ms
        leases, messages = self.leases, self.messages
        for sequence, message in untouched:
            leases.append(first_lease(sequence, message, visible_at_ms, now_ms))
            messages.append(message)
        if RETRY_MIN_TAG in self.request.queue.settings.own_tags:
            self.leases = [self._with_wait(lease) for lease in leases]

    def offer(self, sequence: int, message: StoredMessage | None, lease: Lease | None) -> Fate:
        """See `order.Taking`."""
        if lease is None:
            assert message is not None
            retained_from_ms, received = message.retained_from_ms, message.received_here
        else:
            retained_from_ms = (message or lease).retained_from_ms
            received = lease.receive_count - lease.base_count
        if self._too_old.passes(retained_from_ms):
            return Fate.PASSED
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
        """See `order.Taking`."""
        letters = () if self._letters is None else self._letters.events()
        if not self.leases:
            return letters
        return (
            *letters,
            MessagesReceived(self.queue.queue_id, self.stamp.now_ms, self.leases),
        )

    def nothing(self) -> Deliveries | NoAnswer:
        """The answer without messages."""
        letters = self._letters
        if self.comes_again or (
            letters is not None and ((letters.is_full and letters.moved) or self._too_old.is_over)
        ):
            return NoAnswer.DEFER
        if not self.waits:
            return _NONE
        # A queue may be its own dead-letter queue: messages that just moved can be received.
        return NoAnswer.DEFER if letters is not None and letters.come_back else NoAnswer.PARK
