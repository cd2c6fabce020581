"""Lists of many queues: each queue is on one page, in order, and other requests are served."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from sqs_api.operators.queue_answers import Listing, page_of
from sqs_api.operators.queue_tags import list_tags
from visibility.contract.attributes import initial_attributes, settings_of
from visibility.contract.model import QueueDefinition

MANY = 20_000
_ATTRIBUTES = initial_attributes("q", {})
_SETTINGS = settings_of(_ATTRIBUTES)


def queues(number: int) -> list[QueueDefinition]:
    """Not in the order of their names."""
    names = [f"q-{each * 7919 % number:05}" for each in range(number)]
    tags = {"team": "a"}
    return [
        QueueDefinition(
            *(each, "0" * 12, "us-east-1", name, 1, 0, 0, 0, bytes(32)),
            _ATTRIBUTES,
            tags,
            _SETTINGS,
        )
        for each, name in enumerate(names)
    ]


def by_tens(queue: QueueDefinition) -> float:
    return int(queue.name[2:]) // 10


def last_digit(queue: QueueDefinition) -> str:
    return queue.name[-1]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("group_of", [None, last_digit])
def test_pages_have_each_queue_once_and_in_order(
    group_of: Callable[[QueueDefinition], str] | None, *, reverse: bool
) -> None:
    listed, after, seen = queues(95), None, list[str]()
    while True:
        page = page_of(Listing("", 10, after, reverse), listed, by_tens, None, group_of)
        seen += [queue.name for queue in page.queues]
        assert page.total == 95
        after = page.next
        if after is None:
            break

    assert sorted(seen) == sorted(queue.name for queue in listed)
    if group_of is None:
        assert seen == sorted(seen, reverse=reverse)
    else:
        changes = sum(one[-1] != other[-1] for one, other in pairwise(seen))
        assert changes == 9, "those of a group stay together"


def test_a_page_of_many_queues_takes_no_memory_for_the_others() -> None:
    """A host of 100,000 queues answered nobody for half a second while it sorted them all."""
    listed = queues(MANY)
    tracemalloc.start()
    try:
        page = page_of(Listing(), listed, by_tens, None)
        _, highest = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert [page.queues[0].name, page.queues[-1].name] == ["q-00000", "q-00099"]
    assert highest < 10 * MANY


async def test_other_requests_are_served_while_tags_are_counted() -> None:
    """To ask of each of 100,000 queues what a user may see took a second."""
    context: Any = SimpleNamespace(queues_of=lambda asked: queues(5_000))
    asked: Any = SimpleNamespace(may=lambda action, name: True)
    passes = 0

    async def others() -> None:
        nonlocal passes
        while True:
            passes += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    listed = await list_tags(context, asked)
    beside.cancel()

    assert listed == {"tags": [{"key": "team", "values": {"a": 5_000}}]}
    assert passes >= 9
