"""The part of `appliers.py` that is about the archive: one function for each of its events."""

from __future__ import annotations

from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import ARCHIVE, ARCHIVED, BATCH, row_key, table_range
from visibility.rows.row_values import THE_SHARD, ArchivedMessage, ArchiveRow
from visibility.state.events import (
    BatchesArchived,
    BatchSealed,
    MessagesDiscarded,
    MessagesHandedOver,
)


def write_archive(changes: Changes, row: ArchiveRow) -> None:
    """Put what the shard knows of its archive into the changes: once, after its events."""
    changes.put(row_key(THE_SHARD, ARCHIVE, 0), encode_row(row))


def messages_handed_over(changes: Changes, event: MessagesHandedOver) -> None:
    """Messages wait for the archive."""
    pairs = zip(event.leases, event.messages, strict=True)
    for position, (lease, message) in enumerate(pairs, event.first_position):
        archived = ArchivedMessage(
            event.queue_arn,
            event.reason,
            event.removed_at_ms,
            lease.sequence if event.sequence_numbers else 0,
            lease.receive_count,
            lease.first_received_at_ms,
            message,
        )
        changes.put(row_key(THE_SHARD, ARCHIVED, position), encode_row(archived))


def messages_discarded(changes: Changes, event: MessagesDiscarded) -> None:
    """Only the shard's own row changes."""


def batch_sealed(changes: Changes, event: BatchSealed) -> None:
    """Waiting messages become one batch."""
    changes.put(row_key(THE_SHARD, BATCH, event.batch.number), encode_row(event.batch))


def batches_archived(changes: Changes, event: BatchesArchived) -> None:
    """Batches are in the archive for good."""
    for table, end in ((ARCHIVED, event.until), (BATCH, event.number + 1)):
        begin, _ = table_range(THE_SHARD, table)
        changes.delete_range(begin, row_key(THE_SHARD, table, end))
