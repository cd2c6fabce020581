"""The operators' API: a message is found by its id, whatever queue has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sqs_api.admin.asked import Asked
from sqs_api.operators import find_answers
from sqs_api.operators.browsing import Position, Scan, Scanned
from sqs_api.settings.config import AuthMode
from sqs_api.tests.operator_client import Operators, User, add_users
from sqs_api.tests.served import Served, serving
from visibility.contract.errors import ServiceUnavailable
from visibility.contract.model import QueueDefinition
from visibility.contract.queue_parts import Part


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
        empty = await Operators(served).get("messages", id="")

    assert len(steps) > 1
    assert [[each["queue"] for each in step["messages"]] for step in steps if step["messages"]] == [
        ["b"]
    ]
    assert (bad.status, empty.status) == (400, 400)


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


async def test_policies_are_read_of_queues_with_messages_only(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a host of 100,000 queues they would take most of a second."""
    asked_about: list[str] = []
    may = Asked.may

    def noted(asked: Asked, action: str, name: str) -> bool:
        asked_about.append(name)
        return may(asked, action, name)

    async with serving(data) as served:
        ids = await make(served)
        monkeypatch.setattr(Asked, "may", noted)
        await found(Operators(served), ids["late"])

    assert set(asked_about) == {"a", "b", "late"}


async def test_a_split_queue_that_is_away_hides_no_other_of_its_home(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shard of any of its parts may be the one without a leader."""

    class AwayScan(Scan):
        def __init__(self, context: Any, asked: Any, queue: QueueDefinition, **more: Any) -> None:
            super().__init__(context, asked, queue, **more)
            self.is_away = bool(queue.parts)

        async def run(self, position: Position, limit: int) -> Scanned:
            if self.is_away:
                raise ServiceUnavailable
            return await super().run(position, limit)

    all_queues = vars(find_answers)["_queues"]

    async def one_split(context: Any, asked: Any, first: int) -> list[QueueDefinition]:
        split, *others = await all_queues(context, asked, first)
        parts = (Part(0, split.queue_id, 0), Part(16, 99, 1))
        return [msgspec.structs.replace(split, parts=parts), *others]

    monkeypatch.setattr(find_answers, "Scan", AwayScan)
    monkeypatch.setattr(find_answers, "_queues", one_split)
    async with serving(data) as served:
        ids = await make(served)
        answer, *_ = await found(Operators(served), ids["b"])

    assert (answer["unseen"], [each["queue"] for each in answer["messages"]]) == (["a"], ["b"])


async def test_a_search_of_all_queues_is_one_line_of_the_audit_log(data: Path) -> None:
    async with serving(data) as served:
        ids = await make(served)
        await found(Operators(served), ids["late"])
    lines = [json.loads(line) for line in (data / "audit.log").read_text().splitlines()]
    (line,) = (line for line in lines if "search" in line)

    assert line["search"] == {"id": ids["late"]}
    assert line["messages_read"] == [ids["late"]]
    assert (line["scanned"], "is_whole" in line) == (3, False)
