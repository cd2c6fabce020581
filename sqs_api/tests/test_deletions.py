"""Deleted queues keep their messages until their window is over, in an engine and a catalog without a gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from cluster.catalog import Catalog
from cluster.router import Router
from cluster.shard import Shard
from cluster.tests.virtual_time import CountingEntropy, SettableClock, some_secrets
from sqs_api.deletions import Deletions
from sqs_api.queue_actions import QueueActions, ask
from sqs_api.tests.serving import settled
from storage.memory import MemoryStore
from visibility import operations as op
from visibility.errors import QueueDoesNotExist
from visibility.model import QueueCounters, QueueDefinition
from visibility.tests import prepared
from visibility.tests.prepared import ACCOUNT, CALLER, REGION

HOUR_MS = 3_600_000
MINUTE_MS = 60_000


class Kept:
    """One shard over memory, and a catalog that keeps deleted queues for an hour."""

    def __init__(self, catalog: Catalog, clock: SettableClock) -> None:
        self.catalog = catalog
        self.clock = clock
        self.store = MemoryStore()
        self.shard = Shard(
            0,
            open_store=lambda on_failure: self.store,
            clock=clock,
            entropy=CountingEntropy(),
            purge_interval_ms=0,
            definitions=catalog,
        )
        self.shard.start([])
        self.router = Router([self.shard])
        self.actions = QueueActions(catalog, self.router)
        self.deletions = Deletions(catalog, self.router)

    async def make(self, name: str = "q") -> QueueDefinition:
        """A queue with one message."""
        queue = await self.catalog.create_queue((ACCOUNT, REGION, name), {}, {})
        await ask(self.router, prepared.send(queue, "x"))
        return queue

    async def delete(self, name: str = "q") -> None:
        await self.actions.answer(op.DeleteQueue(queue_url=name), CALLER, "http://h", "r")

    async def drop_expired(self) -> int:
        return await self.deletions.drop_expired(self.clock.at_ms)

    def stored(self) -> set[int]:
        """The queues that the shard holds messages of."""
        return {queue.queue_id for queue in self.shard.queues() if queue.counters().visible}


@pytest_asyncio.fixture
async def kept() -> AsyncIterator[Kept]:
    clock = SettableClock()
    catalog = await Catalog.open(
        Path(":memory:"),
        clock=clock,
        entropy=CountingEntropy(),
        secrets=some_secrets(),
        shards=[0],
        restore_window_ms=HOUR_MS,
    )
    parts = Kept(catalog, clock)
    yield parts
    await parts.shard.stop()
    await catalog.close()


async def test_messages_stay_within_the_window_and_go_with_it(kept: Kept) -> None:
    first, second = await kept.make("a"), await kept.make("b")
    await kept.delete("a")
    kept.clock.at_ms += MINUTE_MS
    await kept.delete("b")

    kept.clock.at_ms += HOUR_MS - MINUTE_MS - 1
    assert (await kept.drop_expired(), kept.stored()) == (0, {first.queue_id, second.queue_id})
    kept.clock.at_ms += 1
    assert (await kept.drop_expired(), kept.stored()) == (1, {second.queue_id})
    kept.clock.at_ms += MINUTE_MS
    assert (await kept.drop_expired(), kept.stored()) == (1, set())
    assert await kept.drop_expired() == 0


async def test_a_restored_queue_holds_its_messages(kept: Kept) -> None:
    queue = await kept.make()
    await kept.delete()
    kept.clock.at_ms += MINUTE_MS

    restored = await kept.deletions.restore(queue.queue_id)

    counters = await ask(kept.router, prepared.counters(restored))
    assert counters == QueueCounters(1, 0, 0)
    kept.clock.at_ms += 10 * HOUR_MS
    assert (await kept.drop_expired(), kept.stored()) == (0, {queue.queue_id})


async def test_without_a_window_messages_go_at_once(kept: Kept) -> None:
    kept.catalog.restore_window_ms = 0
    queue = await kept.make()

    await kept.delete()

    assert kept.stored() == set()
    with pytest.raises(QueueDoesNotExist):
        await kept.deletions.restore(queue.queue_id)


async def test_the_end_of_a_window_is_told(kept: Kept) -> None:
    await kept.make()
    await kept.delete()

    (deleted,) = kept.deletions.all()

    assert deleted.deleted_at_ms == kept.clock.at_ms
    assert kept.deletions.restorable_until_ms(deleted) == kept.clock.at_ms + HOUR_MS


async def test_what_a_stopped_shard_could_not_drop_is_tried_again(kept: Kept) -> None:
    await kept.make()
    await kept.delete()
    kept.clock.at_ms += HOUR_MS
    await kept.shard.stop()

    assert (await kept.drop_expired(), kept.catalog.deleted_queues()) == (0, [])
    kept.shard.start([1])
    assert kept.stored() == {1}

    assert (await kept.drop_expired(), kept.stored()) == (1, set())


async def test_a_queue_is_restored_also_while_its_shard_is_stopped(kept: Kept) -> None:
    queue = await kept.make()
    await kept.delete()
    await kept.shard.stop()

    restored = await kept.deletions.restore(queue.queue_id)

    assert kept.catalog.queue_of_id(queue.queue_id) is restored


async def test_a_restore_is_finished_when_who_asked_for_it_is_gone(kept: Kept) -> None:
    queue = await kept.make()
    await kept.delete()

    asked = asyncio.create_task(kept.deletions.restore(queue.queue_id))
    await settled(2)
    asked.cancel()
    await kept.make("another")  # the catalog writes one thing after the other

    assert asked.cancelled()
    restored = kept.catalog.queue_of_id(queue.queue_id)
    assert restored is not None
    assert await ask(kept.router, prepared.counters(restored)) == QueueCounters(1, 0, 0)
