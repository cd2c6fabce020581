"""A queue of three parts answers as an unsplit one: each operation of clients and operators is done
on both, and the answers are compared."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from sqs_api.tests.operator_client import Operators
from sqs_api.tests.served import Served
from sqs_api.tests.serving import json_request

pytestmark = pytest.mark.slow
QUEUES = ("q-whole", "q-split")
OTHER = {"q-whole": "q-split", "q-split": "q-whole"}
DEAD = "arn:aws:sqs:us-east-1:000000000000:dead-{}"
BODIES = [f"m{number:02}" for number in range(12)]
VOLATILE = re.compile(
    r"(?i)^(message_?id|receipthandle|taskhandle|.*timestamp|sequence|.*_ms|md5.*|.*_s|handle|next|id|bars|sample|earlier_ids)$"
)
"""Members that differ in any two queues."""


@pytest_asyncio.fixture
async def both(served: Served) -> Both:
    return await Both(served).begin()


class Both:
    """Does the same to two queues, of which one has three parts."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.operators = Operators(served)

    async def begin(self) -> Both:
        """Make both queues, and their dead-letter queues, which are like them."""
        for name in QUEUES:
            for queue in (f"dead-{name}", name):
                await self.served.call("CreateQueue", QueueName=queue)
            policy = {"deadLetterTargetArn": DEAD.format(name), "maxReceiveCount": 2}
            attributes = {"RedrivePolicy": json.dumps(policy), "VisibilityTimeout": "0"}
            await self.served.call("SetQueueAttributes", QueueUrl=name, Attributes=attributes)
        for queue in ("q-split", "dead-q-split"):
            await self.operators.done(f"queues/{queue}/parts/split", {"parts": 3})
        return self

    async def alike(self, do: Callable[[str], Awaitable[Any]]) -> Any:
        """The answer of both, which must be the same but for names, times and order."""
        whole, split = [plain(await do(name), name) for name in QUEUES]
        assert split == whole
        return whole

    async def call(self, action: str, **members: Any) -> Any:
        """An operation of clients. Its answer may be a refusal."""

        async def do(name: str) -> Any:
            answer = await self.served.ask(json_request(action, **named(members, name)))
            return answer.status, answer.json if answer.body else None

        return await self.alike(do)

    async def get(self, path: str, **parameters: object) -> Any:
        """A page of operators."""

        async def do(name: str) -> Any:
            return await self.operators.seen(path.format(name), **parameters)

        return await self.alike(do)

    async def post(self, path: str, content: Any = None) -> Any:
        """An action of operators."""

        async def do(name: str) -> Any:
            return await self.operators.post(path.format(name), named(content, name))

        return await self.alike(do)

    async def send(self) -> None:
        for name in QUEUES:
            await self.served.send(*BODIES, queue=name)

    async def restore(self) -> Any:
        """Undo the latest deletion or purge."""
        listed = await self.operators.seen("deleted-queues")

        async def do(name: str) -> Any:
            (kept,) = (each for each in listed if each["name"] == name and not each["restoring"])
            given = {"queue_id": kept["queue_id"]}
            return await self.operators.done("deleted-queues/restore", given)

        return await self.alike(do)

    async def all(self, name: str, **more: Any) -> list[Any]:
        """All that can be received now, each once."""
        found: dict[str, Any] = {}
        while True:
            answer = await self.served.call(
                "ReceiveMessage",
                QueueUrl=name,
                MaxNumberOfMessages=10,
                VisibilityTimeout=60,
                AttributeNames=["All"],
                MessageAttributeNames=["All"],
                **more,
            )
            if not answer.get("Messages"):
                return [found[body] for body in sorted(found)]
            found |= {each["Body"]: each for each in answer["Messages"]}

    async def counts(self) -> Any:
        return await self.call("GetQueueAttributes", QueueUrl="{}", AttributeNames=["All"])


def named(given: Any, name: str) -> Any:
    """The members given, with this name in them."""
    if given is None:
        return None
    return json.loads(json.dumps(given).replace("{}", name))


def plain(answer: Any, name: str) -> Any:
    """An answer without what differs in any two queues."""
    if isinstance(answer, dict):
        return {
            plain(key, name): plain(value, name)
            for key, value in answer.items()
            if not VOLATILE.search(key)
        }
    if isinstance(answer, list | tuple):
        return sorted((plain(each, name) for each in answer), key=repr)
    if isinstance(answer, str):
        shown = answer.replace(f"dead-{name}", "DEAD").replace(name, "QUEUE")
        return re.sub("[0-9a-f]{40,}", "HANDLE", shown)
    return answer


