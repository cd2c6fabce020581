"""The places of messages in a queue's memory: leaving one, and the counts by span."""

from __future__ import annotations

from visibility.contract.stored_message import Lease
from visibility.state import window
from visibility.state.in_flight import end_flight
from visibility.state.queue_state import SPAN_BITS, Entry, QueueState
from visibility.state.shard_state import ShardState


def leave_line(shard: ShardState, queue: QueueState, sequence: int) -> None:
    """Remove a waiting message from the line."""
    queue.waiting -= 1
    if queue.fifo:
        return
    messages = queue.window
    if messages and messages[0][0] == sequence:
        if not queue.passed:
            queue.low_water = sequence + 1
        window.take_first(shard, queue)
    elif window.discard(shard, queue, sequence):
        return
    elif queue.passed and sequence < queue.head:
        queue.passed -= 1
    elif not messages and queue.head == sequence:
        queue.head = sequence + 1
        if not queue.passed:
            queue.low_water = queue.head


def leave(shard: ShardState, queue: QueueState, lease: Lease) -> Entry | None:
    """Remove a message from its place, wherever that is. Returns its former entry."""
    sequence = lease.sequence
    entry = queue.entries.pop(sequence, None)
    if entry is None:
        leave_line(shard, queue, sequence)
    elif entry.hidden:
        end_flight(shard, queue, entry.lease)
    if lease.original_sequence:
        queue.aliases -= 1
    uncount(queue, sequence >> SPAN_BITS, 1)
    return entry


def leave_delayed(queue: QueueState, due_ms: int, sequence: int) -> None:
    """Remove the first delayed message."""
    queue.delayed -= 1
    if queue.doubted is None:  # else some before it are still there
        queue.delayed_after = max(queue.delayed_after, (due_ms, sequence))


def join_delayed(shard: ShardState, queue: QueueState, due_ms: int) -> None:
    """Add a delayed message that came from another place."""
    queue.delayed += 1
    queue.delayed_after = min(queue.delayed_after, (due_ms, 0))
    shard.plan_pulse(queue, due_ms)


def uncount(queue: QueueState, span: int, messages: int) -> None:
    """Stop counting messages in this span."""
    queue.changed_spans.add(span)
    queue.spans[span] -= messages
    if not queue.spans[span]:
        del queue.spans[span]


def count(queue: QueueState, first: int, after: int) -> None:
    """Messages are stored under the sequences from `first` to before `after`."""
    span = first >> SPAN_BITS
    if span == (after - 1) >> SPAN_BITS:
        queue.spans[span] = queue.spans.get(span, 0) + after - first
        queue.changed_spans.add(span)
    else:
        for sequence in range(first, after):
            count(queue, sequence, sequence + 1)
