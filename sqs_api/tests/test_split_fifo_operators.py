"""Messages that operators send to a FIFO queue of three parts keep the order of their groups."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sqs_api.tests.operators import Operators
from sqs_api.tests.served import Served, serving

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
