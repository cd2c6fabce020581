"""A process that crashes at a request to its shard, and restarts from its durable state."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cluster.catalog.catalog import Catalog
from cluster.catalog.queue_rules import Waits
from cluster.coordination.sqlite_coordination import SqliteCoordination
from cluster.shards.queue_watch import QueueWatch
from cluster.shards.router import Router
from cluster.shards.shard import Shard
from cluster.shards.shard_parts import ShardParts
from cluster.tests.archive_rules import LIMITS
from cluster.tests.catalogs import opened_catalog
from cluster.tests.virtual_time import CountingEntropy, LoopClock
from cluster.tests.world import FragileStore
from sqs_api.gateway.deletions import Deletions
from storage.tests.on_disk import opener
from visibility.contract.model import Request
from visibility.state.waiters import OnAnswer, Room, Ticket

_FOREVER_MS = 10**12


async def rounds(count: int) -> None:
    """Let the loop go round."""
    for _ in range(count):
        await asyncio.sleep(0)


class StoppingRouter(Router):
    """Never answers the request at which it is to stop, nor any later one: so the process comes no
    further."""

    def __init__(self, shard: Shard) -> None:
        super().__init__([shard])
        self.stopped = asyncio.Event()
        self._left: int | None = None
        self._decides_last = False

    def stop_after(self, requests: int, *, decides_last: bool) -> None:
        """Answer this number of requests, then stop; `decides_last`: decide one more."""
        self._left, self._decides_last = requests, decides_last

    def submit(self, request: Request, on_answer: OnAnswer, room: Room | None = None) -> Ticket:
        if self._left is None:
            return super().submit(request, on_answer)
        self._left -= 1
        if self._left >= 0:
            return super().submit(request, on_answer)
        if self._left == -1 and self._decides_last:
            super().submit(request, lambda answer: None)
        self.stopped.set()
        return Ticket(request, on_answer)


class Process:
    """A catalog, a shard and deletions; each crash restarts them from the durable state."""

    catalog: Catalog
    shard: Shard
    router: Router
    stopping: StoppingRouter
    deletions: Deletions

    def __init__(self, file: Path, *, archives: bool) -> None:
        self.clock = LoopClock()
        self.store = FragileStore(auto_sync=True)
        self._file = file
        self._archives = archives
        self._entropy = CountingEntropy()

    async def start(self) -> None:
        self.catalog = await opened_catalog(
            await SqliteCoordination.open(self._file),
            clock=self.clock,
            entropy=self._entropy,
            restore_window_ms=_FOREVER_MS,
            waits=Waits(0, 0),
        )
        self.shard = Shard(
            0,
            ShardParts(
                open_store=opener(self.store),
                clock=self.clock,
                entropy=self._entropy,
                definitions=self.catalog,
                archive=LIMITS if self._archives else None,
            ),
        )
        await self.shard.start(self.catalog.highest_queue_id)
        self.router = Router([self.shard])
        self.stopping = StoppingRouter(self.shard)
        watch = QueueWatch(self.catalog, self.stopping)
        self.deletions = Deletions(self.catalog, self.stopping, watch)
        await self.deletions.look(self.clock.now_ms())

    async def stop(self) -> None:
        await self.deletions.stop()
        await self.catalog.close()
        await rounds(10)
        await self.shard.stop()

    async def crash(self) -> None:
        """Later writes of the shard reach a store that is never opened again."""
        left = FragileStore(auto_sync=True)
        left.rows, left.durable = dict(self.store.durable), dict(self.store.durable)
        await self.stop()
        self.store = left
        await self.start()
