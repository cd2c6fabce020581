"""Readings of many queues in one decision, for operators."""

from __future__ import annotations

import msgspec

from visibility.contract.errors import InvalidParameterValue
from visibility.contract.model import Request
from visibility.contract.operations import Operation
from visibility.contract.outcomes import QueueReading, QueuesRead
from visibility.rows.row_codec import DamagedRecord
from visibility.rules.decided import Outcome
from visibility.rules.hold_messages import held_leases
from visibility.rules.move_tasks import shown_task
from visibility.rules.operation_kinds import OperationKind, Operations
from visibility.state.ages import OldestMessages, oldest_messages
from visibility.state.queue_state import QueueState
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp

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
    latest = max(queue.tasks, default=None)
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
        None if latest is None else shown_task(queue.tasks[latest]),
        "" if latest is None else queue.tasks[latest].paused,
        sum(1 for _ in held_leases(queue)) if queue.holds else 0,
    )


def _oldest(shard: ShardState, queue: QueueState) -> OldestMessages:
    if not (queue.visible or queue.in_flight or queue.delayed):
        return _UNKNOWN
    try:
        return oldest_messages(shard, queue)
    except DamagedRecord:
        return _UNKNOWN


OPERATIONS: Operations = {ReadQueues: OperationKind(decide_read_queues, QueuesRead)}
