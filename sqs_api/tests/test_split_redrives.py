"""Redrives from a queue of three parts are as those from an unsplit one: started by clients and by
operators, planned, paced, paused, cancelled, undone and listed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

from sqs_api.tests.served import Served
from sqs_api.tests.test_split_beside_whole import BODIES, DEAD, QUEUES, Both, spent

pytestmark = pytest.mark.slow
REDRIVES = "queues/dead-{}/redrives"


@pytest_asyncio.fixture
async def both(served: Served) -> Both:
    found = await Both(served).begin()
    await spent(found)
    return found


async def listed(both: Both, name: str) -> list[Any]:
    page = await both.operators.seen(REDRIVES.format(name))
    return list(page["redrives"])


async def awaited(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait until it holds."""
    async with asyncio.timeout(30):
        while not await holds():  # noqa: ASYNC110  nothing tells when
            await asyncio.sleep(0.05)


async def over(both: Both, status: str = "COMPLETED") -> None:
    """Wait until the latest redrive of both is over."""

    async def is_over(name: str) -> bool:
        return not (await listed(both, name))[0]["is_active"]

    for name in QUEUES:
        await awaited(partial(is_over, name))
        assert (await listed(both, name))[0]["status"] == status


async def history(both: Both) -> None:
    await both.get(REDRIVES)
    await both.call("ListMessageMoveTasks", SourceArn=DEAD, MaxResults=10)
    await both.call("GetQueueAttributes", QueueUrl="dead-{}", AttributeNames=["All"])
    await both.counts()


async def controlled(both: Both, action: str, **more: Any) -> Any:
    async def do(name: str) -> Any:
        handle = (await listed(both, name))[0]["handle"]
        path = f"{REDRIVES.format(name)}/{action}"
        told = await both.operators.post(path, {"handle": handle, **more})
        return told.status, set(told.json)

    return await both.alike(do)


async def lives(both: Both, name: str) -> dict[str, tuple[Any, ...]]:
    """Members of each dead letter that an undo gives back."""
    page = await both.operators.seen(f"queues/dead-{name}/messages", limit=100)
    members = ["message_id", "sent_at_ms", "receive_count", "first_received_at_ms", "died_at_ms"]
    return {each["body"]: tuple(each[member] for member in members) for each in page["messages"]}


async def test_a_task_of_a_client(both: Both) -> None:
    for name in QUEUES:
        await both.served.call("StartMessageMoveTask", SourceArn=DEAD.format(name))
    await over(both)

    await history(both)
    assert "12" in str(await both.get(REDRIVES))
    found = await both.alike(both.all)
    assert [each["Body"] for each in found] == BODIES
    await both.call("CancelMessageMoveTask", TaskHandle="no handle")
    await both.call("StartMessageMoveTask", SourceArn="arn:aws:sqs:us-east-1:000000000000:{}")


async def test_a_plan_a_canary_and_an_undo(both: Both) -> None:
    before = [await lives(both, name) for name in QUEUES]
    plan = await both.post(f"{REDRIVES}/plan")
    assert "12" in str(plan)
    await both.post(f"{REDRIVES}/plan", {"filter": {"text": "m0"}})
    await both.post(f"{REDRIVES}/plan", {"destination": "{}", "rate": 5})
    await both.post(f"{REDRIVES}/plan", {"sequences": [1 << 60]})
    await both.post(f"{REDRIVES}/plan", {"token": "x"})
    await both.post(REDRIVES, {"canary": 3, "planned": 12, "reason": "a test"})

    async def is_paused(name: str) -> bool:
        return bool((await listed(both, name))[0]["paused"] == "canary")

    for name in QUEUES:
        await awaited(partial(is_paused, name))

    await history(both)
    await both.post(REDRIVES)
    await controlled(both, "pace", rate=500, stop_after=9)
    await controlled(both, "resume")
    await over(both)
    await history(both)

    await controlled(both, "undo")

    async def is_back(name: str) -> bool:
        return await both.served.count(f"dead-{name}") == len(BODIES)

    for name in QUEUES:
        await awaited(partial(is_back, name))
    await both.counts()
    assert [await lives(both, name) for name in QUEUES] == before
    await both.get("queues/dead-{}/messages")
    found = await both.alike(lambda name: both.all(f"dead-{name}"))
    assert [each["Body"] for each in found] == BODIES
    assert all("DeadLetterQueueSourceArn" in each["Attributes"] for each in found)


async def test_a_filter_an_edit_and_a_cancel(both: Both) -> None:
    await both.post(REDRIVES, {"filter": {"text": "m0"}})
    await over(both)
    await history(both)
    found = await both.alike(both.all)
    assert [each["Body"] for each in found] == BODIES[:10]

    await both.post(REDRIVES, {"rate": 1})
    await controlled(both, "pause")
    await controlled(both, "cancel")
    await over(both, "CANCELLED")
    for name in QUEUES:
        task = (await listed(both, name))[0]
        left = await both.served.count(f"dead-{name}")
        assert left + task["moved"] == 2


async def test_selected_messages(both: Both) -> None:
    async def do(name: str) -> Any:
        page = await both.operators.seen(f"queues/dead-{name}/messages", state="all")
        chosen = [each["sequence"] for each in page["messages"] if each["body"] in BODIES[3:6]]
        return await both.operators.post(REDRIVES.format(name), {"sequences": chosen})

    await both.alike(do)
    await over(both)
    await history(both)
    found = await both.alike(both.all)
    assert [each["Body"] for each in found] == BODIES[3:6]


async def test_edited_messages(both: Both) -> None:
    for name in QUEUES:
        await both.served.send('{"a": 1}', '{"a": 2}', '{"a": 3}', queue=f"dead-{name}")
    wanted = {"destination": "{}", "edit": {"a": 9}, "filter": {"json": "a"}}
    plan = await both.post(f"{REDRIVES}/plan", wanted)
    assert str(plan).count("'after'") == 3
    await both.post(REDRIVES, wanted)
    await over(both)
    await history(both)
    found = await both.alike(both.all)
    assert [each["Body"] for each in found] == ['{"a":9}']

    async def of_all(name: str) -> Any:
        page = await both.operators.seen("redrives")
        return [each for each in page["redrives"] if each["queue"] == f"dead-{name}"]

    await both.alike(of_all)
