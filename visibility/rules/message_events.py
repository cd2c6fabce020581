"""The events of a message's life in its queue, which many features share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from typing_extensions import override

from visibility.contract.death import was_rescued
from visibility.contract.limits import IN_FLIGHT_MAX, MESSAGE_RETENTION_PERIOD
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import (
    DELAYED,
    GROUP_LINE,
    LEASE,
    LEVEL_LINE,
    group_line_key,
    pair_key,
    row_key,
)
from visibility.rows.row_places import put_waiting, remove
from visibility.rules.events import Effects, Event
from visibility.state import window
from visibility.state.in_flight import end_flight, group_with_consumers, hide, trim, with_consumers
from visibility.state.places import add_size, count, join_level, join_lines, leave, leave_line
from visibility.state.queue_state import QueueState, bucket_of
from visibility.state.shard_state import ShardState

LEAST_RETENTION_MS = MESSAGE_RETENTION_PERIOD.low * 1000


class Move(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message's move to another place, in its queue or in another of the same shard.

    `due_ms` is -1 for a message that waits or is in flight, else its key among the delayed ones.
    `lease` is the message's, or a placeholder if it was never received. `message` is the message at
    its new place; `resealed` if its content was sealed anew.
    """

    lease: Lease
    due_ms: int
    target_queue_id: int
    target_sequence: int
    message: StoredMessage
    resealed: bool = False


class MessagesSent(Event, frozen=True):
    """Messages joined the queue under successive sequences, and wait."""

    first_sequence: int
    messages: list[StoredMessage]

    def numbered(self) -> Iterator[tuple[int, StoredMessage]]:
        """(sequence, message) in order."""
        return enumerate(self.messages, self.first_sequence)

    @override
    def apply(self, shard: ShardState) -> None:
        queue = shard.queue(self.queue_id)
        first, messages = self.first_sequence, self.messages
        after = first + len(messages)
        if after > queue.next_sequence:  # else a group was listed anew by the same decision
            queue.next_sequence = after
        queue.waiting += len(messages)
        if not queue.spans:  # else a pulse is planned for the oldest message
            queue.fresh_until_ms = messages[0].sent_at_ms + LEAST_RETENTION_MS
            shard.plan_pulse(queue, queue.fresh_until_ms)
        _count_sent(shard, queue, messages)
        count(queue, first, after)
        if queue.is_by_level or messages[0].level:
            join_lines(shard, queue, first, messages)
        elif not queue.fifo and queue.head == first:
            queue.head = window.extend(shard, queue, first, messages)
        if queue.fairness.noisy:
            for message in messages:
                queue.fairness.sent(message.group, message.sent_at_ms)

    @override
    def record(self, changes: Changes) -> None:
        for sequence, message in self.numbered():
            put_waiting(changes, self.queue_id, sequence, message)

    @override
    def shown_in(self, shard: ShardState) -> Iterable[int]:
        return (self.queue_id,)


class MessagesDelayed(Event, frozen=True):
    """Messages were sent under successive sequences, and wait for their time.

    `due_ms` has the end of each delay; 0 in a FIFO queue, where the queue's present delay applies.
    In `ahead` of them the clock of the `sender` was ahead.
    """

    first_sequence: int
    due_ms: list[int]
    messages: list[StoredMessage]
    ahead: int = 0
    sender: str = ""

    def numbered(self) -> Iterator[tuple[int, int, StoredMessage]]:
        """(sequence, due_ms, message) in order."""
        return zip(
            range(self.first_sequence, self.first_sequence + len(self.messages)),
            self.due_ms,
            self.messages,
            strict=True,
        )

    @override
    def apply(self, shard: ShardState) -> None:
        queue = shard.queue(self.queue_id)
        if not queue.delayed or self.due_ms[0]:
            shard.plan_pulse(queue, min(self.due_ms) or self.messages[0].sent_at_ms)
        queue.delayed_after = min(queue.delayed_after, (min(self.due_ms), 0))
        if queue.head == self.first_sequence:
            queue.head += len(self.messages)
        queue.next_sequence = max(queue.next_sequence, self.first_sequence + len(self.messages))
        queue.delayed += len(self.messages)
        if self.ahead:
            queue.counts.add_ahead(self.sender, self.ahead)
        _count_sent(shard, queue, self.messages)

    @override
    def record(self, changes: Changes) -> None:
        for sequence, due_ms, message in self.numbered():
            changes.put(pair_key(self.queue_id, DELAYED, due_ms, sequence), encode_row(message))


