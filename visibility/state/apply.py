"""TABLE: event type to the one function that applies it to memory.

Applying needs only the state and the event: no clock, no disk. It happens on the leader, within the
Turn that decided the event; followers apply row changes, and a start loads rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from visibility.contract.limits import DEDUPLICATION_WINDOW_SECONDS, MESSAGE_RETENTION_PERIOD
from visibility.contract.stored_message import StoredMessage
from visibility.state import apply_archive, apply_held, apply_outbox, window
from visibility.state.counts import Counts, bucket_of
from visibility.state.events import (
    NOWHERE,
    BatchesArchived,
    BatchSealed,
    DeduplicationForgotten,
    DeduplicationRecorded,
    Event,
    GroupsChanged,
    LeasesEnded,
    MessagesDelayed,
    MessagesDeleted,
    MessagesDiscarded,
    MessagesExpired,
    MessagesHandedOver,
    MessagesMoved,
    MessagesQuarantined,
    MessagesReceived,
    MessagesSent,
    MoveTaskChanged,
    QuarantineEnded,
    QueueContinued,
    QueueDropped,
    VisibilityChanged,
)
from visibility.state.in_flight import end_flight, group_with_consumers, hide, trim, with_consumers
from visibility.state.outbox import (
    ArrivalsForgotten,
    ArrivalsRefused,
    DeparturesCleared,
    DeparturesReturned,
    MessagesArrived,
    MessagesDeparted,
)
from visibility.state.places import count, leave, leave_line, uncount
from visibility.state.queue_state import SPAN_BITS, Blocked, Quarantine, QueueState
from visibility.state.shard_state import ShardState

_GROUPS_MAX = 20_000
"""Group rows of one queue that are cached in memory."""
_LEAST_RETENTION_MS = MESSAGE_RETENTION_PERIOD.low * 1000


def _messages_sent(shard: ShardState, event: MessagesSent) -> None:
    queue = shard.queue(event.queue_id)
    first, messages = event.first_sequence, event.messages
    after = queue.next_sequence = first + len(messages)
    queue.waiting += len(messages)
    _count_sent(queue, messages)
    if not queue.spans:  # else a pulse is planned for the oldest message
        queue.fresh_until_ms = messages[0].sent_at_ms + _LEAST_RETENTION_MS
        shard.plan_pulse(queue, queue.fresh_until_ms)
    count(queue, first, after)
    if not queue.fifo and queue.head == first:
        queue.head = window.extend(shard, queue, first, messages)
    if queue.fairness.noisy:
        for message in messages:
            queue.fairness.sent(message.group, message.sent_at_ms)


def _messages_delayed(shard: ShardState, event: MessagesDelayed) -> None:
    queue = shard.queue(event.queue_id)
    if not queue.delayed or event.due_ms[0]:
        shard.plan_pulse(queue, min(event.due_ms) or event.messages[0].sent_at_ms)
    queue.delayed_after = min(queue.delayed_after, (min(event.due_ms), 0))
    if queue.head == event.first_sequence:
        queue.head += len(event.messages)
    queue.next_sequence = event.first_sequence + len(event.messages)
    queue.delayed += len(event.messages)
    _count_sent(queue, event.messages)


def _count_sent(queue: QueueState, messages: list[StoredMessage]) -> None:
    counts = queue.counts
    counts.sent += len(messages)
    for message in messages:
        counts.sent_bytes += message.size


def _messages_received(shard: ShardState, event: MessagesReceived) -> None:
    queue = shard.queue(event.queue_id)
    queue.counts.received += len(event.leases)
    entries = queue.entries
    at_ms = event.received_at_ms
    for lease in event.leases:
        if lease.sequence not in entries:
            leave_line(shard, queue, lease.sequence)
        hide(shard, queue, lease, at_ms)
        if lease.group and not queue.fifo:
            held = group_with_consumers(queue, lease.group)
            queue.fairness.received(lease.group, held, with_consumers(queue), at_ms)
    if queue.visible_again:
        trim(queue)


def _messages_deleted(shard: ShardState, event: MessagesDeleted) -> None:
    queue = shard.queue(event.queue_id)
    queue.counts.deleted += len(event.leases)
    times = queue.times_in_queue
    for lease in event.leases:
        leave(shard, queue, lease)
        if lease.sent_at_ms:
            bucket = bucket_of(event.deleted_at_ms - lease.sent_at_ms)
            times[bucket] = times.get(bucket, 0) + 1
        if lease.group and lease.received_at_ms and not (queue.fifo or lease.is_held):
            busy_ms = max(0, event.deleted_at_ms - lease.received_at_ms)
            queue.fairness.finished(lease.group, busy_ms, event.deleted_at_ms)
    if queue.visible_again:
        trim(queue)


def _messages_expired(shard: ShardState, event: MessagesExpired) -> None:
    queue = shard.queue(event.queue_id)
    for lease in event.leases:
        leave(shard, queue, lease)
    queue.counts.expired += len(event.leases)
    trim(queue)


def _visibility_changed(shard: ShardState, event: VisibilityChanged) -> None:
    queue = shard.queue(event.queue_id)
    for lease in event.leases:
        hide(shard, queue, lease, event.changed_at_ms)
    if queue.visible_again:
        trim(queue)


def _leases_ended(shard: ShardState, event: LeasesEnded) -> None:
    queue = shard.queue(event.queue_id)
    for lease in event.leases:
        end_flight(shard, queue, queue.entries.pop(lease.sequence).lease)
        queue.waiting += 1


def _messages_moved(shard: ShardState, event: MessagesMoved) -> None:
    source = shard.queue(event.queue_id)
    for move in event.moves:
        if move.due_ms < 0:
            leave(shard, source, move.lease)
        else:
            source.delayed -= 1
            source.delayed_after = max(source.delayed_after, (move.due_ms, move.lease.sequence))
        target = shard.queue(move.target_queue_id)
        if target is not source:
            source.counts.moved_out += 1
            target.counts.moved_in += 1
        sequence = move.target_sequence
        target.next_sequence = max(target.next_sequence, sequence + 1)
        target.waiting += 1
        target.aliases += bool(move.message.original_sequence)
        clock_ms = move.message.clock_ms
        if clock_ms:
            target.clocks_after = min(target.clocks_after, (clock_ms, 0))
        if clock_ms or not target.spans:
            target.fresh_until_ms = 0
            shard.plan_pulse(target, event.moved_at_ms)
        count(target, sequence, sequence + 1)
    trim(source)


def _groups_changed(shard: ShardState, event: GroupsChanged) -> None:
    queue = shard.queue(event.queue_id)
    queue.fifo = event.fifo
    if len(queue.groups) >= _GROUPS_MAX:
        queue.groups.clear()
    for change in event.changes:
        group, order_before, row = change.group, change.order_before, change.row
        if order_before != row.order:
            if order_before:
                queue.ready_groups.remove(order_before)
            if row.order:
                queue.ready_groups.insert(row.order, group)
                queue.next_sequence = max(queue.next_sequence, row.order + 1)
        queue.groups[group] = row
        blocked = queue.quarantined.groups.get(group)
        if blocked is not None:
            queue.quarantined.groups[group] = Blocked(blocked.since_ms, row.count, row.delayed)
        if not row.count and queue.fairness.noisy:
            queue.fairness.drained(group)


def _deduplication_recorded(shard: ShardState, event: DeduplicationRecorded) -> None:
    queue = shard.queue(event.queue_id)
    at_ms = event.ids[0][1].at_ms
    if not queue.remembered_ms:
        shard.plan_pulse(queue, at_ms + 2 * DEDUPLICATION_WINDOW_SECONDS * 1000)
    queue.remembered_ms = at_ms


def _deduplication_forgotten(shard: ShardState, event: DeduplicationForgotten) -> None:
    queue = shard.queue(event.queue_id)
    queue.forgotten_ms = event.before_ms
    if queue.remembered_ms < event.before_ms:
        queue.remembered_ms = 0


def _move_task_changed(shard: ShardState, event: MoveTaskChanged) -> None:
    queue = shard.queue(event.queue_id)
    task = event.task
    queue.tasks[task.number] = task
    queue.tasks.pop(event.forgotten, None)
    if task.is_active:
        shard.plan_pulse(queue, task.started_at_ms)


def _messages_quarantined(shard: ShardState, event: MessagesQuarantined) -> None:
    """Move a message to the quarantine; one that memory had read leaves the window, too."""
    queue = shard.queue(event.queue_id)
    spans = queue.quarantined.spans
    left = Counter(lease.sequence >> SPAN_BITS for lease in event.leases)
    for lease in event.leases:
        leave(shard, queue, lease)
    for record in event.spans:
        before = spans.get(record.span)
        lost = record.messages - (before.messages if before is not None else 0)
        spans[record.span] = record
        queue.counts.quarantined += lost
        if record.span == NOWHERE:
            queue.delayed -= lost
        elif untouched := lost - left[record.span]:
            queue.waiting -= untouched
            uncount(queue, record.span, untouched)
        shard.plan_pulse(queue, record.since_ms + _LEAST_RETENTION_MS)
    if queue.passed:  # some of them may be among the lost
        window.read_again(shard, queue)
    for sequence in [sequence for sequence, _ in queue.window if sequence in queue.quarantined]:
        window.discard(shard, queue, sequence)
    for blocked in event.groups:
        row = queue.groups[blocked.group]
        queue.quarantined.groups[blocked.group] = Blocked(blocked.since_ms, row.count, row.delayed)
        shard.plan_pulse(queue, blocked.since_ms + _LEAST_RETENTION_MS)
    trim(queue)


def _quarantine_ended(shard: ShardState, event: QuarantineEnded) -> None:
    quarantined = shard.queue(event.queue_id).quarantined
    for record in event.spans:
        del quarantined.spans[record.span]
    for group in event.groups:
        del quarantined.groups[group]


def _queue_continued(shard: ShardState, event: QueueContinued) -> None:
    """Continue the counts in the successor: metrics are about the queue that clients see."""
    old, new = shard.queue(event.queue_id), shard.queue(event.successor_id)
    new.continues = old.queue_id
    if new.next_sequence < event.first_sequence:  # else the purged queue never had a message
        new.fifo = old.fifo
        new.next_sequence = new.low_water = new.head = event.first_sequence
        new.first_sequence = event.first_sequence
        new.counts, old.counts = old.counts, Counts(restored=old.stored)
        new.counts.purged += old.stored
        new.times_in_queue, old.times_in_queue = old.times_in_queue, {}
    old.tasks.clear()
    for task in event.tasks:
        new.tasks[task.number] = task
        if task.is_active:
            shard.plan_pulse(new, task.started_at_ms)
    window.read_again(shard, old)


def _queue_dropped(shard: ShardState, event: QueueDropped) -> None:
    queue = shard.queues.pop(event.queue_id, None)
    if queue is not None:
        _empty(shard, queue)
        for heir in shard.continuing(event.queue_id):
            heir.continues = queue.continues


def _empty(shard: ShardState, queue: QueueState) -> None:
    shard.hidden -= queue.in_flight
    window.empty(shard, queue)
    queue.changed_spans.update(queue.spans)
    emptied: Iterable[Any] = (
        queue.entries,
        queue.visible_again,
        queue.spans,
        queue.ready_groups,
        queue.groups,
        queue.in_flight_by_group,
        queue.expired_leases,
        queue.over_received,
        queue.fairness.noisy,
    )
    for part in emptied:
        part.clear()
    queue.quarantined = Quarantine()
    queue.in_flight = queue.delayed = queue.waiting = queue.aliases = 0
    queue.low_water = queue.head = queue.next_sequence


APPLY: dict[type[Event], Callable[[ShardState, Any], None]] = {
    MessagesSent: _messages_sent,
    MessagesDelayed: _messages_delayed,
    MessagesReceived: _messages_received,
    MessagesDeleted: _messages_deleted,
    MessagesExpired: _messages_expired,
    VisibilityChanged: _visibility_changed,
    LeasesEnded: _leases_ended,
    MessagesMoved: _messages_moved,
    GroupsChanged: _groups_changed,
    DeduplicationRecorded: _deduplication_recorded,
    DeduplicationForgotten: _deduplication_forgotten,
    MoveTaskChanged: _move_task_changed,
    MessagesQuarantined: _messages_quarantined,
    QuarantineEnded: _quarantine_ended,
    QueueContinued: _queue_continued,
    QueueDropped: _queue_dropped,
    MessagesHandedOver: apply_archive.messages_handed_over,
    MessagesDiscarded: apply_archive.messages_discarded,
    BatchSealed: apply_archive.batch_sealed,
    BatchesArchived: apply_archive.batches_archived,
    MessagesDeparted: apply_outbox.messages_departed,
    DeparturesCleared: apply_outbox.departures_cleared,
    DeparturesReturned: apply_outbox.departures_returned,
    MessagesArrived: apply_outbox.messages_arrived,
    ArrivalsRefused: apply_outbox.rows_only,
    ArrivalsForgotten: apply_outbox.rows_only,
    **apply_held.APPLY,
}
"""Event type to the function that applies it."""
