"""Effects of time on a shard's memory: ends of leases and long polls, queues due for a pulse.

Nothing here is an event.
"""

from __future__ import annotations

from visibility.contract.stored_message import Lease
from visibility.state.in_flight import hide, show, wait
from visibility.state.queue_state import Counts, QueueState
from visibility.state.shard_state import ShardState
from visibility.state.waiters import Ticket

ADVANCE_MAX = 20_000
"""Deadlines handled in one Turn; bounds the time for which the event loop is held."""
_REBUILD_SLACK = 4096
_POLLS = 0
"""Queue id of long polls in the deadline heap; real queue ids start at 1."""


def advance(shard: ShardState, now_ms: int) -> list[Ticket]:
    """Let time pass: show messages at the end of standard leases, note queues that are due for a
    pulse.

    Returns the long polls that ended.
    """
    ended: list[Ticket] = []
    for _ in range(ADVANCE_MAX):
        due = shard.deadlines.pop_due(now_ms)
        if due is None:
            break
        at_ms, queue_id, number = due
        if queue_id == _POLLS:
            ticket = shard.waits.remove(number)
            if ticket is not None:
                ended.append(ticket)
            continue
        queue = shard.queues.get(queue_id)
        if queue is not None:
            _pass_deadline(shard, queue, number, at_ms, now_ms)
    if len(shard.deadlines) > _REBUILD_SLACK:
        wanted = shard.hidden + len(shard.waits) + len(shard.queues)
        if len(shard.deadlines) > 4 * wanted + _REBUILD_SLACK:
            _rebuild_deadlines(shard)
    return ended


def _pass_deadline(
    shard: ShardState, queue: QueueState, sequence: int, at_ms: int, now_ms: int
) -> None:
    if not sequence:
        if queue.pulse_at_ms == at_ms:
            queue.pulse_at_ms = 0
            shard.due[queue.queue_id] = None
        return
    entry = queue.entries.get(sequence)
    if entry is None or not entry.hidden or entry.lease.visible_at_ms > now_ms:
        return
    if entry.lease.receivable_at_ms > now_ms:
        wait(shard, queue, entry.lease)
        return
    if queue.fifo:
        queue.expired_leases.append(sequence)
        shard.due[queue.queue_id] = None
    else:
        show(shard, queue, entry)
        shard.to_wake[queue.queue_id] = None


def park(shard: ShardState, ticket: Ticket, queue_id: int) -> None:
    """Let a request wait at a queue until its `until_ms`."""
    shard.deadlines.push(ticket.until_ms, _POLLS, shard.waits.park(ticket, queue_id))


def _rebuild_deadlines(shard: ShardState) -> None:
    """Drop deadlines of deleted messages, which would stay in the heap until due."""
    items = [
        (entry.lease.visible_at_ms, queue.queue_id, sequence)
        for queue in shard.queues.values()
        if queue.in_flight
        for sequence, entry in queue.entries.items()
        if entry.hidden
    ]
    items += [
        (queue.pulse_at_ms, queue.queue_id, 0)
        for queue in shard.queues.values()
        if queue.pulse_at_ms
    ]
    items += [(ticket.until_ms, _POLLS, number) for number, ticket in shard.waits.by_number.items()]
    shard.deadlines.rebuild(items)


def restore(shard: ShardState, queue: QueueState, leases: list[Lease]) -> None:
    """Begin with a stored queue; `advance` makes messages visible again."""
    shard.queues[queue.queue_id] = queue
    if queue.locked:
        shard.locking[queue.queue_id] = None
    if queue.tasks and queue.active_task is not None and queue.active_task.is_shared:
        shard.sharing[queue.queue_id] = None
    for lease in leases:
        hide(shard, queue, lease, 0)
    queue.counts = Counts(restored=queue.stored)
    shard.plan_pulse(queue, 1)
