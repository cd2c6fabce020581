"""TABLE: event type to the one function that writes it.

The other reader of an event is `visibility/apply.py`. Rows hold the same facts as memory, so what a restart loads is what
was there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from storage.codec import QueueRow, encode_row
from storage.keys import LEASE, MESSAGE, queue_key, queue_range, row_key, table_range
from visibility.events import (
    Event,
    Lease,
    MessageDeadLettered,
    MessagesDeleted,
    MessagesReceived,
    MessagesSent,
    QueueDropped,
    QueuePurged,
    StoredMessage,
    VisibilityChanged,
)


class Batch(Protocol):
    """Changes that reach the disk together or not at all, in order."""

    def put(self, key: bytes, value: bytes) -> None:
        """Write a row."""

    def delete(self, key: bytes) -> None:
        """Remove a row, which need not exist."""

    def delete_range(self, begin: bytes, end: bytes) -> None:
        """Remove the rows from `begin` to before `end`."""


def write_queue(batch: Batch, queue_id: int, row: QueueRow) -> None:
    """Put a queue's own row into the batch: once for each batch, after its events."""
    batch.put(queue_key(queue_id), encode_row(row))


def _messages_sent(batch: Batch, event: MessagesSent, moved: StoredMessage | None) -> None:
    queue_id = event.queue_id
    for sequence, visible_at_ms, message in event.numbered():
        batch.put(row_key(queue_id, MESSAGE, sequence), encode_row(message))
        if visible_at_ms:
            count = message.receive_count
            lease = Lease(sequence, visible_at_ms, count, count, message.first_received_at_ms, 0)
            batch.put(row_key(queue_id, LEASE, sequence), encode_row(lease))


def _leases_changed(
    batch: Batch, event: MessagesReceived | VisibilityChanged, moved: StoredMessage | None
) -> None:
    queue_id = event.queue_id
    for lease in event.leases:
        batch.put(row_key(queue_id, LEASE, lease.sequence), encode_row(lease))


def _messages_deleted(batch: Batch, event: MessagesDeleted, moved: StoredMessage | None) -> None:
    queue_id = event.queue_id
    for sequence in event.sequences:
        batch.delete(row_key(queue_id, MESSAGE, sequence))
        batch.delete(row_key(queue_id, LEASE, sequence))


def _message_dead_lettered(
    batch: Batch, event: MessageDeadLettered, moved: StoredMessage | None
) -> None:
    assert moved is not None
    message = msgspec.structs.replace(
        moved,
        dead_letter_source_arn=event.source_arn,
        receive_count=event.receive_count,
        first_received_at_ms=event.first_received_at_ms,
    )
    target_key = row_key(event.target_queue_id, MESSAGE, event.target_sequence)
    batch.put(target_key, encode_row(message))
    batch.delete(row_key(event.queue_id, MESSAGE, event.sequence))
    batch.delete(row_key(event.queue_id, LEASE, event.sequence))


def _queue_purged(batch: Batch, event: QueuePurged, moved: StoredMessage | None) -> None:
    for table in (MESSAGE, LEASE):
        batch.delete_range(*table_range(event.queue_id, table))


def _queue_dropped(batch: Batch, event: QueueDropped, moved: StoredMessage | None) -> None:
    batch.delete_range(*queue_range(event.queue_id))


APPLIERS: dict[type[Event], Callable[[Batch, Any, StoredMessage | None], None]] = {
    MessagesSent: _messages_sent,
    MessagesReceived: _leases_changed,
    MessagesDeleted: _messages_deleted,
    VisibilityChanged: _leases_changed,
    MessageDeadLettered: _message_dead_lettered,
    QueuePurged: _queue_purged,
    QueueDropped: _queue_dropped,
}
"""Puts an event's rows into the batch; the last argument is the message that a MessageDeadLettered moves, else None."""
