"""Answers about deleted and purged queues: lists, restoration, and the commands that delete or
purge a queue, protected ones too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypedDict

import msgspec

from auth.auth_errors import AccessDenied
from sqs_api.admin.asked import Asked
from sqs_api.admin.routes import (
    DELETE_QUEUE,
    LIST_DELETED_QUEUES,
    PURGE_QUEUE,
    RESTORE_QUEUE,
    Leads,
    Refused,
    Route,
)
from sqs_api.operators.operator_context import OperatorContext
from visibility.contract.errors import (
    PurgeQueueInProgress,
    QueueDoesNotExist,
    QueueNameExists,
    ServiceUnavailable,
)
from visibility.contract.model import QueueDefinition

Remove = Callable[..., Awaitable[None]]
"""`Deletions.delete` or `Deletions.purge`."""


_COUNTS = ("messages", "dead_letters")


class NamedQueue(msgspec.Struct, forbid_unknown_fields=True):
    """A queue to be removed; `force` overrides a protection."""

    account: str
    region: str
    name: str
    force: bool = False


class ShownQueueId(TypedDict):
    """A queue."""

    queue_id: int
    account: str
    region: str
    name: str


class RestorableQueue(ShownQueueId):
    """A deleted queue, or the messages of a purged one; `dead_letters` of them are in its
    dead-letter queue. `obstacle` is the reason if it cannot be restored now. `restoring`: its
    messages are being put back, and these are left."""

    purged: bool
    messages: int
    dead_letters: int
    deleted_at_ms: int
    restorable_until_ms: int
    obstacle: str | None
    restoring: bool


class KeptQueue(msgspec.Struct, forbid_unknown_fields=True):
    """A deleted queue, or the messages of a purged one, by the id that it had."""

    queue_id: int


class RestoredQueue(TypedDict):
    """The name of the queue that has the messages now, or gets them if it is not `complete`: see
    the list."""

    restored: str
    complete: bool


async def list_deleted_queues(context: OperatorContext, asked: Asked) -> list[RestorableQueue]:
    """List the deleted and purged queues whose messages are kept, the latest first; those that are
    being restored come before."""
    deletions = context.deletions
    restoring = deletions.restoring()
    restorable = [*restoring, *deletions.all()]
    return [
        {
            **_shown(kept.queue),
            "purged": bool(kept.continued_as),
            "messages": messages,
            "dead_letters": rescued,
            "deleted_at_ms": kept.deleted_at_ms,
            "restorable_until_ms": deletions.restorable_until_ms(kept),
            "obstacle": context.catalog.obstacle(kept),
            "restoring": kept in restoring,
        }
        for kept, messages, rescued in zip(
            restorable, deletions.messages(restorable), deletions.rescued(restorable), strict=True
        )
    ]


def _merged(answers: Mapping[str, Any], leads: Leads) -> Any:
    """The queues, which all hosts know, with the counts of those that lead their shards: the
    others count none."""
    counts: dict[int, dict[str, int]] = {}
    listed: list[dict[str, Any]] = []
    for said in answers.values():
        listed = said
        for queue in said:
            known = counts.setdefault(queue["queue_id"], dict.fromkeys(_COUNTS, 0))
            known.update({name: max(queue[name], known[name]) for name in _COUNTS})
    # Hosts of the version before say nothing of those that are being restored.
    return [{"restoring": False} | queue | counts[queue["queue_id"]] for queue in listed]


async def restore_queue(context: OperatorContext, asked: Asked, kept: KeptQueue) -> RestoredQueue:
    """Restore a deleted queue, or the messages of a purged one; those in flight follow."""
    asked.noted["queue_id"] = kept.queue_id
    queue = await _restored(context, kept.queue_id, "It is back already, or its time is over.")
    asked.noted["restored"] = queue.arn
    restoring = context.deletions.restoring()
    complete = all(each.queue.arn != queue.arn for each in restoring)
    return {"restored": queue.name, "complete": complete}


async def restore_deleted_queue(context: OperatorContext, asked: Asked) -> ShownQueueId:
    """Restore a deleted queue, or the messages of a purged one; answers with their queue."""
    queue_id = int(asked.parts[0])
    missing = f"No deleted queue with the id {queue_id} can be restored."
    try:
        queue = await _restored(context, queue_id, missing)
    except QueueDoesNotExist as refusal:
        raise Refused(404, refusal.message) from refusal
    except QueueNameExists as refusal:
        raise Refused(409, refusal.message) from refusal
    return _shown(queue)


async def _restored(context: OperatorContext, queue_id: int, missing: str) -> QueueDefinition:
    """Restore it; `missing` is the text of a refusal without a reason of its own."""
    try:
        return await context.deletions.restore(queue_id)
    except QueueDoesNotExist as refusal:
        if refusal.message != QueueDoesNotExist.default_message:
            raise
        raise QueueDoesNotExist(missing) from refusal


async def delete_queue(context: OperatorContext, asked: Asked, named: NamedQueue) -> ShownQueueId:
    """Delete a queue, also a protected one."""
    return await _removed(context, asked, named, context.deletions.delete)


async def purge_protected_queue(
    context: OperatorContext, asked: Asked, named: NamedQueue
) -> ShownQueueId:
    """Purge a queue, also a protected one."""
    return await _removed(context, asked, named, context.deletions.purge)


async def _removed(
    context: OperatorContext, asked: Asked, named: NamedQueue, remove: Remove
) -> ShownQueueId:
    asked.noted["queue"] = f"arn:aws:sqs:{named.region}:{named.account}:{named.name}"
    try:
        queue = context.catalog.queue(named.account, named.region, named.name)
        await remove(queue, force=named.force)
    except QueueDoesNotExist as refusal:
        raise Refused(404, f"There is no queue {named.name}.") from refusal
    except (AccessDenied, PurgeQueueInProgress) as refusal:
        raise Refused(409, refusal.message) from refusal
    except ServiceUnavailable as refusal:
        raise Refused(503, refusal.message) from refusal
    return _shown(queue)


def _shown(queue: QueueDefinition) -> ShownQueueId:
    return {
        "queue_id": queue.queue_id,
        "account": queue.account,
        "region": queue.region,
        "name": queue.name,
    }


ROUTES = (
    Route("POST", "api/deleted-queues/restore", RESTORE_QUEUE, restore_queue),
    Route("GET", "api/deleted-queues", LIST_DELETED_QUEUES, list_deleted_queues, merge=_merged),
    Route("GET", "deleted-queues", LIST_DELETED_QUEUES, list_deleted_queues, merge=_merged),
    Route(
        "POST",
        "deleted-queues/{queue_id}/restore",
        RESTORE_QUEUE,
        restore_deleted_queue,
        "restore-queue",
    ),
    Route("POST", "queues/delete", DELETE_QUEUE, delete_queue, "delete-queue", root_only=True),
    Route(
        "POST", "queues/purge", PURGE_QUEUE, purge_protected_queue, "purge-queue", root_only=True
    ),
)
