"""Answers about queues: all of them, one, those with dead letters; and the purge."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from sqs_api.operators.asked import Asked
from sqs_api.operators.desk import Desk
from sqs_api.operators.readings import Found
from sqs_api.operators.routes import (
    BROWSE_MESSAGES,
    DELETE_MESSAGES,
    PURGE,
    QUARANTINE_MESSAGES,
    READ_BODIES,
    REDRIVE_MESSAGES,
    SEND,
    SET_ATTRIBUTES,
    TAG,
    UNTAG,
)
from visibility.contract.errors import InvalidParameterValue
from visibility.contract.model import QueueDefinition
from visibility.contract.outcomes import QueueReading
from visibility.contract.results import ListMessageMoveTasksResultEntry

_PAGE_MAX = 500
_SOURCES_SHOWN = 20
_ON_A_QUEUE = (
    BROWSE_MESSAGES,
    READ_BODIES,
    DELETE_MESSAGES,
    REDRIVE_MESSAGES,
    QUARANTINE_MESSAGES,
    SEND,
    PURGE,
    SET_ATTRIBUTES,
    TAG,
    UNTAG,
)
_COUNTS = (
    "visible",
    "in_flight",
    "delayed",
    "quarantined",
    "withheld",
    "sent",
    "received",
    "deleted",
    "expired",
    "moved_in",
    "moved_out",
)
_NEVER_MS = 1 << 53
"""Sorts queues without messages last."""
_SORTS: dict[str, Callable[[QueueDefinition, QueueReading], float]] = {
    "name": lambda queue, reading: 0,
    "visible": lambda queue, reading: -reading.visible,
    "in_flight": lambda queue, reading: -reading.in_flight,
    "delayed": lambda queue, reading: -reading.delayed,
    "oldest": lambda queue, reading: reading.oldest_stored_ms or _NEVER_MS,
    "expires": lambda queue, reading: (
        reading.oldest_stored_ms + queue.settings.retention_ms
        if reading.oldest_stored_ms
        else _NEVER_MS
    ),
}
"""Numbers by which queues are sorted, the lowest first; names break ties."""


async def list_queues(desk: Desk, asked: Asked) -> Mapping[str, Any]:
    """A page of the account's queues in the region; `search` is a part of their names."""
    queues = _found(desk, asked)
    sort = asked.one_of("sort", tuple(_SORTS))
    return await _page(desk, asked, queues, sort, _sources(desk))


async def list_dead_letters(desk: Desk, asked: Asked) -> Mapping[str, Any]:
    """A page of the dead-letter queues: first those that lose a message soonest."""
    sources = _sources(desk)
    queues = [queue for queue in _found(desk, asked) if queue.arn in sources]
    return await _page(desk, asked, queues, "expires", sources)


async def show_queue(desk: Desk, asked: Asked) -> Mapping[str, Any]:
    """A queue with its attributes, tags and policy, and what the caller may do to it."""
    queue = asked.queue(asked.parts[0])
    readings = await desk.readings.of([queue])
    return {
        **shown_queue(desk, queue, readings.get(queue.queue_id, _EMPTY), _sources(desk)),
        "attributes": queue.attributes,
        "tags": queue.tags,
        "created_at_ms": queue.created_at_ms,
        "modified_at_ms": queue.modified_at_ms,
        "may": [action for action in _ON_A_QUEUE if asked.may(action, queue.name)],
    }


class _Purge(msgspec.Struct, forbid_unknown_fields=True):
    confirm: str


async def purge_queue(desk: Desk, asked: Asked) -> Mapping[str, Any]:
    """Purge a queue whose name is repeated in `confirm`."""
    queue = asked.queue(asked.parts[0])
    if asked.content(_Purge).confirm != queue.name:
        raise InvalidParameterValue("To purge the queue, repeat its name in confirm.")
    await desk.deletions.purge(queue)
    return {"purged": queue.name}


# -- pages -----------------------------------------------------------------------------------------


def _found(desk: Desk, asked: Asked) -> list[QueueDefinition]:
    place, search = (asked.account, asked.caller.region), (asked.text("search") or "").lower()
    return [
        queue
        for queue in desk.catalog
        if (queue.account, queue.region) == place and search in queue.name.lower()
    ]