class MessagesReceived(Event, frozen=True):
    """Messages were handed out at `received_at_ms` and are hidden until their lease ends."""

    received_at_ms: int
    leases: list[Lease]

    @override
    def apply(self, shard: ShardState) -> None:
        queue = shard.queue(self.queue_id)
        queue.counts.received += len(self.leases)
        entries = queue.entries
        at_ms = self.received_at_ms
        for lease in self.leases:
            if lease.sequence not in entries:
                leave_line(shard, queue, lease)
            hide(shard, queue, lease, at_ms)
            if lease.group and not queue.fifo:
                held = group_with_consumers(queue, lease.group)
                queue.fairness.received(lease.group, held, with_consumers(queue), at_ms)
        if queue.visible_again:
            trim(queue)

    @override
    def record(self, changes: Changes) -> None:
        record_leases(changes, self.queue_id, self.leases)


class MessagesDeleted(Event, frozen=True):
    """Received messages were deleted for good; `leases` are theirs."""

    deleted_at_ms: int
    leases: list[Lease]

    @override
    def apply(self, shard: ShardState) -> None:
        queue = shard.queue(self.queue_id)
        queue.counts.deleted += len(self.leases)
        times = queue.times_in_queue
        for lease in self.leases:
            leave(shard, queue, lease)
            if lease.sent_at_ms:
                bucket = bucket_of(self.deleted_at_ms - lease.sent_at_ms)
                times[bucket] = times.get(bucket, 0) + 1
            if lease.group and lease.received_at_ms and not (queue.fifo or lease.is_held):
                busy_ms = max(0, self.deleted_at_ms - lease.received_at_ms)
                queue.fairness.finished(lease.group, busy_ms, self.deleted_at_ms)
        if queue.visible_again:
            trim(queue)

    @override
    def record(self, changes: Changes) -> None:
        remove(changes, self.queue_id, self.leases)

    @override
    def shown_in(self, shard: ShardState) -> Iterable[int]:
        """The queue, if it was full of messages in flight and has room again."""
        return _room_again(shard, self.queue_id, len(self.leases))

    @property
    @override
    def weight(self) -> int:
        return len(self.leases)


class MessagesExpired(Event, frozen=True):
    """Messages exceeded the queue's retention, or `made_room` for others in a full queue; `leases`
    are theirs, or placeholders for waiting ones."""

    leases: list[Lease]
    made_room: bool = False

    @override
    def apply(self, shard: ShardState) -> None:
        queue = shard.queue(self.queue_id)
        for lease in self.leases:
            leave(shard, queue, lease)
        if self.made_room:
            queue.counts.dropped += len(self.leases)
        else:
            queue.counts.expired += len(self.leases)
        trim(queue)

    @override
    def record(self, changes: Changes) -> None:
        remove(changes, self.queue_id, self.leases)

    @override
    def shown_in(self, shard: ShardState) -> Iterable[int]:
        """The queue, if it was full of messages in flight and has room again."""
        return _room_again(shard, self.queue_id, len(self.leases))

    @property
    @override
    def weight(self) -> int:
        return len(self.leases)


class VisibilityChanged(Event, frozen=True):
    """Leases were extended, shortened or ended; those not later than `changed_at_ms` are over."""

    changed_at_ms: int
    leases: list[Lease]

    @override
    def apply(self, shard: ShardState) -> None:
        queue = shard.queue(self.queue_id)
        for lease in self.leases:
            hide(shard, queue, lease, self.changed_at_ms)
        if queue.visible_again:
            trim(queue)

    @override
    def record(self, changes: Changes) -> None:
        record_leases(changes, self.queue_id, self.leases)

    @override
    def shown_in(self, shard: ShardState) -> Iterable[int]:
        return (self.queue_id,)


class LeasesEnded(Event, frozen=True):
    """Messages of a FIFO queue wait in their groups again, with the history in their leases."""

    ended_at_ms: int
    leases: list[Lease]

    @override
    def apply(self, shard: ShardState) -> None:
        queue = shard.queue(self.queue_id)
        for lease in self.leases:
            end_flight(shard, queue, queue.entries.pop(lease.sequence).lease)
            queue.waiting += 1

    @override
    def record(self, changes: Changes) -> None:
        queue_id = self.queue_id
        for lease in self.leases:
            changes.delete(row_key(queue_id, LEASE, lease.sequence))
            key = group_line_key(queue_id, GROUP_LINE, lease.group, lease.sequence)
            changes.put(key, encode_row(lease))

    @override
    def shown_in(self, shard: ShardState) -> Iterable[int]:
        return (self.queue_id,)

    @property
    @override
    def weight(self) -> int:
        return len(self.leases)


