"""The operators' API: all messages that match a filter are counted, held, deleted and exported."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest_asyncio

from sqs_api.operators import browsing, matching_answers
from sqs_api.settings.config import AuthMode
from sqs_api.tests.operator_client import Operators, add_user
from sqs_api.tests.served import Served, serving

PATH = "queues/q/messages/matching"
KIND_A = {"json": "kind=a"}


@pytest_asyncio.fixture
async def served(data: Path) -> AsyncIterator[Served]:
    async with serving(data) as node:
        await node.call("CreateQueue", QueueName="q")
        await node.send(*(json.dumps({"n": at, "kind": "abb"[at % 3]}) for at in range(12)))
        yield node


async def steps(operators: Operators, what: str, **given: Any) -> list[Any]:
    """All steps, of two messages each."""
    found: list[Any] = []
    with (
        patch.object(matching_answers, "STEP_MAX", 2),
        patch.object(matching_answers, "EXPORTED_MAX", 2),
        patch.object(browsing, "SCAN_S", 0.0),
        patch.object(browsing, "STEP_MESSAGES", 2),
    ):
        while not found or found[-1]["next"]:
            token = found[-1]["next"] if found else None
            content = {"filter": KIND_A, **given, "token": token}
            found.append(await operators.done(f"{PATH}/{what}", content))
    return found


async def states(operators: Operators, wanted: dict[str, str] = KIND_A) -> Counter[str]:
    counts = Counter[str]()
    for step in await steps(operators, "count", filter=wanted):
        counts.update(step["states"])
    return counts


async def test_all_that_match_are_counted_by_their_state(operators: Operators) -> None:
    await operators.served.call("ReceiveMessage", QueueUrl="q", MaxNumberOfMessages=1)

    assert await states(operators) == {"in flight": 1, "visible": 3}
    assert sum((await states(operators, {})).values()) == 12
    counted = await steps(operators, "count", state="in flight")
    assert sum((Counter[str](step["states"]) for step in counted), Counter()) == {"in flight": 1}
    exported = await steps(operators, "export", state="visible")
    assert sum(len(step["messages"]) for step in exported) == 3


async def test_all_that_match_are_deleted_once_and_no_others(operators: Operators) -> None:
    await operators.served.call("ReceiveMessage", QueueUrl="q", MaxNumberOfMessages=1)
    deleted = await steps(operators, "delete")
    again = await steps(operators, "delete")

    assert len(deleted) > 1
    assert sum(step["deleted"] for step in deleted) == 3
    assert sum(step["deleted"] for step in again) == 0
    assert await states(operators) == {"in flight": 1}
    assert await states(operators, {"json": "kind=b"}) == {"visible": 8}


async def test_a_delete_of_all_that_match_can_be_undone(operators: Operators) -> None:
    deleted = await steps(operators, "delete", undo_s=60)
    sequences = [each for step in deleted for each in step["sequences"]]
    gone = await states(operators)
    back = await operators.done("queues/q/messages/undelete", {"sequences": sequences})

    assert gone == {"deleting": 4}
    assert back == {"undeleted": 4, "gone": 0}


async def test_all_that_match_are_held_with_owner_and_reference(operators: Operators) -> None:
    held = await steps(operators, "hold", owner="ann", reference="T-1")
    page = await operators.seen("queues/q/messages", state="held")

    assert sum(step["held"] for step in held) == 4
    assert {(m["hold"]["owner"], m["hold"]["reference"]) for m in page["messages"]} == {
        ("ann", "T-1")
    }
    assert len(page["messages"]) == 4


async def test_all_that_match_are_exported_whole(operators: Operators) -> None:
    long = json.dumps({"kind": "a", "text": "x" * 20_000})
    await operators.served.send(long)
    bodies = [
        message["body"] for step in await steps(operators, "export") for message in step["messages"]
    ]

    assert len(bodies) == 5
    assert bodies[-1] == long


async def test_each_needs_its_own_permission_and_bodies_are_not_guessed(data: Path) -> None:
    browse = add_user(data, "watcher", "holdfast:BrowseMessages")
    deletes = add_user(data, "deleter", "holdfast:DeleteMessages")
    async with serving(data) as node:
        await node.call("CreateQueue", QueueName="q")
        await node.send("{}")
    async with serving(data, auth=AuthMode.SIGV4) as node:
        watcher, deleter = Operators(node, browse), Operators(node, deletes)
        outside: dict[str, Any] = {"filter": {"received_max": 3}}
        inside = {"filter": KIND_A}
        statuses = [
            (await watcher.post(f"{PATH}/count", outside)).status,
            (await watcher.post(f"{PATH}/count", inside)).status,
            (await watcher.post(f"{PATH}/delete", outside)).status,
            (await watcher.post(f"{PATH}/hold", outside)).status,
            (await watcher.post(f"{PATH}/export", outside)).status,
            (await deleter.post(f"{PATH}/delete", outside)).status,
        ]

    assert statuses == [200, 403, 403, 403, 403, 403]
