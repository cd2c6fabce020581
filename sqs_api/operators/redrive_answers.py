"""Answers about redrives: plan, start, list, cancel.

A redrive is a message move task, so those that `aws sqs start-message-move-task` began are listed
and cancelled here, and the reverse.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from sqs_api.operators.asked import Asked
from sqs_api.operators.desk import Desk
from sqs_api.operators.queue_answers import shown_task
from visibility.contract.actions import ACTIONS
from visibility.contract.errors import InvalidParameterValue
from visibility.contract.limits import MOVE_TASK_RESULTS
from visibility.contract.model import QueueDefinition
from visibility.contract.operations import (
    CancelMessageMoveTask,
    ListMessageMoveTasks,
    MoveSelected,
    Operation,
    PlanMove,
    StartMessageMoveTask,
)
from visibility.contract.outcomes import MovePlan
from visibility.contract.results import (
    CancelMessageMoveTaskResult,
    ListMessageMoveTasksResult,
    StartMessageMoveTaskResult,
)
from visibility.rules.move_tasks import check_start
from visibility.rules.task_handles import decode_handle

_PLAN_STEPS_MAX = 20
"""Steps of one request: 20,000 messages."""


class _Redrive(msgspec.Struct, forbid_unknown_fields=True):
    sequences: list[int] | None = None
    """The selected messages; None for all."""
    destination: str | None = None
    """Name of the queue that gets them; None for each message's own source."""
    rate: int | None = None
    """Messages a second."""
    from_sequence: int = 0
    """Of a plan: where the last answer ended."""


class _Ends(NamedTuple):
    """The queues of a redrive; `targets` are the sources to which the caller may send, None for
    all."""

    source: QueueDefinition
    destination: QueueDefinition | None
    targets: tuple[str, ...] | None


async def plan_redrive(desk: Desk, asked: Asked) -> Mapping[str, Any]:
    """Messages and bytes by target, and those that would stay with the reason; `next` goes on."""
    wanted = asked.content(_Redrive)
    ends = _ends(desk, asked, wanted)
    targets: dict[str, dict[str, int]] = {}
    refused: dict[str, int] = {}
    at: int | None = wanted.from_sequence
    for _ in range(_PLAN_STEPS_MAX):
        plan = await _ask(desk, asked, PlanMove(wanted.sequences, at or 0), ends)
        assert isinstance(plan, MovePlan)
        for arn, planned in plan.targets.items():
            sums = targets.setdefault(arn, {"messages": 0, "bytes": 0})
            sums["messages"] += planned.messages
            sums["bytes"] += planned.size
        for reason, messages in plan.refused.items():
            refused[reason] = refused.get(reason, 0) + messages
        at = plan.next_sequence
        if at is None:
            break
    return {"targets": targets, "refused": refused, "next": at}


async def start_redrive(desk: Desk, asked: Asked) -> Mapping[str, Any]:
    """Begin to move all messages, or the selected ones."""
    wanted = asked.content(_Redrive)
    ends = _ends(desk, asked, wanted)
    operation: Operation = _start(ends, wanted)
    if wanted.sequences is not None:
        operation = MoveSelected(wanted.sequences, wanted.rate or 0)
    answer = await _ask(desk, asked, operation, ends)
    assert isinstance(answer, StartMessageMoveTaskResult)
    return {"handle": answer.task_handle}


async def list_redrives(desk: Desk, asked: Asked) -> Mapping[str, Any]:
    """The latest redrives of a queue, newest first."""
    queue = asked.queue(asked.parts[0])
    operation = ListMessageMoveTasks(queue.arn, MOVE_TASK_RESULTS.high)
    answer = await desk.ask(asked, operation, queue)
    assert isinstance(answer, ListMessageMoveTasksResult)
    return {"redrives": [shown_task(task) for task in answer.results or ()]}


class _Cancelled(msgspec.Struct, forbid_unknown_fields=True):
    handle: str


async def cancel_redrive(desk: Desk, asked: Asked) -> Mapping[str, Any]:
    """Stop a redrive; the messages that it moved stay where they are."""
    queue, handle = asked.queue(asked.parts[0]), asked.content(_Cancelled).handle
    if decode_handle(handle).source_arn != queue.arn:
        raise InvalidParameterValue("The handle is that of another queue's redrive.")
    answer = await desk.ask(asked, CancelMessageMoveTask(handle), queue)
    assert isinstance(answer, CancelMessageMoveTaskResult)
    return {"moved": answer.approximate_number_of_messages_moved}


def _ends(desk: Desk, asked: Asked, wanted: _Redrive) -> _Ends:
    """The queues of a redrive that the caller may do. Raises QueueError, AccessDenied."""
    source = asked.queue(asked.parts[0])
    destination = None if wanted.destination is None else asked.queue(wanted.destination)
    asked.noted |= {
        "messages": "all" if wanted.sequences is None else wanted.sequences,
        "destination": None if destination is None else destination.arn,
        "rate": wanted.rate,
    }
    sources = desk.catalog.dead_letter_sources(source)
    refusal = check_start(source, destination, is_dead_letter_queue=bool(sources))
    if refusal is not None:
        raise refusal
    operation = _start(_Ends(source, destination, None), wanted)
    ACTIONS["StartMessageMoveTask"].check(operation)
    if asked.is_trusted:
        return _Ends(source, destination, None)
    asked.access.check_move(operation, asked.caller, asked.sent, asked.sent.headers)
    # Only these were checked: meanwhile, a message's source may name another dead-letter queue.
    return _Ends(source, destination, tuple(queue.arn for queue in sources))


def _start(ends: _Ends, wanted: _Redrive) -> StartMessageMoveTask:
    destination_arn = None if ends.destination is None else ends.destination.arn
    return StartMessageMoveTask(ends.source.arn, destination_arn, wanted.rate)


async def _ask(desk: Desk, asked: Asked, operation: Operation, ends: _Ends) -> object:
    return await desk.ask(
        asked, operation, ends.source, destination=ends.destination, targets=ends.targets
    )
