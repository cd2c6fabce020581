"""A damaged shard's outbox: what is readable of its messages, and of those remembered of others."""

from __future__ import annotations

from storage.checks.readable_rows import ReadableRows
from storage.healing.salvaged_queue import Target
from visibility.rows.outbox_rows import OUTBOX_KEY, write_outbox
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import ARRIVAL, ARRIVALS_FLOOR, DEPARTURE, OUTBOX, number_of
from visibility.rows.row_values import THE_SHARD, Departure, OutboxRow

OUTBOX_TABLES = (DEPARTURE, OUTBOX, ARRIVAL, ARRIVALS_FLOOR)


def copy_outbox(rows: ReadableRows, target: Target) -> int:
    """Copy the outbox; returns the number of its messages. O(its rows).

    Messages keep their names, under which other shards may know them. Later ones have a new origin.
    """
    found = last = 0
    for key, departure in rows.table(THE_SHARD, DEPARTURE, Departure):
        target.put(key, encode_row(departure))
        found, last = found + 1, number_of(key)
    for key, reason in rows.table(THE_SHARD, ARRIVAL, str):
        target.put(key, encode_row(reason))
    for key, floor in rows.table(THE_SHARD, ARRIVALS_FLOOR, int):
        target.put(key, encode_row(floor))
    own = rows.row(OUTBOX_KEY, OutboxRow)
    if own is not None or found:
        next_number = max(last + 1, own.next_number if own is not None else 1)
        write_outbox(target.batch, OutboxRow(b"", next_number))
    target.write()
    return found
