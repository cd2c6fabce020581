"""The operators' API: a message is found by its id, whatever queue has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sqs_api.operators import find_answers
from sqs_api.settings.config import AuthMode
from sqs_api.tests.operator_client import Operators, User, add_users
from sqs_api.tests.served import Served, serving


async def found(operators: Operators, message_id: str) -> list[dict[str, Any]]:
    """The answers of all steps."""
    steps = [await operators.seen("messages", id=message_id)]
    while steps[-1]["next"]:
        steps.append(await operators.seen("messages", id=message_id, token=steps[-1]["next"]))
    return steps


async def send(served: Served, queue: str, **more: Any) -> str:
    answer = await served.call("SendMessage", QueueUrl=queue, MessageBody=queue, **more)
    return str(answer["MessageId"])


async def make(served: Served) -> dict[str, str]:
    """Ids by queue, of a delayed message and two others; the queue `empty` has none."""
    for name in ("empty", "a", "b", "late"):
        await served.call("CreateQueue", QueueName=name)
    ids = {name: await send(served, name) for name in ("a", "b")}
    return ids | {"late": await send(served, "late", DelaySeconds=900)}


async def test_the_queue_of_a_message_is_found(data: Path) -> None:
    async with serving(data) as served:
        ids = await make(served)
        operators = Operators(served)
        for name, message_id in ids.items():
            answers = await found(operators, message_id)
            (message,) = [each for answer in answers for each in answer["messages"]]
            assert (message["queue"], message["message_id"]) == (name, message_id)
            assert message["body"] == name
            assert {name for answer in answers for name in answer["unseen"]} == set()
        (beginning,) = (await found(operators, ids["b"][:9]))[0]["messages"]
        assert beginning["queue"] == "b"
        (nothing,) = await found(operators, "00000000-0000-0000-0000-000000000000")

    assert (nothing["messages"], nothing["scanned"], nothing["next"]) == ([], 3, None)


async def test_a_search_of_all_queues_goes_on_where_its_second_ended(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find_answers, "_STEP_S", 0.0)
    async with serving(data) as served:
        ids = await make(served)
        steps = await found(Operators(served), ids["b"])
        bad = await Operators(served).get("messages", id=ids["b"], token="x")

    assert len(steps) > 1
    assert [[each["queue"] for each in step["messages"]] for step in steps if step["messages"]] == [
        ["b"]
    ]
    assert bad.status == 400


async def test_only_queues_that_one_may_browse_are_searched(data: Path) -> None:
    policy = ("holdfast:ListQueues", "holdfast:BrowseMessages")
    one_letter = "arn:aws:sqs:us-east-1:000000000000:?"
    keys = add_users(data, {"some": User(policy, resource=one_letter)})
    async with serving(data) as served:
        ids = await make(served)
    async with serving(data, auth=AuthMode.SIGV4) as served:
        operators = Operators(served, keys["some"])
        own, other = await found(operators, ids["a"]), await found(operators, ids["late"])

    (message,) = own[0]["messages"]
    assert (message["queue"], message["body"], message["is_masked"]) == ("a", None, True)
    assert [step["messages"] for step in other] == [[]]


async def test_a_search_of_all_queues_is_one_line_of_the_audit_log(data: Path) -> None:
    async with serving(data) as served:
        ids = await make(served)
        await found(Operators(served), ids["late"])
    lines = [json.loads(line) for line in (data / "audit.log").read_text().splitlines()]
    (line,) = (line for line in lines if "search" in line)

    assert line["search"] == {"id": ids["late"]}
    assert line["messages_read"] == [ids["late"]]
    assert (line["scanned"], "is_whole" in line) == (3, False)
