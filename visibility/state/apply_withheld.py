"""Applies the events of messages that operators withhold. Part of `apply.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from visibility.state.events import Event, MessagesWithheld, WithholdingEnded
from visibility.state.in_flight import hide, trim
from visibility.state.places import leave_line
from visibility.state.shard_state import ShardState


def _messages_withheld(shard: ShardState, event: MessagesWithheld) -> None:
    queue = shard.queue(event.queue_id)
    for lease in event.leases:
        if lease.sequence not in queue.entries:
            leave_line(shard, queue, lease.sequence)
        hide(shard, queue, lease, event.withheld_at_ms)
    for mark in event.marks:
        queue.withheld[mark.sequence] = mark
        shard.plan_pulse(queue, mark.deleted_at_ms or event.withheld_at_ms)
    trim(queue)


def _withholding_ended(shard: ShardState, event: WithholdingEnded) -> None:
    withheld = shard.queue(event.queue_id).withheld
    for sequence in event.sequences:
        withheld.pop(sequence, None)


APPLY: dict[type[Event], Callable[[ShardState, Any], None]] = {
    MessagesWithheld: _messages_withheld,
    WithholdingEnded: _withholding_ended,
}
"""Rows of the table of `apply.py`."""
