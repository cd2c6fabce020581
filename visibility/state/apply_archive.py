"""The part of `apply.py` for the archive: one function for each of its events."""

from __future__ import annotations

from visibility.state.events import (
    BatchesArchived,
    BatchSealed,
    MessagesDiscarded,
    MessagesHandedOver,
)
from visibility.state.shard_state import ShardState


def messages_handed_over(shard: ShardState, event: MessagesHandedOver) -> None:
    """Add messages that wait for the archive."""
    archive = shard.archive
    if not archive.has_open:
        archive.open_since_ms = event.removed_at_ms
    archive.next_position = event.first_position + len(event.leases)
    archive.open_size += event.size
    archive.handed_over += len(event.leases)


def messages_discarded(shard: ShardState, event: MessagesDiscarded) -> None:
    """Count messages that left without being archived."""
    shard.archive.discarded += event.messages


def batch_sealed(shard: ShardState, event: BatchSealed) -> None:
    """Turn the waiting messages into one batch."""
    archive, batch = shard.archive, event.batch
    archive.batches[batch.number] = batch
    archive.next_batch = batch.number + 1
    archive.open_first = batch.until
    archive.sealed_size += batch.size
    archive.open_size = 0


def batches_archived(shard: ShardState, event: BatchesArchived) -> None:
    """Forget batches that are safely archived."""
    archive = shard.archive
    archive.archived = event.number
    archive.batches = {n: batch for n, batch in archive.batches.items() if n > event.number}
    archive.sealed_size = sum(batch.size for batch in archive.batches.values())
