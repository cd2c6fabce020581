"""The history of a queue by the operators' API: ranges, periods, and a restart of the service."""

from __future__ import annotations

from pathlib import Path

import pytest_asyncio

from sqs_api.tests.operator_client import Operators
from sqs_api.tests.served import Served, serving

DAY_S = 86_400


@pytest_asyncio.fixture
async def operators(served: Served) -> Operators:
    """A caller beside a queue `q`."""
    await served.call("CreateQueue", QueueName="q")
    return Operators(served)


async def test_a_range_has_the_period_that_is_asked_for(operators: Operators) -> None:
    await operators.served.send("a")

    shown = await operators.seen("queues/q/history", hours=24, period_s=300)

    assert (shown["period_s"], len(shown["series"]["sent"])) == (300, 288)
    assert shown["begin_s"] % 300 == 0
    assert shown["series"]["visible"][-1] == 1


async def test_a_range_may_end_a_week_ago(operators: Operators) -> None:
    await operators.served.send("a")
    now = await operators.seen("queues/q/history", hours=6)
    week = now["begin_s"] + 6 * 3600 - 7 * DAY_S

    shown = await operators.seen("queues/q/history", hours=6, until_s=week - 1)

    assert now["begin_s"] - shown["begin_s"] == 7 * DAY_S
    assert set(shown["series"]["visible"]) == {None}, "the service did not run"


async def test_wrong_periods_and_too_many_points_are_refused(operators: Operators) -> None:
    for period in (59, 90, 0, 2 * DAY_S):
        assert (await operators.get("queues/q/history", period_s=period)).status == 400
    told = await operators.get("queues/q/history", hours=336, period_s=60)
    assert (told.status, told.json["error"]) == (400, "There are more than 3000 points.")


async def test_a_queue_that_is_idle_shows_zero_and_before_it_was_made_nothing(
    operators: Operators,
) -> None:
    await operators.served.call("CreateQueue", QueueName="idle")

    shown = await operators.seen("queues/idle/history", hours=1)

    assert shown["series"]["visible"][-1] == 0
    assert set(shown["series"]["visible"][:-2]) == {None}


async def test_the_history_survives_a_restart(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with serving(data) as served:
        await served.call("CreateQueue", QueueName="q")
        await served.send("a", "b", "c")
    async with serving(data) as served:
        await served.send("d")

        shown = await Operators(served).seen("queues/q/history", hours=1)

    assert sum(value or 0 for value in shown["series"]["sent"]) * 60 == 4
    assert max(value or 0 for value in shown["series"]["visible"]) == 4


async def test_without_space_for_history_there_is_no_file(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with serving(data, history_mib=0) as served:
        await served.call("CreateQueue", QueueName="q")
        await served.send("a")
        shown = await Operators(served).seen("queues/q/history", hours=1)

    assert shown["series"]["visible"][-1] == 1
    assert list(data.glob("history*")) == []
