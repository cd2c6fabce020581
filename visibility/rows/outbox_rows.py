"""The rows of an outbox: its state and its messages."""

from __future__ import annotations

from collections.abc import Iterator

from visibility.rows.overlay import RowReader
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import decode_row, encode_row
from visibility.rows.row_keys import (
    DEPARTURE,
    OUTBOX,
    number_of,
    row_key,
    table_range,
)
from visibility.rows.row_values import THE_SHARD, Departure, OutboxRow

DEPARTED_LOST = "messages on their way to other shards are missing"
"""The damage of a queue that counts more of them than there are."""
OUTBOX_KEY = row_key(THE_SHARD, OUTBOX, 0)


def write_outbox(changes: Changes, row: OutboxRow) -> None:
    """Put the outbox's state into the changes."""
    changes.put(OUTBOX_KEY, encode_row(row))


def departures(rows: RowReader) -> Iterator[tuple[int, Departure]]:
    """(number, departure) of the messages in the outbox. Raises DamagedRecord."""
    for key, value in rows.scan(*table_range(THE_SHARD, DEPARTURE)):
        yield number_of(key), decode_row(Departure, key, value)


def outbox_row(rows: RowReader) -> OutboxRow | None:
    """The outbox's state, None if nothing ever departed. Raises DamagedRecord."""
    value = rows.get(OUTBOX_KEY)
    return None if value is None else decode_row(OutboxRow, OUTBOX_KEY, value)
