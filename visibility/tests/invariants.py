"""Invariants of a shard's memory, as named checks. Tests run them after every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from types import MappingProxyType

from visibility.state.queue_state import QueueState
from visibility.state.shard_state import ShardState
from visibility.state.window import held_bytes


def check_shard(shard: ShardState) -> None:
    """Assert every invariant of the shard. O(messages in memory)."""
    locked: dict[int, dict[bytes, set[int]]] = {}
    departed = Counter(each.queue_id for each in shard.outbox.departures.values())
    for departure in shard.outbox.departures.values():
        if departure.locked:
            groups = locked.setdefault(departure.queue_id, {})
            groups.setdefault(departure.locked, set()).add(departure.lease.sequence)
    for queue in shard.queues.values():
        check_queue(queue, locked.get(queue.queue_id, {}))
        assert queue.departed == departed[queue.queue_id], repr(queue)
    outbox = shard.outbox
    assert list(outbox.departures) == sorted(outbox.departures), "the outbox ascends"
    assert outbox.size == sum(departure.size for departure in outbox.departures.values())
    sends = Counter(
        (each.target_arn, each.arriving.group)
        for each in outbox.departures.values()
        if each.sent is not None
    )
    assert sends == {
        (arn, group): messages
        for arn, to_queue in outbox.sends.items()
        for group, messages in to_queue.groups.items()
    }
    assert sum(sends.values()) == sum(each.messages for each in outbox.sends.values())
    queues = shard.queues.values()
    assert shard.hidden == sum(queue.in_flight for queue in queues)
    lines = [line for queue in queues for line in queue.lines]
    assert shard.window_bytes == sum(line.window_bytes for line in lines)


def check_queue(queue: QueueState, locked: Mapping[bytes, Set[int]] = MappingProxyType({})) -> None:
    """Assert every invariant of one queue; `locked` has its messages in the outbox by FIFO
    group."""
    assert 1 <= queue.low_water <= queue.head <= queue.next_sequence or queue.fifo, repr(queue)
    assert min(queue.waiting, queue.delayed, queue.in_flight, queue.aliases) >= 0, repr(queue)
    assert sum(queue.spans.values()) == queue.waiting + len(queue.entries), repr(queue)
    assert 0 not in queue.spans.values()
    assert queue.counts.there == queue.stored, f"{queue!r}: {queue.counts}"
    assert queue.ready_groups.in_memory <= queue.ready_groups.total
    _check_window(queue)
    _check_levels(queue)
    _check_entries(queue)
    _check_groups(queue, locked)


def _check_window(queue: QueueState) -> None:
    sequences = [sequence for sequence, _ in queue.window]
    assert sequences == sorted(set(sequences)), "the window ascends"
    assert all(queue.low_water <= sequence < queue.head for sequence in sequences)
    assert not set(sequences) & queue.entries.keys(), (
        "a message is waiting or has an entry, not both"
    )
    assert queue.window_bytes == sum(held_bytes(message) for _, message in queue.window)
    assert min(queue.passed, queue.backlog) >= 0 or queue.fifo, repr(queue)
    if queue.fifo:
        assert not queue.window
        assert not queue.passed
        assert not queue.visible_again
    elif queue.head == queue.next_sequence:
        assert queue.backlog == 0, "nothing is on disk only"


def _check_levels(queue: QueueState) -> None:
    levels = queue.levels.values()
    waiting = sum(each.waiting for each in levels)
    assert waiting <= queue.waiting, repr(queue)
    assert queue.in_levels == (waiting if queue.is_by_level else 0), repr(queue)
    for level in levels:
        assert level.waiting > 0
        assert min(level.passed, level.backlog) >= 0, f"{queue!r}: {level}"
        assert level.low_water <= level.head <= queue.next_sequence, f"{queue!r}: {level}"
        sequences = [sequence for sequence, _ in level.window]
        assert sequences == sorted(set(sequences)), "the window ascends"
        assert all(level.low_water <= sequence < level.head for sequence in sequences)
        assert all(message.level == level.level for _, message in level.window)
        assert level.window_bytes == sum(held_bytes(message) for _, message in level.window)
        assert queue.is_by_level or not level.window
    if queue.is_by_level:
        assert not any(message.level for _, message in queue.window)


def _check_entries(queue: QueueState) -> None:
    hidden = [entry for entry in queue.entries.values() if entry.hidden]
    assert queue.in_flight == len(hidden), repr(queue)
    assert len(hidden) == len(queue.entries) or not queue.fifo, "FIFO: in flight or no entry"
    prepared = {sequence for sequence, entry in queue.entries.items() if entry.lease.is_prepared}
    assert queue.prepared == prepared, repr(queue)
    heaps = queue.visible_again.values()
    queued = [sequence for heap in heaps for sequence in heap if sequence in queue.entries]
    once = set(queued)
    assert len(queued) == len(once), "a sequence is queued once"
    for sequence, entry in queue.entries.items():
        assert entry.lease.sequence == sequence < queue.next_sequence
        assert entry.queued == (sequence in once)
        assert entry.hidden or entry.queued, "a visible entry can be found"


def _check_groups(queue: QueueState, locked: Mapping[bytes, Set[int]]) -> None:
    held = {group: set(sequences) for group, sequences in locked.items()}
    for sequence, entry in queue.entries.items():
        if entry.hidden and entry.lease.group:
            held.setdefault(entry.lease.group, set()).add(sequence)
    assert queue.in_flight_by_group == held, "messages in flight are known by group"
    for row in queue.groups.values():
        assert row.count >= 0
        assert row.delayed >= 0
        assert row.count or not row.order, "an empty group is not listed"
