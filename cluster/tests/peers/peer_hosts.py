"""Hosts with shards, connected by a simulated network, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from types import MappingProxyType

import msgspec

from cluster.catalog.catalog import Catalog
from cluster.catalog.catalog_records import QueueName
from cluster.peers.forwarded import ForwardedRequests
from cluster.peers.forwarding import PeerRouter
from cluster.peers.peer_settings import Address, Channel, ForwardingSettings, PeerSettings
from cluster.peers.queue_news import QueueNews, tell
from cluster.peers.revision_barrier import RevisionBarrier
from cluster.peers.transport import Transport
from cluster.tests.peers.simulated_network import HostNetwork, SimulatedNetwork
from cluster.tests.virtual_time import CountingEntropy, LoopClock, SeededEntropy
from cluster.tests.world import AskedShard, FragileStore, World, pass_time
from storage.engines.store import StoreFailed
from visibility.contract.errors import QueueError, ServiceUnavailable
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.operations import Operation, SendMessage
from visibility.contract.outcomes import Answer
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues

FORWARDING = ForwardingSettings()
NEVER = 1 << 30
QUEUE = prepared.queue_named("q", 1)
SEND = prepared.send(QUEUE, "hello")
RECEIVE = prepared.receive(QUEUE)
POLL = prepared.receive(QUEUE, wait_s=20)
COUNT = prepared.counters(QUEUE)


class KnownLeaders:
    """Leaders as a host believes them to be."""

    def __init__(self) -> None:
        self._leader: str | None = None
        self._listeners: list[Callable[[int], None]] = []

    def leader_of(self, shard: int) -> str | None:
        return self._leader if shard == 0 else None

    def subscribe(self, on_change: Callable[[int], None]) -> None:
        self._listeners.append(on_change)

    def learn(self, leader: str | None) -> None:
        """The watch reports a leader."""
        self._leader = leader
        self.tell(0)

    def tell(self, shard: int) -> None:
        """The watch reports a change of the leader of a shard, maybe of another cluster's."""
        for listener in self._listeners:
            listener(shard)


class HostView(KnownQueues):
    """A host's definitions; `news` is what catching up brings."""

    def __init__(self) -> None:
        super().__init__()
        self.news: Callable[[], object] | None = None

    def find(self, name: QueueName) -> QueueDefinition | None:
        return self.queue_of_name(name[2])

    def when_caught_up(self, then: Callable[[], None]) -> None:
        news, self.news = self.news, None
        if news is not None:
            news()
        asyncio.get_running_loop().call_later(0.02, then)