async def test_definitions(both: Both) -> None:
    await both.counts()
    await both.call("TagQueue", QueueUrl="{}", Tags={"team": "a", "holdfast:retry-min": "5"})
    await both.call("ListQueueTags", QueueUrl="{}")
    await both.call("UntagQueue", QueueUrl="{}", TagKeys=["team", "holdfast:retry-min"])
    await both.call("ListQueueTags", QueueUrl="{}")
    await both.call("SetQueueAttributes", QueueUrl="{}", Attributes={"DelaySeconds": "900"})
    await both.call("SetQueueAttributes", QueueUrl="{}", Attributes={"DelaySeconds": "901"})
    await both.call("SetQueueAttributes", QueueUrl="{}", Attributes={"FifoQueue": "true"})
    await both.call("CreateQueue", QueueName="{}", Attributes={"DelaySeconds": "900"})
    await both.call("CreateQueue", QueueName="{}", Attributes={"DelaySeconds": "1"})
    await both.call("GetQueueUrl", QueueName="{}")
    await both.call("ListQueues", QueueNamePrefix="{}")
    permission = {"Label": "l", "AWSAccountIds": ["111111111111"], "Actions": ["SendMessage"]}
    await both.call("AddPermission", QueueUrl="{}", **permission)
    await both.counts()
    await both.call("RemovePermission", QueueUrl="{}", Label="l")
    await both.call("ListDeadLetterSourceQueues", QueueUrl="dead-{}")
    await both.send()
    assert "12" in str(await both.counts()), "delayed"


async def test_messages(both: Both) -> None:
    attribute = {"kind": {"DataType": "String", "StringValue": "x"}}
    entries = [{"Id": f"e{n}", "MessageBody": f"b{n}", "DelaySeconds": n % 2} for n in range(6)]
    wrong = [{"Id": "w", "MessageBody": "x", "DelaySeconds": 1000}, {"Id": "v", "MessageBody": "y"}]
    await both.call("SendMessage", QueueUrl="{}", MessageBody="a", MessageAttributes=attribute)
    await both.call("SendMessageBatch", QueueUrl="{}", Entries=entries)
    await both.call("SendMessageBatch", QueueUrl="{}", Entries=wrong)
    await both.call("SendMessageBatch", QueueUrl="{}", Entries=[])
    await both.call("SendMessageBatch", QueueUrl="{}", Entries=[wrong[1], wrong[1]])
    await both.send()
    await both.counts()

    held = {name: await both.all(name) for name in QUEUES}
    assert plain(held["q-split"], "q-split") == plain(held["q-whole"], "q-whole")
    await both.counts()
    handles = {name: [each["ReceiptHandle"] for each in held[name]] for name in QUEUES}

    async def batch(name: str, action: str, **more: Any) -> Any:
        chosen = [*handles[name][:8], "no handle", *handles[name][:1]]
        entries = [
            {"Id": f"e{place}", "ReceiptHandle": handle, **more}
            for place, handle in enumerate(chosen)
        ]
        return (await both.served.ask(json_request(action, QueueUrl=name, Entries=entries))).json

    await both.alike(lambda n: batch(n, "ChangeMessageVisibilityBatch", VisibilityTimeout=0))
    await both.counts()
    await both.alike(lambda n: batch(n, "DeleteMessageBatch"))
    await both.alike(lambda n: batch(n, "DeleteMessageBatch"))
    await both.alike(lambda n: batch(n, "ChangeMessageVisibilityBatch", VisibilityTimeout=9))

    async def one(name: str, action: str, handle: str, **more: Any) -> Any:
        request = json_request(action, QueueUrl=name, ReceiptHandle=handle, **more)
        return (await both.served.ask(request)).json

    for place in (0, 9):
        for timeout_s in (0, 5, 43_201):
            await both.alike(
                lambda n, place=place, timeout_s=timeout_s: one(  # type: ignore[misc]
                    n, "ChangeMessageVisibility", handles[n][place], VisibilityTimeout=timeout_s
                )
            )
        await both.alike(lambda n, place=place: one(n, "DeleteMessage", handles[n][place]))  # type: ignore[misc]
    await both.alike(lambda n: one(n, "DeleteMessage", handles[OTHER[n]][1]))
    await both.counts()


async def test_receives(both: Both) -> None:
    await both.call("ReceiveMessage", QueueUrl="{}")
    await both.call("ReceiveMessage", QueueUrl="{}", WaitTimeSeconds=1)
    await both.call("ReceiveMessage", QueueUrl="{}", MaxNumberOfMessages=11)
    await both.call("ReceiveMessage", QueueUrl="{}", VisibilityTimeout=43_201)
    await both.call("ReceiveMessage", QueueUrl="{}", ReceiveRequestAttemptId="a")
    await both.call("SendMessage", QueueUrl="{}", MessageBody="a")
    await both.call("ReceiveMessage", QueueUrl="{}", WaitTimeSeconds=5, AttributeNames=["All"])


