"""Applies the events of messages that operators hold. Part of `apply.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from visibility.state.events import Event, HoldsEnded, MessagesHeld
from visibility.state.in_flight import hide, trim
from visibility.state.places import leave_line
from visibility.state.shard_state import ShardState


def _messages_held(shard: ShardState, event: MessagesHeld) -> None:
    queue = shard.queue(event.queue_id)
    for lease in event.leases:
        if lease.sequence not in queue.entries:
            leave_line(shard, queue, lease.sequence)
        hide(shard, queue, lease, event.held_at_ms)
    for mark in event.marks:
        queue.holds[mark.sequence] = mark
        shard.plan_pulse(queue, mark.deleted_at_ms or event.held_at_ms)
    trim(queue)


def _holds_ended(shard: ShardState, event: HoldsEnded) -> None:
    holds = shard.queue(event.queue_id).holds
    for sequence in event.sequences:
        holds.pop(sequence, None)


APPLY: dict[type[Event], Callable[[ShardState, Any], None]] = {
    MessagesHeld: _messages_held,
    HoldsEnded: _holds_ended,
}
"""Rows of the table of `apply.py`."""
