"""Answers about the dead-letter queues of an account: how bad each is, and whose it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping
from math import log
from typing import Annotated, Literal, NamedTuple, TypedDict

from msgspec import Meta

from sqs_api.admin.asked import Asked
from sqs_api.admin.routes import LIST_QUEUES, Route
from sqs_api.operators.operator_context import OperatorContext
from sqs_api.operators.queue_answers import (
    NEVER_MS,
    SORTS,
    ListedQueue,
    Listing,
    Page,
    found_queues,
    page_of,
    shown_in_list,
    sources_by_arn,
)
from sqs_api.operators.queue_tags import most_frequent_keys, tags_of
from sqs_api.operators.readings import Found
from sqs_api.operators.shown_queues import EMPTY
from visibility.contract.model import QueueDefinition
from visibility.contract.outcomes import QueueReading

_TAGS_MAX = 50
_TAG_CHARACTERS_MAX = 128
_COUNTED_MAX = 1000
"""Queues whose arrivals are counted: those with the most messages."""
_MINUTE_S = 60
_LONGEST_MINUTES = 14 * 24 * 60
"""The longest retention."""
_MANY_MESSAGES = 1_000_000
_MANY_ARRIVALS = 100_000
_HIGH, _MEDIUM = 40, 20

Level = Literal["high", "medium", "low"]


class DeadLetterListing(Listing):
    """A page of the list of dead-letter queues, in an order; perhaps only those with messages, or
    grouped by the value of a tag."""

    sort: Literal["severity", "name", "visible", "arrived", "oldest", "expires"] = "severity"
    with_messages: bool = False
    by_tag: Annotated[
        str,
        Meta(
            description="The key of a tag: queues of a value stay together.",
            max_length=_TAG_CHARACTERS_MAX,
        ),
    ] = ""


class ListedDeadLetters(ListedQueue):
    """A dead-letter queue. `arrived` counts the messages that came in the last hour, as far as the
    service ran. `severity` is from 0 to 100: half of it is for the time until a message is lost, a
    quarter each for the number of messages and for `arrived`, on logarithmic scales. `group` is its
    value of the tag that was asked for, "" without one."""

    arrived: int
    severity: int
    level: Level
    group: str


class DeadLetterGroup(TypedDict):
    """The queues with one value of a tag, on all pages, and their stored messages."""

    value: str
    queues: int
    messages: int


class DeadLetterPage(TypedDict):
    """A page of dead-letter queues; `total` counts those on all pages. `groups` are those of the
    page, `tags` the keys of tags to group by, those that most queues have first."""

    queues: list[ListedDeadLetters]
    groups: list[DeadLetterGroup]
    tags: list[str]
    total: int
    next: str | None


class Listed(NamedTuple):
    """A page of the list, and what its rows and groups are made of."""

    page: Page
    queues: list[QueueDefinition]
    """Those of all pages."""
    readings: Found
    arrived: Mapping[str, int]
    """By the queue's name."""
    group_of: Callable[[QueueDefinition], str]


async def list_dead_letters(
    context: OperatorContext, asked: Asked, listing: DeadLetterListing
) -> DeadLetterPage:
    """A page of the dead-letter queues: by default the most severe first. A queue whose shard no
    host leads counts as one with messages."""
    listed = await listed_dead_letters(context, asked, listing)
    shown = await shown_in_list(context, asked, listed.page, sources_by_arn(context))
    return {
        "queues": [
            _shown(context, listed, queue, each)
            for queue, each in zip(listed.page.queues, shown, strict=True)
        ],
        "groups": _groups(listed) if listing.by_tag else [],
        "tags": most_frequent_keys(asked, listed.queues, _TAGS_MAX),
        "total": listed.page.total,
        "next": listed.page.next,
    }


