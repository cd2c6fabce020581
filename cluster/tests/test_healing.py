"""A start on a folder with damaged rows serves every readable message, and reports the losses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import structlog

from cluster.shards.shard import Shard
from cluster.shards.shard_parts import ShardParts
from cluster.tests.virtual_time import CountingEntropy, LoopClock
from cluster.tests.world import state_of
from storage.checks.consistency import check_queue
from storage.engines.durable import DurableStore
from storage.engines.opening import open_store
from storage.engines.store_options import StoreOptions
from storage.tests.on_disk import changing, rows_of
from storage.tests.store_places import SEGMENT_BYTES
from visibility.contract.errors import QueueError
from visibility.contract.model import QueueCounters, QueueDefinition, Request
from visibility.contract.outcomes import Answer, BrowsedPage, Deliveries, SelectedChanged
from visibility.rows.row_keys import (
    ARCHIVE,
    GROUP,
    HOLD,
    LEASE,
    MOVE_TASK,
    SPAN,
    message_key,
    queue_key,
    row_key,
    table_range,
)
from visibility.rows.row_values import THE_SHARD
from visibility.rules.browse import BrowseMessages
from visibility.rules.hold_messages import HoldMessages
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues

Q = prepared.queue_named("q", 1, VisibilityTimeout="0")
OTHER = prepared.queue_named("other", 2)
FIFO = prepared.queue_named("q.fifo", 3)
QUEUES = KnownQueues(Q, OTHER, FIFO)
RUBBISH = b"\x01rubbish"


class Served:
    """A shard on a real folder."""

    def __init__(self, folder: Path, definitions: KnownQueues = QUEUES) -> None:
        self.shard = Shard(
            0,
            ShardParts(
                open_store=partial(_opened, folder),
                clock=LoopClock(),
                entropy=CountingEntropy(),
                definitions=definitions,
            ),
        )

    async def ask(self, request: Request) -> Answer:
        answer = await self.outcome(request)
        assert not isinstance(answer, QueueError), answer.message
        return answer

    async def outcome(self, request: Request) -> Answer | QueueError:
        """The answer, or the refusal."""
        future: asyncio.Future[Answer | QueueError] = asyncio.get_running_loop().create_future()
        self.shard.submit(request, future.set_result)
        return await asyncio.wait_for(future, 60)

    async def bodies(self, queue: QueueDefinition) -> list[str]:
        """All that can be received now."""
        found: list[str] = []
        while True:
            answer = await self.ask(prepared.receive(queue, 10, timeout_s=60))
            assert isinstance(answer, Deliveries)
            if not answer.messages:
                return found
            found += [message.data.decode() for message in answer.messages]


async def _opened(folder: Path) -> DurableStore:
    return await asyncio.to_thread(open_store, folder, StoreOptions(segment_bytes=SEGMENT_BYTES))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A closed folder: ten messages in each queue, two of the first one in flight."""
    folder = tmp_path / "shard-0"

    async def fill() -> None:
        served = Served(folder)
        await served.shard.start()
        bodies = [f"{number}" for number in range(10)]
        await served.ask(prepared.send_batch(Q, bodies))
        await served.ask(prepared.receive(Q, 2, timeout_s=0))
        await served.ask(prepared.send_batch(OTHER, bodies))
        await served.ask(prepared.send_batch(FIFO, bodies, groups=["g", "h"] * 5))
        await served.shard.stop()

    asyncio.run(fill())
    return folder


@pytest.fixture
def logs() -> Iterator[list[dict[str, object]]]:
    with structlog.testing.capture_logs() as lines:
        yield lines  # type: ignore[misc]


TEN = [str(number) for number in range(10)]


@pytest.mark.parametrize(
    ("key", "queue"),
    [
        (queue_key(1), Q),
        (row_key(1, LEASE, 1), Q),
        (row_key(1, SPAN, 0), Q),
        (row_key(1, MOVE_TASK, 1), Q),
        (queue_key(3), FIFO),
        (row_key(3, SPAN, 0), FIFO),
    ],
)
async def test_a_damaged_row_that_a_start_needs_costs_no_message(
    folder: Path, key: bytes, queue: QueueDefinition, logs: list[dict[str, object]]
) -> None:
    with changing(folder) as changes:
        changes.put(key, RUBBISH)

    served = Served(folder)
    await served.shard.start()

    (rebuilt,) = [line for line in logs if line["event"] == "queue_rebuilt"]
    assert rebuilt["queue_id"] == queue.queue_id
    assert await served.ask(prepared.counters(queue)) == QueueCounters(10, 0, 0)
    for each in (Q, OTHER):
        assert sorted(await served.bodies(each)) == TEN
    fifo = await served.bodies(FIFO)
    assert [body for body in fifo if int(body) % 2 == 0] == TEN[::2], "in order of its group"
    assert sorted(fifo) == TEN
    await served.shard.stop()
    with rows_of(folder) as rows:
        assert [found for each in QUEUES.queues for found in check_queue(rows, each)] == []


