"""The rows of a message at its place in a queue."""

from __future__ import annotations

from storage.rows.changes import Changes
from storage.rows.codec import encode_row
from storage.rows.keys import (
    ALIAS,
    CLOCK,
    GROUP_LINE,
    LEASE,
    MESSAGE,
    group_line_key,
    pair_key,
    row_key,
)
from visibility.state.events import Lease, StoredMessage

_NOTHING = b""


def put_waiting(changes: Changes, queue_id: int, sequence: int, message: StoredMessage) -> None:
    """Add a message to the line of its queue."""
    put_message(changes, queue_id, sequence, message)
    if message.group:
        changes.put(group_line_key(queue_id, GROUP_LINE, message.group, sequence), _NOTHING)


def put_message(changes: Changes, queue_id: int, sequence: int, message: StoredMessage) -> None:
    """Add a message with its rows in other tables, but not to the line of its group."""
    changes.put(row_key(queue_id, MESSAGE, sequence), encode_row(message))
    if message.clock_ms:
        changes.put(pair_key(queue_id, CLOCK, message.clock_ms, sequence), _NOTHING)
    if message.original_sequence:
        changes.put(row_key(queue_id, ALIAS, message.original_sequence), encode_row(sequence))


def remove(changes: Changes, queue_id: int, lease: Lease, *, waits: bool) -> None:
    """Remove a message from its place. `waits`: it may be in the line of its group."""
    changes.delete(row_key(queue_id, MESSAGE, lease.sequence))
    remove_references(changes, queue_id, lease, waits=waits)


def remove_references(changes: Changes, queue_id: int, lease: Lease, *, waits: bool) -> None:
    """Remove a message's rows from the other tables."""
    sequence = lease.sequence
    changes.delete(row_key(queue_id, LEASE, sequence))
    if lease.group and waits:
        changes.delete(group_line_key(queue_id, GROUP_LINE, lease.group, sequence))
    if lease.clock_ms:
        changes.delete(pair_key(queue_id, CLOCK, lease.clock_ms, sequence))
    if lease.original_sequence:
        changes.delete(row_key(queue_id, ALIAS, lease.original_sequence))
