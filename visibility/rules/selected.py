"""Messages that an operator selected by their sequences, and their deletion."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec

from visibility.contract.errors import InvalidParameterValue
from visibility.contract.limits import MOVE_SELECTED_MAX
from visibility.contract.model import Request
from visibility.contract.operations import Operation
from visibility.contract.outcomes import SelectedDeleted
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rules.archive_batches import DECISION_BYTES_MAX, hand_over_deleted, takes_deleted
from visibility.rules.decided import Outcome
from visibility.rules.events import Event
from visibility.rules.leases import lease_of
from visibility.rules.message_events import MessagesDeleted
from visibility.rules.operation_kinds import OperationKind, Operations, Replay
from visibility.rules.orders import order_of
from visibility.state.queue_state import QueueState
from visibility.state.shard_state import ShardState
from visibility.state.short_answers import ShortAnswer
from visibility.state.stamp import Stamp

_READ_MESSAGES = 10
"""Messages that are in memory at once: each may have a MiB."""


def selected(sequences: Collection[int]) -> list[int]:
    """The sequences in order, each once. Raises InvalidParameterValue if they are too many."""
    chosen = sorted(set(sequences))
    if len(chosen) > MOVE_SELECTED_MAX:
        raise InvalidParameterValue(
            f"A move task takes up to {MOVE_SELECTED_MAX} selected messages, not {len(chosen)}."
        )
    return chosen


def is_hidden(queue: QueueState, sequence: int) -> bool:
    """True for a message in flight."""
    entry = queue.entries.get(sequence)
    return entry is not None and entry.hidden


def waiting(
    shard: ShardState, queue: QueueState, chosen: list[int]
) -> Iterator[tuple[int, StoredMessage]]:
    """Those of the messages that are neither in flight nor delayed nor gone. Raises
    DamagedRecord."""
    for begin in range(0, len(chosen), _READ_MESSAGES):
        piece = [
            each for each in chosen[begin : begin + _READ_MESSAGES] if not is_hidden(queue, each)
        ]
        for sequence, message in shard.rows.unless_quarantined(queue, piece):
            if message.group not in queue.quarantined.groups:
                yield sequence, message


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
