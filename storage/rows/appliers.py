"""TABLE: event type to the one function that writes it.

The other reader of an event is `visibility/state/apply.py`. Rows hold the same facts as memory, so a restart loads
what was there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from storage.rows.codec import ArchiveRow, QueueRow, encode_row
from storage.rows.keys import (
    ALIAS,
    ARCHIVE,
    ARCHIVED,
    BATCH,
    CLOCK,
    DELAYED,
    GROUP,
    GROUP_LINE,
    HEAD,
    LEASE,
    MESSAGE,
    MOVE_TASK,
    REMEMBERED,
    SPAN,
    group_key,
    group_line_key,
    pair_key,
    queue_key,
    queue_range,
    remembered_key,
    row_key,
    table_range,
)
from visibility.state.events import (
    REMEMBER_BUCKET_MS,
    THE_SHARD,
    ArchivedMessage,
    BatchesArchived,
    BatchSealed,
    Event,
    GroupsChanged,
    IdsForgotten,
    IdsRemembered,
    Lease,
    LeasesEnded,
    MessagesDelayed,
    MessagesDeleted,
    MessagesDiscarded,
    MessagesExpired,
    MessagesHandedOver,
    MessagesMoved,
    MessagesReceived,
    MessagesSent,
    MoveTaskChanged,
    QueueContinued,
    QueueDropped,
    StoredMessage,
    VisibilityChanged,
)

_NOTHING = b""
Moved = Mapping[int, StoredMessage]
"""The messages that a MessagesMoved or a MessagesHandedOver moves, by the sequence they had."""


class Batch(Protocol):
    """Changes that reach the disk together or not at all, in order."""

    def put(self, key: bytes, value: bytes) -> None:
        """Write a row."""

    def delete(self, key: bytes) -> None:
        """Remove a row, which need not exist."""

    def delete_range(self, begin: bytes, end: bytes) -> None:
        """Remove the rows from `begin` to before `end`."""


def write_queue(batch: Batch, queue_id: int, row: QueueRow, spans: Mapping[int, int]) -> None:
    """Put a queue's own row, and the counts of its spans that changed, into the batch: once, after its events."""
    batch.put(queue_key(queue_id), encode_row(row))
    for span, count in spans.items():
        key = row_key(queue_id, SPAN, span)
        if count:
            batch.put(key, encode_row(count))
        else:
            batch.delete(key)


def write_archive(batch: Batch, row: ArchiveRow) -> None:
    """Put what the shard knows of its archive into the batch: once, after its events."""
    batch.put(row_key(THE_SHARD, ARCHIVE, 0), encode_row(row))


def _put_waiting(batch: Batch, queue_id: int, sequence: int, message: StoredMessage) -> None:
    """A message joins the line of its queue."""
    batch.put(row_key(queue_id, MESSAGE, sequence), encode_row(message))
    if message.group:
        batch.put(group_line_key(queue_id, GROUP_LINE, message.group, sequence), _NOTHING)
    if message.clock_ms:
        batch.put(pair_key(queue_id, CLOCK, message.clock_ms, sequence), _NOTHING)
    if message.handle_sequence:
        batch.put(row_key(queue_id, ALIAS, message.handle_sequence), encode_row(sequence))


def _remove(batch: Batch, queue_id: int, lease: Lease, *, waits: bool) -> None:
    """A message leaves its place. `waits`: it may be in the line of its group."""
    sequence = lease.sequence
    batch.delete(row_key(queue_id, MESSAGE, sequence))
    batch.delete(row_key(queue_id, LEASE, sequence))
    if lease.group and waits:
        batch.delete(group_line_key(queue_id, GROUP_LINE, lease.group, sequence))
    if lease.clock_ms:
        batch.delete(pair_key(queue_id, CLOCK, lease.clock_ms, sequence))
    if lease.handle_sequence:
        batch.delete(row_key(queue_id, ALIAS, lease.handle_sequence))


def _messages_sent(batch: Batch, event: MessagesSent, moved: Moved) -> None:
    for sequence, message in event.numbered():
        _put_waiting(batch, event.queue_id, sequence, message)


def _messages_delayed(batch: Batch, event: MessagesDelayed, moved: Moved) -> None:
    for sequence, due_ms, message in event.numbered():
        batch.put(pair_key(event.queue_id, DELAYED, due_ms, sequence), encode_row(message))


def _leases_changed(
    batch: Batch, event: MessagesReceived | VisibilityChanged, moved: Moved
) -> None:
    queue_id = event.queue_id
    for lease in event.leases:
        batch.put(row_key(queue_id, LEASE, lease.sequence), encode_row(lease))
        if lease.group:
            batch.delete(group_line_key(queue_id, GROUP_LINE, lease.group, lease.sequence))


def _leases_ended(batch: Batch, event: LeasesEnded, moved: Moved) -> None:
    queue_id = event.queue_id
    for lease in event.leases:
        batch.delete(row_key(queue_id, LEASE, lease.sequence))
        key = group_line_key(queue_id, GROUP_LINE, lease.group, lease.sequence)
        batch.put(key, encode_row(lease))


