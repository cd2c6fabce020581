"""Each arrival and departure is in exactly one flush, which states its time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from cluster.catalog.catalog import Catalog
from cluster.catalog.queue_rules import Waits
from cluster.catalog.queue_view import QueueChange
from cluster.coordination.sqlite_coordination import SqliteCoordination
from cluster.shards.queue_watch import QueueWatch
from cluster.shards.router import Router
from cluster.shards.shard import Shard
from cluster.shards.shard_parts import ShardParts
from cluster.tests.catalogs import opened_catalog
from cluster.tests.virtual_time import CountingEntropy, SettableClock
from sqs_api.archiving import queue_counters
from sqs_api.archiving.queue_counters import Flows
from sqs_api.gateway.deletions import Deletions
from storage.tests.memory_store import MemoryStore
from storage.tests.on_disk import opener
from visibility.contract.model import QueueDefinition
from visibility.tests import prepared
from visibility.tests.prepared import ACCOUNT, REGION

MINUTE_MS = 60_000


HOUR_MS = 60 * MINUTE_MS


class Service:
    """One shard over memory, whose flows are written each minute."""

    def __init__(self, catalog: Catalog, clock: SettableClock) -> None:
        self.catalog = catalog
        self.clock = clock
        self.shard = Shard(
            0,
            ShardParts(
                open_store=opener(MemoryStore()),
                clock=clock,
                entropy=CountingEntropy(),
                definitions=catalog,
            ),
        )
        self.router = Router([self.shard])
        self.flows = Flows(catalog, self.router, clock)
        catalog.subscribe(self.flows.note)
        watch = QueueWatch(catalog, self.router)
        self.deletions = Deletions(catalog, self.router, watch)

    async def sent_to(self, name: str, count: int = 1) -> QueueDefinition:
        """A queue with one message more, or `count`."""
        queue = await self.catalog.create_queue((ACCOUNT, REGION, name), {}, {})
        for _ in range(count):
            await self.router.ask(prepared.send(queue, "x"))
        return queue

    async def purge(self, name: str) -> None:
        """Purge it, and drop its messages if they can be restored no more."""
        await self.deletions.purge(self.catalog.queue(ACCOUNT, REGION, name), force=True)
        await self.deletions.look(self.clock.at_ms)
        await self.deletions.settle()

    async def delete(self, name: str) -> QueueDefinition:
        """Delete it, and drop it if it can be restored no more."""
        queue = self.catalog.queue(ACCOUNT, REGION, name)
        await self.deletions.delete(queue, force=True)
        await self.deletions.look(self.clock.at_ms)
        await self.deletions.settle()
        return queue

    async def flushed(self, *, is_written: bool = True) -> list[dict[str, Any]]:
        """The flows of the next minute."""
        self.clock.at_ms += MINUTE_MS
        rows = await self.flows.read(self.shard, self.clock.at_ms)
        if is_written:
            self.flows.written()
        return rows


@pytest.fixture(params=[0, HOUR_MS], ids=["nothing is kept", "an hour is kept"])
def kept_ms(request: pytest.FixtureRequest) -> int:
    """The restore window: with none, a queue is gone before the next flow."""
    return int(request.param)


@pytest_asyncio.fixture
async def service(kept_ms: int) -> AsyncIterator[Service]:
    clock = SettableClock()
    catalog = await opened_catalog(
        await SqliteCoordination.open(Path(":memory:")),
        clock=clock,
        waits=Waits(0, 0),
        restore_window_ms=kept_ms,
    )
    service = Service(catalog, clock)
    await service.shard.start()
    yield service
    await service.deletions.stop()
    await service.shard.stop()
    await catalog.close()


async def test_a_flow_is_of_the_time_since_the_last_one_also_in_a_new_queue(
    service: Service,
) -> None:
    for _ in range(3):
        await service.flushed()
    await service.sent_to("new")

    (row,) = await service.flushed()

    assert row["sent"] == 1
    assert row["until_at"] - row["from_at"] == MINUTE_MS


async def test_what_was_not_written_comes_with_the_next_flow(service: Service) -> None:
    await service.sent_to("q")
    await service.flushed(is_written=False)

    (row,) = await service.flushed()

    assert (row["sent"], row["until_at"] - row["from_at"]) == (1, 2 * MINUTE_MS)
    (row,) = await service.flushed()
    assert (row["sent"], row["visible"]) == (0, 1)


# -- purged queues ---------------------------------------------------------------------------------


async def test_a_purge_does_not_count_again_what_was_counted_before(service: Service) -> None:
    await service.sent_to("q", 3)
    await service.flushed()
    await service.purge("q")
    await service.sent_to("q")

    (row,) = await service.flushed()

    assert (row["sent"], row["purged"], row["visible"]) == (1, 3, 1)


async def test_neither_do_many_purges_between_two_flows(service: Service) -> None:
    await service.sent_to("q", 3)
    await service.flushed()
    for _ in range(3):
        await service.purge("q")
        await service.sent_to("q", 2)

    (row,) = await service.flushed()

    assert (row["sent"], row["purged"], row["visible"]) == (6, 7, 2)
    assert await service.flushed() != []
    (row,) = await service.flushed()
    assert (row["sent"], row["purged"], row["visible"]) == (0, 0, 2)


async def test_a_flow_amid_a_purge_loses_and_repeats_nothing(service: Service) -> None:
    """The catalog knows of a purge before the shard does."""
    await service.sent_to("q", 3)
    flows = await service.flushed()

    def flush(_: QueueChange) -> None:
        with pytest.raises(StopIteration) as ended:  # for so few queues it waits for nothing
            service.flushed().send(None)
        flows.extend(ended.value.value)

    service.catalog.subscribe(flush)
    await service.purge("q")
    flows += await service.flushed()

    assert [(row["sent"], row["purged"]) for row in flows] == [(3, 0), (0, 3)]


# -- deleted queues --------------------------------------------------------------------------------


async def test_messages_depart_with_their_queue(service: Service) -> None:
    await service.sent_to("q", 3)
    await service.flushed()
    await service.sent_to("q")
    await service.delete("q")

    (row,) = await service.flushed()

    assert (row["queue"], row["sent"], row["purged"], row["visible"]) == ("q", 1, 4, 0)
    assert row["until_at"] - row["from_at"] == MINUTE_MS
    assert await service.flushed() == []


async def test_a_queue_that_was_there_between_two_flows_is_in_the_second(service: Service) -> None:
    await service.flushed()
    await service.sent_to("q", 3)
    await service.delete("q")
    service.clock.at_ms += 1
    await service.sent_to("q", 2)
    await service.delete("q")

    rows = await service.flushed()

    assert [(row["sent"], row["purged"]) for row in rows] == [(3, 3), (2, 2)]
    assert await service.flushed() == []


async def test_a_deletion_that_was_not_written_comes_with_the_next_flow(service: Service) -> None:
    await service.sent_to("q", 3)
    await service.delete("q")
    await service.flushed(is_written=False)

    (row,) = await service.flushed()

    assert (row["sent"], row["purged"], row["until_at"] - row["from_at"]) == (3, 3, 2 * MINUTE_MS)
    assert await service.flushed() == []


async def test_a_deletion_while_a_flow_is_written_is_in_the_next_one(service: Service) -> None:
    await service.sent_to("q", 3)
    await service.flushed(is_written=False)
    await service.delete("q")
    service.flows.written()

    (row,) = await service.flushed()

    assert (row["sent"], row["purged"]) == (0, 3)


async def test_a_purged_queue_departs_with_what_came_after_the_purge(service: Service) -> None:
    await service.sent_to("q", 3)
    await service.flushed()
    await service.purge("q")
    await service.sent_to("q", 2)
    await service.delete("q")

    (row,) = await service.flushed()

    assert (row["sent"], row["purged"], row["visible"]) == (2, 5, 0)


@pytest.mark.parametrize("kept_ms", [HOUR_MS])
async def test_messages_arrive_again_with_a_restored_queue(service: Service) -> None:
    await service.sent_to("q", 3)
    await service.flushed()
    queue = await service.delete("q")
    (gone,) = await service.flushed()
    assert (gone["sent"], gone["purged"], gone["visible"]) == (0, 3, 0)

    await service.deletions.restore(queue.queue_id)

    (row,) = await service.flushed()
    assert (row["sent"], row["moved_in"], row["purged"], row["visible"]) == (0, 3, 0, 3)
    (row,) = await service.flushed()
    assert (row["moved_in"], row["visible"]) == (0, 3)


@pytest.mark.parametrize("kept_ms", [HOUR_MS])
async def test_a_deletion_that_was_undone_in_time_is_no_flow(service: Service) -> None:
    await service.sent_to("q", 3)
    await service.flushed()
    queue = await service.delete("q")
    await service.deletions.restore(queue.queue_id)

    (row,) = await service.flushed()

    assert (row["sent"], row["moved_in"], row["purged"], row["visible"]) == (0, 0, 0, 3)


async def test_what_a_deletion_is_remembered_with_is_bounded(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_counters, "DELETED_MAX", 2)
    for number in range(4):
        await service.sent_to(f"q{number}")
        await service.delete(f"q{number}")

    with capture_logs() as logs:
        rows = await service.flushed()

    assert [row["queue"] for row in rows] == ["q0", "q1"]
    assert [line["queues"] for line in logs if line["event"] == "flows_left_out"] == [2]
