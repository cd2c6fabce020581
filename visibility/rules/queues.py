"""Decisions on whole queues: close, re-check, counters."""

from __future__ import annotations

from visibility.contract.model import QueueCounters, Request
from visibility.contract.operations import Operation
from visibility.rules.decided import Outcome
from visibility.rules.operation_kinds import OperationKind, Operations
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp


class ReadCounters(Operation, frozen=True):
    """Read a queue's counters; answers `model.QueueCounters`."""


class CloseQueue(Operation, frozen=True):
    """End the long polls of a queue that was deleted and may be restored; answers None."""


class QueueChanged(Operation, frozen=True):
    """Look at a queue's delays and retention again after a change of its settings; answers None."""


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


OPERATIONS: Operations = {
    CloseQueue: OperationKind(decide_close_queue, None, is_fixed=True),
    QueueChanged: OperationKind(decide_queue_changed, None),
    ReadCounters: OperationKind(decide_read_counters, QueueCounters),
}
