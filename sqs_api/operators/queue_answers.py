"""Answers about queues: all of them, one, those with dead letters; and the purge."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping
from heapq import nlargest, nsmallest
from typing import Annotated, Literal, NamedTuple, TypedDict

import msgspec
from msgspec import Meta

from sqs_api.admin import routes
from sqs_api.admin.asked import Asked
from sqs_api.operators.operator_context import OperatorContext
from sqs_api.operators.queue_changes import Confirmed, confirmed_queue
from sqs_api.operators.queue_tags import tags_of, with_tags
from sqs_api.operators.readings import Found
from sqs_api.operators.shown_queues import EMPTY, ShownQueue, shown_queue
from visibility.contract.errors import InvalidParameterValue
from visibility.contract.model import QueueDefinition
from visibility.contract.outcomes import QueueReading
from visibility.contract.queue_policy import statements_without_effect
from visibility.contract.tags import OWN_TAGS, without_effect

_PAGE_MAX = 500
_ON_A_QUEUE = (
    routes.BROWSE_MESSAGES,
    routes.READ_BODIES,
    routes.DELETE_MESSAGES,
    routes.REDRIVE_MESSAGES,
    routes.HOLD_MESSAGES,
    routes.SEND,
    routes.PURGE,
    routes.DELETE,
    routes.SET_ATTRIBUTES,
    routes.TAG,
    routes.UNTAG,
)
_IN_A_LIST = (routes.GET_QUEUE, routes.BROWSE_MESSAGES, routes.REDRIVE_MESSAGES)
NEVER_MS = 1 << 53
"""Sorts queues without messages last."""
SORTS: dict[str, Callable[[QueueDefinition, QueueReading], float]] = {
    "name": lambda queue, reading: 0,
    "visible": lambda queue, reading: -reading.visible,
    "in_flight": lambda queue, reading: -reading.in_flight,
    "delayed": lambda queue, reading: -reading.delayed,
    "oldest": lambda queue, reading: reading.oldest_stored_ms or NEVER_MS,
    "expires": lambda queue, reading: (
        reading.oldest_stored_ms + queue.settings.retention_ms
        if reading.oldest_stored_ms
        else NEVER_MS
    ),
}
"""Numbers by which queues are sorted, the lowest first; names break ties."""


class Listing(msgspec.Struct):
    """A page of a list of queues."""

    search: Annotated[str, Meta(description="A part of the queue's name.")] = ""
    limit: Annotated[int, Meta(ge=1, le=_PAGE_MAX)] = 100
    after: Annotated[str | None, Meta(description="`next` of the page before.")] = None
    reverse: Annotated[bool, Meta(description="The other way round; empty queues stay last.")] = (
        False
    )


class SortedListing(Listing):
    """A page of a list of queues, in an order."""

    sort: Literal["name", "visible", "in_flight", "delayed", "oldest", "expires"] = "name"
    tags: Annotated[
        str,
        Meta(
            description="Conditions on tags, one a line: KEY=VALUE, KEY^=VALUE: it begins so, "
            "or KEY."
        ),
    ] = ""


class ShownListing(SortedListing):
    """A page of a list of queues, in an order, with some of their tags."""

    columns: Annotated[str, Meta(description="Keys of tags to show, one a line.")] = ""


class ListedQueue(ShownQueue):
    """A queue of a list, and the actions of its links that the caller `may` do. `hidden` are names
    of other queues in it that the caller may not see."""

    may: list[str]
    hidden: list[str]


class TaggedQueue(ListedQueue):
    """A queue of a list with those of its tags that were asked for."""

    tags: dict[str, str]


class QueuePage(TypedDict):
    """A page of queues; `total` counts those on all pages."""

    queues: list[TaggedQueue]
    total: int
    next: str | None


class Purged(TypedDict):
    """The messages of a purge, or those that are left of it while they come back (`restoring`);
    None: nobody knows how many. `obstacle` is the reason if they cannot be restored."""

    queue_id: int
    purged_at_ms: int
    restorable_until_ms: int
    obstacle: str | None
    restoring: bool
    messages: int | None


class ShownTag(TypedDict):
    """A tag with a meaning for this service, set or not."""

    key: str
    values: str
    meaning: str


class WholeQueue(ListedQueue):
    """A queue with all settings, and all actions that the caller may do. `policy_without_effect`
    names the statements of its policy whose Resource is not this queue, `tags_without_effect` the
    service's tags that mean nothing as things are, each with the reason. `purges` are those that
    the caller may take back, the latest first. `encryption_keys` are those that its KmsMasterKeyId
    may name, for callers who may set it."""

    attributes: dict[str, str]
    policy_without_effect: list[str]
    tags: dict[str, str]
    tags_without_effect: dict[str, str]
    own_tags: list[ShownTag]
    created_at_ms: int
    modified_at_ms: int
    purges: list[Purged]
    encryption_keys: list[str]


async def list_queues(context: OperatorContext, asked: Asked, listing: ShownListing) -> QueuePage:
    """A page of the account's queues in the region."""
    page = await listed_queues(context, asked, listing)
    shown = await shown_in_list(context, asked, page, sources_by_arn(context))
    columns = listing.columns.split("\n")
    tags = [tags_of(asked, queue) for queue in page.queues]
    return {
        "queues": [
            {**each, "tags": {key: of_it[key] for key in columns if key in of_it}}
            for of_it, each in zip(tags, shown, strict=True)
        ],
        "total": page.total,
        "next": page.next,
    }


