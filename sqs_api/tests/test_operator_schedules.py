"""The operators' API and `holdfast messages`: scheduled messages are listed, moved and canceled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from sqs_api.tests.commands import Said, run
from sqs_api.tests.operator_client import Operators
from sqs_api.tests.served import Served, serving

MESSAGES = "queues/later/messages"
HOUR_MS = 3_600_000


@pytest_asyncio.fixture
async def served(data: Path) -> AsyncIterator[Served]:
    async with serving(data) as node:
        await node.call("CreateQueue", QueueName="later", tags={"holdfast:deliver-at": "on"})
        yield node


async def schedule(served: Served, *bodies: str) -> None:
    """Send messages to be delivered in an hour, one after the other."""
    first_ms = int(time.time() * 1000) + HOUR_MS
    for at_ms, body in enumerate(bodies, first_ms):
        await served.call(
            "SendMessage",
            QueueUrl="later",
            MessageBody=body,
            MessageAttributes={
                "holdfast.deliver-at": {"DataType": "Number", "StringValue": str(at_ms)}
            },
        )


async def delayed(operators: Operators) -> list[dict[str, Any]]:
    page = await operators.seen(MESSAGES, state="delayed")
    return [{"sequence": each["sequence"], "due_ms": each["due_ms"]} for each in page["messages"]]


async def test_scheduled_messages_are_canceled_and_moved(served: Served) -> None:
    operators = Operators(served)
    await schedule(served, "a", "b", "c")
    first, second, _ = await delayed(operators)

    canceled = await operators.done(f"{MESSAGES}/cancel", {"messages": [first]})
    again = await operators.done(f"{MESSAGES}/cancel", {"messages": [first]})
    moved = await operators.done(f"{MESSAGES}/reschedule", {"messages": [second], "at_ms": 1})

    assert canceled == {"canceled": 1, "kept": 0}
    assert again == {"canceled": 0, "kept": 1}
    assert moved == {"rescheduled": 1, "kept": 0}
    assert list(await served.receive("later")) == ["b"]
    assert len(await delayed(operators)) == 1


async def test_a_message_is_rescheduled_for_a_year_at_most(served: Served) -> None:
    operators = Operators(served)
    await schedule(served, "a")
    far_ms = int(time.time() * 1000) + 400 * 24 * HOUR_MS

    given = {"messages": await delayed(operators), "at_ms": far_ms}
    told = await operators.post(f"{MESSAGES}/reschedule", given)

    assert told.status == 400
    assert "more than a year ahead" in told.json["error"]


async def say(served: Served, *arguments: object) -> Said:
    said = await asyncio.to_thread(
        run, "messages", *arguments, "--data", served.data, "--region", "us-east-1"
    )
    assert said.status == 0, said
    return said


async def test_the_commands_do_the_same(served: Served) -> None:
    await schedule(served, "first", "second")

    listed = (await say(served, "scheduled", "later")).out.splitlines()
    places = [line.split()[0] for line in listed[1:]]
    canceled = await say(served, "cancel", "later", places[0])
    moved = await say(served, "reschedule", "later", places[1], "--at", "2h")
    left = (await say(served, "scheduled", "later")).out.splitlines()

    assert listed[0].split() == ["place", "message", "id", "due", "sent", "bytes", "body"]
    assert [line.split()[-1] for line in listed[1:]] == ["first", "second"]
    assert canceled.out == "canceled 1\n"
    assert moved.out == "rescheduled 1\n"
    due_ms, _, sequence = left[1].split()[0].partition(":")
    assert sequence == places[1].partition(":")[2]
    assert int(due_ms) > int(places[1].partition(":")[0]) + HOUR_MS // 2
    refused = await asyncio.to_thread(
        run, "messages", "cancel", "later", "7", "--data", served.data
    )
    assert refused.status == 2