def _messages_gone(batch: Batch, event: MessagesDeleted | MessagesExpired, moved: Moved) -> None:
    for lease in event.leases:
        _remove(batch, event.queue_id, lease, waits=True)


def _messages_moved(batch: Batch, event: MessagesMoved, moved: Moved) -> None:
    for move in event.moves:
        there = moved[move.lease.sequence]
        stays = move.target_queue_id == event.queue_id
        content = move.envelope if move.resealed else there
        message = msgspec.structs.replace(
            move.envelope,
            data=content.data,
            size=content.size,
            sealed=content.sealed,
            joined_at_ms=there.joined_at_ms if stays else event.moved_at_ms,
        )
        if move.due_ms < 0:
            _remove(batch, event.queue_id, move.lease, waits=True)
        else:
            batch.delete(pair_key(event.queue_id, DELAYED, move.due_ms, move.lease.sequence))
        _put_waiting(batch, move.target_queue_id, move.target_sequence, message)


def _groups_changed(batch: Batch, event: GroupsChanged, moved: Moved) -> None:
    queue_id = event.queue_id
    for change in event.changes:
        row = change.row
        if change.order_before != row.order:
            if change.order_before:
                batch.delete(row_key(queue_id, HEAD, change.order_before))
            if row.order:
                batch.put(row_key(queue_id, HEAD, row.order), change.group)
        key = group_key(queue_id, GROUP, change.group)
        if row.count or row.delayed:
            batch.put(key, encode_row(row))
        else:
            batch.delete(key)


def _ids_remembered(batch: Batch, event: IdsRemembered, moved: Moved) -> None:
    for digest, remembered in event.ids:
        bucket_ms = remembered.at_ms // REMEMBER_BUCKET_MS * REMEMBER_BUCKET_MS
        key = remembered_key(event.queue_id, REMEMBERED, bucket_ms, digest)
        batch.put(key, encode_row(remembered))


def _ids_forgotten(batch: Batch, event: IdsForgotten, moved: Moved) -> None:
    begin, _ = table_range(event.queue_id, REMEMBERED)
    batch.delete_range(begin, row_key(event.queue_id, REMEMBERED, event.before_ms))


def _move_task_changed(batch: Batch, event: MoveTaskChanged, moved: Moved) -> None:
    batch.put(row_key(event.queue_id, MOVE_TASK, event.task.number), encode_row(event.task))
    if event.forgotten:
        batch.delete(row_key(event.queue_id, MOVE_TASK, event.forgotten))


def _queue_continued(batch: Batch, event: QueueContinued, moved: Moved) -> None:
    batch.delete_range(*table_range(event.queue_id, MOVE_TASK))
    for task in event.tasks:
        batch.put(row_key(event.successor_id, MOVE_TASK, task.number), encode_row(task))


def _queue_dropped(batch: Batch, event: QueueDropped, moved: Moved) -> None:
    batch.delete_range(*queue_range(event.queue_id))


def _messages_handed_over(batch: Batch, event: MessagesHandedOver, moved: Moved) -> None:
    for position, lease in enumerate(event.leases, event.first_position):
        archived = ArchivedMessage(
            event.queue_arn,
            event.reason,
            event.removed_at_ms,
            lease.sequence if event.sequence_numbers else 0,
            lease.receive_count,
            lease.first_received_at_ms,
            moved[lease.sequence],
        )
        batch.put(row_key(THE_SHARD, ARCHIVED, position), encode_row(archived))


def _messages_discarded(batch: Batch, event: MessagesDiscarded, moved: Moved) -> None:
    """Only the shard's own row says it."""


def _batch_sealed(batch: Batch, event: BatchSealed, moved: Moved) -> None:
    batch.put(row_key(THE_SHARD, BATCH, event.batch.number), encode_row(event.batch))


def _batches_archived(batch: Batch, event: BatchesArchived, moved: Moved) -> None:
    for table, end in ((ARCHIVED, event.until), (BATCH, event.number + 1)):
        begin, _ = table_range(THE_SHARD, table)
        batch.delete_range(begin, row_key(THE_SHARD, table, end))


APPLIERS: dict[type[Event], Callable[[Batch, Any, Moved], None]] = {
    MessagesSent: _messages_sent,
    MessagesDelayed: _messages_delayed,
    MessagesReceived: _leases_changed,
    MessagesDeleted: _messages_gone,
    MessagesExpired: _messages_gone,
    VisibilityChanged: _leases_changed,
    LeasesEnded: _leases_ended,
    MessagesMoved: _messages_moved,
    GroupsChanged: _groups_changed,
    IdsRemembered: _ids_remembered,
    IdsForgotten: _ids_forgotten,
    MoveTaskChanged: _move_task_changed,
    QueueContinued: _queue_continued,
    QueueDropped: _queue_dropped,
    MessagesHandedOver: _messages_handed_over,
    MessagesDiscarded: _messages_discarded,
    BatchSealed: _batch_sealed,
    BatchesArchived: _batches_archived,
}
"""Puts an event's rows into the batch; the last argument has the messages that the event moves."""