async def listed_queues(context: OperatorContext, asked: Asked, listing: SortedListing) -> Page:
    """The queues on a page of the list."""
    readings = None if listing.sort == "name" else await context.readings.all()
    known = readings or {}

    def measure(queue: QueueDefinition) -> float:
        return SORTS[listing.sort](queue, known.get(queue.queue_id) or EMPTY)

    found = with_tags(asked, found_queues(context, asked, listing.search), listing.tags)
    return page_of(listing, found, measure, readings)


async def show_queue(context: OperatorContext, asked: Asked) -> WholeQueue:
    """A queue with its attributes, tags and policy, and what the caller may do to it."""
    queue = asked.queue(asked.parts[0])
    readings = await context.readings.of([queue])
    shown = shown_queue(
        context, queue, readings.get(queue.queue_id, EMPTY), sources_by_arn(context)
    )
    return {
        **shown,
        "attributes": queue.attributes,
        "policy_without_effect": statements_without_effect(
            queue.attributes.get("Policy", ""), queue.arn
        ),
        "tags": queue.tags,
        "tags_without_effect": without_effect(
            queue.tags, has_dead_letters=queue.settings.redrive_policy is not None
        ),
        "own_tags": [
            {"key": row.key, "values": row.values, "meaning": row.meaning}
            for row in OWN_TAGS.values()
        ],
        "created_at_ms": queue.created_at_ms,
        "modified_at_ms": queue.modified_at_ms,
        "may": _may(asked, queue, _ON_A_QUEUE),
        "hidden": _hidden(asked, shown),
        "purges": await _purges(context, asked, queue),
        "encryption_keys": _keys(context, queue)
        if asked.may(routes.SET_ATTRIBUTES, queue.name)
        else [],
    }


def _may(asked: Asked, queue: QueueDefinition, actions: Iterable[str]) -> list[str]:
    return [action for action in actions if asked.may(action, queue.name)]


def _hidden(asked: Asked, shown: ShownQueue) -> list[str]:
    dead = shown["dead_letter_queue"]
    others = [*shown["sources"], *([] if dead is None else [dead["name"]])]
    return [name for name in others if not asked.may(routes.GET_QUEUE, name)]


def _keys(context: OperatorContext, queue: QueueDefinition) -> list[str]:
    return [
        f"alias/{key.name}"
        for key in context.named_keys()
        if key.enabled and key.account in (queue.account, "")
    ]


async def _purges(context: OperatorContext, asked: Asked, queue: QueueDefinition) -> list[Purged]:
    if not asked.may_administer(routes.RESTORE_QUEUE, context.account):
        return []
    deletions = context.deletions
    restoring = deletions.restoring()
    purged = [
        each
        for each in (*restoring, *deletions.all())
        if each.continued_as and each.queue.arn == queue.arn
    ]
    readings = await context.readings.of(each.queue for each in purged)
    return [
        {
            "queue_id": kept.queue.queue_id,
            "purged_at_ms": kept.deleted_at_ms,
            "restorable_until_ms": deletions.restorable_until_ms(kept),
            "obstacle": context.catalog.obstacle(kept),
            "restoring": kept in restoring,
            "messages": _all_of(readings.get(kept.queue.queue_id, EMPTY)),
        }
        for kept in purged
    ]


