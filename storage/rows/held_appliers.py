"""Writes the events of messages that operators hold. Part of `appliers.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from storage.rows.row_changes import Changes
from storage.rows.row_codec import encode_row
from storage.rows.row_keys import GROUP_LINE, HOLD, LEASE, group_line_key, row_key
from visibility.state.events import Event, HoldsEnded, MessagesHeld


def _messages_held(changes: Changes, event: MessagesHeld) -> None:
    queue_id = event.queue_id
    for lease in event.leases:
        changes.put(row_key(queue_id, LEASE, lease.sequence), encode_row(lease))
        if lease.group:
            changes.delete(group_line_key(queue_id, GROUP_LINE, lease.group, lease.sequence))
    for mark in event.marks:
        changes.put(row_key(queue_id, HOLD, mark.sequence), encode_row(mark))


def _holds_ended(changes: Changes, event: HoldsEnded) -> None:
    for sequence in event.sequences:
        changes.delete(row_key(event.queue_id, HOLD, sequence))


APPLIERS: dict[type[Event], Callable[[Changes, Any], None]] = {
    MessagesHeld: _messages_held,
    HoldsEnded: _holds_ended,
}
"""Rows of the table of `appliers.py`."""
