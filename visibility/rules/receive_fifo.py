"""The order of a FIFO queue: groups by place, each with all messages it may give, then the next.

While a message of a group is in flight, no later one of that group is handed out. After its lease,
a message is at the front of its group again. A receive that repeats an attempt id within five
minutes gets the same deliveries again, unless one of them was deleted or changed since.
Source: SQS developer guide; the order of groups recorded from AWS.
"""

from __future__ import annotations

from functools import partial
from itertools import takewhile

import msgspec

from visibility.content.id_digests import attempt_digest
from visibility.contract.model import Request
from visibility.contract.operations import ReceiveMessage
from visibility.contract.outcomes import Deliveries
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rows.row_values import Remembered
from visibility.rules.dead_letters import DeadLetters
from visibility.rules.events import Event
from visibility.rules.leases import next_lease, no_lease
from visibility.rules.message_events import LeasesEnded, MessagesReceived, VisibilityChanged
from visibility.rules.remembered_ids import DeduplicationRecorded
from visibility.rules.retention import TooOld
from visibility.state.queue_state import QueueState
from visibility.state.rows import MessagesMissing
from visibility.state.shard_state import ShardState

_NO_END = 1 << 63


def decide_receive_fifo(
    shard: ShardState,
    queue: QueueState,
    request: Request,
    now_ms: int,
    limit: int,
    visible_at_ms: int,
    letters: DeadLetters,
    too_old: TooOld,
) -> tuple[Deliveries, tuple[Event, ...]]:
    """The deliveries of a receive, and its events. Raises DamagedRecord, MessagesMissing."""
    operation = request.operation
    assert isinstance(operation, ReceiveMessage)
    attempt = operation.receive_request_attempt_id
    digest = attempt_digest(attempt) if attempt else b""
    if digest:
        repeated = _repeated(shard, queue, digest, now_ms, visible_at_ms, too_old)
        if repeated is not None:
            return repeated
    taking = _Taking(shard, queue, now_ms, visible_at_ms, letters, too_old)
    read_ready_groups = partial(shard.rows.ready_groups, queue.queue_id)
    for _, group in queue.ready_groups.in_order(read_ready_groups):
        if len(taking.leases) >= limit or taking.is_full:
            break
        taking.from_group(group, limit)
    events: list[Event] = []
    if taking.leases:
        events.append(MessagesReceived(queue.queue_id, now_ms, taking.leases))
        if visible_at_ms <= now_ms:
            events.append(LeasesEnded(queue.queue_id, now_ms, taking.leases))
            taking.give_back()
        if digest:
            events.append(attempt_remembered(queue, digest, taking.leases, now_ms))
    return Deliveries(taking.leases, taking.messages), (*letters.events(), *events)


class _Taking:
    """The leases of one receive, collected."""

    def __init__(
        self,
        shard: ShardState,
        queue: QueueState,
        now_ms: int,
        visible_at_ms: int,
        letters: DeadLetters,
        too_old: TooOld,
    ) -> None:
        self.leases: list[Lease] = []
        self.messages: list[StoredMessage] = []
        self.book = letters.source_book
        self._shard = shard
        self._queue = queue
        self._now_ms = now_ms
        self._visible_at_ms = visible_at_ms
        self._letters = letters
        self._too_old = too_old
        self._passed = 0
        """Messages that were passed by."""
        self._groups: dict[bytes, list[int]] = {}

    @property
    def is_full(self) -> bool:
        """True if this decision has moved or passed by as many messages as it should."""
        return self._letters.is_full or self._too_old.is_over

    def from_group(self, group: bytes, limit: int) -> None:
        """Take the group's messages up to the first that is in flight."""
        end = min(self.book.in_flight_by_group(group), default=_NO_END)
        taken: list[int] = []
        before = self.book.row(group)
        after, left, passed = before.first, before.count, self._passed
        while left and len(self.leases) < limit and not self.is_full:
            wanted = min(left, limit - len(self.leases))
            line = self._shard.rows.group_line(self._queue.queue_id, group, after, wanted)
            page = list(takewhile(lambda row: row[0] < end, line))
            self._take(group, page, taken)
            if len(page) < wanted or self._letters.locks(group):
                break
            after, left = page[-1][0] + 1, left - wanted
        if taken:
            self.book.take(group, taken, are_first=self._passed == passed)
            self._groups[group] = taken
        elif self.book.row(group) is not before:  # the rest may be behind one in flight
            self.book.settle(group, (), [])
        else:  # its first message waits for a key, or all are too old
            self.book.forget(group)

    def _take(self, group: bytes, page: list[tuple[int, Lease | None]], taken: list[int]) -> None:
        rows = self._shard.rows
        messages = rows.messages(self._queue.queue_id, [sequence for sequence, _ in page])
        for (sequence, history), message in zip(page, messages, strict=True):
            if message is None:
                raise MessagesMissing(self._queue.queue_id, sequence)
            if self._too_old.passes(message.retained_from_ms):
                self._passed += 1
                continue
            before = history or no_lease(sequence, message)
            spent = self._letters.wants(before.receive_count - before.base_count)
            if spent and self._letters.move(before, message, waits=True):
                if self._letters.is_full or self._letters.locks(group):
                    return
            else:
                self.leases.append(next_lease(before, self._visible_at_ms, self._now_ms))
                self.messages.append(message)
                taken.append(sequence)

    def give_back(self) -> None:
        """Return the messages to their groups at once: the visibility timeout is 0."""
        for group, sequences in self._groups.items():
            self.book.settle(group, (), sequences)


def _repeated(
    shard: ShardState,
    queue: QueueState,
    digest: bytes,
    now_ms: int,
    visible_at_ms: int,
    too_old: TooOld,
) -> tuple[Deliveries, tuple[Event, ...]] | None:
    """The deliveries of the first attempt, with their time renewed.

    None if there was no such attempt, or one of them has changed.
    """
    known = shard.rows.remembered(queue.queue_id, [digest], now_ms).get(digest)
    if known is None:
        return None
    leases: list[Lease] = []
    for sequence, receive_count, until_ms in known.deliveries:
        entry = queue.entries.get(sequence)
        if (
            entry is None
            or entry.lease.receive_count != receive_count
            or entry.lease.visible_at_ms != until_ms
            or until_ms <= now_ms
            or sequence in queue.quarantined
            or too_old.passes(entry.lease.retained_from_ms)
        ):
            return None
        leases.append(msgspec.structs.replace(entry.lease, visible_at_ms=visible_at_ms))
    found = shard.rows.messages(queue.queue_id, [lease.sequence for lease in leases])
    messages = [message for message in found if message is not None]
    if len(messages) < len(leases) or visible_at_ms <= now_ms:
        return None
    changed = VisibilityChanged(queue.queue_id, now_ms, leases)
    return Deliveries(leases, messages), (
        changed,
        attempt_remembered(queue, digest, leases, now_ms),
    )


def attempt_remembered(queue: QueueState, digest: bytes, leases: list[Lease], now_ms: int) -> Event:
    """The event by which a receive attempt's id stands for these deliveries."""
    deliveries = [(lease.sequence, lease.receive_count, lease.visible_at_ms) for lease in leases]
    return DeduplicationRecorded(
        queue.queue_id, [(digest, Remembered(now_ms, deliveries=deliveries))]
    )
