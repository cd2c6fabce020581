"""TABLE: event type to the one function that changes memory by it.

Applying needs nothing but the state and the event, so followers and recovery do exactly what the leader did. A follower
has no window and its timers may lag: each function works from any state in which the event could have been decided.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from visibility.events import (
    Event,
    Lease,
    MessageDeadLettered,
    MessagesDeleted,
    MessagesReceived,
    MessagesSent,
    QueueDropped,
    QueuePurged,
    StoredMessage,
    VisibilityChanged,
)
from visibility.state import Entry, QueueState, ShardState

WINDOW_MESSAGES_MAX = 10_000
"""Messages of one queue held ready in memory; more wait on disk."""
WINDOW_BYTES_MAX = 16 << 20
"""Memory of one queue's window."""
SHARD_WINDOW_BYTES_MAX = 256 << 20
"""Memory of all windows together; beyond it new messages wait on disk only."""
_MESSAGE_OVERHEAD_BYTES = 350
"""What a message in a window takes beside its content (measured: 363 MB for a million tiny ones)."""


def held_bytes(message: StoredMessage) -> int:
    """The memory that a message in a window takes."""
    return len(message.data) + _MESSAGE_OVERHEAD_BYTES


def _messages_sent(shard: ShardState, event: MessagesSent) -> None:
    queue = shard.queue(event.queue_id)
    for sequence, visible_at_ms, message in event.numbered():
        queue.next_sequence = sequence + 1
        if visible_at_ms:
            if queue.head == sequence:
                queue.head = sequence + 1
            count = message.receive_count
            lease = Lease(sequence, visible_at_ms, count, count, message.first_received_at_ms, 0)
            _hold(shard, queue, lease, message.sent_at_ms)
            continue
        queue.waiting += 1
        size = held_bytes(message)
        if (
            queue.head == sequence
            and len(queue.window) < WINDOW_MESSAGES_MAX
            and queue.window_bytes + size <= WINDOW_BYTES_MAX
            and shard.window_bytes + size <= SHARD_WINDOW_BYTES_MAX
        ):
            queue.window.append((sequence, message))
            queue.window_bytes += size
            shard.window_bytes += size
            queue.head = sequence + 1


def _messages_received(shard: ShardState, event: MessagesReceived) -> None:
    queue = shard.queue(event.queue_id)
    entries = queue.entries
    at_ms = event.received_at_ms
    for lease in event.leases:
        if lease.sequence not in entries:
            _take_untouched(shard, queue, lease.sequence)
        _hold(shard, queue, lease, at_ms)
    if queue.returned:
        _trim(queue)


def _take_untouched(shard: ShardState, queue: QueueState, sequence: int) -> None:
    """The oldest untouched message leaves the window, or (on a follower) the part that is on disk only."""
    queue.waiting -= 1
    queue.low_water = sequence + 1
    window = queue.window
    if window and window[0][0] == sequence:
        size = held_bytes(window.popleft()[1])
        queue.window_bytes -= size
        shard.window_bytes -= size
    elif queue.head <= sequence:
        queue.head = sequence + 1


def _messages_deleted(shard: ShardState, event: MessagesDeleted) -> None:
    queue = shard.queue(event.queue_id)
    entries = queue.entries
    for sequence in event.sequences:
        entry = entries.pop(sequence)
        if entry.hidden:
            _leave_counters(shard, queue, entry.lease)
    if queue.returned:
        _trim(queue)


def _visibility_changed(shard: ShardState, event: VisibilityChanged) -> None:
    queue = shard.queue(event.queue_id)
    for lease in event.leases:
        _hold(shard, queue, lease, event.changed_at_ms)
    if queue.returned:
        _trim(queue)


def _message_dead_lettered(shard: ShardState, event: MessageDeadLettered) -> None:
    source = shard.queue(event.queue_id)
    entry = source.entries.pop(event.sequence)
    if entry.hidden:
        _leave_counters(shard, source, entry.lease)
    _trim(source)
    target = shard.queue(event.target_queue_id)
    target.next_sequence = event.target_sequence + 1
    target.waiting += 1


def _queue_purged(shard: ShardState, event: QueuePurged) -> None:
    queue = shard.queue(event.queue_id)
    _empty(shard, queue)
    queue.purged_at_ms = event.purged_at_ms


def _queue_dropped(shard: ShardState, event: QueueDropped) -> None:
    queue = shard.queues.get(event.queue_id)
    if queue is not None:
        _empty(shard, queue)
        del shard.queues[event.queue_id]


def _hold(shard: ShardState, queue: QueueState, lease: Lease, at_ms: int) -> None:
    """Give the message this lease: it is hidden if that ends after `at_ms`."""
    sequence = lease.sequence
    hidden = lease.visible_at_ms > at_ms
    entry = queue.entries.get(sequence)
    if entry is None:
        entry = queue.entries[sequence] = Entry(lease, hidden, False)
    else:
        if entry.hidden:
            _leave_counters(shard, queue, entry.lease)
        entry.lease = lease
        entry.hidden = hidden
    if hidden:
        shard.hidden += 1
        if lease.receive_count > lease.base_count:
            queue.in_flight += 1
        else:
            queue.delayed += 1
        shard.deadlines.push(lease.visible_at_ms, queue.queue_id, sequence)
    elif not entry.queued:
        entry.queued = True
        heappush(queue.returned, sequence)


def _leave_counters(shard: ShardState, queue: QueueState, lease: Lease) -> None:
    """A hidden message is so no more; without a receive in this queue it was delayed, else in flight."""
    shard.hidden -= 1
    if lease.receive_count > lease.base_count:
        queue.in_flight -= 1
    else:
        queue.delayed -= 1


def show(shard: ShardState, queue: QueueState, entry: Entry) -> None:
    """The entry's lease is over: it may be received again. Derived from time, not an event."""
    _leave_counters(shard, queue, entry.lease)
    entry.hidden = False
    if not entry.queued:
        entry.queued = True
        heappush(queue.returned, entry.lease.sequence)


def _trim(queue: QueueState) -> None:
    """Drop what is hidden or gone from the top of the heap."""
    returned = queue.returned
    entries = queue.entries
    while returned:
        entry = entries.get(returned[0])
        if entry is not None:
            if not entry.hidden:
                return
            entry.queued = False
        heappop(returned)


def _empty(shard: ShardState, queue: QueueState) -> None:
    shard.hidden -= queue.in_flight + queue.delayed
    shard.window_bytes -= queue.window_bytes
    queue.window.clear()
    queue.window_bytes = 0
    queue.entries.clear()
    queue.returned.clear()
    queue.set_aside.clear()
    queue.in_flight = queue.delayed = queue.waiting = 0
    queue.low_water = queue.head = queue.next_sequence


APPLY: dict[type[Event], Callable[[ShardState, Any], None]] = {
    MessagesSent: _messages_sent,
    MessagesReceived: _messages_received,
    MessagesDeleted: _messages_deleted,
    VisibilityChanged: _visibility_changed,
    MessageDeadLettered: _message_dead_lettered,
    QueuePurged: _queue_purged,
    QueueDropped: _queue_dropped,
}
"""Changes the state as the event says."""
