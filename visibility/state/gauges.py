"""Gauges of a queue's groups, for metrics; read on request.

Source: CloudWatch's metrics of fair queues and FIFO queues; a message that is visible again counts
as quiet here, regardless of its group.
"""

from __future__ import annotations

from functools import partial

import msgspec

from visibility.rows.row_values import GroupRow
from visibility.state.queue_state import QueueState
from visibility.state.shard_state import ShardState

_HEADS_MAX = 64
"""Groups examined to find the oldest message of a quiet one."""


class GroupGauges(msgspec.Struct, frozen=True):
    """Counts of groups and messages; `oldest_quiet_sent_ms` is 0 if no quiet group waits."""

    groups_in_flight: int
    noisy_groups: int
    visible_in_quiet_groups: int
    in_flight_in_quiet_groups: int
    delayed_in_quiet_groups: int
    oldest_quiet_sent_ms: int


def group_gauges(shard: ShardState, queue: QueueState, now_ms: int) -> GroupGauges:
    """The gauges of one queue. O(noisy groups). Raises DamagedRecord."""
    noisy = queue.fairness.noisy_now(now_ms)
    rows = [row_of_group(shard, queue, group) for group in noisy]
    return GroupGauges(
        len(queue.in_flight_by_group),
        len(noisy),
        queue.visible - sum(row.count for row in rows),
        queue.in_flight - sum(len(queue.in_flight_by_group.get(group, ())) for group in noisy),
        queue.delayed - sum(row.delayed for row in rows),
        _oldest_quiet_ms(shard, queue, frozenset(noisy)) if noisy else 0,
    )


def row_of_group(shard: ShardState, queue: QueueState, group: bytes) -> GroupRow:
    """The counts of a group of a fair queue."""
    return queue.groups.get(group) or shard.rows.group(queue.queue_id, group) or GroupRow()


def _oldest_quiet_ms(shard: ShardState, queue: QueueState, noisy: frozenset[bytes]) -> int:
    read = partial(shard.rows.ready_groups, queue.queue_id)
    for position, (_, group) in enumerate(queue.ready_groups.in_order(read)):
        if position == _HEADS_MAX:
            break
        if group not in noisy:
            first = row_of_group(shard, queue, group).first
            line = shard.rows.group_line(queue.queue_id, group, first, 1)
            (message,) = shard.rows.messages(queue.queue_id, [sequence for sequence, _ in line])
            return message.sent_at_ms if message is not None else 0
    return 0
