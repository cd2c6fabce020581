"""The operators' API: the redrives of all queues, and who moved how much in a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sqs_api.settings.config import AuthMode
from sqs_api.tests.operators import Operators, User, add_users, make_dead_letters
from sqs_api.tests.served import Served, serving
from sqs_api.tests.serving import settled

SEES = ("holdfast:ListQueues", "holdfast:GetQueue", "holdfast:RedriveMessages", "sqs:*")


@pytest_asyncio.fixture
async def served(data: Path) -> AsyncIterator[Served]:
    async with serving(data) as node:
        await make_dead_letters(node, "a", "b", suffix="-1")
        await make_dead_letters(node, "c", suffix="-2")
        yield node


@pytest.fixture
def operators(served: Served) -> Operators:
    return Operators(served)


async def redriven(operators: Operators, name: str, **wanted: object) -> None:
    """Redrive a queue, and wait for the end unless it has a canary."""
    await operators.done(f"queues/{name}/redrives", wanted)
    while True:
        (latest, *_) = (await operators.seen(f"queues/{name}/redrives"))["redrives"]
        if not latest["is_active"] or latest["paused"]:
            return
        await settled()


async def all_redrives(operators: Operators, **window: int) -> Any:
    return await operators.seen("redrives", **window)


async def test_redrives_of_all_queues_those_that_wait_first(operators: Operators) -> None:
    await redriven(operators, "dead-1", canary=1, reason="first")
    await redriven(operators, "dead-2")

    found = await all_redrives(operators)

    shown = [(each["queue"], each["paused"], each["moved"]) for each in found["redrives"]]
    assert shown == [("dead-1", "canary", 1), ("dead-2", None, 1)]
    (by,) = found["by"]
    assert (by["redrives"], by["moved"]) == (2, 2)
    assert (found["left_out"], found["is_complete"]) == (0, True)


async def test_a_time_leaves_out_what_began_outside_but_not_what_still_runs(
    operators: Operators,
) -> None:
    await redriven(operators, "dead-1", canary=1)
    await redriven(operators, "dead-2")
    began = max(each["started_at_ms"] for each in (await all_redrives(operators))["redrives"])

    later = await all_redrives(operators, since_ms=began + 1)
    earlier = await all_redrives(operators, until_ms=1)

    for found in (later, earlier):
        assert [each["queue"] for each in found["redrives"]] == ["dead-1"]
        assert found["by"] == []


async def test_an_undo_is_listed_and_not_counted(operators: Operators) -> None:
    await redriven(operators, "dead-2")
    (redrive,) = (await operators.seen("queues/dead-2/redrives"))["redrives"]
    await operators.done("queues/dead-2/redrives/undo", {"handle": redrive["handle"]})

    for _ in range(100):
        found = await all_redrives(operators)
        if len(found["redrives"]) == 2:
            break
        await asyncio.sleep(0.1)  # readings of all queues serve for two seconds

    assert sorted(each["queue"] for each in found["redrives"]) == ["dead-2", "source-2"]
    assert [each["redrives"] for each in found["by"]] == [1]


async def test_a_queue_that_may_not_be_seen_is_left_out(data: Path) -> None:
    users = add_users(
        data,
        {
            "one": User(("holdfast:*", "sqs:*"), but="holdfast:GetQueue"),
            "all": User(SEES),
        },
    )
    async with serving(data) as node:
        await make_dead_letters(node, "a")
    async with serving(data, auth=AuthMode.SIGV4) as node:
        one, everyone = (Operators(node, users[name]) for name in ("one", "all"))
        await redriven(everyone, "dead")
        hidden, seen = [await all_redrives(each) for each in (one, everyone)]

    assert hidden["redrives"] == hidden["by"] == []
    assert [each["who"].rpartition("/")[2] for each in seen["by"]] == ["all"]
