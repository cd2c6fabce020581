"""The operators' API: queues, dead letters and the purge."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sqs_api.settings.config import AuthMode
from sqs_api.tests.operator_client import Operators, add_user, make_dead_letters
from sqs_api.tests.served import Served, serving


async def pages(operators: Operators, path: str, **parameters: object) -> list[list[str]]:
    """The names on each page."""
    found: list[list[str]] = []
    after: str | None = ""
    while after is not None:
        page = await operators.seen(path, after=after, **parameters)
        found.append([queue["name"] for queue in page["queues"]])
        after = page["next"]
    return found


async def queue(operators: Operators, name: str) -> Any:
    page = await operators.seen("queues", search=name)
    return next(each for each in page["queues"] if each["name"] == name)


async def test_queues_are_listed_with_counters_ages_and_links(operators: Operators) -> None:
    await make_dead_letters(operators.served, "a", "b")
    await operators.served.call("SendMessage", QueueUrl="source", MessageBody="c", DelaySeconds=900)

    dead, source = await queue(operators, "dead"), await queue(operators, "source")

    assert (dead["visible"], dead["in_flight"], dead["delayed"]) == (2, 0, 0)
    assert (source["visible"], source["delayed"]) == (0, 1)
    assert 0 <= dead["oldest_age_s"] < 60
    assert dead["expires_in_s"] == dead["retention_s"] - dead["oldest_age_s"]
    assert dead["sources"] == ["source"]
    assert source["dead_letter_queue"] == {
        "arn": "arn:aws:sqs:us-east-1:000000000000:dead",
        "name": "dead",
        "max_receive_count": 1,
    }
    assert (source["sent"], source["moved_out"], dead["moved_in"]) == (3, 2, 2)


async def test_a_queue_without_messages_shows_zeros(operators: Operators) -> None:
    await operators.served.call("CreateQueue", QueueName="empty")

    shown = await queue(operators, "empty")

    assert (shown["visible"], shown["oldest_age_s"], shown["expires_in_s"]) == (0, None, None)


async def test_queues_are_searched_sorted_and_paged(operators: Operators) -> None:
    for number in range(7):
        await operators.served.call("CreateQueue", QueueName=f"order-{number}")
        await operators.served.send(*["x"] * (number % 3), queue=f"order-{number}")
    await operators.served.call("CreateQueue", QueueName="other")

    by_name = await pages(operators, "queues", search="ORDER", limit=3)
    by_depth = await pages(operators, "queues", search="order", sort="visible", limit=4)

    numbers = [[name.removeprefix("order-") for name in page] for page in by_name]
    assert numbers == [["0", "1", "2"], ["3", "4", "5"], ["6"]]
    assert [name[-1] for page in by_depth for name in page] == ["2", "5", "1", "4", "0", "3", "6"]
    assert [len(page) for page in by_depth] == [4, 3]


@pytest.mark.parametrize("sort", ["oldest", "expires"])
async def test_queues_without_messages_come_last(operators: Operators, sort: str) -> None:
    for name in ("a", "b", "c", "d"):
        await operators.served.call("CreateQueue", QueueName=name)
    await operators.served.send("x", queue="c")
    await asyncio.sleep(0.002)  # the service's clock has milliseconds
    await operators.served.send("x", queue="b")

    assert await pages(operators, "queues", sort=sort, limit=1) == [["c"], ["b"], ["a"], ["d"]]


async def test_queues_are_sorted_the_other_way_round_with_empty_ones_last(
    operators: Operators,
) -> None:
    for name in ("a", "b", "c", "d"):
        await operators.served.call("CreateQueue", QueueName=name)
    await operators.served.send("x", queue="c")
    await asyncio.sleep(0.002)  # the service's clock has milliseconds
    await operators.served.send("x", "y", queue="b")

    async def order(sort: str) -> str:
        found = await pages(operators, "queues", sort=sort, reverse=True, limit=1)
        return "".join(name for page in found for name in page)

    assert await order("name") == "dcba"
    assert await order("expires") == "bcda"
    assert (await order("visible"))[-2:] == "cb"


async def test_pages_hold_while_queues_come_and_go(operators: Operators) -> None:
    for name in ("a", "c", "e", "g"):
        await operators.served.call("CreateQueue", QueueName=name)
    first = await operators.seen("queues", limit=2)
    await operators.served.call("CreateQueue", QueueName="b")
    await operators.served.call("DeleteQueue", QueueUrl="a")

    rest = await operators.seen("queues", limit=2, after=first["next"])

    assert [each["name"] for each in rest["queues"]] == ["e", "g"]
    assert rest["next"] is None


_WRONG: list[dict[str, object]] = [
    {"limit": 0},
    {"limit": "x"},
    {"sort": "color"},
    {"after": "?"},
    {"after": "WzEsICJhIl0="},
]


async def test_wrong_parameters_are_refused(operators: Operators) -> None:
    for parameters in _WRONG:
        assert (await operators.get("queues", **parameters)).status == 400, parameters


@pytest.mark.parametrize("sort", ["severity", "expires"])
async def test_dead_letters_come_with_those_first_that_expire_soonest(
    operators: Operators, sort: str
) -> None:
    await make_dead_letters(operators.served, "a")
    await make_dead_letters(operators.served, "b", suffix="-soon")
    await make_dead_letters(operators.served, suffix="-empty")
    soon = {"MessageRetentionPeriod": "600"}
    await operators.served.call("SetQueueAttributes", QueueUrl="dead-soon", Attributes=soon)

    listed = (await operators.seen("dead-letters", sort=sort))["queues"]

    assert [each["name"] for each in listed] == ["dead-soon", "dead", "dead-empty"]
    assert 0 < listed[0]["expires_in_s"] <= 600


async def test_one_queue_shows_attributes_tags_and_what_one_may_do(operators: Operators) -> None:
    await operators.served.call("CreateQueue", QueueName="q", tags={"team": "<b>x</b>"})

    shown = await operators.seen("queues/q")

    assert shown["attributes"]["VisibilityTimeout"] == "30"
    assert shown["tags"] == {"team": "<b>x</b>"}
    assert "holdfast:ReadMessageBodies" in shown["may"]
    assert (await operators.get("queues/none")).status == 404


async def test_a_purge_needs_the_name_again(operators: Operators) -> None:
    await operators.served.call("CreateQueue", QueueName="q")
    await operators.served.send("a")

    refused = await operators.post("queues/q/purge", {"confirm": "Q"})
    assert (refused.status, await operators.served.count()) == (400, 1)
    await operators.done("queues/q/purge", {"confirm": "q"})

    assert await operators.served.count() == 0


async def test_readings_of_a_shard_without_leader_are_null(operators: Operators) -> None:
    await operators.served.call("CreateQueue", QueueName="q")
    await operators.served.send("a")
    await operators.served.node.shards.router.shards[0].stop()

    shown = await queue(operators, "q")

    assert (shown["visible"], shown["expires_in_s"]) == (None, None)


# -- tags ------------------------------------------------------------------------------------------


_CHOSEN = [
    ("team=pay", ["a", "b"]),
    ("team=pay\nenv=prod", ["a"]),
    ("team", ["a", "b", "c"]),
    ("env^=pr", ["a"]),
    ("team=none", []),
    ("", ["a", "b", "c", "d"]),
]


async def test_queues_are_chosen_by_their_tags(operators: Operators) -> None:
    await tagged(operators.served)
    for tags, expected in _CHOSEN:
        page = await operators.seen("queues", tags=tags, columns="env\nteam")

        assert [each["name"] for each in page["queues"]] == expected, tags
        assert page["total"] == len(expected), tags
        if "a" in expected:
            assert page["queues"][0]["tags"] == {"env": "prod", "team": "pay"}


async def test_the_tags_that_queues_have_are_listed(operators: Operators) -> None:
    await tagged(operators.served)

    found = await operators.seen("queue-tags")
    without = await operators.seen("queues")

    assert found["tags"] == [
        {"key": "team", "values": {"pay": 2, "web": 1}},
        {"key": "env", "values": {"prod": 1, "test": 1}},
    ]
    assert [each["tags"] for each in without["queues"]] == [{}, {}, {}, {}], "none was asked for"


async def test_tags_are_no_way_to_guess_what_one_may_not_see(data: Path) -> None:
    lists = add_user(data, "lists", "holdfast:ListQueues")
    async with serving(data) as opened:
        await tagged(opened)
    async with serving(data, auth=AuthMode.SIGV4) as served:
        caller = Operators(served, lists)
        guessed = await caller.seen("queues", tags="team=pay")
        shown = await caller.seen("queues", columns="team")
        keys = await caller.seen("queue-tags")

    assert guessed["queues"] == []
    assert [each["tags"] for each in shown["queues"]] == [{}, {}, {}, {}]
    assert keys["tags"] == []


async def tagged(served: Served) -> None:
    """Queues of two teams, and one without tags."""
    tags = {
        "a": {"team": "pay", "env": "prod"},
        "b": {"team": "pay", "env": "test"},
        "c": {"team": "web"},
        "d": {},
    }
    for name, of_it in tags.items():
        await served.call("CreateQueue", QueueName=name, tags=of_it)
