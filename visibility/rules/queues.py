"""Decisions on whole queues: close, re-check, counters."""

from __future__ import annotations

from visibility.contract.model import Request
from visibility.rules.decided import Outcome
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp


def decide_close_queue(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Decide nothing: the engine's driver ends the queue's long polls."""
    return None, ()


def decide_queue_changed(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Have the queue checked now: its delays and its retention may end earlier than planned."""
    shard.plan_pulse(shard.queue(request.queue.queue_id), stamp.now_ms)
    return None, ()


def decide_read_counters(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """The queue's present counters."""
    return shard.queue(request.queue.queue_id).counters(), ()
