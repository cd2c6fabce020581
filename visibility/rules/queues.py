"""Decisions on whole queues: close, re-check, counters, and readings of many for operators."""

from __future__ import annotations

import msgspec

from visibility.contract.errors import InvalidParameterValue
from visibility.contract.model import QueueCounters, Request
from visibility.contract.operations import Operation
from visibility.contract.outcomes import QueueReading, QueuesRead
from visibility.rows.row_codec import DamagedRecord
from visibility.rules.decided import Outcome
from visibility.rules.hold_messages import held_leases
from visibility.rules.move_tasks import latest_tasks, shown_task
from visibility.rules.operation_kinds import OperationKind, Operations
from visibility.state.ages import OldestMessages, oldest_messages
from visibility.state.queue_state import QueueState
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


READ_QUEUES_MAX = 100
"""Queues of one decision, so that it takes a few milliseconds."""
_UNKNOWN = OldestMessages(0, 0, 0)


class ReadQueues(Operation, frozen=True):
    """Read counters, ages and the latest move task of queues; answers `outcomes.QueuesRead`.

    The queues are in the shard of the request's queue. For operators.
    """

    queue_ids: list[int] = msgspec.field(default_factory=list)


def decide_read_queues(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Read the queues that hold or held messages. Raises InvalidParameterValue."""
    operation = request.operation
    assert isinstance(operation, ReadQueues)
    if len(operation.queue_ids) > READ_QUEUES_MAX:
        raise InvalidParameterValue(f"More than {READ_QUEUES_MAX} queues are not read at once.")
    known = filter(None, map(shard.queues.get, operation.queue_ids))
    return QueuesRead([_read(shard, queue) for queue in known]), ()


def _read(shard: ShardState, queue: QueueState) -> QueueReading:
    oldest, counts, shown = _oldest(shard, queue), queue.counts, queue.counters()
    latest = next(iter(latest_tasks(queue)), None)
    return QueueReading(
        queue.queue_id,
        shown.visible,
        shown.in_flight,
        shown.delayed,
        queue.quarantined.messages,
        oldest.stored_ms,
        oldest.receivable_ms,
        counts.sent,
        counts.received,
        counts.deleted,
        counts.expired,
        counts.moved_in,
        counts.moved_out,
        None if latest is None else shown_task(latest),
        "" if latest is None else latest.paused,
        sum(1 for _ in held_leases(queue)) if queue.holds else 0,
    )


def _oldest(shard: ShardState, queue: QueueState) -> OldestMessages:
    if not (queue.visible or queue.in_flight or queue.delayed):
        return _UNKNOWN
    try:
        return oldest_messages(shard, queue)
    except DamagedRecord:
        return _UNKNOWN


OPERATIONS: Operations = {
    CloseQueue: OperationKind(decide_close_queue, None, is_fixed=True),
    QueueChanged: OperationKind(decide_queue_changed, None),
    ReadCounters: OperationKind(decide_read_counters, QueueCounters),
    ReadQueues: OperationKind(decide_read_queues, QueuesRead),
}
