"""Deleted and purged queues in an engine and a catalog without a gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from cluster.catalog.catalog import Catalog
from cluster.coordination.sqlite_coordination import SqliteCoordination
from cluster.parts.split_queues import SplitQueues
from cluster.shards.queue_watch import QueueWatch
from cluster.shards.router import Router
from cluster.shards.shard import Shard
from cluster.shards.shard_parts import ShardParts
from cluster.tests.catalogs import opened_catalog
from cluster.tests.virtual_time import CountingEntropy, SettableClock
from sqs_api.gateway.deletions import Deletions
from sqs_api.gateway.queue_actions import QueueActions
from storage.tests.memory_store import MemoryStore
from storage.tests.on_disk import opener
from visibility.contract import operations as op
from visibility.contract.model import QueueDefinition
from visibility.contract.outcomes import Deduplicated, Deliveries
from visibility.contract.results import SendMessageResult
from visibility.tests import prepared
from visibility.tests.prepared import ACCOUNT, CALLER, REGION

HOUR_MS = 3_600_000
MINUTE_MS = 60_000


class Kept:
    """One shard over memory, and a catalog that keeps deleted queues for an hour."""

    def __init__(self, catalog: Catalog, clock: SettableClock, store: MemoryStore) -> None:
        self.catalog = catalog
        self.clock = clock
        self.store = store
        self.shard = Shard(
            0,
            ShardParts(
                open_store=opener(self.store),
                clock=clock,
                entropy=CountingEntropy(),
                definitions=catalog,
            ),
        )
        self.router = Router([self.shard])
        watch = QueueWatch(catalog, self.router)
        self.deletions = Deletions(catalog, self.router, watch)
        split = SplitQueues(self.router, catalog, CountingEntropy(), clock.wall_s)
        self.actions = QueueActions(catalog, self.router, split, self.deletions, watch)

    async def make(self, name: str = "q") -> QueueDefinition:
        """A queue with one message."""
        queue = await self.catalog.create_queue((ACCOUNT, REGION, name), {}, {})
        await self.router.ask(prepared.send(queue, "x"))
        return queue

    async def send_once(self, queue: QueueDefinition, identity: str) -> str:
        """Send to a FIFO queue with this deduplication id; the MessageId."""
        sent = await self.router.ask(
            prepared.send(queue, identity, group="g", deduplication_id=identity)
        )
        result = sent.result if isinstance(sent, Deduplicated) else sent
        assert isinstance(result, SendMessageResult)
        return result.message_id

    async def delete(self, name: str = "q") -> None:
        await self.actions.answer(op.DeleteQueue(queue_url=name), CALLER, "http://h", "r")

    async def purge(self, name: str = "q") -> None:
        await self.actions.answer(op.PurgeQueue(queue_url=name), CALLER, "http://h", "r")

    async def look(self, *, disk_is_short: bool = False) -> None:
        await self.deletions.look(self.clock.at_ms, disk_is_short=disk_is_short)
        await self.deletions.settle()

    def follower(self) -> Shard:
        """The shard on a host that does not lead it."""
        return Shard(
            0,
            ShardParts(
                open_store=opener(MemoryStore()),
                clock=self.clock,
                entropy=CountingEntropy(),
                definitions=self.catalog,
            ),
        )

    def queue(self, name: str = "q") -> QueueDefinition:
        return self.catalog.queue(ACCOUNT, REGION, name)

    async def received(self, name: str = "q") -> list[str]:
        """Bodies of up to ten messages."""
        deliveries = await self.router.ask(prepared.receive(self.queue(name), 10))
        assert isinstance(deliveries, Deliveries)
        return [message.data.decode() for message in deliveries.messages]

    def stored(self) -> set[int]:
        """The queues that the shard holds messages of."""
        return {number for number, counters in self.shard.counters().items() if counters.visible}


@asynccontextmanager
async def keeping(
    catalog_file: Path = Path(":memory:"), store: MemoryStore | None = None
) -> AsyncIterator[Kept]:
    """A shard and a catalog that run. The same file and store again: a restart."""
    clock = SettableClock()
    catalog = await opened_catalog(
        await SqliteCoordination.open(catalog_file),
        clock=clock,
        restore_window_ms=HOUR_MS,
    )
    parts = Kept(catalog, clock, store or MemoryStore())
    await parts.shard.start()
    yield parts
    await parts.shard.stop()
    await catalog.close()
