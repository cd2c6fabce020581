"""Writes the events of messages that operators withhold. Part of `appliers.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import GROUP_LINE, LEASE, WITHHELD, group_line_key, row_key
from visibility.state.events import Event, MessagesWithheld, WithholdingEnded


def _messages_withheld(changes: Changes, event: MessagesWithheld) -> None:
    queue_id = event.queue_id
    for lease in event.leases:
        changes.put(row_key(queue_id, LEASE, lease.sequence), encode_row(lease))
        if lease.group:
            changes.delete(group_line_key(queue_id, GROUP_LINE, lease.group, lease.sequence))
    for mark in event.marks:
        changes.put(row_key(queue_id, WITHHELD, mark.sequence), encode_row(mark))


def _withholding_ended(changes: Changes, event: WithholdingEnded) -> None:
    for sequence in event.sequences:
        changes.delete(row_key(event.queue_id, WITHHELD, sequence))


APPLIERS: dict[type[Event], Callable[[Changes, Any], None]] = {
    MessagesWithheld: _messages_withheld,
    WithholdingEnded: _withholding_ended,
}
"""Rows of the table of `appliers.py`."""
