"""Answers about queues: all of them, one, those with dead letters; and the purge."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Literal, NamedTuple, TypedDict

import msgspec
from msgspec import Meta

from sqs_api.admin.asked import Asked
from sqs_api.admin.routes import (
    BROWSE_MESSAGES,
    DELETE,
    DELETE_MESSAGES,
    GET_QUEUE,
    HOLD_MESSAGES,
    LIST_QUEUES,
    PURGE,
    QUEUE,
    READ_BODIES,
    REDRIVE_MESSAGES,
    RESTORE_QUEUE,
    SEND,
    SET_ATTRIBUTES,
    TAG,
    UNTAG,
    Route,
)
from sqs_api.operators.operator_context import OperatorContext
from sqs_api.operators.readings import Found
from sqs_api.operators.shown_queues import EMPTY, ShownQueue, shown_queue
from visibility.contract.errors import InvalidParameterValue
from visibility.contract.model import QueueDefinition
from visibility.contract.outcomes import QueueReading
from visibility.contract.queue_policy import statements_without_effect
from visibility.contract.tags import OWN_TAGS

_PAGE_MAX = 500
_ON_A_QUEUE = (
    BROWSE_MESSAGES,
    READ_BODIES,
    DELETE_MESSAGES,
    REDRIVE_MESSAGES,
    HOLD_MESSAGES,
    SEND,
    PURGE,
    DELETE,
    SET_ATTRIBUTES,
    TAG,
    UNTAG,
)
_IN_A_LIST = (GET_QUEUE, BROWSE_MESSAGES, REDRIVE_MESSAGES)
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


class Listing(msgspec.Struct):
    """A page of a list of queues."""

    search: Annotated[str, Meta(description="A part of the queue's name.")] = ""
    limit: Annotated[int, Meta(ge=1, le=_PAGE_MAX)] = 100
    after: Annotated[str | None, Meta(description="`next` of the page before.")] = None


class SortedListing(Listing):
    """A page of a list of queues, in an order."""

    sort: Literal["name", "visible", "in_flight", "delayed", "oldest", "expires"] = "name"


class DeadLetterListing(Listing):
    """A page of the list of dead-letter queues, in an order; perhaps only those with messages."""

    sort: Literal["name", "visible", "oldest", "expires"] = "expires"
    with_messages: bool = False


class ListedQueue(ShownQueue):
    """A queue of a list, and the actions of its links that the caller `may` do. `hidden` are names
    of other queues in it that the caller may not see."""

    may: list[str]
    hidden: list[str]


class QueuePage(TypedDict):
    """A page of queues; `total` counts those on all pages."""

    queues: list[ListedQueue]
    total: int
    next: str | None


class Purged(TypedDict):
    """The messages of a purge, which can be restored."""

    queue_id: int
    purged_at_ms: int
    restorable_until_ms: int


class ShownTag(TypedDict):
    """A tag with a meaning for this service, set or not."""

    key: str
    values: str
    meaning: str


class WholeQueue(ListedQueue):
    """A queue with all settings, and all actions that the caller may do. `policy_without_effect`
    names the statements of its policy whose Resource is not this queue. `purges` are those that
    the caller may take back, the latest first."""

    attributes: dict[str, str]
    policy_without_effect: list[str]
    tags: dict[str, str]
    own_tags: list[ShownTag]
    created_at_ms: int
    modified_at_ms: int
    purges: list[Purged]


async def list_queues(context: OperatorContext, asked: Asked, listing: SortedListing) -> QueuePage:
    """A page of the account's queues in the region."""
    return await _shown(
        context, asked, await listed_queues(context, asked, listing), _sources(context)
    )


async def listed_queues(context: OperatorContext, asked: Asked, listing: SortedListing) -> Page:
    """The queues on a page of the list."""
    return await _page(context, listing, _found(context, asked, listing.search), listing.sort)


async def list_dead_letters(
    context: OperatorContext, asked: Asked, listing: DeadLetterListing
) -> QueuePage:
    """A page of the dead-letter queues: by default first those that lose a message soonest. A queue
    whose shard no host leads counts as one with messages."""
    sources = _sources(context)
    queues = [queue for queue in _found(context, asked, listing.search) if queue.arn in sources]
    if listing.with_messages:
        readings = await context.readings.all()
        queues = [queue for queue in queues if _holds(readings.get(queue.queue_id, EMPTY))]
    return await _shown(
        context, asked, await _page(context, listing, queues, listing.sort), sources
    )


def _holds(reading: QueueReading | None) -> bool:
    return reading is None or reading.oldest_stored_ms > 0


