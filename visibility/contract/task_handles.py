"""Handles of message move tasks, as clients see them."""

from __future__ import annotations

import base64

import msgspec

from visibility.contract.errors import InvalidParameterValue
from visibility.contract.move_task import MoveTask


class TaskHandle(msgspec.Struct, frozen=True):
    """The content of a task handle; clients can decode it."""

    task_id: str = msgspec.field(name="taskId")
    source_arn: str = msgspec.field(name="sourceArn")


def encode_handle(task: MoveTask) -> str:
    """The handle of a task: base64 of JSON, as AWS's."""
    return base64.b64encode(msgspec.json.encode(TaskHandle(task.task_id, task.source_arn))).decode()


def decode_handle(handle: str) -> TaskHandle:
    """Decode a handle. Raises InvalidParameterValue."""
    try:
        return msgspec.json.decode(base64.b64decode(handle, validate=True), type=TaskHandle)
    except (ValueError, msgspec.MsgspecError):
        raise InvalidParameterValue("Value for parameter TaskHandle is invalid.") from None
