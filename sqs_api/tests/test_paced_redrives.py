"""The operators' API: filtered, paced and undone redrives, and their history."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sqs_api.admin.asked import Asked
from sqs_api.operators.operator_context import OperatorContext
from sqs_api.settings.config import AuthMode
from sqs_api.tests.commands import run
from sqs_api.tests.operator_client import Operators, add_user, latest_redrive, make_dead_letters
from sqs_api.tests.served import Served, serving
from visibility.contract.errors import ServiceUnavailable
from visibility.contract.operations import Operation
from visibility.rules.move_tasks import ChangeMoveTask

ARN = "arn:aws:sqs:us-east-1:000000000000:"
BODIES = ('{"n": 1, "kind": "a"}', '{"n": 2, "kind": "b"}', '{"n": 3, "kind": "b"}', "no JSON")


@pytest_asyncio.fixture
async def served(data: Path) -> AsyncIterator[Served]:
    async with serving(data) as node:
        await make_dead_letters(node, *BODIES)
        await node.call("CreateQueue", QueueName="other")
        yield node


# -- filters ---------------------------------------------------------------------------------------


async def test_a_filter_plans_and_moves_the_same_messages(operators: Operators) -> None:
    wanted = {"filter": {"json": "kind=b"}, "reason": "the tax service is back"}

    plan = await operators.done("queues/dead/redrives/plan", wanted)
    found = await operators.seen("queues/dead/messages", json="kind=b")
    await operators.done("queues/dead/redrives", wanted)

    assert plan["targets"][f"{ARN}source"]["messages"] == len(found["messages"]) == 2
    assert plan["passed"] == 2
    ended = await latest_redrive(operators)
    assert (ended["status"], ended["moved"], ended["looked_at"]) == ("COMPLETED", 2, 4)
    assert (ended["filter"], ended["reason"]) == ({"json": "kind=b"}, wanted["reason"])
    assert set(await operators.served.receive("source")) == set(BODIES[1:3])


async def test_ages_are_those_of_now(operators: Operators) -> None:
    for wanted, expected in (({"older_s": 60}, 0), ({"newer_s": 60}, 4), ({"older_s": 0}, 4)):
        plan = await operators.done("queues/dead/redrives/plan", {"filter": wanted})
        assert sum(each["messages"] for each in plan["targets"].values()) == expected


async def test_what_cannot_be_read_is_refused(operators: Operators) -> None:
    refused: list[dict[str, object]] = [
        {"filter": {"json": "a[x]"}},
        {"filter": {"colour": "red"}},
        {"filter": {}, "sequences": [1]},
        {"ramp_s": 5},
        {"canary": -1},
    ]
    for wanted in refused:
        assert (await operators.post("queues/dead/redrives", wanted)).status == 400, wanted
    assert (await operators.seen("queues/dead/redrives"))["redrives"] == []


async def test_a_filter_of_bodies_needs_the_right_to_read_them(data: Path) -> None:
    async with serving(data) as served:
        await make_dead_letters(served, *BODIES)
    moves = ("holdfast:RedriveMessages", "sqs:*")
    blind = add_user(data, "blind", *moves)
    sees = add_user(data, "sees", *moves, "holdfast:ReadMessageBodies")
    async with serving(data, auth=AuthMode.SIGV4) as served:
        for path in ("queues/dead/redrives/plan", "queues/dead/redrives"):
            told = await Operators(served, blind).post(path, {"filter": {"text": "kind"}})
            assert told.status == 403
            by_source = {"filter": {"source": "source"}}
            assert (await Operators(served, blind).post(path, by_source)).status == 200
        told = await Operators(served, sees).post(path, {"filter": {"text": "kind"}})
        assert told.status == 200


async def test_a_filter_opens_messages_under_the_keys_of_the_queue_and_its_sources(
    data: Path,
) -> None:
    run("keys", "--data", data, "add", "orders")
    async with serving(data) as served:
        await make_dead_letters(served)
        sealed = {"KmsMasterKeyId": "orders"}
        await served.call("SetQueueAttributes", QueueUrl="source", Attributes=sealed)
        await served.send(*BODIES, queue="source")
        while await served.count("source"):
            await served.call("ReceiveMessage", QueueUrl="source")
    masked = add_user(data, "masked", "holdfast:*", "sqs:*")
    owner = add_user(data, "owner", "holdfast:*", "sqs:*", "kms:*")
    wanted = {"filter": {"json": "kind=b"}}
    async with serving(data, auth=AuthMode.SIGV4) as served:
        told = await Operators(served, masked).post("queues/dead/redrives/plan", wanted)
        plan = await Operators(served, owner).done("queues/dead/redrives/plan", wanted)

    assert told.status == 404
    assert plan["targets"][f"{ARN}source"]["messages"] == 2


# -- controls --------------------------------------------------------------------------------------


async def test_a_canary_is_resumed_and_the_sdk_sees_it_run(operators: Operators) -> None:
    started = await operators.done("queues/dead/redrives", {"canary": 1})
    assert (await latest_redrive(operators))["paused"] == "canary"
    (listed,) = (await operators.served.call("ListMessageMoveTasks", SourceArn=f"{ARN}dead"))[
        "Results"
    ]
    assert (listed["Status"], listed["TaskHandle"]) == ("RUNNING", started["handle"])

    await operators.done("queues/dead/redrives/resume", started)

    assert (await latest_redrive(operators))["moved"] == 4


async def test_a_redrive_of_the_sdk_is_paused_and_resumed_here(operators: Operators) -> None:
    started = await operators.served.call(
        "StartMessageMoveTask", SourceArn=f"{ARN}dead", MaxNumberOfMessagesPerSecond=1
    )
    handle = {"handle": started["TaskHandle"]}

    await operators.done("queues/dead/redrives/pause", handle)
    assert (await latest_redrive(operators))["paused"] == "operator"
    await operators.done("queues/dead/redrives/resume", handle)

    assert (await latest_redrive(operators, settles=False))["paused"] is None


@pytest.mark.parametrize("wanted", [{"canary": 1}, {"canary": 1, "destination": "other"}])
async def test_a_redrive_goes_on_for_those_only_who_may_send_where_it_goes(
    data: Path, wanted: dict[str, Any]
) -> None:
    async with serving(data) as served:
        await make_dead_letters(served, *BODIES)
        await served.call("CreateQueue", QueueName="other")
        started = await Operators(served).done("queues/dead/redrives", wanted)
        assert (await latest_redrive(Operators(served)))["paused"] == "canary"
    narrow = add_user(data, "narrow", "holdfast:*")
    sender = add_user(data, "sender", "holdfast:*", "sqs:SendMessage")
    async with serving(data, auth=AuthMode.SIGV4) as served:
        refused = [
            await Operators(served, narrow).post("queues/dead/redrives/resume", started),
            await Operators(served, narrow).post(
                "queues/dead/redrives/pace", {**started, "rate": 500}
            ),
        ]
        paused = await latest_redrive(Operators(served, narrow))
        await Operators(served, sender).done("queues/dead/redrives/pace", {**started, "rate": 500})
        await Operators(served, sender).done("queues/dead/redrives/resume", started)
        ended = await latest_redrive(Operators(served, sender))

    assert [told.status for told in refused] == [403, 403]
    assert (paused["paused"], paused["moved"], paused["rate"]) == ("canary", 1, None)
    assert ended["moved"] == 4


async def test_the_pace_of_a_running_redrive_is_changed(operators: Operators) -> None:
    started = await operators.done("queues/dead/redrives", {"rate": 1})
    await operators.done("queues/dead/redrives/pause", started)

    await operators.done("queues/dead/redrives/pace", {**started, "stop_after": 3})
    await operators.done("queues/dead/redrives/pace", {**started, "rate": 500})

    paced = await latest_redrive(operators)
    assert (paced["rate"], paced["stop_after"], paced["paused"]) == (500, 3, "operator")
    for refused in ({}, {"rate": 501}, {"rate": -1}, {"stop_after": -1}, {"ramp_s": 1}):
        told = await operators.post("queues/dead/redrives/pace", {**started, **refused})
        assert told.status == 400, refused
    await operators.done("queues/dead/redrives/resume", started)
    assert (await latest_redrive(operators))["moved"] == 4
    told = await operators.post("queues/dead/redrives/pace", {**started, "rate": 1})
    assert told.status == 400


async def test_an_undo_returns_what_nobody_received(operators: Operators) -> None:
    started = await operators.done("queues/dead/redrives", {"destination": "other"})
    await latest_redrive(operators)
    await operators.served.call("ReceiveMessage", QueueUrl="other")

    answer = await operators.done("queues/dead/redrives/undo", started)

    assert answer == {"begun": ["other"], "refused": {}}
    assert (await latest_redrive(operators, "other"))["undoes"] == (
        await latest_redrive(operators)
    )["id"]
    undone = await latest_redrive(operators)
    assert undone["undone"] == {"moved": 3, "is_running": False}
    assert undone["undone_at_ms"]
    page = await operators.seen("queues/dead/messages")
    assert [each["body"] for each in page["messages"]] == list(BODIES[1:])
    assert {each["source_arn"] for each in page["messages"]} == {f"{ARN}source"}
    again = {"handle": (await latest_redrive(operators, "other"))["handle"]}
    assert (await operators.post("queues/other/redrives/undo", again)).status == 400


async def test_an_undo_that_could_not_begin_is_not_in_the_history(
    operators: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = await operators.done("queues/dead/redrives", {"destination": "other", "canary": 2})
    assert (await latest_redrive(operators))["paused"] == "canary"
    monkeypatch.setattr("sqs_api.operators.redrive_controls.LOOKS", 0)

    refused = await operators.post("queues/dead/redrives/undo", started)

    assert refused.status == 503
    cancelled = await latest_redrive(operators)
    assert (cancelled["status"], cancelled["undone_at_ms"]) == ("CANCELLED", 0)
    monkeypatch.undo()
    await operators.done("queues/dead/redrives/undo", started)
    await latest_redrive(operators, "other")
    undone = await latest_redrive(operators)
    assert undone["undone_at_ms"] > 0
    assert undone["undone"] == {"moved": 2, "is_running": False}


async def test_an_undo_whose_note_failed_is_noted_by_the_next(
    operators: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = OperatorContext.ask

    async def note_fails(
        context: OperatorContext, asked: Asked, operation: Operation, *queue: Any, **more: Any
    ) -> Any:
        if isinstance(operation, ChangeMoveTask):
            raise ServiceUnavailable("The shard changes hosts.")
        return await ask(context, asked, operation, *queue, **more)

    started = await operators.done("queues/dead/redrives", {"destination": "other"})
    await latest_redrive(operators)
    monkeypatch.setattr(OperatorContext, "ask", note_fails)
    assert (await operators.post("queues/dead/redrives/undo", started)).status == 503
    assert (await latest_redrive(operators, "other"))["moved"] == 4
    assert (await latest_redrive(operators))["undone_at_ms"] == 0
    monkeypatch.undo()

    answer = await operators.done("queues/dead/redrives/undo", started)

    assert answer == {"begun": ["other"], "refused": {}}
    undone = await latest_redrive(operators)
    assert undone["undone"] == {"moved": 4, "is_running": False}
    assert undone["undone_at_ms"] > 0
    await operators.done("queues/dead/redrives/undo", started)
    assert (await latest_redrive(operators))["undone_at_ms"] == undone["undone_at_ms"]


async def test_an_undo_needs_rights_on_the_queues_that_got_messages(data: Path) -> None:
    async with serving(data) as served:
        await make_dead_letters(served, *BODIES)
        started = await Operators(served).done("queues/dead/redrives")
    key = add_user(data, "u", "holdfast:*", "sqs:*", resource=f"{ARN}dead")
    async with serving(data, auth=AuthMode.SIGV4) as served:
        told = await Operators(served, key).post("queues/dead/redrives/undo", started)
        assert told.status == 403
        assert not (await latest_redrive(Operators(served, key)))["undone_at_ms"]


# -- history ---------------------------------------------------------------------------------------


async def test_the_history_is_paged_and_survives_a_restart(data: Path) -> None:
    async with serving(data) as served:
        await make_dead_letters(served)
        for number in range(12):
            wanted = {"reason": f"because {number}"}
            await Operators(served).done("queues/dead/redrives", wanted)
            await latest_redrive(Operators(served))
    async with serving(data) as served:
        first = await Operators(served).seen("queues/dead/redrives", limit=10)
        rest = await Operators(served).seen("queues/dead/redrives", before=first["next"])

    assert [each["reason"] for each in first["redrives"] + rest["redrives"]] == [
        f"because {number}" for number in range(11, -1, -1)
    ]
    assert rest["next"] is None
    assert all(each["started_by"] for each in first["redrives"])