async def show_queue(context: OperatorContext, asked: Asked) -> WholeQueue:
    """A queue with its attributes, tags and policy, and what the caller may do to it."""
    queue = asked.queue(asked.parts[0])
    readings = await context.readings.of([queue])
    shown = shown_queue(context, queue, readings.get(queue.queue_id, EMPTY), _sources(context))
    return {
        **shown,
        "attributes": queue.attributes,
        "policy_without_effect": statements_without_effect(
            queue.attributes.get("Policy", ""), queue.arn
        ),
        "tags": queue.tags,
        "own_tags": [
            {"key": row.key, "values": row.values, "meaning": row.meaning}
            for row in OWN_TAGS.values()
        ],
        "created_at_ms": queue.created_at_ms,
        "modified_at_ms": queue.modified_at_ms,
        "may": _may(asked, queue, _ON_A_QUEUE),
        "hidden": _hidden(asked, shown),
        "purges": _purges(context, asked, queue),
    }


def _may(asked: Asked, queue: QueueDefinition, actions: Iterable[str]) -> list[str]:
    return [action for action in actions if asked.may(action, queue.name)]


def _hidden(asked: Asked, shown: ShownQueue) -> list[str]:
    dead = shown["dead_letter_queue"]
    others = [*shown["sources"], *([] if dead is None else [dead["name"]])]
    return [name for name in others if not asked.may(GET_QUEUE, name)]


def _purges(context: OperatorContext, asked: Asked, queue: QueueDefinition) -> list[Purged]:
    if not asked.may_administer(RESTORE_QUEUE, context.account):
        return []
    return [
        {
            "queue_id": kept.queue.queue_id,
            "purged_at_ms": kept.deleted_at_ms,
            "restorable_until_ms": context.deletions.restorable_until_ms(kept),
        }
        for kept in context.deletions.all()
        if kept.continued_as and kept.queue.arn == queue.arn
    ]


class Purge(msgspec.Struct, forbid_unknown_fields=True):
    """The name of the queue, again."""

    confirm: str


class PurgedQueue(TypedDict):
    """The name of the queue."""

    purged: str


async def purge_queue(context: OperatorContext, asked: Asked, purge: Purge) -> PurgedQueue:
    """Purge a queue whose name is repeated in `confirm`."""
    queue = asked.queue(asked.parts[0])
    if purge.confirm != queue.name:
        raise InvalidParameterValue("To purge the queue, repeat its name in confirm.")
    await context.deletions.purge(queue)
    return {"purged": queue.name}


# -- pages -----------------------------------------------------------------------------------------


def _found(context: OperatorContext, asked: Asked, search: str) -> list[QueueDefinition]:
    place, part = (asked.account, asked.caller.region), search.lower()
    return [
        queue
        for queue in context.catalog
        if (queue.account, queue.region) == place and part in queue.name.lower()
    ]


def _sources(context: OperatorContext) -> dict[str, list[str]]:
    """Names of the queues with a redrive policy, by the ARN that it names."""
    found: dict[str, list[str]] = {}
    for queue in context.catalog:
        policy = queue.settings.redrive_policy
        if policy is not None:
            found.setdefault(policy.dead_letter_target_arn, []).append(queue.name)
    return found


class Page(NamedTuple):
    """A page of queues, with readings of those if their order took some."""

    queues: list[QueueDefinition]
    readings: Found | None
    total: int
    next: str | None


async def _page(
    context: OperatorContext, listing: Listing, queues: list[QueueDefinition], sort: str
) -> Page:
    """The queues after the token. Those that come or go meanwhile move no other to another page
    when the order is by name."""
    after = _read_token(listing.after)
    readings = None if sort == "name" else await context.readings.all()
    known = readings or {}

    def place(queue: QueueDefinition) -> tuple[float, str]:
        return _SORTS[sort](queue, known.get(queue.queue_id) or EMPTY), queue.name

    waiting = [queue for queue in queues if after is None or place(queue) > after]
    waiting.sort(key=place)
    page = waiting[: listing.limit]
    more = len(waiting) > len(page)
    return Page(page, readings, len(queues), _token(place(page[-1])) if more else None)


async def _shown(
    context: OperatorContext, asked: Asked, page: Page, sources: Mapping[str, list[str]]
) -> QueuePage:
    readings = await context.readings.of(page.queues) if page.readings is None else page.readings
    shown = [
        shown_queue(context, queue, readings.get(queue.queue_id, EMPTY), sources)
        for queue in page.queues
    ]
    return {
        "queues": [
            {**each, "may": _may(asked, queue, _IN_A_LIST), "hidden": _hidden(asked, each)}
            for queue, each in zip(page.queues, shown, strict=True)
        ],
        "total": page.total,
        "next": page.next,
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


ROUTES = (
    Route("GET", "api/queues", LIST_QUEUES, list_queues, "queues list"),
    Route("GET", "api/dead-letters", LIST_QUEUES, list_dead_letters, "queues list"),
    Route("GET", QUEUE, GET_QUEUE, show_queue, "queues show"),
    Route("POST", QUEUE + "/purge", PURGE, purge_queue),
)
