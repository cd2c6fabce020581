"""TABLE: event type to the one function that writes it.

The other reader of events is `visibility/state/apply.py`. Rows hold the same facts as memory, so a
restart loads the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from storage.rows import archive_appliers, held_appliers, outbox_appliers
from storage.rows.row_changes import Changes
from storage.rows.row_codec import QueueRow, encode_row
from storage.rows.row_keys import (
    BLOCKED,
    DELAYED,
    GROUP,
    GROUP_LINE,
    HEAD,
    LEASE,
    MOVE_TASK,
    QUARANTINED,
    REMEMBERED,
    SPAN,
    group_key,
    group_line_key,
    message_key,
    pair_key,
    queue_key,
    queue_range,
    remembered_key,
    row_key,
    table_range,
)
from storage.rows.row_places import put_waiting, remove, remove_references
from visibility.state.events import (
    REMEMBER_BUCKET_MS,
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
from visibility.state.outbox import (
    ArrivalsForgotten,
    ArrivalsRefused,
    DeparturesCleared,
    DeparturesReturned,
    MessagesArrived,
    MessagesDeparted,
)


def write_queue(changes: Changes, queue_id: int, row: QueueRow, spans: Mapping[int, int]) -> None:
    """Record a queue's own row and its changed span counts: once, after its events."""
    changes.put(queue_key(queue_id), encode_row(row))
    for span, count in spans.items():
        key = row_key(queue_id, SPAN, span)
        if count:
            changes.put(key, encode_row(count))
        else:
            changes.delete(key)


def _messages_sent(changes: Changes, event: MessagesSent) -> None:
    for sequence, message in event.numbered():
        put_waiting(changes, event.queue_id, sequence, message)


def _messages_delayed(changes: Changes, event: MessagesDelayed) -> None:
    for sequence, due_ms, message in event.numbered():
        changes.put(pair_key(event.queue_id, DELAYED, due_ms, sequence), encode_row(message))


def _leases_changed(changes: Changes, event: MessagesReceived | VisibilityChanged) -> None:
    queue_id = event.queue_id
    for lease in event.leases:
        changes.put(row_key(queue_id, LEASE, lease.sequence), encode_row(lease))
        if lease.group:
            changes.delete(group_line_key(queue_id, GROUP_LINE, lease.group, lease.sequence))


def _leases_ended(changes: Changes, event: LeasesEnded) -> None:
    queue_id = event.queue_id
    for lease in event.leases:
        changes.delete(row_key(queue_id, LEASE, lease.sequence))
        key = group_line_key(queue_id, GROUP_LINE, lease.group, lease.sequence)
        changes.put(key, encode_row(lease))


def _messages_gone(changes: Changes, event: MessagesDeleted | MessagesExpired) -> None:
    remove(changes, event.queue_id, event.leases)


def _messages_moved(changes: Changes, event: MessagesMoved) -> None:
    for move in event.moves:
        message = move.message
        if move.target_queue_id != event.queue_id:
            message = msgspec.structs.replace(message, joined_at_ms=event.moved_at_ms)
        if move.due_ms < 0:
            remove(changes, event.queue_id, [move.lease])
        else:
            changes.delete(pair_key(event.queue_id, DELAYED, move.due_ms, move.lease.sequence))
        put_waiting(changes, move.target_queue_id, move.target_sequence, message)


def _groups_changed(changes: Changes, event: GroupsChanged) -> None:
    queue_id = event.queue_id
    for change in event.changes:
        row = change.row
        if change.order_before != row.order:
            if change.order_before:
                changes.delete(row_key(queue_id, HEAD, change.order_before))
            if row.order:
                changes.put(row_key(queue_id, HEAD, row.order), change.group)
        key = group_key(queue_id, GROUP, change.group)
        if row.count or row.delayed:
            changes.put(key, encode_row(row))
        else:
            changes.delete(key)


def _deduplication_recorded(changes: Changes, event: DeduplicationRecorded) -> None:
    for digest, remembered in event.ids:
        bucket_ms = remembered.at_ms // REMEMBER_BUCKET_MS * REMEMBER_BUCKET_MS
        key = remembered_key(event.queue_id, REMEMBERED, bucket_ms, digest)
        changes.put(key, encode_row(remembered))


def _deduplication_forgotten(changes: Changes, event: DeduplicationForgotten) -> None:
    begin, _ = table_range(event.queue_id, REMEMBERED)
    changes.delete_range(begin, row_key(event.queue_id, REMEMBERED, event.before_ms))


def _move_task_changed(changes: Changes, event: MoveTaskChanged) -> None:
    changes.put(row_key(event.queue_id, MOVE_TASK, event.task.number), encode_row(event.task))
    if event.forgotten:
        changes.delete(row_key(event.queue_id, MOVE_TASK, event.forgotten))


def _messages_quarantined(changes: Changes, event: MessagesQuarantined) -> None:
    """Keep the messages' own rows: rows that are readable again later can be salvaged."""
    queue_id = event.queue_id
    for record in event.spans:
        changes.put(row_key(queue_id, QUARANTINED, record.span), encode_row(record))
    remove_references(changes, queue_id, event.leases)
    for blocked in event.groups:
        key = group_key(queue_id, BLOCKED, blocked.group)
        changes.put(key, encode_row(blocked.since_ms))


def _quarantine_ended(changes: Changes, event: QuarantineEnded) -> None:
    queue_id = event.queue_id
    for record in event.spans:
        changes.delete(row_key(queue_id, QUARANTINED, record.span))
        for sequence in record.damaged:
            changes.delete(message_key(queue_id, sequence))
        for first, until in record.gaps:
            changes.delete_range(message_key(queue_id, first), message_key(queue_id, until))
        table = table_range(queue_id, DELAYED)[0]
        for begin, end in record.delayed:
            changes.delete_range(table + begin, table + end)
    for group in event.groups:
        changes.delete(group_key(queue_id, BLOCKED, group))


def _queue_continued(changes: Changes, event: QueueContinued) -> None:
    changes.delete_range(*table_range(event.queue_id, MOVE_TASK))
    for task in event.tasks:
        changes.put(row_key(event.successor_id, MOVE_TASK, task.number), encode_row(task))


def _queue_dropped(changes: Changes, event: QueueDropped) -> None:
    changes.delete_range(*queue_range(event.queue_id))


APPLIERS: dict[type[Event], Callable[[Changes, Any], None]] = {
    MessagesSent: _messages_sent,
    MessagesDelayed: _messages_delayed,
    MessagesReceived: _leases_changed,
    MessagesDeleted: _messages_gone,
    MessagesExpired: _messages_gone,
    VisibilityChanged: _leases_changed,
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
    MessagesHandedOver: archive_appliers.messages_handed_over,
    MessagesDiscarded: archive_appliers.messages_discarded,
    BatchSealed: archive_appliers.batch_sealed,
    BatchesArchived: archive_appliers.batches_archived,
    MessagesDeparted: outbox_appliers.messages_departed,
    DeparturesCleared: outbox_appliers.departures_cleared,
    DeparturesReturned: outbox_appliers.departures_returned,
    MessagesArrived: outbox_appliers.messages_arrived,
    ArrivalsRefused: outbox_appliers.arrivals_refused,
    ArrivalsForgotten: outbox_appliers.arrivals_forgotten,
    **held_appliers.APPLIERS,
}
"""Event type to the function that records its row changes."""
