"""Messages in flight, and those that become visible again: what a lease does to memory."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from visibility.contract.limits import PREPARED_UNTIL_MS
from visibility.contract.stored_message import Lease
from visibility.state.queue_state import Entry, QueueState
from visibility.state.shard_state import ShardState

OVER_RECEIVED_FROM = 3
"""Receives after which a message of a standard queue goes to the back once it is visible."""
TAKEN_MS = 60_000
"""Time for which a message that no one receives again can be given back."""
_VISIBLE_AGAIN_SLACK = 4096
_NONE: frozenset[int] = frozenset()


def hide(shard: ShardState, queue: QueueState, lease: Lease, at_ms: int) -> None:
    """Give a message this lease: it is hidden if it may not be received at `at_ms`."""
    sequence = lease.sequence
    hidden = lease.visible_at_ms + lease.retry_ms > at_ms
    entry = queue.entries.get(sequence)
    if entry is None:
        entry = queue.entries[sequence] = Entry(lease, hidden, False)
    else:
        if entry.hidden:
            end_flight(shard, queue, entry.lease)
        entry.lease = lease
        entry.hidden = hidden
    if hidden or queue.fifo:
        entry.hidden = True  # in a FIFO queue until an event ends it
        shard.hidden += 1
        queue.in_flight += 1
        if lease.group:
            queue.in_flight_by_group.setdefault(lease.group, set()).add(sequence)
        if lease.retry_ms and lease.visible_at_ms <= at_ms:
            wait(shard, queue, lease)
        elif lease.visible_at_ms < PREPARED_UNTIL_MS:
            shard.deadlines.push(lease.visible_at_ms, queue.queue_id, sequence)
        elif lease.is_taken:
            queue.taken[sequence] = None
            shard.plan_pulse(queue, lease.received_at_ms + TAKEN_MS)
        elif lease.is_prepared:
            queue.prepared.add(sequence)
    else:
        _queue_again(shard, queue, entry)


def wait(shard: ShardState, queue: QueueState, lease: Lease) -> None:
    """Let a message wait, whose visibility timeout is over. Derived from time, not an event."""
    queue.retrying.add(lease.sequence)
    shard.deadlines.push(lease.receivable_at_ms, queue.queue_id, lease.sequence)


def end_flight(shard: ShardState, queue: QueueState, lease: Lease) -> None:
    """End a message's time in flight, and its wait."""
    shard.hidden -= 1
    queue.in_flight -= 1
    if queue.retrying:
        queue.retrying.discard(lease.sequence)
    if queue.taken:
        queue.taken.pop(lease.sequence, None)
    if queue.prepared:
        queue.prepared.discard(lease.sequence)
    if lease.group:
        sequences = queue.in_flight_by_group[lease.group]
        sequences.discard(lease.sequence)
        if not sequences:
            del queue.in_flight_by_group[lease.group]


def group_with_consumers(queue: QueueState, group: bytes) -> int:
    """Number of a group's messages in flight. Held and waiting ones keep no consumer busy."""
    sequences = queue.in_flight_by_group.get(group, _NONE)
    idle = len(queue.holds.keys() & sequences) if queue.holds else 0
    return len(sequences) - idle - (len(queue.retrying & sequences) if queue.retrying else 0)


def with_consumers(queue: QueueState) -> int:
    """Number of messages in flight without waiting ones, and held ones, whose marks may outlive
    them."""
    holds = queue.holds
    in_flight = queue.in_flight - len(queue.retrying)
    return in_flight - (len(queue.entries.keys() & holds.keys()) if holds else 0)


def show(shard: ShardState, queue: QueueState, entry: Entry) -> None:
    """Make a message visible at the end of its lease. Derived from time, not an event."""
    end_flight(shard, queue, entry.lease)
    entry.hidden = False
    _queue_again(shard, queue, entry)


def _queue_again(shard: ShardState, queue: QueueState, entry: Entry) -> None:
    sequence = entry.lease.sequence
    if not entry.queued:
        entry.queued = True
        heappush(queue.visible_again.setdefault(entry.lease.level, []), sequence)
    if entry.lease.receive_count >= OVER_RECEIVED_FROM:
        queue.over_received.append(sequence)
        shard.plan_pulse(queue, entry.lease.visible_at_ms)


def trim(queue: QueueState) -> None:
    """Drop hidden and removed messages from the tops of the heaps."""
    for level, returned in list(queue.visible_again.items()):
        if len(returned) > 2 * len(queue.entries) + _VISIBLE_AGAIN_SLACK:
            _drop_removed(queue, returned)
        _trim(queue, returned)
        if not returned:
            del queue.visible_again[level]


def _trim(queue: QueueState, returned: list[int]) -> None:
    entries = queue.entries
    while returned:
        entry = entries.get(returned[0])
        if entry is not None:
            if not entry.hidden:
                return
            entry.queued = False
        heappop(returned)


def drop_removed(queue: QueueState) -> None:
    """Drop hidden and removed ones everywhere, even behind a damaged or noisy first one. O(n)."""
    for level, returned in list(queue.visible_again.items()):
        _drop_removed(queue, returned)
        if not returned:
            del queue.visible_again[level]


def _drop_removed(queue: QueueState, returned: list[int]) -> None:
    kept = []
    for sequence in returned:
        entry = queue.entries.get(sequence)
        if entry is not None:
            entry.queued = not entry.hidden
            if entry.queued:
                kept.append(sequence)
    heapify(kept)
    returned[:] = kept
