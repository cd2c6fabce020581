"""The tables of messages on their way between shards: the outbox, and those remembered of others'
outboxes."""

from __future__ import annotations

from collections.abc import Iterator

from visibility.contract.stored_message import StoredMessage
from visibility.rows.overlay import RowReader
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import ARRIVAL, ARRIVALS_FLOOR, DEPARTURE, OUTBOX, number_of, row_key
from visibility.rows.row_values import THE_SHARD, Departure, OutboxRow
from visibility.rows.state_rows import OUTBOX_KEY, departures, outbox_row
from visibility.rules.departures import add_departure
from visibility.rules.tables import (
    GROUP_KEY,
    GROUP_LINE_KEY,
    NUMBER_KEY,
    Finding,
    Kept,
    Put,
    ShardTables,
    SoundRows,
    Table,
)
from visibility.state.shard_state import ShardState


def _load(shard: ShardState, rows: RowReader) -> None:
    row = outbox_row(rows)
    if row is not None:
        shard.outbox.origin, shard.outbox.next_number = row.origin, row.next_number
    for number, departure in departures(rows):
        add_departure(shard, shard.queues.get(departure.queue_id), number, departure)


def check_outbox(rows: RowReader) -> Iterator[Finding]:
    """Messages in the outbox under numbers that it did not give. Raises DamagedRecord."""
    row = outbox_row(rows)
    next_number = 0 if row is None else row.next_number
    for number, _ in departures(rows):
        if number >= next_number:
            key = row_key(THE_SHARD, DEPARTURE, number)
            yield Finding(key, f"the outbox has given numbers below {next_number} only")


def salvage_outbox(rows: SoundRows, put: Put) -> Kept:
    """Write what is readable of the outbox, and of what is remembered of others. O(its rows).

    Messages keep their names, under which other shards may know them. Later ones have a new origin.
    """
    found = messages = last = 0
    for key, departure in rows.table(THE_SHARD, DEPARTURE, Departure):
        put(key, encode_row(departure))
        found, last = found + 1, number_of(key)
        messages += departure.prepared is None
    for key, reason in rows.table(THE_SHARD, ARRIVAL, str):
        put(key, encode_row(reason))
    for key, floor in rows.table(THE_SHARD, ARRIVALS_FLOOR, int):
        put(key, encode_row(floor))
    own = rows.row(OUTBOX_KEY, OutboxRow)
    if own is not None or found:
        next_number = max(last + 1, own.next_number if own is not None else 1)
        put(OUTBOX_KEY, encode_row(OutboxRow(b"", next_number)))
    return Kept(messages=messages)


def _next_number(rows: SoundRows, queue_id: int) -> int:
    row = rows.row(OUTBOX_KEY, OutboxRow)
    return row.next_number if row is not None else 0


def _message(row: Departure) -> StoredMessage:
    return row.message


OUTBOX_TABLES = ShardTables(
    (
        Table(
            DEPARTURE,
            "departure",
            NUMBER_KEY,
            Departure,
            next_number=_next_number,
            message=_message,
        ),
        Table(OUTBOX, "outbox", NUMBER_KEY, OutboxRow),
        Table(ARRIVAL, "arrival", GROUP_LINE_KEY, str),
        Table(ARRIVALS_FLOOR, "arrivals floor", GROUP_KEY, int),
    ),
    load=_load,
    salvage=salvage_outbox,
    check=check_outbox,
)