def _sources(desk: Desk) -> dict[str, list[str]]:
    """Names of the queues with a redrive policy, by the ARN that it names."""
    found: dict[str, list[str]] = {}
    for queue in desk.catalog:
        policy = queue.settings.redrive_policy
        if policy is not None:
            found.setdefault(policy.dead_letter_target_arn, []).append(queue.name)
    return found


async def _page(
    desk: Desk,
    asked: Asked,
    queues: list[QueueDefinition],
    sort: str,
    sources: Mapping[str, list[str]],
) -> Mapping[str, Any]:
    """The queues after the token. Those that come or go meanwhile move no other to another page
    when the order is by name."""
    limit = asked.number("limit", 100, 1, _PAGE_MAX)
    after = _read_token(asked.text("after"))
    readings: Found = {} if sort == "name" else await desk.readings.all()

    def place(queue: QueueDefinition) -> tuple[float, str]:
        return _SORTS[sort](queue, readings.get(queue.queue_id) or _EMPTY), queue.name

    waiting = [queue for queue in queues if after is None or place(queue) > after]
    waiting.sort(key=place)
    page = waiting[:limit]
    more = len(waiting) > len(page)
    last = place(page[-1]) if more else None
    if sort == "name":
        readings = await desk.readings.of(page)
    return {
        "queues": [
            shown_queue(desk, queue, readings.get(queue.queue_id, _EMPTY), sources)
            for queue in page
        ],
        "total": len(queues),
        "next": last and _token(last),
    }


def _token(last: tuple[float, str]) -> str:
    return urlsafe_b64encode(json.dumps(last).encode()).decode()


def _read_token(token: str | None) -> tuple[float, str] | None:
    if token is None:
        return None
    try:
        measure, name = msgspec.json.decode(urlsafe_b64decode(token), type=tuple[float, str])
    except (ValueError, msgspec.MsgspecError):
        raise InvalidParameterValue("after is not the token of a page.") from None
    return measure, name


# -- one queue -------------------------------------------------------------------------------------

_EMPTY = QueueReading(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def shown_queue(
    desk: Desk,
    queue: QueueDefinition,
    reading: QueueReading | None,
    sources: Mapping[str, list[str]],
) -> dict[str, Any]:
    """A queue as JSON; its numbers are null while no host leads its shard."""
    policy, of_it = queue.settings.redrive_policy, sources.get(queue.arn, [])
    retention_s = queue.settings.retention_ms // 1000
    age_s = None if reading is None else _age_s(desk, reading.oldest_stored_ms)
    receivable_s = None if reading is None else _age_s(desk, reading.oldest_receivable_ms)
    return {
        "name": queue.name,
        "arn": queue.arn,
        "account": queue.account,
        "region": queue.region,
        "fifo": queue.settings.fifo,
        **{name: None if reading is None else getattr(reading, name) for name in _COUNTS},
        "oldest_age_s": age_s,
        "oldest_receivable_age_s": receivable_s,
        "expires_in_s": None if age_s is None else max(0.0, retention_s - age_s),
        "retention_s": retention_s,
        "dead_letter_queue": policy
        and {
            "arn": policy.dead_letter_target_arn,
            "name": policy.dead_letter_target_arn.rpartition(":")[2],
            "max_receive_count": policy.max_receive_count,
        },
        "sources": of_it[:_SOURCES_SHOWN],
        "sources_total": len(of_it),
        "task": reading and reading.task and _shown_task(reading.task, reading.paused),
    }


def _age_s(desk: Desk, since_ms: int) -> float | None:
    return max(0, desk.now_ms - since_ms) / 1000 if since_ms else None


def _shown_task(task: ListMessageMoveTasksResultEntry, paused: str) -> dict[str, Any]:
    """A redrive as JSON."""
    return {
        "handle": task.task_handle,
        "status": task.status,
        "paused": paused or None,
        "source_arn": task.source_arn,
        "destination_arn": task.destination_arn,
        "rate": task.max_number_of_messages_per_second,
        "moved": task.approximate_number_of_messages_moved,
        "to_move": task.approximate_number_of_messages_to_move,
        "failure": task.failure_reason,
        "started_at_ms": task.started_timestamp,
    }
