"""Deciding about whole queues: close, look again, counters."""

from __future__ import annotations

from visibility.contract.model import Request
from visibility.contract.outcomes import Outcome
from visibility.state.stamp import Stamp
from visibility.state.state import ShardState


def decide_close_queue(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Nothing changes: whoever drives the engine ends the queue's long polls."""
    return None, ()


def decide_queue_changed(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Have the queue looked at now: its delays and its retention may end earlier than was planned."""
    shard.plan_pulse(shard.queue(request.queue.queue_id), stamp.now_ms)
    return None, ()


def decide_read_counters(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """The queue's counters as of now."""
    return shard.queue(request.queue.queue_id).counters(), ()
