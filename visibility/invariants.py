"""Invariants of a shard's memory, as named checks. Tests run them after every step."""

from __future__ import annotations

from visibility.apply import held_bytes
from visibility.state import QueueState, ShardState


def check_shard(shard: ShardState) -> None:
    """Assert every invariant of the shard. O(messages in memory)."""
    for queue in shard.queues.values():
        check_queue(queue)
    queues = shard.queues.values()
    assert shard.hidden == sum(queue.in_flight + queue.delayed for queue in queues)
    assert shard.window_bytes == sum(queue.window_bytes for queue in queues)


def check_queue(queue: QueueState) -> None:
    """Assert every invariant of one queue."""
    assert 1 <= queue.low_water <= queue.head <= queue.next_sequence, repr(queue)
    _check_window(queue)
    _check_entries(queue)


def _check_window(queue: QueueState) -> None:
    sequences = [sequence for sequence, _ in queue.window]
    assert sequences == sorted(set(sequences)), "the window ascends"
    assert all(queue.low_water <= sequence < queue.head for sequence in sequences)
    assert not set(sequences) & queue.entries.keys(), (
        "a message is waiting or has an entry, not both"
    )
    assert queue.window_bytes == sum(held_bytes(message) for _, message in queue.window)
    assert queue.waiting >= len(queue.window)
    if queue.head == queue.next_sequence:
        assert queue.backlog == 0, "nothing is on disk only"


def _check_entries(queue: QueueState) -> None:
    hidden = [entry for entry in queue.entries.values() if entry.hidden]
    in_flight = sum(entry.lease.receive_count > entry.lease.base_count for entry in hidden)
    assert queue.in_flight == in_flight, repr(queue)
    assert queue.delayed == len(hidden) - in_flight, repr(queue)
    queued = [sequence for sequence in queue.returned if sequence in queue.entries]
    assert len(queued) == len(set(queued)), "a sequence is queued once"
    for sequence, entry in queue.entries.items():
        assert entry.lease.sequence == sequence < queue.next_sequence
        assert entry.queued == (sequence in queued)
        assert entry.hidden or entry.queued, "a visible entry can be found"
