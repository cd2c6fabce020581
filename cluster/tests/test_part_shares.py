"""Shares of a queue's limits: a queue is split only while none of its parts has more than its share
would be, so that all of them together stay below the limit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from cluster.catalog.part_rules import NewParts
from cluster.parts.part_readings import above_share
from cluster.tests.catalog_file import CatalogFile, owner
from cluster.tests.driver import Driver
from visibility.contract.errors import InvalidParameterValue, UnsupportedOperation
from visibility.contract.model import QueueDefinition
from visibility.contract.outcomes import PartReading
from visibility.rules.closing_parts import CheckPart
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues

_BODY = "x" * 1_000


def queue_of(**limits: str) -> QueueDefinition:
    tags = {"holdfast:" + name.replace("_", "-"): value for name, value in limits.items()}
    return prepared.queue_named("q", 1, tags=tags, MaximumMessageSize="1024")


def reading_of(queue: QueueDefinition, messages: int, *, received: int = 0) -> PartReading:
    """The reading of a whole queue with so many messages."""
    driver = Driver(KnownQueues(queue))
    for _ in range(messages):
        driver.submit(prepared.send(queue, _BODY))
    if received:
        driver.submit(prepared.receive(queue, received))
    answer = driver.submit(prepared.prepared(queue, CheckPart())).answer
    assert isinstance(answer, PartReading)
    return answer


@pytest.mark.parametrize(
    ("limits", "unit"),
    [({"max_messages": "12"}, "messages"), ({"max_bytes": "12000"}, "bytes of messages")],
)
def test_a_queue_that_is_fuller_than_a_share_is_not_split(
    limits: dict[str, str], unit: str
) -> None:
    queue = queue_of(**limits)

    assert not above_share(queue, {1: reading_of(queue, 4)}, 2)
    assert f" {unit}, and could have " in above_share(queue, {1: reading_of(queue, 5)}, 2)


def test_messages_in_flight_are_measured_by_the_queues_own_limit() -> None:
    queue = queue_of(max_in_flight="1000")
    reading = reading_of(queue, 1)

    def with_in_flight(messages: int) -> dict[int, PartReading]:
        return {1: msgspec.structs.replace(reading, in_flight=messages)}

    assert not above_share(queue, with_in_flight(500), 1)
    reason = above_share(queue, with_in_flight(501), 1)
    assert "501 messages in flight, and could have 500" in reason


def test_a_queue_without_limits_is_split_however_full_it_is() -> None:
    queue = queue_of()

    assert not above_share(queue, {1: reading_of(queue, 20, received=10)}, 15)


def test_each_part_is_measured() -> None:
    queue = queue_of(max_messages="12")
    readings = {1: reading_of(queue, 1), 2: reading_of(queue, 5)}

    assert not above_share(queue, {1: readings[1], 2: readings[1]}, 1)
    assert "5 messages, and could have 4" in above_share(queue, readings, 1)


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[CatalogFile]:
    opened = CatalogFile(tmp_path / "catalog.sqlite")
    await opened.open((0, 1))
    yield opened
    await opened.catalog.close()


async def test_messages_of_a_split_queue_get_no_larger_than_a_share(file: CatalogFile) -> None:
    size = {"MaximumMessageSize": "1024"}
    tags = {"holdfast:max-bytes": "4096"}
    whole = await file.catalog.create_queue(owner("q"), size, tags)
    await file.catalog.set_attributes(whole, {"MaximumMessageSize": "8192"})
    await file.catalog.set_attributes(whole, size)
    await file.catalog.add_parts(whole, NewParts([1], {whole.queue_id: 1}))
    split = file.catalog.queue(*owner("q"))
    assert split is not None

    await file.catalog.set_attributes(split, {"MaximumMessageSize": "2048"})
    with pytest.raises(InvalidParameterValue, match="several parts, and tag holdfast:max-bytes"):
        await file.catalog.set_attributes(split, {"MaximumMessageSize": "2049"})
    await file.catalog.set_attributes(split, {"VisibilityTimeout": "7"})


@pytest.mark.parametrize(("tag", "least"), [("max-in-flight", 1_000), ("receive-rate", 100)])
async def test_a_queue_with_a_small_limit_of_consumers_does_not_move(
    file: CatalogFile, tag: str, least: int
) -> None:
    tags = {f"holdfast:{tag}": str(least - 1)}
    queue = await file.catalog.create_queue(owner("q"), {}, tags)
    new = NewParts([1], {queue.queue_id: 1})
    with pytest.raises(UnsupportedOperation, match=f"stays whole: tag holdfast:{tag} is below"):
        await file.catalog.move_part(queue, 0, new)

    await file.catalog.tag_queue(queue, {f"holdfast:{tag}": str(least)})
    current = file.catalog.queue(*owner("q"))
    assert current is not None
    moved = await file.catalog.move_part(current, 0, new)
    assert moved.shard == 1