@pytest.mark.parametrize("damaged", [row_key(1, HOLD, 2), row_key(1, SPAN, 0)])
async def test_a_rebuilt_queue_holds_what_it_held(folder: Path, damaged: bytes) -> None:
    """A damaged mark loses its owner, and nothing else."""
    before = Served(folder)
    await before.shard.start()
    operation = HoldMessages([1, 2], owner="ann")
    assert await before.ask(prepared.prepared(Q, operation)) == SelectedChanged(2, 0)
    await before.shard.stop()
    with changing(folder) as changes:
        changes.put(damaged, RUBBISH)

    served = Served(folder)
    await served.shard.start()

    found = await served.ask(prepared.prepared(Q, BrowseMessages(held=True)))
    assert isinstance(found, BrowsedPage)
    owners = [each.hold and each.hold.owner for each in found.messages]
    assert owners == ["ann", "" if damaged[8:9] == HOLD else "ann"]
    assert len(await served.bodies(Q)) == 8
    await served.shard.stop()


async def test_all_rows_of_a_queue_but_its_messages_may_be_gone(folder: Path) -> None:
    with changing(folder) as changes:
        changes.put(queue_key(3), RUBBISH)
        changes.delete_range(*table_range(3, GROUP))
        changes.delete_range(*table_range(3, SPAN))

    served = Served(folder)
    await served.shard.start()

    assert sorted(await served.bodies(FIFO)) == TEN
    await served.shard.stop()


async def test_a_queue_whose_row_is_gone_gives_out_no_sequence_again(folder: Path) -> None:
    with changing(folder) as changes:
        changes.put(queue_key(2), RUBBISH)
        for number in range(1, 11):
            changes.delete(message_key(2, number))

    served = Served(folder)
    await served.shard.start()
    await served.ask(prepared.send(OTHER, "new"))

    state = state_of(served.shard).queues.get(2)
    assert state is not None
    assert state.next_sequence > 1 << 40
    assert await served.bodies(OTHER) == ["new"]
    await served.shard.stop()


async def test_missing_messages_are_counted(folder: Path, logs: list[dict[str, object]]) -> None:
    with changing(folder) as changes:
        changes.put(row_key(1, LEASE, 1), RUBBISH)
        changes.put(message_key(1, 5), RUBBISH)
        changes.put(message_key(1, 7), RUBBISH)

    served = Served(folder)
    await served.shard.start()

    (rebuilt,) = [line for line in logs if line["event"] == "queue_rebuilt"]
    assert rebuilt["messages"] == "8 messages can be read, 2 missing"
    assert rebuilt["queue"] == "q"
    assert sorted(await served.bodies(Q)) == [body for body in TEN if body not in "46"]
    assert quarantined(served) == 2
    await served.shard.stop()

    again = Served(folder)
    await again.shard.start()
    assert quarantined(again) == 2
    assert await again.ask(prepared.counters(Q)) == QueueCounters(0, 8, 0)
    await again.shard.stop()
    assert len([line for line in logs if line["event"] == "queue_rebuilt"]) == 1


async def test_what_was_quarantined_is_counted_once_by_a_rebuild(folder: Path) -> None:
    with changing(folder) as changes:
        changes.put(message_key(1, 5), RUBBISH)
        changes.delete(message_key(1, 7))
    served = Served(folder)
    await served.shard.start()
    assert len(await served.bodies(Q)) == 8
    assert quarantined(served) == 2
    await served.shard.stop()
    with changing(folder) as changes:
        changes.put(queue_key(1), RUBBISH)

    again = Served(folder)
    await again.shard.start()

    assert await again.ask(prepared.counters(Q)) == QueueCounters(0, 8, 0)
    assert quarantined(again) == 2
    await again.shard.stop()


def quarantined(served: Served) -> int:
    """The count of the first queue."""
    state = state_of(served.shard).queues.get(1)
    assert state is not None
    return state.quarantined.messages


async def test_a_damaged_archive_row_makes_it_another_archive(folder: Path) -> None:
    with changing(folder) as changes:
        changes.put(row_key(THE_SHARD, ARCHIVE, 0), RUBBISH)

    served = Served(folder)
    await served.shard.start()

    assert sorted(await served.bodies(Q)) == TEN
    await served.shard.stop()
