"""The live tail of a queue by the operators' API and as a command."""

from __future__ import annotations

import asyncio
import json

import pytest_asyncio

from sqs_api.tests.commands import run
from sqs_api.tests.operator_client import Operators
from sqs_api.tests.served import Served


@pytest_asyncio.fixture
async def operators(served: Served) -> Operators:
    """A caller beside a queue `q`."""
    await served.call("CreateQueue", QueueName="q")
    return Operators(served)


async def test_a_tail_begins_with_the_newest_and_goes_on_with_what_comes(
    operators: Operators,
) -> None:
    await operators.served.send("a", "b", "c")
    first = await operators.seen("queues/q/tail", limit=2)
    idle = await operators.seen("queues/q/tail", token=first["next"])
    await operators.served.send("d", "e")
    later = await operators.seen("queues/q/tail", token=idle["next"])

    assert [each["body"] for each in first["messages"]] == ["b", "c"]
    assert (idle["messages"], idle["left_out"]) == ([], 0)
    assert [each["body"] for each in later["messages"]] == ["d", "e"]


async def test_a_tail_receives_nothing(operators: Operators) -> None:
    await operators.served.send("a")
    shown = await operators.seen("queues/q/tail")
    assert [each["receive_count"] for each in shown["messages"]] == [0]
    assert list(await operators.served.receive()) == ["a"]


async def test_more_than_the_limit_are_passed_over_and_counted(operators: Operators) -> None:
    await operators.served.send("a")
    first = await operators.seen("queues/q/tail")
    await operators.served.send(*"bcdefg")

    shown = await operators.seen("queues/q/tail", token=first["next"], limit=2)

    assert [each["body"] for each in shown["messages"]] == ["f", "g"]
    assert shown["left_out"] == 4


async def test_an_empty_queue_and_a_wrong_token(operators: Operators) -> None:
    shown = await operators.seen("queues/q/tail")
    await operators.served.send("a")
    later = await operators.seen("queues/q/tail", token=shown["next"])

    assert shown["messages"] == []
    assert [each["body"] for each in later["messages"]] == ["a"]
    assert (await operators.get("queues/q/tail", token="x")).status == 400
    assert (await operators.get("queues/none/tail")).status == 404


async def test_the_command_shows_the_newest(operators: Operators) -> None:
    await operators.served.send("a", "b")
    at = ("--url", operators.served.address)
    said = await asyncio.to_thread(run, "messages", "tail", "q", "--once", "--json", *at)

    assert [json.loads(line)["body"] for line in said.out.splitlines()] == ["a", "b"]
