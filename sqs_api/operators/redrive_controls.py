"""Controls of a redrive: pause, resume, pace, cancel, undo.

An undo is one more move task in each queue that got messages: it returns unreceived ones as dead
letters, chosen by the beginning of their ids.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated, TypedDict

import msgspec
from msgspec import Meta

from sqs_api.admin.asked import Asked
from sqs_api.admin.routes import REDRIVE_MESSAGES, REDRIVES, SEND, Route
from sqs_api.operators.operator_context import OperatorContext
from sqs_api.operators.redrive_answers import Count, targets_of, tasks_of
from visibility.contract.errors import (
    InvalidParameterValue,
    QueueError,
    ResourceNotFound,
    ServiceUnavailable,
)
from visibility.contract.limits import MOVE_RATE
from visibility.contract.model import QueueDefinition
from visibility.contract.move_task import MessageFilter, MoveTask, decode_handle
from visibility.contract.operations import CancelMessageMoveTask, StartMessageMoveTask
from visibility.contract.results import CancelMessageMoveTaskResult
from visibility.rules.move_pace import prefix_of
from visibility.rules.move_tasks import ChangeMoveTask, MoveSelected

LOOK_S = 0.05
LOOKS = 60
"""An undo waits this often for messages that are on their way to other shards."""
_Rate = Annotated[int, Meta(ge=0, le=MOVE_RATE.high)]


class NamedRedrive(msgspec.Struct, forbid_unknown_fields=True):
    """A redrive of the queue."""

    handle: str


class PacedRedrive(NamedRedrive, forbid_unknown_fields=True):
    """A redrive, and its new pace; what is null stays as it is."""

    rate: Annotated[_Rate | None, Meta(description="Messages a second; 0: no limit.")] = None
    stop_after: Annotated[
        Count | None, Meta(description="It pauses when so many came back; 0: never.")
    ] = None


class CancelledRedrive(TypedDict):
    """The number of messages that were moved."""

    moved: int


class ChangedRedrive(TypedDict):
    """The change: `pause`, `resume` or `pace`."""

    changed: str


class BegunUndo(TypedDict):
    """Names of the queues that return messages, and of those that do not, with the reason."""

    begun: list[str]
    refused: dict[str, str]


def _named(asked: Asked, named: NamedRedrive) -> tuple[QueueDefinition, str]:
    """The queue, and the handle of one of its redrives. Raises QueueError."""
    queue = asked.queue(asked.parts[0])
    if decode_handle(named.handle).source_arn != queue.arn:
        raise InvalidParameterValue("The handle is that of another queue's redrive.")
    return queue, named.handle


async def cancel_redrive(
    context: OperatorContext, asked: Asked, named: NamedRedrive
) -> CancelledRedrive:
    """Stop a redrive; the messages that it moved stay where they are."""
    queue, handle = _named(asked, named)
    answer = await context.ask(asked, CancelMessageMoveTask(handle), queue)
    assert isinstance(answer, CancelMessageMoveTaskResult)
    return {"moved": answer.approximate_number_of_messages_moved}


async def pause_redrive(
    context: OperatorContext, asked: Asked, named: NamedRedrive
) -> ChangedRedrive:
    """Let a redrive wait until it is resumed."""
    return await _change(context, asked, named, "pause")


async def resume_redrive(
    context: OperatorContext, asked: Asked, named: NamedRedrive
) -> ChangedRedrive:
    """Let a redrive go on, after a pause, its canary, or messages that came back."""
    await _check_sending(context, asked, named)
    return await _change(context, asked, named, "resume")


async def pace_redrive(
    context: OperatorContext, asked: Asked, wanted: PacedRedrive
) -> ChangedRedrive:
    """Change the rate of a redrive, or its stop, while it runs or is paused. The ramp ends with a
    new rate."""
    if wanted.rate is None and wanted.stop_after is None:
        raise InvalidParameterValue("Give a rate, or a number of messages to stop after.")
    queue, handle = _named(asked, wanted)
    await _check_sending(context, asked, wanted)
    asked.noted |= {"rate": wanted.rate, "stop_after": wanted.stop_after}
    change = ChangeMoveTask(handle, "pace", wanted.rate, wanted.stop_after)
    await context.ask(asked, change, queue)
    return {"changed": "pace"}


async def _change(
    context: OperatorContext, asked: Asked, named: NamedRedrive, change: str
) -> ChangedRedrive:
    queue, handle = _named(asked, named)
    await context.ask(asked, ChangeMoveTask(handle, change), queue)
    return {"changed": change}


async def _check_sending(context: OperatorContext, asked: Asked, named: NamedRedrive) -> None:
    """Raise AccessDenied or KmsAccessDenied unless the caller may begin such a redrive."""
    if asked.is_trusted:
        return
    queue, handle = _named(asked, named)
    task = await _task(context, asked, queue, decode_handle(handle).task_id)
    asked.access.check_move(StartMessageMoveTask(queue.arn, task.destination_arn), asked.asker)
    if task.destination_arn is None:
        for arn in {*(task.targets or ()), *task.sources}:
            target = context.catalog.queue_of_arn(arn)
            if target is not None:
                asked.check_on(SEND, target)


async def undo_redrive(context: OperatorContext, asked: Asked, named: NamedRedrive) -> BegunUndo:
    """Bring back what was not received; a redrive that runs is cancelled first.

    Raises ServiceUnavailable if messages are still on their way: ask again.
    """
    queue, handle = _named(asked, named)
    task_id = decode_handle(handle).task_id
    asked.check(SEND, queue.name)
    task = await _task(context, asked, queue, task_id)
    if task.undoes:
        raise InvalidParameterValue("An undo cannot be undone: redrive the messages again.")
    _targets(context, asked, task)
    if task.status == "RUNNING":
        await _cancel(context, asked, queue, handle)
    task = await _ended(context, asked, queue, task_id)
    wanted = MessageFilter(message_id=prefix_of(task_id), received_max=0)
    operation = MoveSelected(filter=wanted, undoes=task_id, sources=task.sources)
    begun: list[str] = []
    refused: dict[str, str] = {}
    for target in _targets(context, asked, task):
        try:
            await context.ask(asked, operation, target, destination=queue)
            begun.append(target.name)
        except QueueError as refusal:
            refused[target.name] = refusal.message
    if begun or not refused:
        await context.ask(asked, ChangeMoveTask(handle, "undo"), queue)
    return {"begun": begun, "refused": refused}


async def _cancel(
    context: OperatorContext, asked: Asked, queue: QueueDefinition, handle: str
) -> None:
    """Cancel a redrive, which may end meanwhile."""
    with suppress(InvalidParameterValue):
        await context.ask(asked, CancelMessageMoveTask(handle), queue)


def _targets(context: OperatorContext, asked: Asked, task: MoveTask) -> list[QueueDefinition]:
    """The queues that got messages, from which the caller may take them. Raises AccessDenied."""
    found = [context.catalog.queue_of_arn(arn) for arn in targets_of(task)]
    targets = [target for target in found if target is not None]
    for target in targets:
        asked.check_on(REDRIVE_MESSAGES, target)
    return targets


async def _ended(
    context: OperatorContext, asked: Asked, queue: QueueDefinition, task_id: str
) -> MoveTask:
    """The cancelled task, all of whose messages have arrived. Raises ServiceUnavailable."""
    for _ in range(LOOKS):
        task = await _task(context, asked, queue, task_id)
        if not task.is_active:
            return task
        await asyncio.sleep(LOOK_S)
    raise ServiceUnavailable("Messages of the redrive are on their way. Please try again.")


async def _task(
    context: OperatorContext, asked: Asked, queue: QueueDefinition, task_id: str
) -> MoveTask:
    """The redrive with this id. Raises ResourceNotFound."""
    before = 0
    while tasks := await tasks_of(context, asked, queue, before):
        for task in tasks:
            if task.task_id == task_id:
                return task
        before = tasks[-1].number
        if before <= 1:
            break
    raise ResourceNotFound("Task does not exist.")


ROUTES = (
    Route("POST", REDRIVES + "/pause", REDRIVE_MESSAGES, pause_redrive, "redrive pause"),
    Route("POST", REDRIVES + "/resume", REDRIVE_MESSAGES, resume_redrive, "redrive resume"),
    Route("POST", REDRIVES + "/pace", REDRIVE_MESSAGES, pace_redrive, "redrive pace"),
    Route("POST", REDRIVES + "/undo", REDRIVE_MESSAGES, undo_redrive, "redrive undo"),
    Route("POST", REDRIVES + "/cancel", REDRIVE_MESSAGES, cancel_redrive, "redrive cancel"),
)