class Host:
    """A host with one shard, which it may lead."""

    def __init__(
        self,
        name: str,
        network: SimulatedNetwork,
        store: FragileStore,
        forwarding: ForwardingSettings,
        settings: PeerSettings,
        catalog: Catalog | None = None,
        *,
        is_gateway: bool = False,
        under_way_max: int = 1,
    ) -> None:
        """`catalog` has the definitions; without one, `view` has. A gateway asks others for what
        its catalog missed."""
        self.name = name
        self._asked = 0
        self.disk_is_short = False
        self.address = Address(name, 1)
        self.network: HostNetwork = network.of(name)
        self.leaders = KnownLeaders()
        self.view = HostView()
        definitions = self.view if catalog is None else catalog
        self.world = World(
            store=store,
            definitions=definitions,
            entropy=SeededEntropy(name),
            remembers=True,
            under_way_max=under_way_max,
        )
        self.shard = self.world.shard
        self.transport = Transport(
            cluster="c1",
            host=name,
            log_ids=dict,
            network=self.network,
            settings=settings,
            clock=LoopClock(),
            entropy=CountingEntropy(),
        )
        shards = {0: self.shard}
        self.router = PeerRouter(
            shards.values(),
            transport=self.transport,
            leaders=self.leaders,
            view=definitions,
            settings=forwarding,
            clock=LoopClock(),
            entropy=CountingEntropy(),
            refusal=self._refusal,
            news=QueueNews(self.transport, catalog) if catalog is not None and is_gateway else None,
        )
        if catalog is not None:
            self.news_service = RevisionBarrier(catalog, partial(tell, catalog)).service
            self.transport.serve(Channel.CATALOG, self.news_service)
        self.requests = ForwardedRequests(shards, self.leaders, definitions, self._refusal).service
        self.transport.serve(Channel.REQUESTS, self.requests)
        self.transport.serve(Channel.REPLICATION, self.requests)

    def _refusal(self, operation: Operation) -> ServiceUnavailable | None:
        is_refused = self.disk_is_short and type(operation) is SendMessage
        return ServiceUnavailable("short") if is_refused else None

    def ask(self, request: Request, request_id: str = "", age_ms: int = 0) -> AskedShard:
        """Ask as the gateway of this host does; an age makes it a client's repetition."""
        asked = AskedShard()
        self._asked += 1
        request_id = request_id or f"{self.name}-{self._asked}"
        request = msgspec.structs.replace(request, request_id=request_id)

        def on_answer(answer: Answer | QueueError) -> None:
            asked.answers.append(answer)

        asked.ticket = self.router.submit(request, on_answer, age_ms=age_ms)
        assert not asked.answers, "answers come later"
        return asked

    async def lead(self) -> None:
        """Load the shard from the rows."""
        self.world.refuse_opening = 0
        if self.shard._reopening is not None:
            self.shard._reopening.cancel()
        await self.shard.start()

    async def fall(self) -> None:
        """Lose the leadership, with what is under way."""
        self.world.refuse_opening = NEVER
        self.shard.on_failure(StoreFailed("not leader any more"))
        assert self.shard._reopening is not None
        self.shard._reopening.cancel()
        await self.shard.abandon()  # before the next leader appends to the shared store
        await pass_time(0)


class Cluster:
    """Hosts that share rows, as if every Entry were replicated at once."""

    def __init__(
        self,
        names: str,
        forwarding: ForwardingSettings = FORWARDING,
        *,
        auto_sync: bool = True,
        settings: PeerSettings | None = None,
        catalogs: Mapping[str, Catalog] = MappingProxyType({}),
        gateways: str = "",
        under_way_max: int = 1,
    ) -> None:
        """`catalogs` are those of hosts, by name; those of `gateways` ask others."""
        self.network = SimulatedNetwork()
        self.store = FragileStore(auto_sync=auto_sync)
        self.hosts = [
            Host(
                name,
                self.network,
                self.store,
                forwarding,
                settings or PeerSettings(),
                catalogs.get(name),
                is_gateway=name in gateways,
                under_way_max=under_way_max,
            )
            for name in names
        ]

    def define(self, *requests: Request) -> None:
        """Every host knows the queues of these requests."""
        for host in self.hosts:
            for request in requests:
                host.view.define(request.queue)

    def learn(self, leader: str | None) -> None:
        """All hosts hear who leads."""
        for host in self.hosts:
            host.leaders.learn(leader)


def the_cluster(names: str = "ab", forwarding: ForwardingSettings = FORWARDING) -> Cluster:
    """Hosts that know the queue."""
    cluster = Cluster(names, forwarding)
    cluster.define(SEND)
    return cluster


@asynccontextmanager
async def running(cluster: Cluster, leader: int = 1) -> AsyncIterator[list[Host]]:
    """The hosts, connected; one leads."""
    hosts = cluster.hosts
    addresses = {host.name: host.address for host in hosts}
    for host in hosts:
        await host.transport.start(host.address)
        host.transport.set_peers(addresses)
    await hosts[leader].lead()
    cluster.learn(hosts[leader].name)
    await pass_time(0.1)
    try:
        yield hosts
    finally:
        cluster.network.mend()
        for host in hosts:
            host.shard.end_long_polls()
            await host.transport.stop()
        for host in hosts:
            await host.shard.stop()