def _all_of(reading: QueueReading | None) -> int | None:
    """All messages of a queue that nobody receives from."""
    if reading is None:
        return None
    return reading.visible + reading.in_flight + reading.delayed


class PurgedQueue(TypedDict):
    """The name of the queue."""

    purged: str


async def purge_queue(context: OperatorContext, asked: Asked, given: Confirmed) -> PurgedQueue:
    """Purge a queue whose name is repeated in `confirm`."""
    queue = confirmed_queue(asked, given, "purge")
    await context.deletions.purge(queue)
    return {"purged": queue.name}


# -- pages -----------------------------------------------------------------------------------------


def found_queues(context: OperatorContext, asked: Asked, search: str) -> list[QueueDefinition]:
    """The queues of the asked account in the caller's region whose names have this part."""
    part, queues = search.lower(), context.queues_of(asked)
    return [queue for queue in queues if part in queue.name.lower()] if part else queues


def sources_by_arn(context: OperatorContext) -> dict[str, list[str]]:
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


_Place = tuple[float, str, float, str]
"""Of a queue in a list: the measure and the name of its group's first queue, then its own."""


def page_of(
    listing: Listing,
    queues: list[QueueDefinition],
    measure: Callable[[QueueDefinition], float],
    readings: Found | None,
    group_of: Callable[[QueueDefinition], str] | None = None,
) -> Page:
    """The queues after the token, the lowest measure first, names breaking ties. Queues of a group
    stay together, in the place of their first. Those that come or go meanwhile move no other to
    another page when the order is by name."""
    after = _read_token(listing.after)
    groups: dict[str, tuple[float, str]] = {}
    if group_of is not None:
        first = max if listing.reverse else min
        for queue in queues:
            group, own = group_of(queue), (_measured(measure(queue), listing), queue.name)
            groups[group] = first(groups.get(group, own), own)

    def place(queue: QueueDefinition) -> _Place:
        group = (0.0, "") if group_of is None else groups[group_of(queue)]
        return (*group, _measured(measure(queue), listing), queue.name)

    def is_waiting(queue: QueueDefinition) -> bool:
        if after is None:
            return True
        return place(queue) < after if listing.reverse else place(queue) > after

    select = nlargest if listing.reverse else nsmallest  # sorting all would hold up the host
    found = select(listing.limit + 1, filter(is_waiting, queues), key=place)
    page = found[: listing.limit]
    more = len(found) > len(page)
    return Page(page, readings, len(queues), _token(place(page[-1])) if more else None)


def _measured(measure: float, listing: Listing) -> float:
    return -measure if listing.reverse and measure == NEVER_MS else measure


async def shown_in_list(
    context: OperatorContext, asked: Asked, page: Page, sources: Mapping[str, list[str]]
) -> list[ListedQueue]:
    """The queues of a page as JSON."""
    readings = await context.readings.of(page.queues) if page.readings is None else page.readings
    shown = [
        shown_queue(context, queue, readings.get(queue.queue_id, EMPTY), sources)
        for queue in page.queues
    ]
    return [
        {**each, "may": _may(asked, queue, _IN_A_LIST), "hidden": _hidden(asked, each)}
        for queue, each in zip(page.queues, shown, strict=True)
    ]


def _token(last: _Place) -> str:
    return urlsafe_b64encode(json.dumps(last).encode()).decode()


def _read_token(token: str | None) -> _Place | None:
    if token is None:
        return None
    try:
        place: _Place = msgspec.json.decode(urlsafe_b64decode(token), type=_Place)
    except (ValueError, msgspec.MsgspecError):
        raise InvalidParameterValue("after is not the token of a page.") from None
    return place


ROUTES = (
    routes.Route("GET", "api/queues", routes.LIST_QUEUES, list_queues, "queues list"),
    routes.Route("GET", routes.QUEUE, routes.GET_QUEUE, show_queue, "queues show"),
    routes.Route("POST", routes.QUEUE + "/purge", routes.PURGE, purge_queue),
)
