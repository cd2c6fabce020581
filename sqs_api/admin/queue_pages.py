"""Pages about queues: restorable ones, and deletion or purge of protected ones.

GET  /_holdfast/deleted-queues               a list of objects, the latest deleted or purged first
POST /_holdfast/deleted-queues/ID/restore    the queue that has the messages now
POST /_holdfast/queues/delete, /purge        {"account", "region", "name", "force"}; `force`
                                             overrides a protection
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypedDict

import msgspec
from aiohttp import web

from auth.auth_errors import AccessDenied
from cluster.catalog.catalog import Catalog
from sqs_api.admin.admin_access import AdminRequest
from sqs_api.admin.admin_actions import (
    DELETE_QUEUE,
    LIST_DELETED_QUEUES,
    PURGE_QUEUE,
    RESTORE_QUEUE,
)
from sqs_api.admin.admin_pages import Answer, error_page, json_page
from sqs_api.gateway.deletions import Deletions
from visibility.contract.errors import (
    PurgeQueueInProgress,
    QueueDoesNotExist,
    QueueNameExists,
    ServiceUnavailable,
)
from visibility.contract.model import QueueDefinition

Remove = Callable[..., Awaitable[None]]
"""`Deletions.delete` or `Deletions.purge`."""


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
    """A deleted queue, or the messages of a purged one."""

    purged: bool
    messages: int
    deleted_at_ms: int
    restorable_until_ms: int


def deletion_pages(deletions: Deletions, catalog: Catalog) -> dict[str, Answer]:
    """The pages by action."""
    return {
        LIST_DELETED_QUEUES: partial(_list_deleted, deletions),
        RESTORE_QUEUE: partial(_restore_deleted, deletions),
        DELETE_QUEUE: partial(_remove_queue, deletions.delete, catalog),
        PURGE_QUEUE: partial(_remove_queue, deletions.purge, catalog),
    }


async def _list_deleted(deletions: Deletions, sent: AdminRequest) -> web.Response:
    """Deleted and purged queues that can be restored."""
    restorable = deletions.all()
    found: list[RestorableQueue] = [
        {
            **_shown(kept.queue),
            "purged": bool(kept.continued_as),
            "messages": messages,
            "deleted_at_ms": kept.deleted_at_ms,
            "restorable_until_ms": deletions.restorable_until_ms(kept),
        }
        for kept, messages in zip(restorable, deletions.messages(restorable), strict=True)
    ]
    return json_page(found)


async def _restore_deleted(deletions: Deletions, sent: AdminRequest) -> web.Response:
    """Restore a deleted queue, or the messages of a purged one."""
    queue_id = int(sent.parts[0])
    try:
        queue = await deletions.restore(queue_id)
    except QueueDoesNotExist as refusal:
        text = f"No deleted queue with the id {queue_id} can be restored."
        is_plain = refusal.message == QueueDoesNotExist.default_message
        return error_page(404, text if is_plain else refusal.message)
    except QueueNameExists as refusal:
        return error_page(409, refusal.message)
    return json_page(_shown(queue))


async def _remove_queue(remove: Remove, catalog: Catalog, sent: AdminRequest) -> web.Response:
    """Delete or purge a queue."""
    try:
        named = msgspec.json.decode(sent.body, type=NamedQueue)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return error_page(400, f"not the name of a queue: {error}")
    try:
        queue = catalog.queue(named.account, named.region, named.name)
        await remove(queue, force=named.force)
    except QueueDoesNotExist:
        return error_page(404, f"There is no queue {named.name}.")
    except (AccessDenied, PurgeQueueInProgress) as refusal:
        return error_page(409, refusal.message)
    except ServiceUnavailable as refusal:
        return error_page(503, refusal.message)
    return json_page(_shown(queue))


def _shown(queue: QueueDefinition) -> ShownQueueId:
    return {
        "queue_id": queue.queue_id,
        "account": queue.account,
        "region": queue.region,
        "name": queue.name,
    }
