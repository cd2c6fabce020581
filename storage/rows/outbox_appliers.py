"""The part of `appliers.py` for the outbox: one function for each of its events."""

from __future__ import annotations

from storage.rows.outbox_rows import write_outbox
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import (
    ARRIVAL,
    ARRIVALS_FLOOR,
    DEPARTURE,
    GROUP_LINE,
    LEASE,
    arrival_key,
    floor_key,
    group_line_key,
    row_key,
)
from visibility.rows.row_places import put_message, put_waiting, remove
from visibility.rows.row_values import THE_SHARD, OutboxRow
from visibility.state.outbox import (
    ArrivalsForgotten,
    ArrivalsRefused,
    DeparturesCleared,
    DeparturesReturned,
    MessagesArrived,
    MessagesDeparted,
)


def messages_departed(changes: Changes, event: MessagesDeparted) -> None:
    """Messages leave their places for the outbox."""
    for number, departure in event.numbered():
        remove(changes, event.queue_id, [departure.lease])
        changes.put(row_key(THE_SHARD, DEPARTURE, number), encode_row(departure))
    next_number = event.first_number + len(event.departures)
    write_outbox(changes, OutboxRow(event.departures[-1].origin, next_number))


def departures_cleared(changes: Changes, event: DeparturesCleared) -> None:
    """Other shards have messages."""
    for number in event.numbers:
        changes.delete(row_key(THE_SHARD, DEPARTURE, number))


def departures_returned(changes: Changes, event: DeparturesReturned) -> None:
    """Messages are in their places again, with their history."""
    queue_id = event.queue_id
    for number, lease, message in zip(event.numbers, event.leases, event.messages, strict=True):
        changes.delete(row_key(THE_SHARD, DEPARTURE, number))
        put_message(changes, queue_id, lease.sequence, message)
        if event.fifo:
            key = group_line_key(queue_id, GROUP_LINE, lease.group, lease.sequence)
        else:
            key = row_key(queue_id, LEASE, lease.sequence)
        changes.put(key, encode_row(lease))


def messages_arrived(changes: Changes, event: MessagesArrived) -> None:
    """Messages wait here, and their names are remembered."""
    for origin, number, sequence, message in event.arrivals:
        put_waiting(changes, event.queue_id, sequence, message)
        changes.put(arrival_key(THE_SHARD, ARRIVAL, origin, number), encode_row(""))


def arrivals_refused(changes: Changes, event: ArrivalsRefused) -> None:
    """The names of refused messages are remembered, too."""
    for origin, number, reason in event.refusals:
        changes.put(arrival_key(THE_SHARD, ARRIVAL, origin, number), encode_row(reason))


def arrivals_forgotten(changes: Changes, event: ArrivalsForgotten) -> None:
    """One number takes the place of all names below it."""
    for origin, floor in event.floors:
        begin = arrival_key(THE_SHARD, ARRIVAL, origin, 0)
        changes.delete_range(begin, arrival_key(THE_SHARD, ARRIVAL, origin, floor))
        changes.put(floor_key(THE_SHARD, ARRIVALS_FLOOR, origin), encode_row(floor))
