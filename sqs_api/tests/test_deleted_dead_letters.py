"""Deleted queues whose messages go to their dead-letter queue, in an engine and a catalog without a
gateway."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sqs_api.tests.keeping import HOUR_MS, MINUTE_MS, Kept, keeping
from sqs_api.tests.operator_client import Operators
from sqs_api.tests.served import serving
from storage.tests.memory_store import MemoryStore
from visibility.contract.model import QueueDefinition
from visibility.tests import prepared
from visibility.tests.prepared import ACCOUNT, REGION

DAYS_4_MS = 345_600_000
TAGS = {"holdfast:on-delete": "dead-letter"}


async def make(kept: Kept, *bodies: str) -> QueueDefinition:
    """A queue with these messages, whose dead-letter queue is `dead`."""
    dead = await kept.catalog.create_queue((ACCOUNT, REGION, "dead"), {}, {})
    policy = json.dumps({"deadLetterTargetArn": dead.arn, "maxReceiveCount": 5})
    place = ACCOUNT, REGION, "q"
    queue = await kept.catalog.create_queue(place, {"RedrivePolicy": policy}, TAGS)
    for body in bodies:
        await kept.router.ask(prepared.send(queue, body))
    return queue


async def test_messages_of_a_deleted_queue_leave_at_once(kept: Kept) -> None:
    queue = await make(kept, "a", "b")

    await kept.delete()
    await kept.deletions.settle()

    assert await kept.received("dead") == ["a", "b"]
    (deleted,) = kept.deletions.all()
    assert deleted.queue.queue_id == queue.queue_id
    assert kept.deletions.messages([deleted]) == [0]
    assert kept.deletions.rescued([deleted]) == [2]


async def test_a_restored_queue_keeps_what_comes_after(kept: Kept) -> None:
    queue = await make(kept, "a")
    await kept.delete()
    await kept.deletions.settle()

    restored = await kept.deletions.restore(queue.queue_id)
    await kept.router.ask(prepared.send(restored, "b"))
    await kept.look()

    assert await kept.received("dead") == ["a"]
    assert await kept.received("q") == ["b"]


async def test_what_is_in_flight_follows_after_its_lease_and_before_the_drop(kept: Kept) -> None:
    queue = await make(kept, "a", "b")
    await kept.router.ask(prepared.receive(queue, 1))
    await kept.delete()
    await kept.deletions.settle()
    assert await kept.received("dead") == ["b"]

    kept.clock.at_ms += HOUR_MS
    await kept.look()

    assert sorted(await kept.received("dead")) == ["a", "b"]
    assert list(kept.catalog.kept) == []


async def test_without_a_window_they_leave_all_the_same(kept: Kept) -> None:
    kept.catalog.kept.window_ms = 0
    await make(kept, "a", "b")

    await kept.delete()
    await kept.deletions.settle()

    assert await kept.received("dead") == ["a", "b"]
    assert list(kept.catalog.kept) == []


async def test_a_purge_is_no_deletion(kept: Kept) -> None:
    await make(kept, "a")

    await kept.purge()
    await kept.deletions.settle()
    await kept.delete()  # the purged one outlives the one that continues it
    await kept.deletions.settle()
    kept.clock.at_ms += HOUR_MS
    await kept.look()

    assert await kept.received("dead") == []
    assert list(kept.catalog.kept) == []


async def test_the_drop_waits_for_a_dead_letter_queue_no_longer_than_the_retention(
    tmp_path: Path,
) -> None:
    store = MemoryStore()
    async with keeping(tmp_path / "catalog.sqlite", store) as kept:
        queue = await make(kept, "a")
        await kept.delete("dead")
        await kept.delete()
        kept.clock.at_ms += HOUR_MS
        await kept.deletions.look(kept.clock.at_ms)
        await kept.deletions.stop()

        assert kept.stored() == {queue.queue_id}
    async with keeping(tmp_path / "catalog.sqlite", store) as kept:
        kept.clock.at_ms += HOUR_MS + DAYS_4_MS
        await kept.look()

        assert kept.stored() == set()
        assert list(kept.catalog.kept) == []


@pytest.mark.parametrize("deletes", [True, False])
async def test_a_restart_goes_on(tmp_path: Path, *, deletes: bool) -> None:
    store = MemoryStore()
    async with keeping(tmp_path / "catalog.sqlite", store) as kept:
        queue = await make(kept, *map(str, range(300)))
        await kept.catalog.delete_queue(queue)
        kept.deletions.go_on()
        await kept.deletions.stop()
    async with keeping(tmp_path / "catalog.sqlite", store) as kept:
        kept.clock.at_ms += MINUTE_MS
        if deletes:
            await kept.look()
            gone = 300
        else:
            await kept.deletions.restore(queue.queue_id)
            gone = 300 - kept.router.counters()[queue.queue_id].visible
        counters = kept.router.counters()

    assert counters[1].visible == gone
    assert counters[queue.queue_id].visible == 300 - gone


async def test_all_parts_of_a_queue_leave(data: Path) -> None:
    async with serving(data, shards=3) as served:
        operators = Operators(served)
        await served.call("CreateQueue", QueueName="dead")
        policy = {"deadLetterTargetArn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:dead"}
        attributes = {"RedrivePolicy": json.dumps(policy | {"maxReceiveCount": 5})}
        await served.call("CreateQueue", QueueName="q", Attributes=attributes, tags=TAGS)
        await operators.done("queues/q/parts/split", {"parts": 3})
        await served.send(*map(str, range(60)))

        await served.call("DeleteQueue", QueueUrl="q")

        found: list[str] = []
        while len(found) < 60:
            answer = await served.call(
                "ReceiveMessage", QueueUrl="dead", MaxNumberOfMessages=10, WaitTimeSeconds=5
            )
            found += [message["Body"] for message in answer["Messages"]]
        (deleted,) = await operators.seen("deleted-queues")

    assert sorted(found, key=int) == list(map(str, range(60)))
    assert (deleted["messages"], deleted["dead_letters"]) == (0, 60)
