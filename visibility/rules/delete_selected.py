"""Deletes messages that an operator selected. An extension of SQS for operators."""

from __future__ import annotations

import msgspec

from visibility.contract.model import Request
from visibility.contract.operations import Operation
from visibility.contract.outcomes import SelectedDeleted
from visibility.contract.stored_message import Lease
from visibility.rules.archive_batches import DECISION_BYTES_MAX, hand_over_deleted, takes_deleted
from visibility.rules.decided import Outcome
from visibility.rules.events import Event
from visibility.rules.leases import lease_of
from visibility.rules.message_events import MessagesDeleted
from visibility.rules.operation_kinds import OperationKind, Operations, Replay
from visibility.rules.orders import order_of
from visibility.rules.selected import selected, waiting
from visibility.state.shard_state import ShardState
from visibility.state.short_answers import ShortAnswer
from visibility.state.stamp import Stamp


class DeleteSelected(Operation, frozen=True):
    """Delete the waiting messages with these sequences; answers `outcomes.SelectedDeleted`."""

    sequences: list[int] = msgspec.field(default_factory=list)


def decide_delete_selected(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Delete those that wait; a consumer may be at work on one in flight. Large ones that go to the
    archive stay in part.

    Raises InvalidParameterValue for too many.
    """
    operation = request.operation
    assert isinstance(operation, DeleteSelected)
    queue = shard.queue(request.queue.queue_id)
    chosen = selected(operation.sequences)
    archives, size = takes_deleted(shard, request.queue.settings), 0
    leases: list[Lease] = []
    for sequence, message in waiting(shard, queue, chosen):
        size += len(message.data)
        if archives and leases and size > DECISION_BYTES_MAX:
            break
        leases.append(lease_of(queue, sequence, message))
    answer = SelectedDeleted(len(leases), len(chosen) - len(leases))
    if not leases:
        return answer, ()
    events: tuple[Event, ...] = ()
    if archives:
        events = hand_over_deleted(shard, request, leases, stamp.now_ms)
    book = order_of(request.queue.settings).book(shard, queue)
    book.leave_all(leases)
    deleted = MessagesDeleted(queue.queue_id, stamp.now_ms, leases)
    return answer, (*events, *book.events(), deleted)


# -- the same answer to a retry --------------------------------------------------------------------


def _short_selected(request: Request, answer: SelectedDeleted) -> ShortAnswer:
    return answer.deleted


def _selected_again(short: int, shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    assert isinstance(request.operation, DeleteSelected)
    return SelectedDeleted(short, len(set(request.operation.sequences)) - short), ()


OPERATIONS: Operations = {
    DeleteSelected: OperationKind(
        decide_delete_selected, SelectedDeleted, Replay(_short_selected, (int,), _selected_again)
    )
}
