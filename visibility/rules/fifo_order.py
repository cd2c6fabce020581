"""The order of FIFO queues: groups by place, each with all messages it may give, then the next.

While a message of a group is in flight, no later one of that group is handed out. After its lease,
a message is at the front of its group again. A receive that repeats an attempt id within five
minutes gets the same deliveries again during their visibility timeout. It is refused if one of the
messages was deleted or had its visibility changed meanwhile.
Source: SQS developer guide; the order of groups recorded from AWS; the refusal as users of AWS
report it.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from itertools import takewhile

import msgspec
from typing_extensions import override

from visibility.content.id_digests import attempt_digest
from visibility.contract.errors import InvalidParameterValue
from visibility.contract.model import QueueSettings
from visibility.contract.operations import ReceiveMessage
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rows.row_values import Remembered
from visibility.rules.events import Event
from visibility.rules.groups import FifoBook, GroupBook
from visibility.rules.message_events import LeasesEnded, VisibilityChanged
from visibility.rules.order import Candidates, Fate, Order, Taking
from visibility.rules.remembered_ids import DeduplicationRecorded
from visibility.state.queue_state import QueueState
from visibility.state.rows import MessagesMissing, Rows
from visibility.state.shard_state import ShardState

_NO_END = 1 << 63
_LOOKED_AT_TO_GO = 100
"""Messages that are looked at to make room for others."""
_BYTES_TO_GO = 1 << 20


class Fifo(Order):
    """The order of a FIFO queue."""

    locks_groups = True
    handles_expire = True
    parts_have_groups = True

    @override
    def choose(self, taking: Taking) -> tuple[Event, ...]:
        """Nothing is taken while too many are in flight."""
        taking.look_at_each()
        repeated = self._repeated(taking)
        if repeated:
            return repeated
        queue, now_ms = taking.queue, taking.stamp.now_ms
        groups = _Groups(taking)
        read_ready_groups = partial(taking.shard.rows.ready_groups, queue.queue_id)
        for _, group in queue.ready_groups.in_order(read_ready_groups):
            if taking.is_over:
                break
            groups.take_from(group)
        events: tuple[Event, ...] = ()
        if taking.leases:
            over = [lease for lease in taking.leases if lease.receivable_at_ms <= now_ms]
            if over:  # the visibility timeout is 0
                groups.book.settle_all((), over)
                events = (self.ended(queue, over, now_ms),)
            events += self.attempt(queue, taking.operation, taking.leases, now_ms)
        return (*taking.events(), *events)

    @override
    def ready(self, queue: QueueState) -> int:
        """Its groups that are not blocked."""
        return queue.ready_groups.total

    @override
    def first_to_go(self, shard: ShardState, queue: QueueState, book: GroupBook) -> Candidates:
        """The oldest, unless an earlier one of its group is in flight, on its way or delayed. Few
        are looked at."""
        page = shard.rows.line(
            queue.queue_id,
            queue.floor,
            queue.next_sequence,
            messages=_LOOKED_AT_TO_GO,
            size=_BYTES_TO_GO,
            quarantined=queue.quarantined,
            spans=queue.spans,
        )
        waits = {*queue.quarantined.groups, *queue.locked}
        for sequence, message in page.messages:
            group = message.group
            held = queue.in_flight_by_group.get(group)
            if (held is not None and min(held) <= sequence) or book.departed(group):
                waits.add(group)
            if group not in waits and not book.row(group).delayed:
                yield sequence, message, None

    @override
    def book(
        self, shard: ShardState, queue: QueueState, blocked: Collection[bytes] | None = None
    ) -> GroupBook:
        return FifoBook(shard, queue, blocked)

    @override
    def due_ms(
        self, queue: QueueState, settings: QueueSettings, delay_s: int | None, now_ms: int
    ) -> int | None:
        """All messages are delayed or none, so that they stay in order."""
        return 0 if settings.delay_ms or queue.delayed else None

    @override
    def delay_ends_ms(self, due_ms: int, message: StoredMessage, settings: QueueSettings) -> int:
        """By the delay that the queue has now."""
        return message.sent_at_ms + settings.delay_ms

    @override
    def dead_letter_clock_ms(self, message: StoredMessage, now_ms: int) -> int:
        """That of the move."""
        return now_ms

    @override
    def may_wait_again(self, queue: QueueState) -> bool:
        """Each one waits in its group after its lease."""
        return True

    @override
    def history_of(
        self, rows: Rows, queue: QueueState, sequence: int, message: StoredMessage | Lease
    ) -> Lease | None:
        line = rows.group_line(queue.queue_id, message.group, sequence, 1)
        return line[0][1] if line and line[0][0] == sequence else None

    @override
    def ended(self, queue: QueueState, leases: list[Lease], now_ms: int) -> Event:
        return LeasesEnded(queue.queue_id, now_ms, leases)

    @override
    def attempt(
        self, queue: QueueState, operation: ReceiveMessage, leases: list[Lease], now_ms: int
    ) -> tuple[Event, ...]:
        attempt = operation.receive_request_attempt_id
        if not attempt:
            return ()
        deliveries = [
            (lease.sequence, lease.receive_count, lease.visible_at_ms) for lease in leases
        ]
        remembered = Remembered(now_ms, deliveries=deliveries)
        return (DeduplicationRecorded(queue.queue_id, [(attempt_digest(attempt), remembered)]),)

    def _repeated(self, taking: Taking) -> tuple[Event, ...]:
        """Take what the first receive with this attempt id got, with its time renewed.

        Takes nothing if there was none, or its messages cannot be given again. Raises
        InvalidParameterValue if one of them was deleted or had its visibility changed.
        """
        attempt = taking.operation.receive_request_attempt_id
        if not attempt:
            return ()
        rows, queue, now_ms = taking.shard.rows, taking.queue, taking.stamp.now_ms
        digest = attempt_digest(attempt)
        known = rows.remembered(queue.queue_id, [digest], now_ms).get(digest)
        if known is None:
            return ()
        if any(_was_changed(rows, queue, known, each, now_ms) for each in known.deliveries):
            raise InvalidParameterValue(
                f"Value {attempt} for parameter ReceiveRequestAttemptId is invalid. Reason: The "
                "receiveRequestAttemptId is not valid anymore since the receive call is not "
                "retryable."
            )
        if taking.visible_at_ms <= now_ms:
            return ()
        leases: list[Lease] = []
        for sequence, receive_count, until_ms in known.deliveries:
            entry = queue.entries.get(sequence)
            if (
                entry is None
                or entry.lease.receive_count != receive_count
                or entry.lease.visible_at_ms != until_ms
                or until_ms <= now_ms
                or sequence in queue.quarantined
                or taking.passes(entry.lease)
            ):
                return ()
            leases.append(msgspec.structs.replace(entry.lease, visible_at_ms=taking.visible_at_ms))
        found = rows.messages(queue.queue_id, [lease.sequence for lease in leases])
        messages = [message for message in found if message is not None]
        if len(messages) < len(leases):
            return ()
        taking.leases, taking.messages = leases, messages
        changed = VisibilityChanged(queue.queue_id, now_ms, leases)
        return (changed, *self.attempt(queue, taking.operation, leases, now_ms))


def _was_changed(
    rows: Rows, queue: QueueState, known: Remembered, delivery: tuple[int, int, int], now_ms: int
) -> bool:
    """True if a message that a receive attempt got was deleted or had its visibility changed, and
    its visibility timeout would still run.

    A message whose answer was never sent counts as not received, see `Acknowledging.give_back`.
    """
    sequence, receive_count, until_ms = delivery
    if until_ms <= now_ms or sequence in queue.quarantined:
        return False
    entry = queue.entries.get(sequence)
    if entry is not None:
        lease: Lease | None = entry.lease
        if entry.lease.visible_at_ms == until_ms and entry.lease.receive_count == receive_count:
            return False
    else:
        (message,) = rows.messages(queue.queue_id, [sequence])
        if message is None:
            return True
        line = rows.group_line(queue.queue_id, message.group, sequence, 1)
        lease = line[0][1] if line and line[0][0] == sequence else None
    if lease is None or lease.receive_count < receive_count:
        return False
    return lease.receive_count > receive_count or lease.received_at_ms <= known.at_ms


class _Groups:
    """The groups that one receive takes from."""

    def __init__(self, taking: Taking) -> None:
        self._taking = taking
        book = taking.book
        assert isinstance(book, FifoBook)
        self.book = book
        self._passed = 0
        """Messages that were passed by."""

    def take_from(self, group: bytes) -> None:
        """Take the group's messages up to the first that is in flight."""
        taking, book = self._taking, self.book
        end = min(book.in_flight_by_group(group), default=_NO_END)
        taken: list[int] = []
        before = book.row(group)
        after, left, passed = before.first, before.count, self._passed
        while left and not taking.is_over:
            wanted = min(left, taking.limit - len(taking.leases))
            line = taking.shard.rows.group_line(taking.queue.queue_id, group, after, wanted)
            page = list(takewhile(lambda row: row[0] < end, line))
            self._offer(group, page, taken)
            if len(page) < wanted or taking.locks(group):
                break
            after, left = page[-1][0] + 1, left - wanted
        if taken:
            book.take(group, taken, are_first=self._passed == passed)
        elif book.row(group) is not before:  # the rest may be behind one in flight
            book.settle(group, (), [])
        else:  # its first message waits for a key, or all are too old
            book.forget(group)

    def _offer(self, group: bytes, page: list[tuple[int, Lease | None]], taken: list[int]) -> None:
        taking = self._taking
        queue_id = taking.queue.queue_id
        messages = taking.shard.rows.messages(queue_id, [sequence for sequence, _ in page])
        for (sequence, history), message in zip(page, messages, strict=True):
            if message is None:
                raise MessagesMissing(queue_id, sequence)
            fate = taking.offer(sequence, message, history)
            if fate is Fate.TAKEN:
                taken.append(sequence)
            elif fate is Fate.PASSED:
                self._passed += 1
            elif taking.is_over or taking.locks(group):
                return
