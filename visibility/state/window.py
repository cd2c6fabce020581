"""The window of a line: the next untouched messages, read ahead from disk a page at a time.

A standard queue has a line, and one for each level of its messages with priorities (`Level`).
"""

from __future__ import annotations

from itertools import islice

from visibility.contract.stored_message import StoredMessage
from visibility.rows.row_codec import DamagedRecord
from visibility.rows.row_keys import LEVEL_LINE, pair_key
from visibility.state.queue_state import Level, QueueState
from visibility.state.rows import MessagesMissing, Page
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
_PAGES_PASSED_MAX = 4
"""Pages that one read of a queue's line looks at for messages without a level."""

Line = QueueState | Level


def held_bytes(message: StoredMessage) -> int:
    """The memory that a message in a window takes."""
    return len(message.data) + _MESSAGE_OVERHEAD_BYTES


def append(shard: ShardState, line: Line, sequence: int, message: StoredMessage) -> None:
    """Append a message after the others."""
    size = held_bytes(message)
    line.window.append((sequence, message))
    line.window_bytes += size
    shard.window_bytes += size


def extend(shard: ShardState, line: Line, sequence: int, messages: list[StoredMessage]) -> int:
    """Put new messages behind the others while there is room; returns the sequence that comes
    next."""
    for message in messages:
        size = len(message.data) + _MESSAGE_OVERHEAD_BYTES
        if (
            len(line.window) >= WINDOW_MESSAGES_MAX
            or line.window_bytes + size > WINDOW_BYTES_MAX
            or shard.window_bytes + size > SHARD_WINDOW_BYTES_MAX
        ):
            break
        line.window.append((sequence, message))
        line.window_bytes += size
        shard.window_bytes += size
        sequence += 1
    return sequence


def take_first(shard: ShardState, line: Line) -> None:
    """Take the first message out."""
    size = len(line.window.popleft()[1].data) + _MESSAGE_OVERHEAD_BYTES
    line.window_bytes -= size
    shard.window_bytes -= size


def discard(shard: ShardState, line: Line, sequence: int) -> bool:
    """Take a message out, if it is there. Fast at the front, else O(messages before it)."""
    window = line.window
    if not window or not window[0][0] <= sequence <= window[-1][0]:
        return False
    position = 0 if window[0][0] == sequence else _position(line, sequence)
    if window[position][0] != sequence:
        return False
    message = window[position][1]
    del window[position]
    _forget(shard, line, message)
    return True


def _forget(shard: ShardState, line: Line, message: StoredMessage) -> None:
    size = held_bytes(message)
    line.window_bytes -= size
    shard.window_bytes -= size


def _position(line: Line, sequence: int) -> int:
    """The position of the sequence, present or not. Invariant: not after the last."""
    window = line.window
    low, high = 0, len(window) - 1
    while low < high:
        middle = (low + high) // 2
        if window[middle][0] < sequence:
            low = middle + 1
        else:
            high = middle
    return low


def fill(shard: ShardState, queue: QueueState, messages: int, level: Level | None = None) -> None:
    """Read pages until at least `messages` are in the window of the queue's line, or of a level, or
    none are left on disk. Of a line whose other messages have levels, only a few pages are read.

    Raises DamagedRecord, MessagesMissing.
    """
    line = queue if level is None else level
    pages = 0
    while len(line.window) < messages and line.backlog > 0:
        found, next_sequence = _next_page(shard, queue, level)
        for sequence, message in found:
            if sequence not in queue.entries:
                if level is None and queue.is_by_level and message.level:
                    continue
                append(shard, line, sequence, message)
        line.head = next_sequence or queue.next_sequence
        if next_sequence is None and line.backlog > 0:
            if level is None:
                raise MessagesMissing(queue.queue_id)
            key = pair_key(queue.queue_id, LEVEL_LINE, level.level, level.low_water)
            raise DamagedRecord(key, "the index of levels lacks messages")
        pages += 1
        if pages == _PAGES_PASSED_MAX and queue.is_by_level:
            break
    if shard.window_bytes > SHARD_WINDOW_BYTES_MAX:
        _shed(shard, queue)


def _next_page(shard: ShardState, queue: QueueState, level: Level | None) -> Page:
    if level is not None:
        return shard.rows.level_line(
            queue, level.level, level.head, messages=PAGE_MESSAGES, size=PAGE_BYTES
        )
    return shard.rows.line(
        queue.queue_id,
        queue.head,
        queue.next_sequence,
        messages=PAGE_MESSAGES,
        size=PAGE_BYTES,
        quarantined=queue.quarantined,
        spans=queue.spans,
    )


def fill_fresh(
    shard: ShardState,
    queue: QueueState,
    messages: int,
    too_old_ms: int,
    now_ms: int,
    passed_max: int,
    level: Level | None = None,
) -> bool:
    """The same; the first `messages` are retained from after `too_old_ms` and their time to live
    goes on, others are passed by.

    False if these are more than `passed_max`: the next call goes on.
    """
    line = queue if level is None else level
    for _ in range(passed_max):
        fill(shard, queue, messages, level)
        first = islice(line.window, messages)
        old = [
            sequence
            for sequence, each in first
            if each.retained_from_ms <= too_old_ms or 0 < each.expires_ms <= now_ms
        ]
        if not old:
            return True
        for sequence in old:
            discard(shard, line, sequence)
        line.passed += len(old)
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
    """Empty the windows; what was in them or passed by is read again."""
    for line in queue.lines:
        if line.passed:
            line.head = line.low_water
        elif line.window:
            line.head = line.window[0][0]
        empty(shard, line)


def empty(shard: ShardState, line: Line) -> None:
    """Empty the window, and forget what was passed by."""
    shard.window_bytes -= line.window_bytes
    line.window.clear()
    line.window_bytes = line.passed = 0


def read_by_level(shard: ShardState, queue: QueueState, *, is_by_level: bool) -> None:
    """Have messages with a level in the lines of their levels, or in the queue's line."""
    queue.low_water = queue.head = queue.lowest
    empty(shard, queue)
    for each in queue.levels.values():
        each.head = each.low_water
        empty(shard, each)
    waiting = sum(each.waiting for each in queue.levels.values())
    queue.in_levels = waiting if is_by_level else 0
    queue.is_by_level = is_by_level
