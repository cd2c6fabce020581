"""Answers that change a queue: its attributes, its policy among them, and its tags.

They are SQS's own actions, with its checks, its refusals and its permissions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from sqs_api.operators.asked import Asked
from sqs_api.operators.desk import Desk
from visibility.contract.actions import check
from visibility.contract.naming import queue_url
from visibility.contract.operations import Operation, SetQueueAttributes, TagQueue, UntagQueue


class _Attributes(msgspec.Struct, forbid_unknown_fields=True):
    attributes: dict[str, str]


class _Tags(msgspec.Struct, forbid_unknown_fields=True):
    tags: dict[str, str]


class _Keys(msgspec.Struct, forbid_unknown_fields=True):
    keys: list[str]


async def set_attributes(desk: Desk, asked: Asked) -> Mapping[str, Any]:
    """Change attributes of a queue; an empty policy is removed."""
    given = asked.content(_Attributes).attributes
    asked.noted["attributes"] = given
    return await _change(desk, asked, SetQueueAttributes(_url(asked), given))


async def tag_queue(desk: Desk, asked: Asked) -> Mapping[str, Any]:
    """Add tags to a queue, or overwrite them."""
    tags = asked.content(_Tags).tags
    asked.noted["tags"] = tags
    return await _change(desk, asked, TagQueue(_url(asked), tags))


async def untag_queue(desk: Desk, asked: Asked) -> Mapping[str, Any]:
    """Remove tags of a queue."""
    keys = asked.content(_Keys).keys
    asked.noted["tag_keys"] = keys
    return await _change(desk, asked, UntagQueue(_url(asked), keys))


def _url(asked: Asked) -> str:
    return queue_url("", asked.account, asked.parts[0])


async def _change(desk: Desk, asked: Asked, operation: Operation) -> Mapping[str, Any]:
    check(operation)
    if not asked.is_trusted:  # conditions on tags, and keys
        asked.access.admit(operation, asked.caller, asked.sent, asked.sent.headers)
    await desk.actions.answer(operation, asked.caller, "", f"{desk.bits128():032x}")
    queue = asked.queue(asked.parts[0])
    return {"attributes": queue.attributes, "tags": queue.tags}
