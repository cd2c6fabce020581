"""Tags of queues in lists: those that the caller may see, conditions on them, and all keys."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import TypedDict

from sqs_api.admin.asked import Asked
from sqs_api.admin.routes import GET_QUEUE, LIST_QUEUES, Route
from sqs_api.operators.operator_context import OperatorContext
from visibility.content.filters import has_pair
from visibility.contract.model import QueueDefinition

_KEYS_MAX = 50
_VALUES_MAX = 20
_PAUSE_QUEUES = 500
"""Queues after which other requests come first: each takes 10 us to find what a user may see."""


def tags_of(asked: Asked, queue: QueueDefinition) -> dict[str, str]:
    """The tags that the caller may see."""
    return queue.tags if queue.tags and asked.may(GET_QUEUE, queue.name) else {}


def with_tags(
    asked: Asked, queues: Iterable[QueueDefinition], conditions: str
) -> list[QueueDefinition]:
    """The queues whose tags fulfil all conditions, one a line: KEY, KEY=VALUE or KEY^=BEGINNING."""
    wanted = list(filter(None, conditions.split("\n")))
    if not wanted:
        return list(queues)
    return [
        queue
        for queue in queues
        if all(has_pair(queue.tags, each) for each in wanted) and asked.may(GET_QUEUE, queue.name)
    ]


def most_frequent_keys(asked: Asked, queues: Iterable[QueueDefinition], limit: int) -> list[str]:
    """The keys of tags that most queues have."""
    keys = Counter(key for queue in queues for key in tags_of(asked, queue))
    return [key for key, _ in sorted(keys.items(), key=lambda item: (-item[1], item[0]))[:limit]]


class ShownTagKey(TypedDict):
    """A key, and how many queues have each of its most frequent values."""

    key: str
    values: dict[str, int]


class QueueTags(TypedDict):
    """The keys that most queues have, the most frequent first."""

    tags: list[ShownTagKey]


async def list_tags(context: OperatorContext, asked: Asked) -> QueueTags:
    """The tags of the account's queues in the region, with their most frequent values."""
    values: dict[str, Counter[str]] = {}
    for number, queue in enumerate(context.queues_of(asked)):
        if number % _PAUSE_QUEUES == 0:
            await asyncio.sleep(0)
        for key, value in tags_of(asked, queue).items():
            values.setdefault(key, Counter())[value] += 1
    first = sorted(values, key=lambda key: (-values[key].total(), key))[:_KEYS_MAX]
    return {
        "tags": [
            {"key": key, "values": dict(values[key].most_common(_VALUES_MAX))} for key in first
        ]
    }


ROUTES = (Route("GET", "api/queue-tags", LIST_QUEUES, list_tags),)
