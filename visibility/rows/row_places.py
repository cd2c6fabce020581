"""The rows of a message at its place in a queue."""

from __future__ import annotations

from collections.abc import Sequence

from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import (
    ALIAS,
    CLOCK,
    EXPIRY,
    GROUP_LINE,
    LEASE,
    LEVEL_LINE,
    MESSAGE,
    group_line_key,
    pair_key,
    row_key,
)

_NOTHING = b""


def put_waiting(changes: Changes, queue_id: int, sequence: int, message: StoredMessage) -> None:
    """Add a message to the line of its queue."""
    put_message(changes, queue_id, sequence, message)
    if message.group:
        changes.put(group_line_key(queue_id, GROUP_LINE, message.group, sequence), _NOTHING)
    if message.level:
        changes.put(pair_key(queue_id, LEVEL_LINE, message.level, sequence), _NOTHING)


def put_message(changes: Changes, queue_id: int, sequence: int, message: StoredMessage) -> None:
    """Add a message with its rows in other tables, but not to the lines of its group and level."""
    changes.put(row_key(queue_id, MESSAGE, sequence), encode_row(message))
    if message.clock_ms:
        changes.put(pair_key(queue_id, CLOCK, message.clock_ms, sequence), _NOTHING)
    if message.expires_ms:
        changes.put(pair_key(queue_id, EXPIRY, message.expires_ms, sequence), _NOTHING)
    if message.original_sequence:
        changes.put(row_key(queue_id, ALIAS, message.original_sequence), encode_row(sequence))


def remove(changes: Changes, queue_id: int, leases: Sequence[Lease]) -> None:
    """Remove messages from their places, table by table: RocksDB inserts a key faster behind the
    one that it inserted before."""
    for lease in leases:
        changes.delete(row_key(queue_id, MESSAGE, lease.sequence))
    remove_references(changes, queue_id, leases)


def remove_references(changes: Changes, queue_id: int, leases: Sequence[Lease]) -> None:
    """Remove messages' rows from the other tables."""
    for lease in leases:
        changes.delete(row_key(queue_id, LEASE, lease.sequence))
        if lease.group:
            changes.delete(group_line_key(queue_id, GROUP_LINE, lease.group, lease.sequence))
        if lease.clock_ms:
            changes.delete(pair_key(queue_id, CLOCK, lease.clock_ms, lease.sequence))
        if lease.expires_ms:
            changes.delete(pair_key(queue_id, EXPIRY, lease.expires_ms, lease.sequence))
        if lease.level and not lease.received_at_ms:  # else a receive has removed it
            changes.delete(pair_key(queue_id, LEVEL_LINE, lease.level, lease.sequence))
        if lease.original_sequence:
            changes.delete(row_key(queue_id, ALIAS, lease.original_sequence))
