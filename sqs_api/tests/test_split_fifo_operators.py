"""Messages that operators send to a FIFO queue of three parts keep the order of their groups."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sqs_api.tests.commands import run
from sqs_api.tests.operator_client import Operators
from sqs_api.tests.served import Served, serving
from sqs_api.tests.serving import until

pytestmark = pytest.mark.slow
GROUPS = [f"g{number}" for number in range(8)]
ATTRIBUTES = {
    "FifoQueue": "true",
    "DeduplicationScope": "messageGroup",
    "FifoThroughputLimit": "perMessageGroupId",
}


@pytest_asyncio.fixture
async def served(data: Path) -> AsyncIterator[Served]:
    async with serving(data, shards=3) as node:
        await node.call("CreateQueue", QueueName="q.fifo", Attributes=ATTRIBUTES)
        for group in GROUPS:
            await send(node, group, "1")
        await Operators(node).done("queues/q.fifo/parts/split", {"parts": 3})
        yield node


async def send(served: Served, group: str, name: str) -> None:
    body = f"{group}:{name}"
    sent = {"MessageBody": body, "MessageGroupId": group, "MessageDeduplicationId": body}
    await served.call("SendMessage", QueueUrl="q.fifo", **sent)


async def in_turn(served: Served) -> list[list[str]]:
    """The bodies in rounds, of each group one; each is deleted before the next round."""
    rounds: list[list[str]] = []
    while True:
        found: dict[str, str] = {}
        while True:
            answer = await served.call(
                "ReceiveMessage",
                QueueUrl="q.fifo",
                MaxNumberOfMessages=1,
                VisibilityTimeout=60,
                WaitTimeSeconds=2,  # a group of a new part waits for the answer of the one before
            )
            if not answer.get("Messages"):
                break
            for each in answer["Messages"]:
                found[each["Body"]] = each["ReceiptHandle"]
        if not found:
            return rounds
        for handle in found.values():
            await served.delete(handle, "q.fifo")
        rounds.append(sorted(found))


async def groups_have_gone(operators: Operators) -> None:
    """Wait until the first part has given its messages to the new ones."""

    async def is_empty() -> bool:
        parts = (await operators.seen("queues/q.fifo/parts"))["parts"]
        return not sum(each["visible"] for each in parts if each["number"] == 0)

    await until(is_empty)


async def test_a_message_of_an_operator_comes_behind_those_of_its_group(served: Served) -> None:
    operators = Operators(served)
    for group in GROUPS:
        await send(served, group, "2")
        body = {"body": f"{group}:3", "group_id": group, "deduplication_id": f"{group}:3"}
        first = await operators.done("queues/q.fifo/messages", body)
        again = await operators.done("queues/q.fifo/messages", body)
        assert again["is_duplicate"]
        assert again["message_id"] == first["message_id"]

    assert await in_turn(served) == [[f"{g}:{n}" for g in GROUPS] for n in "123"]


async def test_a_copy_that_replaces_a_message_stays_in_its_group(served: Served) -> None:
    operators = Operators(served)
    for group in GROUPS:
        await send(served, group, "2")
    page = await operators.seen("queues/q.fifo/messages", state="all")
    for each in page["messages"]:
        group, name = str(each["body"]).split(":")
        if name == "1":
            copy = {"body": f"{group}:copy", "group_id": group, "deduplication_id": f"{group}:c"}
            path = f"queues/q.fifo/messages/{each['sequence']}/resend"
            await operators.done(path, {**copy, "replace": True})

    assert await in_turn(served) == [[f"{g}:2" for g in GROUPS], [f"{g}:copy" for g in GROUPS]]


async def test_messages_of_a_new_part_are_found_by_the_sequences_of_the_first(
    served: Served,
) -> None:
    operators = Operators(served)
    await groups_have_gone(operators)
    page = await operators.seen("queues/q.fifo/messages", state="all")
    chosen = {"sequences": [each["sequence"] for each in page["messages"]]}
    path = "queues/q.fifo/messages"
    shown = [await operators.seen(f"{path}/{each}") for each in chosen["sequences"]]
    policy = json.dumps(
        {"deadLetterTargetArn": "arn:aws:sqs:us-east-1:000000000000:q.fifo", "maxReceiveCount": 3}
    )
    source = {**ATTRIBUTES, "RedrivePolicy": policy}
    await served.call("CreateQueue", QueueName="to.fifo", Attributes=source)
    wanted = {"sequences": [*chosen["sequences"], 99], "destination": "to.fifo"}
    plan = await operators.done("queues/q.fifo/redrives/plan", wanted)
    held = await operators.done(f"{path}/hold", chosen)
    released = await operators.done(f"{path}/release", chosen)
    again = await operators.done(f"{path}/release", chosen)
    deleted = await operators.done(f"{path}/delete", {**chosen, "undo_s": 60})
    undeleted = await operators.done(f"{path}/undelete", chosen)
    gone = await operators.done(f"{path}/delete", {"sequences": chosen["sequences"][:3]})

    assert [each["body"] for each in shown] == [each["body"] for each in page["messages"]]
    assert (plan["messages"], plan["refused"]) == (8, {"MessageGone": 1})
    assert (held, released) == ({"held": 8, "kept": 0}, {"released": 8, "kept": 0})
    assert again == {"released": 0, "kept": 8}
    assert (deleted, undeleted) == ({"deleted": 8, "kept": 0}, {"undeleted": 8, "gone": 0})
    assert gone == {"deleted": 3, "kept": 0}


async def test_its_purge_is_listed_as_one_that_cannot_be_restored(served: Served) -> None:
    operators = Operators(served)
    await served.call("PurgeQueue", QueueUrl="q.fifo")

    (listed,) = await operators.seen("deleted-queues")
    (purge,) = (await operators.seen("queues/q.fifo"))["purges"]
    place = ("--data", served.data)
    told = await asyncio.to_thread(run, "restore-queue", "--list", *place)
    tried = await asyncio.to_thread(run, "restore-queue", "q.fifo", *place)

    reason = (
        "FIFO queue q.fifo had several parts when it was purged: its messages cannot be restored."
    )
    for shown in (listed, purge):
        assert shown["obstacle"] == reason
    assert ", cannot be restored, " in told.out
    assert told.out.endswith(f": {reason}\n")
    assert (tried.status, reason in tried.err) == (2, True)
