"""The operators' API: the redrives of all queues, and who moved how much in a time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from sqs_api.operators.redrive_history import by_day
from sqs_api.settings.config import AuthMode
from sqs_api.tests.operator_client import Operators, User, add_users, make_dead_letters
from sqs_api.tests.served import Served, serving
from sqs_api.tests.serving import settled, until
from visibility.contract.move_task import MoveTask

DAY_MS = 86_400_000
SEES = ("holdfast:ListQueues", "holdfast:GetQueue", "holdfast:RedriveMessages", "sqs:*")


@pytest_asyncio.fixture
async def served(data: Path) -> AsyncIterator[Served]:
    async with serving(data) as node:
        await make_dead_letters(node, "a", "b", suffix="-1")
        await make_dead_letters(node, "c", suffix="-2")
        yield node


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
    days = {each["started_at_ms"] // DAY_MS * DAY_MS for each in found["redrives"]}
    assert {each["day_ms"] for each in found["by_day"]} == days
    assert sum(each["moved"] for each in found["by_day"]) == 2
    assert (found["left_out"], found["is_complete"]) == (0, True)


def test_sums_are_made_by_day_and_who_began_and_without_undos() -> None:
    begun = [("ann", 2 * DAY_MS, 3, ""), ("bob", 2 * DAY_MS - 1, 1, ""), ("ann", DAY_MS, 2, "")]
    begun += [("ann", DAY_MS + 5, 4, ""), ("ann", DAY_MS, 9, "another")]
    tasks = [
        MoveTask(1, "task", "arn", None, 0, at_ms, 0, 1, moved=moved, started_by=who, undoes=of)
        for who, at_ms, moved, of in begun
    ]

    found = [
        (each["day_ms"] // DAY_MS, each["who"], each["redrives"], each["moved"])
        for each in by_day(tasks, offset_ms=0)
    ]

    assert found == [(2, "ann", 1, 3), (1, "ann", 2, 6), (1, "bob", 1, 1)]


def test_days_begin_at_midnight_of_the_clock_that_is_asked_for() -> None:
    hour_ms = DAY_MS // 24
    tasks = [
        MoveTask(1, "task", "arn", None, 0, at_ms, 0, 1, moved=1, started_by="ann")
        for at_ms in (5 * DAY_MS - 2 * hour_ms, 5 * DAY_MS - hour_ms, 5 * DAY_MS)
    ]

    ahead, behind = (by_day(tasks, hours * hour_ms) for hours in (1, -1))

    assert [(each["day_ms"], each["moved"]) for each in ahead] == [
        (5 * DAY_MS - hour_ms, 2),
        (4 * DAY_MS - hour_ms, 1),
    ]
    assert [(each["day_ms"], each["moved"]) for each in behind] == [(4 * DAY_MS + hour_ms, 3)]


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

    async def are_listed() -> bool:
        return len((await all_redrives(operators))["redrives"]) == 2

    await until(are_listed)  # readings of all queues serve for two seconds

    found = await all_redrives(operators)
    assert sorted(each["queue"] for each in found["redrives"]) == ["dead-2", "source-2"]
    assert [each["redrives"] for each in found["by"]] == [1]


async def test_a_queue_that_may_not_be_seen_is_left_out(data: Path) -> None:
    users = add_users(
        data,
        {
            "one": User(("holdfast:*", "sqs:*"), but="holdfast:GetQueue"),
            "all": User(SEES),
            "viewer": User(("holdfast:ListQueues", "holdfast:GetQueue")),
        },
    )
    async with serving(data) as node:
        await make_dead_letters(node, "a")
    async with serving(data, auth=AuthMode.SIGV4) as node:
        one, everyone, viewer = (Operators(node, users[name]) for name in ("one", "all", "viewer"))
        await redriven(everyone, "dead")
        hidden, seen, viewed = [await all_redrives(each) for each in (one, everyone, viewer)]

    assert hidden["redrives"] == hidden["by"] == []
    assert [each["who"].rpartition("/")[2] for each in seen["by"]] == ["all"]
    assert [each["may_redrive"] for each in seen["redrives"]] == [True]
    assert [each["may_redrive"] for each in viewed["redrives"]] == [False]


async def test_what_a_redrive_looked_for_and_wrote_is_for_those_who_may_read_bodies(
    data: Path,
) -> None:
    wanted = {"filter": {"text": "secret", "source": "source"}, "edit": {"card": "secret"}}
    keys = add_users(
        data,
        {"u": User([*SEES, "holdfast:BrowseMessages"]), "owner": User(["holdfast:*", "sqs:*"])},
    )
    async with serving(data) as served:
        await make_dead_letters(served, '{"card": "secret"}')
        await redriven(Operators(served), "dead", **wanted)
    found: dict[str, list[Any]] = {}
    async with serving(data, auth=AuthMode.SIGV4) as served:
        for name, key in keys.items():
            operators = Operators(served, key)
            of_queue = await operators.seen("queues/dead/redrives")
            found[name] = [*of_queue["redrives"], *(await all_redrives(operators))["redrives"]]

    for each in found["u"]:
        assert each["filter"] == {"text": "(hidden)", "source": "source"}
        assert each["edit"] == {"(hidden)": "(hidden)"}
    for each in found["owner"]:
        assert (each["filter"], each["edit"]) == (wanted["filter"], wanted["edit"])
    assert [len(each) for each in found.values()] == [2, 2]
