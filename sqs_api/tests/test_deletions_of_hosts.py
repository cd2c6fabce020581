"""Purges and restores that a host asks for which does not lead the shard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cluster.catalog.catalog import Catalog
from cluster.shards.queue_watch import QueueWatch
from cluster.tests.catalogs import opened_catalog
from cluster.tests.memory_coordination import MemoryCoordination
from cluster.tests.peers.peer_hosts import Cluster, Host, running
from cluster.tests.virtual_time import virtual
from sqs_api.gateway.deletions import Deletions
from visibility.contract.model import QueueDefinition
from visibility.contract.outcomes import Deliveries
from visibility.tests import prepared
from visibility.tests.prepared import ACCOUNT, REGION

MINUTE_MS = 60_000
KEY = (ACCOUNT, REGION, "q")


class Removing:
    """A host that removes and restores queues."""

    def __init__(self, host: Host, catalog: Catalog) -> None:
        self.host = host
        self.catalog = catalog
        self.deletions = Deletions(catalog, host.router, QueueWatch(catalog, host.router))

    @property
    def queue(self) -> QueueDefinition:
        return self.catalog.queue(*KEY)

    async def received(self) -> list[str]:
        answer = await self.host.router.ask(prepared.receive(self.queue, 10))
        assert isinstance(answer, Deliveries)
        return [message.data.decode() for message in answer.messages]


@asynccontextmanager
async def two_hosts() -> AsyncIterator[tuple[Removing, Removing]]:
    """Two hosts; the second leads."""
    records = MemoryCoordination()
    catalogs = {
        name: await opened_catalog(
            records,
            restore_window_ms=MINUTE_MS,
        )
        for name in "ab"
    }
    async with running(Cluster("ab", catalogs=catalogs)) as hosts:
        a, b = (Removing(host, catalogs[host.name]) for host in hosts)
        yield a, b
        for each in (a, b):
            await each.deletions.stop()


@virtual
async def test_a_purge_reaches_the_shard_once() -> None:
    async with two_hosts() as (a, b):
        queue = await a.catalog.create_queue(KEY, {}, {})
        await a.host.router.ask(prepared.send(queue, "x"))
        forwarded = a.host.router.forwarded

        await a.deletions.purge(queue)

        assert a.host.router.forwarded == forwarded
        assert b.queue.queue_id != queue.queue_id
        assert (await a.received(), await b.received()) == ([], [])


@virtual
async def test_a_purge_is_undone_by_the_leader_whatever_host_is_asked() -> None:
    async with two_hosts() as (a, b):
        queue = await a.catalog.create_queue(KEY, {}, {})
        await a.host.router.ask(prepared.send(queue, "x"))
        await a.deletions.purge(queue)

        restored = await a.deletions.restore(queue.queue_id)

        assert restored.queue_id == b.queue.queue_id
        assert await a.received() == ["x"]
        await asyncio.sleep(MINUTE_MS / 1000)
        assert await b.received() == ["x"]


@virtual
async def test_a_drop_is_not_done_to_the_queue_that_follows() -> None:
    """The host that drops a purged queue loses the lead meanwhile."""
    async with two_hosts() as (a, b):
        queue = await a.catalog.create_queue(KEY, {}, {})
        await a.deletions.purge(queue)
        await a.host.router.ask(prepared.send(a.queue, "later"))

        await a.deletions._undisturbed(queue.queue_id, a.deletions._drop)

        assert await b.received() == ["later"]
