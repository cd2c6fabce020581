"""The operators' API: redrives, which are the move tasks of SQS."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest_asyncio

from sqs_api.tests.operator_client import Operators, make_dead_letters
from sqs_api.tests.served import Served, serving
from sqs_api.tests.serving import settled

ARN = "arn:aws:sqs:us-east-1:000000000000:"


def token_of(sums: object) -> str:
    """A token with this content."""
    return urlsafe_b64encode(msgspec.msgpack.encode(sums)).decode()


@pytest_asyncio.fixture
async def served(data: Path) -> AsyncIterator[Served]:
    async with serving(data) as node:
        await make_dead_letters(node, "a", "bb", "ccc")
        await node.call("CreateQueue", QueueName="other")
        yield node


async def ended(operators: Operators) -> Any:
    """The latest redrive, once it has ended."""
    while True:
        latest = (await operators.seen("queues/dead/redrives"))["redrives"][0]
        if latest["status"] not in ("RUNNING", "CANCELLING"):
            return latest
        await settled()


async def test_a_plan_tells_targets_and_refusals_and_moves_nothing(operators: Operators) -> None:
    await operators.served.send("sent here", queue="dead")

    own = await operators.done("queues/dead/redrives/plan")
    other = await operators.done(
        "queues/dead/redrives/plan", {"destination": "other", "sequences": [1, 3, 77]}
    )

    assert own == {
        "targets": {
            f"{ARN}source": {"messages": 3, "bytes": 6, "too_large": 0, "returns_after": 1}
        },
        "messages": 3,
        "refused": {"CouldNotDetermineMessageSource": 1},
        "passed": 0,
        "expiring": 0,
        "overtaking": 0,
        "samples": [],
        "next": None,
    }
    assert other["targets"] == {
        f"{ARN}other": {"messages": 2, "bytes": 4, "too_large": 0, "returns_after": None}
    }
    assert other["refused"] == {"MessageGone": 1}
    assert await operators.served.count("dead") == 4


async def test_a_plan_goes_on_from_its_token_with_the_sums_before_it(operators: Operators) -> None:
    path, wanted = "queues/dead/redrives/plan", {"filter": {"text": "c"}}
    before = {"at": 2, "passed": 7, "expiring": 1, "refused": {"Held": 2}}
    targets = {f"{ARN}source": {"messages": 40, "size": 90, "too_large": 3}}

    plan = await operators.done(path, {**wanted, "token": token_of({**before, "targets": targets})})

    (target,) = plan["targets"].values()
    assert (target["messages"], target["bytes"], target["too_large"]) == (41, 93, 3)
    assert (plan["messages"], plan["passed"], plan["expiring"]) == (41, 8, 1)
    assert (plan["refused"], plan["next"]) == ({"Held": 2}, None)


_NO_TOKENS = [
    "?",
    "AAAA",
    token_of({"at": None}),
    token_of({"at": -1}),
    token_of({"at": 1, "targets": {"x": {"messages": -1, "size": 0}}}),
    token_of({"at": 1, "targets": {"x": {"messages": 1 << 62, "size": 0}}}),
]


async def test_a_token_that_is_none_is_refused(operators: Operators) -> None:
    for token in _NO_TOKENS:
        told = await operators.post("queues/dead/redrives/plan", {"token": token})

        assert (told.status, told.json["error"]) == (400, "token is not that of a plan."), token


async def test_a_target_that_is_none_is_shown_as_it_was_said(operators: Operators) -> None:
    token = token_of({"at": 99, "targets": {"no arn": {"messages": 1, "size": 0}}})

    plan = await operators.done("queues/dead/redrives/plan", {"token": token})

    assert plan["targets"]["no arn"]["returns_after"] is None


async def test_all_messages_go_to_their_sources(operators: Operators) -> None:
    await operators.done("queues/dead/redrives")

    latest = await ended(operators)

    assert (latest["status"], latest["moved"], latest["to_move"]) == ("COMPLETED", 3, 3)
    assert await operators.served.count("source") == 3


async def test_selected_messages_go_to_a_chosen_queue(operators: Operators) -> None:
    await operators.done("queues/dead/redrives", {"sequences": [2], "destination": "other"})

    assert (await ended(operators))["moved"] == 1
    assert set(await operators.served.receive("other")) == {"bb"}
    assert await operators.served.count("dead") == 2


async def test_a_redrive_of_the_sdk_is_cancelled_here(operators: Operators) -> None:
    await operators.served.call(
        "StartMessageMoveTask", SourceArn=f"{ARN}dead", MaxNumberOfMessagesPerSecond=1
    )
    (task,) = (await operators.seen("queues/dead/redrives"))["redrives"]
    assert (task["status"], task["rate"]) == ("RUNNING", 1)

    await operators.done("queues/dead/redrives/cancel", {"handle": task["handle"]})

    assert (await ended(operators))["status"] == "CANCELLED"
    assert (await operators.seen("queues/dead"))["task"]["status"] == "CANCELLED"


async def test_a_redrive_of_ours_is_cancelled_by_the_sdk(operators: Operators) -> None:
    started = await operators.done("queues/dead/redrives", {"rate": 1})

    listed = await operators.served.call("ListMessageMoveTasks", SourceArn=f"{ARN}dead")
    assert listed["Results"][0]["TaskHandle"] == started["handle"]
    await operators.served.call("CancelMessageMoveTask", TaskHandle=started["handle"])

    assert (await ended(operators))["status"] == "CANCELLED"


async def test_refusals_are_those_of_sqs(operators: Operators) -> None:
    not_dead = await operators.post("queues/other/redrives")
    no_target = await operators.post("queues/dead/redrives", {"destination": "none"})
    no_rate = await operators.post("queues/dead/redrives", {"rate": 0})
    unread = await operators.post("queues/dead/redrives", {"speed": 1})
    no_task = await operators.post("queues/dead/redrives/cancel", {"handle": "x"})

    assert not_dead.json["error"] == "Source queue must be configured as a Dead Letter Queue."
    assert [told.status for told in (not_dead, no_target, no_rate, unread, no_task)] == [
        400,
        404,
        400,
        400,
        400,
    ]


async def test_a_second_redrive_waits_for_the_first(operators: Operators) -> None:
    await operators.done("queues/dead/redrives", {"rate": 1})

    told = await operators.post("queues/dead/redrives")

    assert "already a task running" in told.json["error"]
