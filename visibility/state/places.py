"""The places of messages in a queue's memory: joining and leaving lines, and counts by span."""

from __future__ import annotations

from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rows.row_keys import SPAN_BITS
from visibility.state import window
from visibility.state.in_flight import end_flight
from visibility.state.queue_state import Entry, Level, QueueState
from visibility.state.shard_state import ShardState


def join_level(queue: QueueState, number: int, sequence: int) -> Level:
    """Count a waiting message in the line of its level; it is on disk."""
    level = queue.levels.get(number)
    if level is None:
        level = queue.levels[number] = Level(number, sequence, sequence)
    level.waiting += 1
    queue.in_levels += queue.is_by_level
    return level


def join_lines(
    shard: ShardState, queue: QueueState, first: int, messages: list[StoredMessage]
) -> None:
    """Add new messages, some of which have levels, to their lines and the windows of these."""
    for sequence, message in enumerate(messages, first):
        level = join_level(queue, message.level, sequence) if message.level else None
        if level is None or not queue.is_by_level:
            if queue.head == sequence:
                queue.head = window.extend(shard, queue, sequence, [message])
            continue
        if level.backlog == 1:
            level.head = window.extend(shard, level, sequence, [message])
        if queue.head == sequence:
            queue.head = sequence + 1


def leave_line(shard: ShardState, queue: QueueState, lease: Lease) -> None:
    """Remove a waiting message from its line; `lease` is one or a placeholder for it."""
    queue.waiting -= 1
    if queue.fifo:
        return
    level = queue.levels.get(lease.level) if lease.level else None
    if level is None:
        _leave(shard, queue, lease.sequence)
        return
    level.waiting -= 1
    if queue.is_by_level:
        queue.in_levels -= 1
        _leave(shard, level, lease.sequence)
    else:
        if level.low_water == lease.sequence:
            level.low_water = level.head = lease.sequence + 1
        _leave(shard, queue, lease.sequence)
    if not level.waiting:
        window.empty(shard, level)
        del queue.levels[lease.level]


def _leave(shard: ShardState, line: window.Line, sequence: int) -> None:
    messages = line.window
    if messages and messages[0][0] == sequence:
        if not line.passed:
            line.low_water = sequence + 1
        window.take_first(shard, line)
    elif window.discard(shard, line, sequence):
        return
    elif line.passed and sequence < line.head:
        line.passed -= 1
    elif not messages and line.head == sequence:
        line.head = sequence + 1
        if not line.passed:
            line.low_water = line.head


def leave(shard: ShardState, queue: QueueState, lease: Lease) -> Entry | None:
    """Remove a message from its place, wherever that is. Returns its former entry."""
    sequence = lease.sequence
    entry = queue.entries.pop(sequence, None)
    if entry is None:
        leave_line(shard, queue, lease)
    elif entry.hidden:
        end_flight(shard, queue, entry.lease)
    if lease.original_sequence:
        queue.aliases -= 1
    if sequence >= queue.sized_from:
        queue.size -= lease.size
    uncount(queue, sequence >> SPAN_BITS, 1)
    return entry


def add_size(queue: QueueState, sequence: int, size: int) -> None:
    """Count the bytes of a message that joins the queue; fewer than 0 for one that leaves."""
    if sequence >= queue.sized_from:
        queue.size += size


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