async def listed_dead_letters(
    context: OperatorContext, asked: Asked, listing: DeadLetterListing
) -> Listed:
    """The dead-letter queues on a page of the list."""
    sources = sources_by_arn(context)
    queues = [
        queue for queue in found_queues(context, asked, listing.search) if queue.arn in sources
    ]
    readings = await context.readings.all()
    if listing.with_messages:
        queues = [queue for queue in queues if _holds(readings.get(queue.queue_id, EMPTY))]
    arrived = await context.arrivals.of(
        asked.account, asked.caller.region, lambda: _fullest(context, asked, sources, readings)
    )
    own_sorts: dict[str, Callable[[QueueDefinition, QueueReading], float]] = {
        "severity": lambda queue, reading: (
            -severity(
                _lost_in_s(context, queue, reading), _stored(reading), arrived.get(queue.name, 0)
            )
        ),
        "arrived": lambda queue, reading: -arrived.get(queue.name, 0),
    }
    sort = {**SORTS, **own_sorts}[listing.sort]

    def measure(queue: QueueDefinition) -> float:
        return sort(queue, readings.get(queue.queue_id) or EMPTY)

    def group_of(queue: QueueDefinition) -> str:
        return tags_of(asked, queue).get(listing.by_tag, "")

    page = page_of(listing, queues, measure, readings, group_of if listing.by_tag else None)
    return Listed(page, queues, readings, arrived, group_of)


def _holds(reading: QueueReading | None) -> bool:
    return reading is None or reading.oldest_stored_ms > 0


def _stored(reading: QueueReading) -> int:
    return reading.visible + reading.in_flight + reading.delayed


# -- severity --------------------------------------------------------------------------------------


def severity(lost_in_s: float | None, messages: int, arrived: int) -> int:
    """The need for someone to look, from 0 to 100. `lost_in_s`: seconds until its
    first message is lost, None without messages."""
    loss = 0.0
    if lost_in_s is not None:
        loss = 1 - _share(lost_in_s / _MINUTE_S, _LONGEST_MINUTES)
    many, growing = _share(messages, _MANY_MESSAGES), _share(arrived, _MANY_ARRIVALS)
    return round(100 * (0.5 * loss + 0.25 * many + 0.25 * growing))


def _share(value: float, most: float) -> float:
    """From 0 to 1, on a logarithmic scale."""
    return min(1.0, log(1 + max(0.0, value)) / log(1 + most))


def _lost_in_s(
    context: OperatorContext, queue: QueueDefinition, reading: QueueReading
) -> float | None:
    expires_ms = SORTS["expires"](queue, reading)
    return None if expires_ms == NEVER_MS else max(0.0, (expires_ms - context.now_ms) / 1000)


def _fullest(
    context: OperatorContext, asked: Asked, sources: Container[str], readings: Found
) -> list[str]:
    """Names of the account's dead-letter queues with the most messages."""
    dead = [queue for queue in context.queues_of(asked) if queue.arn in sources]
    dead.sort(key=lambda queue: -_stored(readings.get(queue.queue_id) or EMPTY))
    return [queue.name for queue in dead[:_COUNTED_MAX]]


# -- as JSON ---------------------------------------------------------------------------------------


def _shown(
    context: OperatorContext, listed: Listed, queue: QueueDefinition, shown: ListedQueue
) -> ListedDeadLetters:
    reading = listed.readings.get(queue.queue_id) or EMPTY
    arrived = listed.arrived.get(queue.name, 0)
    score = severity(_lost_in_s(context, queue, reading), _stored(reading), arrived)
    return {
        **shown,
        "arrived": arrived,
        "severity": score,
        "level": "high" if score >= _HIGH else "medium" if score >= _MEDIUM else "low",
        "group": listed.group_of(queue),
    }


def _groups(listed: Listed) -> list[DeadLetterGroup]:
    of_page = dict.fromkeys(map(listed.group_of, listed.page.queues))
    queues, messages = Counter[str](), Counter[str]()
    for queue in listed.queues:
        group = listed.group_of(queue)
        queues[group] += 1
        messages[group] += _stored(listed.readings.get(queue.queue_id) or EMPTY)
    return [
        {"value": group, "queues": queues[group], "messages": messages[group]} for group in of_page
    ]


ROUTES = (Route("GET", "api/dead-letters", LIST_QUEUES, list_dead_letters, "queues list"),)