class MessagesMoved(Event, frozen=True):
    """Messages moved: dead letters, redriven ones, delayed ones that are due, poison pills, and
    those that one part of a queue gives to another (`transfers`)."""

    moved_at_ms: int
    moves: list[Move]
    transfers: bool = False

    @override
    def apply(self, shard: ShardState) -> None:
        source = shard.queue(self.queue_id)
        for move in self.moves:
            if move.due_ms < 0:
                leave(shard, source, move.lease)
            else:
                source.delayed -= 1
                add_size(source, move.lease.sequence, -move.lease.size)
                source.delayed_after = max(source.delayed_after, (move.due_ms, move.lease.sequence))
            target = shard.queue(move.target_queue_id)
            if self.transfers:
                source.counts.transferred -= 1
                target.counts.transferred += 1
            elif target is not source:
                source.counts.moved_out += 1
                target.counts.moved_in += 1
                target.counts.add_death(move.message)
                source.rescued += was_rescued(move.message.death, self.moved_at_ms)
            sequence = move.target_sequence
            target.next_sequence = max(target.next_sequence, sequence + 1)
            target.waiting += 1
            add_size(target, sequence, move.message.size)
            if move.message.level:
                join_level(target, move.message.level, sequence)
            target.aliases += bool(move.message.original_sequence)
            clock_ms = move.message.clock_ms
            if clock_ms:
                target.clocks_after = min(target.clocks_after, (clock_ms, 0))
            if clock_ms or not target.spans:
                target.fresh_until_ms = 0
                shard.plan_pulse(target, self.moved_at_ms)
            shard.plan_expiry(target, move.message.expires_ms)
            count(target, sequence, sequence + 1)
        trim(source)

    @override
    def record(self, changes: Changes) -> None:
        for move in self.moves:
            message = move.message
            if move.target_queue_id != self.queue_id and not self.transfers:
                message = msgspec.structs.replace(message, joined_at_ms=self.moved_at_ms)
            if move.due_ms < 0:
                remove(changes, self.queue_id, [move.lease])
            else:
                changes.delete(pair_key(self.queue_id, DELAYED, move.due_ms, move.lease.sequence))
            put_waiting(changes, move.target_queue_id, move.target_sequence, message)

    @override
    def tell(self, turn: Effects) -> None:
        for move in self.moves:
            turn.changed[move.target_queue_id] = None

    @override
    def shown_in(self, shard: ShardState) -> Iterable[int]:
        """The queues of the new places."""
        return [move.target_queue_id for move in self.moves]

    @property
    @override
    def weight(self) -> int:
        """The number of messages, and that of the KiB that are written anew."""
        resealed = sum(move.message.size for move in self.moves if move.resealed)
        return len(self.moves) + (resealed >> 10)


def _count_sent(shard: ShardState, queue: QueueState, messages: list[StoredMessage]) -> None:
    counts, size = queue.counts, 0
    for message in messages:
        size += message.size
        if message.expires_ms:
            shard.plan_expiry(queue, message.expires_ms)
    counts.sent += len(messages)
    counts.sent_bytes += size
    queue.size += size  # new sequences are not below `sized_from`


def record_leases(changes: Changes, queue_id: int, leases: list[Lease]) -> None:
    """Record messages in flight, which are no longer in the lines of their group and level."""
    for lease in leases:
        changes.put(row_key(queue_id, LEASE, lease.sequence), encode_row(lease))
        if lease.group:
            changes.delete(group_line_key(queue_id, GROUP_LINE, lease.group, lease.sequence))
        if lease.level:
            changes.delete(pair_key(queue_id, LEVEL_LINE, lease.level, lease.sequence))


def _room_again(shard: ShardState, queue_id: int, left: int) -> Iterable[int]:
    queue = shard.queue(queue_id)
    is_below = queue.in_flight < IN_FLIGHT_MAX <= queue.in_flight + left
    return (queue_id,) if is_below or queue.is_held_back else ()
