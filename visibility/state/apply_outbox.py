"""The part of `apply.py` for the outbox: one function for each of its events."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rows.row_values import Departure
from visibility.state.in_flight import drop_removed, hide, trim
from visibility.state.outbox import (
    ArrivalsForgotten,
    ArrivalsRefused,
    DeparturesCleared,
    DeparturesReturned,
    MessagesArrived,
    MessagesDeparted,
)
from visibility.state.places import count, leave
from visibility.state.queue_state import QueueState
from visibility.state.shard_state import ShardState


def messages_departed(shard: ShardState, event: MessagesDeparted) -> None:
    """Move messages into the outbox; their FIFO groups are locked."""
    queue = shard.queue(event.queue_id)
    for number, departure in event.numbered():
        leave(shard, queue, departure.lease)
        queue.counts.moved_out += 1
        add_departure(shard, queue, number, departure)
    shard.outbox.origin = event.departures[-1].origin
    trim(queue)


def add_departure(
    shard: ShardState, queue: QueueState | None, number: int, departure: Departure
) -> None:
    """Add a message to the outbox, and lock its group; `queue` is None if it is gone."""
    shard.outbox.add(number, departure)
    if queue is None:
        return
    queue.departed += 1
    if departure.locked:
        held = queue.in_flight_by_group.setdefault(departure.locked, set())
        held.add(departure.lease.sequence)


def _remove_departure(shard: ShardState, queue: QueueState | None, number: int) -> Departure:
    departure = shard.outbox.remove(number)
    if queue is None:
        return departure
    queue.departed -= 1
    held = queue.in_flight_by_group.get(departure.locked)
    if held is not None:
        held.discard(departure.lease.sequence)
        if not held:
            del queue.in_flight_by_group[departure.locked]
    return departure


def departures_cleared(shard: ShardState, event: DeparturesCleared) -> None:
    """Forget messages that other shards have."""
    queue = shard.queues.get(event.queue_id)
    gone = [_remove_departure(shard, queue, number) for number in event.numbers]
    _go_on(shard, queue, gone, event.cleared_at_ms)


def departures_returned(shard: ShardState, event: DeparturesReturned) -> None:
    """Put messages back into their places."""
    queue = shard.queue(event.queue_id)
    drop_removed(queue)  # else one that departed while it was visible again would be there twice
    back = [_remove_departure(shard, queue, number) for number in event.numbers]
    for lease, message in zip(event.leases, event.messages, strict=True):
        _put_back(shard, queue, lease, message, event)
    _go_on(shard, queue, back, event.returned_at_ms)


def _put_back(
    shard: ShardState,
    queue: QueueState,
    lease: Lease,
    message: StoredMessage,
    event: DeparturesReturned,
) -> None:
    if event.fifo:
        queue.waiting += 1
    else:
        hide(shard, queue, lease, event.returned_at_ms)
    queue.counts.moved_in += 1
    queue.aliases += bool(message.original_sequence)
    if message.clock_ms:
        queue.clocks_after = min(queue.clocks_after, (message.clock_ms, 0))
    count(queue, lease.sequence, lease.sequence + 1)
    queue.fresh_until_ms = 0
    shard.plan_pulse(queue, event.returned_at_ms)


def _go_on(
    shard: ShardState, queue: QueueState | None, settled: list[Departure], at_ms: int
) -> None:
    """Let move tasks continue that waited for these messages or for room; after a purge they belong
    to another queue."""
    here: Iterable[QueueState] = () if queue is None else (queue,)
    known = {task.task_id for each in here for task in each.tasks.values()}
    are_known = all(each.task in known for each in settled if each.task)
    for each in here if are_known else shard.queues.values():
        if each.active_task is not None:
            shard.plan_pulse(each, at_ms)


def messages_arrived(shard: ShardState, event: MessagesArrived) -> None:
    """Add messages to the line of their queue."""
    queue = shard.queue(event.queue_id)
    for _, _, sequence, message in event.arrivals:
        queue.next_sequence = max(queue.next_sequence, sequence + 1)
        queue.waiting += 1
        queue.counts.moved_in += 1
        if message.clock_ms:
            queue.clocks_after = min(queue.clocks_after, (message.clock_ms, 0))
        count(queue, sequence, sequence + 1)
    queue.fresh_until_ms = 0
    shard.plan_pulse(queue, event.arrived_at_ms)


def rows_only(shard: ShardState, event: ArrivalsRefused | ArrivalsForgotten) -> None:
    """Memory knows nothing of what was refused or forgotten."""


def returned_lease(lease: Lease, at_ms: int) -> Lease:
    """The lease of a returned message, which is over."""
    return msgspec.structs.replace(lease, visible_at_ms=min(lease.visible_at_ms, at_ms))