async def spent(both: Both) -> None:
    """All messages become dead letters."""
    await both.send()
    for name in QUEUES:
        for _ in range(40):
            await both.served.call("ReceiveMessage", QueueUrl=name, MaxNumberOfMessages=10)
            if await both.served.count(f"dead-{name}") == len(BODIES):
                break


async def test_dead_letters(both: Both) -> None:
    await spent(both)
    await both.call("GetQueueAttributes", QueueUrl="dead-{}", AttributeNames=["All"])
    await both.get("queues/dead-{}/messages")
    await both.alike(lambda name: both.all(f"dead-{name}"))

    async def listed(name: str) -> Any:
        page = await both.operators.seen("dead-letters")
        return [queue for queue in page["queues"] if queue["name"] == f"dead-{name}"]

    await both.alike(listed)
    await both.counts()


async def test_purge_deletion_and_restore(both: Both) -> None:
    await both.send()
    await both.call("PurgeQueue", QueueUrl="{}")
    await both.counts()
    await both.call("ReceiveMessage", QueueUrl="{}")
    await both.call("SendMessage", QueueUrl="{}", MessageBody="after")
    await both.restore()
    await both.alike(lambda name: both.all(name))
    await both.counts()
    await both.call("DeleteQueue", QueueUrl="{}")
    for action, more in (
        ("SendMessage", {"MessageBody": "x"}),
        ("ReceiveMessage", {}),
        ("GetQueueAttributes", {}),
        ("PurgeQueue", {}),
        ("DeleteQueue", {}),
        ("DeleteMessage", {"ReceiptHandle": "x"}),
        ("ListQueueTags", {}),
    ):
        await both.call(action, QueueUrl="{}", **more)
    await both.restore()
    await both.counts()


async def test_what_operators_see_and_do(both: Both) -> None:
    await both.send()
    await both.get("queues/{}")
    await both.get("queues/{}/messages")
    await both.get("queues/{}/messages", state="delayed")
    await both.get("queues/{}/messages", text="m01")
    arn = "arn:aws:sqs:us-east-1:000000000000:{}"
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    attributes = {"RedrivePolicy": policy}
    await both.call("CreateQueue", QueueName="source-{}", Attributes=attributes)
    failures = await both.get("queues/{}/failures")
    assert (failures["messages"], failures["is_exact"]) == (len(BODIES), True)
    await both.post("queues/{}/messages", {"body": "of an operator"})
    for action in ("hold", "release", "delete", "undelete"):
        await both.post(f"queues/{{}}/messages/{action}", {"sequences": [1 << 60]})
        await both.post(f"queues/{{}}/messages/{action}", {"sequences": []})

        async def do(name: str, action: str = action) -> Any:
            page = await both.operators.seen(f"queues/{name}/messages", state="all")
            found = sorted(page["messages"], key=lambda each: str(each["body"]))
            sequences = [each["sequence"] for each in found[:4]]
            path = f"queues/{name}/messages/{action}"
            return await both.operators.post(path, {"sequences": sequences})

        await both.alike(do)
        await both.counts()
        await both.get("queues/{}")
        await both.get("queues/{}/messages", state="all")
    await both.post("queues/{}/purge", {"confirm": "{}"})
    await both.counts()


async def test_fair_queues_and_counts(both: Both) -> None:
    for name in QUEUES:
        for number in range(24):
            await both.served.call(
                "SendMessage",
                QueueUrl=name,
                MessageBody=f"f{number}",
                MessageGroupId=f"g{number % 4}",
            )
    await both.call("SendMessage", QueueUrl="{}", MessageBody="x", MessageGroupId="")
    await both.call(
        "SendMessage", QueueUrl="{}", MessageBody="x", MessageGroupId="g", DelaySeconds=9
    )
    await both.get("queues/{}/messages", group="g1")
    await both.alike(both.all)
    await both.get("queues/{}/history")

    async def listed(name: str) -> Any:
        page = await both.operators.seen("queues")
        return [queue for queue in page["queues"] if queue["name"] == name]

    await both.alike(listed)

    async def measured(name: str) -> list[str]:
        page = (await both.served.ask_page("GET", "metrics")).body.decode()
        lines = [line for line in page.splitlines() if f'"{name}"' in line]
        return [line for line in lines if not re.search("age|seconds|_since|time", line)]

    assert await both.alike(measured)


async def test_what_is_left_of_a_purge_that_is_undone_is_counted_once(both: Both) -> None:
    """Of the queue with parts each part is named, with its own."""
    await both.send()
    for name in QUEUES:
        assert len(await both.all(name)) == len(BODIES)  # in flight: they follow later
    await both.call("PurgeQueue", QueueUrl="{}")
    await both.restore()
    listed = await both.operators.seen("deleted-queues")

    assert all(each["restoring"] for each in listed)
    left = Counter[str]()
    for each in listed:
        left[each["name"]] += each["messages"]
    assert left == dict.fromkeys(QUEUES, len(BODIES))
