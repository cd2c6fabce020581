"""The order of standard queues whose messages have groups: while a group is noisy, messages of
quiet groups go first.

Returned messages of quiet groups and the first messages of quiet groups are merged by sequence;
then come the noisy groups, the one with the fewest messages in flight first. The index of groups
finds a quiet message behind any backlog.
Source: SQS developer guide, how fair queues work.
"""

from __future__ import annotations

from functools import partial
from heapq import merge
from itertools import islice

from typing_extensions import override

from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rules.groups import GroupBook
from visibility.rules.order import Candidates
from visibility.rules.standard_order import Standard
from visibility.state.gauges import row_of_group
from visibility.state.in_flight import group_with_consumers
from visibility.state.queue_state import QueueState
from visibility.state.shard_state import ShardState

PAGE = 10
"""Messages of a group that are read at once."""
QUIET_GROUPS_MAX = 64
"""Quiet groups that one receive looks at, in the order of their oldest messages."""


class Fair(Standard):
    """`Standard` while no group is noisy."""

    @override
    def candidates(self, shard: ShardState, queue: QueueState, now_ms: int) -> Candidates:
        if is_unfair(queue, now_ms):
            return _quiet_first(shard, queue)
        return super().candidates(shard, queue, now_ms)

    @override
    def first_to_go(self, shard: ShardState, queue: QueueState, book: GroupBook) -> Candidates:
        """Those of noisy groups, then of one that fills the queue, then the oldest."""
        given: set[int] = set()
        for group in (*queue.fairness.noisy, *_filling(shard, queue)):
            for candidate in line_of(shard, queue, group):
                given.add(candidate[0])
                yield candidate
        for candidate in super().first_to_go(shard, queue, book):
            if candidate[0] not in given:
                yield candidate


def is_unfair(queue: QueueState, now_ms: int) -> bool:
    """True if a group is noisy while others have messages, too."""
    noisy = queue.fairness.noisy_now(now_ms)
    if not noisy:
        return False
    listed = sum(bool((row := queue.groups.get(group)) and row.order) for group in noisy)
    return queue.ready_groups.total > listed or bool(queue.visible_again)


def _quiet_first(shard: ShardState, queue: QueueState) -> Candidates:
    """All visible messages in the order of a fair queue."""
    noisy = queue.fairness.noisy
    returned = [entry.lease for entry in islice(queue.visible_again_in_order(), QUIET_GROUPS_MAX)]
    read_ready_groups = partial(shard.rows.ready_groups, queue.queue_id)
    heads = (
        group for _, group in queue.ready_groups.in_order(read_ready_groups) if group not in noisy
    )
    quiet = list(islice(heads, QUIET_GROUPS_MAX))
    again = [(lease.sequence, None, lease) for lease in returned if lease.group not in noisy]
    lines = [line_of(shard, queue, group) for group in quiet]
    yield from merge(again, _before_index(queue), *lines, key=_sequence)
    for group in sorted(noisy, key=lambda group: group_with_consumers(queue, group)):
        again = [(lease.sequence, None, lease) for lease in returned if lease.group == group]
        yield from merge(again, line_of(shard, queue, group), key=_sequence)
    # A receive gets here after most of its candidates went to the dead-letter queue.
    for entry in islice(queue.visible_again_in_order(), QUIET_GROUPS_MAX, None):
        yield entry.lease.sequence, None, entry.lease
    for group in heads:
        yield from line_of(shard, queue, group)


def _sequence(candidate: tuple[int, StoredMessage | None, Lease | None]) -> int:
    return candidate[0]


def _filling(shard: ShardState, queue: QueueState) -> list[bytes]:
    """The group with the most waiting messages of those looked at, if it has more than its
    share."""
    read_ready_groups = partial(shard.rows.ready_groups, queue.queue_id)
    listed = islice(queue.ready_groups.in_order(read_ready_groups), QUIET_GROUPS_MAX)
    counts = {group: row_of_group(shard, queue, group).count for _, group in list(listed)}
    most = max(counts, key=counts.__getitem__, default=b"")
    share = queue.waiting / (queue.ready_groups.total + 1)
    return [most] if most and counts[most] > share else []


def _before_index(queue: QueueState) -> Candidates:
    """Messages without a group that are not in the index, as it was empty when they were sent."""
    for sequence, message in queue.window:
        if message.group:
            return
        yield sequence, message, None


def line_of(shard: ShardState, queue: QueueState, group: bytes) -> Candidates:
    """A group's waiting messages."""
    after = row_of_group(shard, queue, group).first
    while True:
        page = shard.rows.group_line(queue.queue_id, group, after, PAGE)
        sequences = [sequence for sequence, _ in page]
        for sequence, message in shard.rows.unless_quarantined(queue, sequences):
            yield sequence, message, None
        if len(page) < PAGE:
            return
        after = sequences[-1] + 1
