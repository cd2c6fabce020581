"""The rows of a queue and of its spans."""

from __future__ import annotations

from collections.abc import Mapping

from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import SPAN, queue_key, row_key
from visibility.rows.row_values import QueueRow


def write_queue(changes: Changes, queue_id: int, row: QueueRow, spans: Mapping[int, int]) -> None:
    """Record a queue's own row and its changed span counts: once, after its events."""
    changes.put(queue_key(queue_id), encode_row(row))
    for span, count in spans.items():
        key = row_key(queue_id, SPAN, span)
        if count:
            changes.put(key, encode_row(count))
        else:
            changes.delete(key)
