"""How old the oldest messages of a queue are, read when somebody asks. A few reads of the disk for each queue.

Exact for standard queues, but for delayed messages: of those the one due first is looked at, which is at most 15 minutes
from the oldest. Of a FIFO queue's groups that may be received from, the first 64 are looked at.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from visibility.state import QueueState, ShardState

_GROUPS_MAX = 64
_ONE = 1
_NO_SIZE = 1


class Oldest(NamedTuple):
    """When the oldest messages were sent (epoch milliseconds), 0 where there is none."""

    stored_ms: int
    receivable_ms: int


def oldest(shard: ShardState, queue: QueueState) -> Oldest:
    """The oldest message that is stored, and the oldest that a receive could take. Raises DamagedRecord."""
    stored = [_first_in_line(shard, queue, queue.floor), _first_by_clock(shard, queue)]
    if queue.delayed:
        stored += [message.sent_at_ms for _, _, message in shard.rows.delayed(queue.queue_id, 1)]
    receivable = _receivable_fifo(shard, queue) if queue.fifo else _receivable(shard, queue)
    return Oldest(
        min((at_ms for at_ms in stored if at_ms), default=0),
        min((at_ms for at_ms in receivable if at_ms), default=0),
    )


def _first_in_line(shard: ShardState, queue: QueueState, from_sequence: int) -> int:
    if not queue.spans:
        return 0
    page = shard.rows.line(
        queue.queue_id,
        max(from_sequence, queue.floor),
        queue.next_sequence,
        messages=_ONE,
        size=_NO_SIZE,
    )
    return page.messages[0][1].sent_at_ms if page.messages else 0


def _first_by_clock(shard: ShardState, queue: QueueState) -> int:
    """Of the messages whose age is not that of their place: dead letters, and those that went to the back."""
    found = shard.rows.clocks(queue.queue_id, 1, after=queue.clocks_after)
    return found[0][0] if found and queue.spans else 0


def _receivable(shard: ShardState, queue: QueueState) -> list[int]:
    found = []
    if queue.window:
        found.append(queue.window[0][1].sent_at_ms)
    elif queue.waiting:
        found.append(_first_in_line(shard, queue, queue.head))
    for entry in queue.returned_in_order():
        found += _sent_ms(shard, queue, entry.lease.sequence)
        break
    return found


def _receivable_fifo(shard: ShardState, queue: QueueState) -> list[int]:
    found: list[int] = []
    read = partial(shard.rows.heads, queue.queue_id)
    for position, (_, group) in enumerate(queue.heads.in_order(read)):
        if position == _GROUPS_MAX:
            break
        row = queue.groups.get(group) or shard.rows.group(queue.queue_id, group)
        if row is not None:
            for sequence, _ in shard.rows.group_line(queue.queue_id, group, row.first, 1):
                found += _sent_ms(shard, queue, sequence)
    return found


def _sent_ms(shard: ShardState, queue: QueueState, sequence: int) -> list[int]:
    (message,) = shard.rows.messages(queue.queue_id, [sequence])
    return [] if message is None else [message.sent_at_ms]
