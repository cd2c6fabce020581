"""TABLE: event type to the one function that writes it.

The other reader of an event is `visibility/apply.py`. Rows hold the same facts as memory, so what a restart loads is what
was there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from storage.codec import QueueRow, encode_row
from storage.keys import (
    LEASE,
    MESSAGE,
    lease_key,
    message_key,
    queue_key,
    queue_range,
    table_range,
)
from visibility.events import (
    Event,
    Lease,
    MessageDeadLettered,
    MessagesDeleted,
    MessageSent,
    MessagesReceived,
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


def write_event(batch: Batch, event: Event, moved: StoredMessage | None = None) -> None:
    """Put an event's rows into the batch. `moved` is the message that a MessageDeadLettered moves, else None."""
    APPLIERS[type(event)](batch, event, moved)


def write_queue(batch: Batch, queue_id: int, row: QueueRow) -> None:
    """Put a queue's own row into the batch: once for each batch, after its events."""
    batch.put(queue_key(queue_id), encode_row(row))


def _message_sent(batch: Batch, event: MessageSent, moved: StoredMessage | None) -> None:
    message = event.message
    batch.put(message_key(event.queue_id, event.sequence), encode_row(message))
    if event.visible_at_ms:
        count = message.receive_count
        first_ms = message.first_received_at_ms
        lease = Lease(event.sequence, event.visible_at_ms, count, count, first_ms, 0)
        batch.put(lease_key(event.queue_id, event.sequence), encode_row(lease))


def _leases_changed(
    batch: Batch, event: MessagesReceived | VisibilityChanged, moved: StoredMessage | None
) -> None:
    queue_id = event.queue_id
    for lease in event.leases:
        batch.put(lease_key(queue_id, lease.sequence), encode_row(lease))


def _messages_deleted(batch: Batch, event: MessagesDeleted, moved: StoredMessage | None) -> None:
    for sequence in event.sequences:
        _delete_message(batch, event.queue_id, sequence)


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
    batch.put(message_key(event.target_queue_id, event.target_sequence), encode_row(message))
    _delete_message(batch, event.queue_id, event.sequence)


def _delete_message(batch: Batch, queue_id: int, sequence: int) -> None:
    batch.delete(message_key(queue_id, sequence))
    batch.delete(lease_key(queue_id, sequence))


def _queue_purged(batch: Batch, event: QueuePurged, moved: StoredMessage | None) -> None:
    for table in (MESSAGE, LEASE):
        batch.delete_range(*table_range(event.queue_id, table))


def _queue_dropped(batch: Batch, event: QueueDropped, moved: StoredMessage | None) -> None:
    batch.delete_range(*queue_range(event.queue_id))


APPLIERS: dict[type[Event], Callable[[Batch, Any, StoredMessage | None], None]] = {
    MessageSent: _message_sent,
    MessagesReceived: _leases_changed,
    MessagesDeleted: _messages_deleted,
    VisibilityChanged: _leases_changed,
    MessageDeadLettered: _message_dead_lettered,
    QueuePurged: _queue_purged,
    QueueDropped: _queue_dropped,
}
