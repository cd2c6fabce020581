"""The operators' API: dead-letter queues by severity and by tag, and what came in the last hour."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sqs_api.cloudwatch.metric_actions import Found, Wanted
from sqs_api.cloudwatch.metric_statistics import Datapoint
from sqs_api.operators.arrival_counts import Arrivals
from sqs_api.operators.dead_letter_answers import severity
from sqs_api.settings.config import AuthMode
from sqs_api.tests.operator_client import Operators, add_user, make_dead_letters
from sqs_api.tests.served import Served, serving

HOUR_S, DAY_S = 3600, 86400


async def teams(served: Served, **of: str) -> None:
    """Tag dead-letter queues with teams."""
    for suffix, team in of.items():
        await served.call("TagQueue", QueueUrl=f"dead-{suffix}", Tags={"team": team})


async def names(operators: Operators, **parameters: object) -> list[str]:
    """The queues of all pages, without `dead-`."""
    found: list[str] = []
    after: str | None = ""
    while after is not None:
        page = await operators.seen("dead-letters", after=after, **parameters)
        found += [queue["name"].removeprefix("dead-") for queue in page["queues"]]
        after = page["next"]
    return found


def test_severity_weighs_loss_number_and_growth() -> None:
    calm = severity(4 * DAY_S, 3, 0)

    assert severity(None, 0, 0) == 0
    assert calm < severity(HOUR_S, 3, 0), "lost sooner"
    assert calm < severity(4 * DAY_S, 3_000, 0), "more messages"
    assert calm < severity(4 * DAY_S, 3, 300), "more in the last hour"
    assert severity(HOUR_S, 1, 0) < severity(4 * DAY_S, 50_000, 50_000), "a storm comes first"
    assert severity(0, 10_000_000, 10_000_000) == 100


async def test_what_came_in_the_last_hour_is_counted(operators: Operators) -> None:
    await make_dead_letters(operators.served, "a", "b", "c", suffix="-growing")
    await make_dead_letters(operators.served, suffix="-empty")
    await operators.served.call("PurgeQueue", QueueUrl="dead-empty")

    listed = (await operators.seen("dead-letters"))["queues"]

    assert [(each["name"], each["arrived"]) for each in listed] == [
        ("dead-growing", 3),
        ("dead-empty", 0),
    ]
    assert listed[0]["severity"] > listed[1]["severity"] == 0
    assert [each["level"] for each in listed] == ["low", "low"]


async def test_orders_go_both_ways(operators: Operators) -> None:
    await make_dead_letters(operators.served, "a", "b", suffix="-more")
    await make_dead_letters(operators.served, "a", suffix="-less")

    for sort in ("severity", "arrived", "visible"):
        assert await names(operators, sort=sort, limit=1) == ["more", "less"], sort
        assert await names(operators, sort=sort, limit=1, reverse=True) == ["less", "more"], sort


async def test_queues_of_a_team_stay_together_the_worst_team_first(operators: Operators) -> None:
    for suffix, bodies in {"a": "1", "b": "123", "c": "12", "d": "1234"}.items():
        await make_dead_letters(operators.served, *bodies, suffix=f"-{suffix}")
    await teams(operators.served, a="shop", c="<b>pay</b>", d="shop")

    page = await operators.seen("dead-letters", sort="visible", by_tag="team")
    turned = await names(operators, sort="visible", by_tag="team", limit=1, reverse=True)

    assert [(each["name"][-1], each["group"]) for each in page["queues"]] == [
        ("d", "shop"),
        ("a", "shop"),
        ("b", ""),
        ("c", "<b>pay</b>"),
    ]
    assert page["groups"] == [
        {"value": "shop", "queues": 2, "messages": 5},
        {"value": "", "queues": 1, "messages": 3},
        {"value": "<b>pay</b>", "queues": 1, "messages": 2},
    ]
    assert page["tags"] == ["team"]
    assert await names(operators, sort="visible", by_tag="team", limit=1) == ["d", "a", "b", "c"]
    assert turned == ["a", "d", "c", "b"]


async def test_the_past_is_that_of_the_queues_of_a_page(operators: Operators) -> None:
    await make_dead_letters(operators.served, "a", "b", suffix="-more")
    await make_dead_letters(operators.served, "a", suffix="-less")

    past: Any = await operators.seen("dead-letters/depths", limit=1, sort="visible")

    assert {*past["queues"]} == {"dead-more"}
    assert [each for each in past["queues"]["dead-more"] if each is not None][-1] == 2


async def test_a_caller_who_may_only_list_sees_no_tags(data: Path) -> None:
    lists = add_user(data, "lists", "holdfast:ListQueues")
    looks = add_user(data, "looks", "holdfast:ListQueues", "holdfast:GetQueue")
    async with serving(data) as opened:
        await make_dead_letters(opened, "x", suffix="-a")
        await teams(opened, a="secret")
    async with serving(data, auth=AuthMode.SIGV4) as served:
        hidden = await Operators(served, lists).seen("dead-letters", by_tag="team")
        shown = await Operators(served, looks).seen("dead-letters", by_tag="team")

    assert (hidden["queues"][0]["group"], hidden["tags"]) == ("", [])
    assert (shown["queues"][0]["group"], shown["tags"]) == ("secret", ["team"])


class _CountingReader:
    """Knows that three messages came in each of two minutes, and how often it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def datapoints(self, wanted: Iterable[Wanted]) -> Found:
        listed = [*wanted]
        self.asked += [each.queue for each in listed]
        await asyncio.sleep(0)
        minutes = {0: Datapoint(1, 3, 3, 3), 60: Datapoint(1, 3, 3, 3)}
        return Found(dict.fromkeys(listed, minutes), is_complete=True)

    async def names(self, within_s: float) -> list[str]:
        return []


async def test_arrivals_are_counted_once_for_all_who_ask_within_ten_seconds() -> None:
    reader, times = _CountingReader(), [0.0]
    arrivals = Arrivals(lambda account, region: reader, lambda: 7200.0, lambda: times[0])

    async def ask(account: str = "1") -> dict[str, int]:
        return await arrivals.of(account, "here", lambda: ["dead"])

    assert [*await asyncio.gather(ask(), ask())] == [{"dead": 6}, {"dead": 6}]
    times[0] = 9.9
    await ask()
    assert len(reader.asked) == 1
    await ask("2")
    assert len(reader.asked) == 2, "another account is counted by itself"
    times[0] = 10.0
    await ask()
    assert len(reader.asked) == 3
