"""The window of a standard queue: the next untouched messages, read ahead from disk a page at a
time."""

from __future__ import annotations

from itertools import islice

from visibility.contract.stored_message import StoredMessage
from visibility.state.queue_state import QueueState
from visibility.state.rows import MessagesMissing
from visibility.state.shard_state import ShardState

WINDOW_MESSAGES_MAX = 10_000
"""Messages of one queue kept in memory; more wait on disk."""
WINDOW_BYTES_MAX = 16 << 20
"""Memory of one queue's window."""
SHARD_WINDOW_BYTES_MAX = 256 << 20
"""Memory of all windows together; beyond it, new messages wait on disk only."""
PAGE_MESSAGES = 256
"""Messages read ahead from disk at a time."""
PAGE_BYTES = 4 << 20
"""Content read ahead from disk at a time; one more message may exceed it."""
_MESSAGE_OVERHEAD_BYTES = 350
"""Memory of a message in a window besides its content (measured: 363 MB for a million tiny
ones)."""


def held_bytes(message: StoredMessage) -> int:
    """The memory that a message in a window takes."""
    return len(message.data) + _MESSAGE_OVERHEAD_BYTES


def append(shard: ShardState, queue: QueueState, sequence: int, message: StoredMessage) -> None:
    """Append a message after the others."""
    size = held_bytes(message)
    queue.window.append((sequence, message))
    queue.window_bytes += size
    shard.window_bytes += size


def extend(
    shard: ShardState, queue: QueueState, sequence: int, messages: list[StoredMessage]
) -> int:
    """Put new messages behind the others while there is room; returns the sequence that comes
    next."""
    for message in messages:
        size = len(message.data) + _MESSAGE_OVERHEAD_BYTES
        if (
            len(queue.window) >= WINDOW_MESSAGES_MAX
            or queue.window_bytes + size > WINDOW_BYTES_MAX
            or shard.window_bytes + size > SHARD_WINDOW_BYTES_MAX
        ):
            break
        queue.window.append((sequence, message))
        queue.window_bytes += size
        shard.window_bytes += size
        sequence += 1
    return sequence


def take_first(shard: ShardState, queue: QueueState) -> None:
    """Take the first message out."""
    size = len(queue.window.popleft()[1].data) + _MESSAGE_OVERHEAD_BYTES
    queue.window_bytes -= size
    shard.window_bytes -= size


def discard(shard: ShardState, queue: QueueState, sequence: int) -> bool:
    """Take a message out, if it is there. Fast at the front, else O(messages before it)."""
    window = queue.window
    if not window or not window[0][0] <= sequence <= window[-1][0]:
        return False
    position = 0 if window[0][0] == sequence else _position(queue, sequence)
    if window[position][0] != sequence:
        return False
    message = window[position][1]
    del window[position]
    _forget(shard, queue, message)
    return True


def _forget(shard: ShardState, queue: QueueState, message: StoredMessage) -> None:
    size = held_bytes(message)
    queue.window_bytes -= size
    shard.window_bytes -= size


def _position(queue: QueueState, sequence: int) -> int:
    """The position of the sequence, present or not. Invariant: not after the last."""
    window = queue.window
    low, high = 0, len(window) - 1
    while low < high:
        middle = (low + high) // 2
        if window[middle][0] < sequence:
            low = middle + 1
        else:
            high = middle
    return low


def fill(shard: ShardState, queue: QueueState, messages: int) -> None:
    """Read pages until at least `messages` are in the window, or none are left on disk.

    Raises DamagedRecord, MessagesMissing.
    """
    while len(queue.window) < messages and queue.backlog > 0:
        found, next_sequence = shard.rows.line(
            queue.queue_id,
            queue.head,
            queue.next_sequence,
            messages=PAGE_MESSAGES,
            size=PAGE_BYTES,
            quarantined=queue.quarantined,
            spans=queue.spans,
        )
        for sequence, message in found:
            if sequence not in queue.entries:
                append(shard, queue, sequence, message)
        queue.head = next_sequence or queue.next_sequence
        if next_sequence is None and queue.backlog > 0:
            raise MessagesMissing(queue.queue_id)
    if shard.window_bytes > SHARD_WINDOW_BYTES_MAX:
        _shed(shard, queue)


def fill_fresh(
    shard: ShardState,
    queue: QueueState,
    messages: int,
    too_old_ms: int,
    now_ms: int,
    passed_max: int,
) -> bool:
    """The same; the first `messages` are retained from after `too_old_ms` and their time to live
    goes on, others are passed by.

    False if these are more than `passed_max`: the next call goes on.
    """
    for _ in range(passed_max):
        fill(shard, queue, messages)
        first = islice(queue.window, messages)
        old = [
            sequence
            for sequence, each in first
            if each.retained_from_ms <= too_old_ms or 0 < each.expires_ms <= now_ms
        ]
        if not old:
            return True
        for sequence in old:
            discard(shard, queue, sequence)
        queue.passed += len(old)
        passed_max -= len(old)
        if passed_max <= 0:
            return False
    return True


def _shed(shard: ShardState, keep: QueueState) -> None:
    """Empty the windows of other queues: their messages are on disk."""
    for queue in shard.queues.values():
        if queue is not keep:
            read_again(shard, queue)


def read_again(shard: ShardState, queue: QueueState) -> None:
    """Empty the window; what was in it or passed by is read again."""
    if queue.passed:
        queue.head = queue.low_water
    elif queue.window:
        queue.head = queue.window[0][0]
    empty(shard, queue)


def empty(shard: ShardState, queue: QueueState) -> None:
    """Empty the window, and forget what was passed by."""
    shard.window_bytes -= queue.window_bytes
    queue.window.clear()
    queue.window_bytes = queue.passed = 0
