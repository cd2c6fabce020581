"""NEEDS: permissions of the actions that name no queue by its URL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from auth.caller import Caller
from visibility.contract import operations as op
from visibility.contract.operations import Operation
from visibility.contract.task_handles import decode_handle

MOVE_SOURCE = ("sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes")
"""Further permissions that StartMessageMoveTask needs on the source."""
MOVE_DESTINATION = "sqs:SendMessage"
"""Permission on its destination; without one, on each queue that the source is a dead-letter queue
of."""

_Needs = Iterator[tuple[str, str]]


def _arn(caller: Caller, account: str | None, name: str | None) -> str:
    return f"arn:aws:sqs:{caller.region}:{account or caller.account}:{name or ''}"


def _create(operation: op.CreateQueue, caller: Caller) -> _Needs:
    arn = _arn(caller, None, operation.queue_name)
    yield "sqs:CreateQueue", arn
    if operation.tags_on_create:
        yield "sqs:TagQueue", arn


def _get_url(operation: op.GetQueueUrl, caller: Caller) -> _Needs:
    owner = operation.queue_owner_aws_account_id
    yield "sqs:GetQueueUrl", _arn(caller, owner, operation.queue_name)


def _list(operation: op.ListQueues, caller: Caller) -> _Needs:
    yield "sqs:ListQueues", _arn(caller, None, "*")


def _start_move(operation: op.StartMessageMoveTask, caller: Caller) -> _Needs:
    source = operation.source_arn or ""
    for permission in ("sqs:StartMessageMoveTask", *MOVE_SOURCE):
        yield permission, source
    if operation.destination_arn is not None:
        yield MOVE_DESTINATION, operation.destination_arn


def _cancel_move(operation: op.CancelMessageMoveTask, caller: Caller) -> _Needs:
    yield "sqs:CancelMessageMoveTask", decode_handle(operation.task_handle or "").source_arn


def _list_moves(operation: op.ListMessageMoveTasks, caller: Caller) -> _Needs:
    yield "sqs:ListMessageMoveTasks", operation.source_arn or ""


NEEDS: dict[type[Operation], Callable[[Any, Caller], _Needs]] = {
    op.CreateQueue: _create,
    op.GetQueueUrl: _get_url,
    op.ListQueues: _list,
    op.StartMessageMoveTask: _start_move,
    op.CancelMessageMoveTask: _cancel_move,
    op.ListMessageMoveTasks: _list_moves,
}
"""Operation to its permissions and the ARNs on which they are needed."""
