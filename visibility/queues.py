"""Deciding about whole queues: purge, drop, close, counters."""

from __future__ import annotations

from visibility.errors import PurgeQueueInProgress
from visibility.events import QueueDropped, QueuePurged
from visibility.model import Request
from visibility.outcomes import Outcome
from visibility.stamp import Stamp
from visibility.state import ShardState


def decide_purge_queue(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Remove every message the queue holds now; AWS allows this once in 60 seconds."""
    queue = shard.queue(request.queue.queue_id)
    if queue.purged_at_ms and stamp.now_ms - queue.purged_at_ms < shard.purge_interval_ms:
        raise PurgeQueueInProgress(
            f"Only one PurgeQueue operation on {request.queue.name} is allowed every 60 seconds."
        )
    return None, (QueuePurged(queue.queue_id, stamp.now_ms),)


def decide_drop_queue(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Forget a queue that the catalog does not know any more."""
    return None, (QueueDropped(request.queue.queue_id),)


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
