"""Answers that make, change and delete a queue: its attributes, its policy among them, its tags.

They are SQS's own actions, with its checks, its refusals and its permissions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypedDict

import msgspec
from msgspec import Meta

from sqs_api.admin.asked import Asked
from sqs_api.admin.routes import DELETE, QUEUE, SET_ATTRIBUTES, TAG, UNTAG, Route
from sqs_api.operators.operator_context import OperatorContext
from visibility.contract.actions import check
from visibility.contract.attributes import initial_attributes
from visibility.contract.errors import (
    InvalidParameterValue,
    QueueDoesNotExist,
    QueueError,
    QueueNameExists,
)
from visibility.contract.model import QueueDefinition
from visibility.contract.naming import queue_url
from visibility.contract.operations import (
    CreateQueue,
    DeleteQueue,
    Operation,
    SetQueueAttributes,
    TagQueue,
    UntagQueue,
)

Seen = Annotated[
    dict[str, str | None],
    Meta(
        description="Values as the caller saw them, null for none. If one is another by now, and "
        "not the wanted one, nothing is changed: ChangedMeanwhile."
    ),
]


class NewAttributes(msgspec.Struct, forbid_unknown_fields=True):
    """Attributes as SetQueueAttributes takes them."""

    attributes: dict[str, str]
    seen: Seen = {}


class NewTags(msgspec.Struct, forbid_unknown_fields=True):
    """Tags by key."""

    tags: dict[str, str]
    seen: Seen = {}


class TagKeys(msgspec.Struct, forbid_unknown_fields=True):
    """Keys of tags."""

    keys: list[str]
    seen: Seen = {}


class ChangedMeanwhile(QueueError):
    """Somebody else changed the queue since the caller saw it."""

    code = "ChangedMeanwhile"


class NewDeadLetterQueue(msgspec.Struct, forbid_unknown_fields=True):
    """The dead-letter queue of a queue to make. It is made first, if there is none of its name."""

    name: str
    max_receive_count: Annotated[int, Meta(ge=1, le=1000)] = 3
    attributes: dict[str, str] = {}


class NewQueue(msgspec.Struct, forbid_unknown_fields=True):
    """A queue to make, with its attributes as CreateQueue takes them."""

    name: str
    attributes: dict[str, str] = {}
    tags: dict[str, str] = {}
    dead_letter_queue: NewDeadLetterQueue | None = None


class MadeQueue(TypedDict):
    """Names of the queues that were made: the dead-letter queue first, if it is new."""

    made: list[str]


class Confirmed(msgspec.Struct, forbid_unknown_fields=True):
    """The name of the queue, again."""

    confirm: str


class DeletedQueue(TypedDict):
    """The name of the queue."""

    deleted: str


class ChangedQueue(TypedDict):
    """A queue after a change."""

    attributes: dict[str, str]
    tags: dict[str, str]


async def create_queue(context: OperatorContext, asked: Asked, given: NewQueue) -> MadeQueue:
    """Make a queue, and its dead-letter queue if it names a new one.

    Raises QueueNameExists, also for an equal queue: a person who makes one wants a new one. If
    the queue is refused after its dead-letter queue was made, the same request goes on from there.
    """
    asked.noted |= {"name": given.name, "attributes": given.attributes, "tags": given.tags}
    if asked.account != asked.caller.account:
        raise InvalidParameterValue("A queue is made in the caller's own account.")
    made = [given.name]
    attributes, dead = dict(given.attributes), given.dead_letter_queue
    operations = [CreateQueue(given.name, attributes, given.tags or None)]
    if dead is not None:
        asked.noted["dead_letter_queue"] = dead.name
        attributes["RedrivePolicy"] = msgspec.json.encode(
            {"deadLetterTargetArn": asked.arn(dead.name), "maxReceiveCount": dead.max_receive_count}
        ).decode()
        if not _is_there(asked, dead.name):
            made.insert(0, dead.name)
            operations.insert(0, CreateQueue(dead.name, dead.attributes))
    for operation in operations:  # both, before one is made
        initial_attributes(operation.queue_name or "", operation.attributes or {})
        _admit(asked, operation)
    if _is_there(asked, given.name):  # told to those only who may make it
        raise QueueNameExists(f"There is a queue {given.name} already.")
    for operation in operations:
        await _answer(context, asked, operation)
    return {"made": made}


def _is_there(asked: Asked, name: str) -> bool:
    try:
        asked.queue(name)
    except QueueDoesNotExist:
        return False
    return True


def confirmed_queue(asked: Asked, given: Confirmed, to: str) -> QueueDefinition:
    """The queue, whose name was repeated. Raises QueueError."""
    queue = asked.queue(asked.parts[0])
    if given.confirm != queue.name:
        raise InvalidParameterValue(f"To {to} the queue, repeat its name in confirm.")
    return queue


async def delete_queue_named(
    context: OperatorContext, asked: Asked, given: Confirmed
) -> DeletedQueue:
    """Delete a queue whose name is repeated in `confirm`. It can be restored for a time."""
    queue = confirmed_queue(asked, given, "delete")
    operation = DeleteQueue(_url(asked))
    _admit(asked, operation)
    await _answer(context, asked, operation)
    return {"deleted": queue.name}


async def set_attributes(
    context: OperatorContext, asked: Asked, given: NewAttributes
) -> ChangedQueue:
    """Change attributes of a queue; an empty policy is removed."""
    asked.noted["attributes"] = given.attributes
    _check_seen(given.seen, asked.queue(asked.parts[0]).attributes, given.attributes)
    return await _change(context, asked, SetQueueAttributes(_url(asked), given.attributes))


async def tag_queue(context: OperatorContext, asked: Asked, given: NewTags) -> ChangedQueue:
    """Add tags to a queue, or overwrite them.

    Those by which messages can be lost also need holdfast:SetLossyPolicy, and one that ends a
    protection holdfast:LiftProtection.
    """
    asked.noted["tags"] = given.tags
    _check_seen(given.seen, asked.queue(asked.parts[0]).tags, given.tags)
    return await _change(context, asked, TagQueue(_url(asked), given.tags))


async def untag_queue(context: OperatorContext, asked: Asked, given: TagKeys) -> ChangedQueue:
    """Remove tags of a queue; one that protects it also needs holdfast:LiftProtection."""
    asked.noted["tag_keys"] = given.keys
    _check_seen(given.seen, asked.queue(asked.parts[0]).tags, dict.fromkeys(given.keys))
    return await _change(context, asked, UntagQueue(_url(asked), given.keys))


def _check_seen(
    seen: Seen, now: Mapping[str, str], wanted: Mapping[str, str] | Mapping[str, None]
) -> None:
    """Raises ChangedMeanwhile."""
    changed = [
        name
        for name, value in seen.items()
        if now.get(name) not in (value, (wanted.get(name, value) or None))
    ]
    if changed:
        raise ChangedMeanwhile(f"Changed meanwhile: {', '.join(changed)}. Nothing was saved.")


def _url(asked: Asked) -> str:
    return queue_url("", asked.account, asked.parts[0])


async def _change(context: OperatorContext, asked: Asked, operation: Operation) -> ChangedQueue:
    _admit(asked, operation)
    await _answer(context, asked, operation)
    queue = asked.queue(asked.parts[0])
    return {"attributes": queue.attributes, "tags": queue.tags}


def _admit(asked: Asked, operation: Operation) -> None:
    """Check an operation, and that the caller may do it. Raises QueueError, AuthError."""
    check(operation)
    if not asked.is_trusted:  # conditions on tags, and keys
        asked.access.admit(operation, asked.asker)


async def _answer(context: OperatorContext, asked: Asked, operation: Operation) -> None:
    await context.actions.answer(operation, asked.caller, "", f"{context.bits128():032x}")


ROUTES = (
    Route("POST", "api/queues", None, create_queue),
    Route("POST", QUEUE + "/delete", DELETE, delete_queue_named),
    Route("POST", QUEUE + "/attributes", SET_ATTRIBUTES, set_attributes),
    Route("POST", QUEUE + "/tags", TAG, tag_queue),
    Route("POST", QUEUE + "/tags/remove", UNTAG, untag_queue),
)
