"""Answers that change a queue: its attributes, its policy among them, and its tags.

They are SQS's own actions, with its checks, its refusals and its permissions.
"""

from __future__ import annotations

from typing import TypedDict

import msgspec

from sqs_api.admin.asked import Asked
from sqs_api.admin.routes import QUEUE, SET_ATTRIBUTES, TAG, UNTAG, Route
from sqs_api.operators.operator_context import OperatorContext
from visibility.contract.actions import check
from visibility.contract.naming import queue_url
from visibility.contract.operations import Operation, SetQueueAttributes, TagQueue, UntagQueue


class NewAttributes(msgspec.Struct, forbid_unknown_fields=True):
    """Attributes as SetQueueAttributes takes them."""

    attributes: dict[str, str]


class NewTags(msgspec.Struct, forbid_unknown_fields=True):
    """Tags by key."""

    tags: dict[str, str]


class TagKeys(msgspec.Struct, forbid_unknown_fields=True):
    """Keys of tags."""

    keys: list[str]


class ChangedQueue(TypedDict):
    """A queue after a change."""

    attributes: dict[str, str]
    tags: dict[str, str]


async def set_attributes(
    context: OperatorContext, asked: Asked, given: NewAttributes
) -> ChangedQueue:
    """Change attributes of a queue; an empty policy is removed."""
    asked.noted["attributes"] = given.attributes
    return await _change(context, asked, SetQueueAttributes(_url(asked), given.attributes))


async def tag_queue(context: OperatorContext, asked: Asked, given: NewTags) -> ChangedQueue:
    """Add tags to a queue, or overwrite them."""
    asked.noted["tags"] = given.tags
    return await _change(context, asked, TagQueue(_url(asked), given.tags))


async def untag_queue(context: OperatorContext, asked: Asked, given: TagKeys) -> ChangedQueue:
    """Remove tags of a queue."""
    asked.noted["tag_keys"] = given.keys
    return await _change(context, asked, UntagQueue(_url(asked), given.keys))


def _url(asked: Asked) -> str:
    return queue_url("", asked.account, asked.parts[0])


async def _change(context: OperatorContext, asked: Asked, operation: Operation) -> ChangedQueue:
    check(operation)
    if not asked.is_trusted:  # conditions on tags, and keys
        asked.access.admit(operation, asked.asker)
    await context.actions.answer(operation, asked.caller, "", f"{context.bits128():032x}")
    queue = asked.queue(asked.parts[0])
    return {"attributes": queue.attributes, "tags": queue.tags}


ROUTES = (
    Route("POST", QUEUE + "/attributes", SET_ATTRIBUTES, set_attributes),
    Route("POST", QUEUE + "/tags", TAG, tag_queue),
    Route("POST", QUEUE + "/tags/remove", UNTAG, untag_queue),
)
