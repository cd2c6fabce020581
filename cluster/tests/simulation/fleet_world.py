"""A simulated fleet: two clusters of three hosts and one catalog. Clients ask any host, which has a
router and connections as in life; so do the shards, for the messages of their outboxes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from math import ceil
from random import Random
from typing import cast

import msgspec
from typing_extensions import override

from cluster.catalog.catalog_records import QueueName
from cluster.parts.shared_tasks import LOOK_S, SharedTasks
from cluster.parts.split_receives import SplitReceive
from cluster.parts.unlocking import Unlocking
from cluster.peers.forwarded import ForwardedRequests
from cluster.peers.forwarding import PeerRouter
from cluster.peers.held_requests import Routed
from cluster.peers.link import Call as Asked
from cluster.peers.link import ChannelService
from cluster.peers.peer_settings import Address, Channel, ForwardingSettings, PeerSettings
from cluster.peers.roles import Neighbour, PeerRole, Place, cluster_mark
from cluster.peers.transport import Transport
from cluster.shards.delivery import Deliveries
from cluster.shards.router import takes_all
from cluster.tests.peers.simulated_network import SimulatedNetwork
from cluster.tests.replication.shard_hosts import ShardCluster, ShardHost
from cluster.tests.replication.shard_process import Process
from cluster.tests.simulation import gateway_world as gateway
from cluster.tests.simulation.cluster_simulation import ClusterSimulation
from cluster.tests.simulation.gateway_world import SimulatedGateway, telling
from cluster.tests.simulation.known_parts import KnownParts
from cluster.tests.simulation.simulated_worker import Machine, SimulatedEntropy
from cluster.tests.simulation.simulation import Call
from visibility.contract.errors import QueueError
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.operations import ReceiveMessage
from visibility.contract.outcomes import Answer
from visibility.rules.acknowledge import UndoReceive
from visibility.rules.kept_queues import ContinueQueue, DropQueue
from visibility.tests.prepared import KnownQueues

_LAGS_S = (0.01, 0.1, 1.0)
"""Times after which a host hears of another leader."""
_CUTS_S = (0.5, 2.0, 6.0)
_IDLE_S = 3.0
"""Interval of closing unused connections: far shorter than in life."""
_CAUGHT_UP_S = 0.02


class _View:
    """The one catalog, as each host sees it."""

    def __init__(self, known: KnownQueues) -> None:
        self._known = known
        self.queue_of_id: Callable[[int], QueueDefinition | None] = known.queue_of_id
        self.renewed: Callable[[Request], Request | None] = known.renewed

    def find(self, name: QueueName) -> QueueDefinition | None:
        """See `View`."""
        return self._known.queue_of_name(name[2])

    def when_caught_up(self, then: Callable[[], None]) -> None:
        """See `View`."""
        asyncio.get_running_loop().call_later(_CAUGHT_UP_S, then)


class _SeenLeaders:
    """See `Leaders`: what a host knows, somewhat late."""

    def __init__(self, clusters: Sequence[ShardCluster], chance: Random) -> None:
        self._clusters = clusters
        self._chance = chance
        self._known: dict[int, str | None] = {}
        self._listeners: list[Callable[[int], None]] = []
        self.is_over = False
        for cluster in clusters:
            self._look(cluster)

    def leader_of(self, shard: int) -> str | None:
        """See `Leaders`."""
        return self._known.get(shard)

    def subscribe(self, on_change: Callable[[int], None]) -> None:
        """See `Leaders`."""
        self._listeners.append(on_change)

    def _look(self, cluster: ShardCluster) -> None:
        if self.is_over:
            return
        leading = [host for host in cluster.hosts.values() if host.leads]
        name = _name(max(leading, key=_term_of)) if leading else None
        if name != self._known.get(cluster.number):
            self._known[cluster.number] = name
            for listener in self._listeners:
                listener(cluster.number)
        lag_s = self._chance.choice(_LAGS_S)
        asyncio.get_running_loop().call_later(lag_s, self._look, cluster)


class FleetHost:
    """One life of a host, as the other hosts and its clients see it."""

    def __init__(self, fleet: Fleet, process: Process) -> None:
        host = process.host
        number = host.cluster.number
        self.process = process
        self.name = name = _name(host)
        self._network = fleet.network
        chance = Random(fleet.random.getrandbits(64))
        self.leaders = _SeenLeaders(fleet.clusters, chance)
        entropy = SimulatedEntropy(chance)
        self.transport = Transport(
            cluster=f"c{number}",
            host=name,
            log_ids=dict,
            network=fleet.network.of(name),
            settings=PeerSettings(),
            clock=process.clock,
            entropy=entropy,
            mark=cluster_mark(number + 1),
            channels=(Channel.REQUESTS,),
        )
        view = _View(host.cluster.queues)
        self.router = PeerRouter(
            [process.shard],
            transport=self.transport,
            leaders=self.leaders,
            view=view,
            settings=ForwardingSettings(),
            clock=process.clock,
            entropy=entropy,
        )
        decided = ForwardedRequests(self.router.shards, self.leaders, view, refusal=takes_all)
        for role, service in (
            (None, decided.service),
            (PeerRole.NEIGHBOUR, decided.service_for(PeerRole.NEIGHBOUR)),
            (PeerRole.GATEWAY, decided.service_for(PeerRole.GATEWAY)),
        ):
            self.transport.serve(Channel.REQUESTS, self._entering(service), role)
        told = ChannelService(telling(cast(KnownParts, host.cluster.queues)))
        self.transport.serve(Channel.CATALOG, self._entering(told))
        process.deliveries = Deliveries(
            self.router, entropy, lost=host.cluster.queues.removed_at_ms
        )
        self.unlocking = Unlocking(self.router, host.cluster.queues, entropy)
        self.shared_tasks = SharedTasks(
            self.router, host.cluster.queues, entropy, host.cluster.queues.removed_at_ms
        )
        self._looking = asyncio.get_running_loop().create_task(self._look())
        self._life = asyncio.get_running_loop().create_task(self._live(fleet))

    def _entering(self, service: ChannelService) -> ChannelService:
        """A process that is stopped decides later."""
        on_request = service.on_request
        assert on_request is not None

        def enter(call: Asked) -> None:
            self.process.host.enter(partial(on_request, call))

        return ChannelService(enter)

    async def _live(self, fleet: Fleet) -> None:
        await self.transport.start(Address(self.name, 1))
        peers = [_name(host) for host in self.process.host.cluster.hosts.values()]
        self.transport.set_peers({name: Address(name, 1) for name in peers})
        neighbours = fleet.neighbours(self.process.host.cluster)
        if fleet.gateway is not None:
            neighbours[gateway.NAME] = gateway.gateway_place()
        self.transport.set_neighbours(neighbours)
        while True:
            await asyncio.sleep(_IDLE_S)
            self.transport.close_idle()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            await self.unlocking.look()
            await self.shared_tasks.look()

    def end(self) -> None:
        """The process is gone, with its connections."""
        self.unlocking.stop()
        self.shared_tasks.stop()
        self._looking.cancel()
        self.leaders.is_over = True
        self.router.shards = {}
        self._life.cancel()
        self.transport.set_peers({})
        self.transport.set_neighbours({})
        self._network.crash(self.name)


class Fleet:
    """The hosts of all clusters, and the network between them."""

    def __init__(self, clusters: Sequence[ShardCluster], random: Random) -> None:
        self.clusters = clusters
        self.random = random
        self.network = SimulatedNetwork()
        self.hosts: dict[str, FleetHost] = {}
        self.gateway: SimulatedGateway | None = None
        for cluster in clusters:
            cluster.began = self._begin
            for host in cluster.hosts.values():
                self.network.names[_name(host)] = (_name(host), cluster_mark(cluster.number + 1))

    def _begin(self, process: Process) -> None:
        self.ended(process.host)
        host = FleetHost(self, process)
        self.hosts[host.name] = host

    def neighbours(self, own: ShardCluster | None) -> dict[str, Neighbour]:
        """The hosts of other clusters."""
        return {
            _name(host): Neighbour(
                Address(_name(host), 1),
                Place(f"c{other.number}", PeerRole.NEIGHBOUR, cluster_mark(other.number + 1)),
            )
            for other in self.clusters
            if other is not own
            for host in other.hosts.values()
        }

    def add_gateway(self, known: KnownParts, random: Random) -> SimulatedGateway:
        """A gateway whose etcd comes and goes."""
        hosts = [[_name(host) for host in cluster.hosts.values()] for cluster in self.clusters]
        self.gateway = SimulatedGateway(
            known,
            self.network,
            partial(_SeenLeaders, self.clusters, Random(random.getrandbits(64))),
            self.neighbours(None),
            hosts,
            random,
        )
        return self.gateway

    def ended(self, host: ShardHost) -> None:
        """Its process is gone."""
        gone = self.hosts.pop(_name(host), None)
        if gone is not None:
            gone.end()

    async def run(self, seconds: float) -> None:
        """Cut connections between hosts for so long."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + seconds
        names = sorted(self.network.names)
        while loop.time() < end_s:
            await asyncio.sleep(self.random.uniform(0, 4))
            for _ in range(self.random.choice((1, 3, 9))):
                self.network.cut(*self.random.sample(names, 2))
            await asyncio.sleep(self.random.choice(_CUTS_S))
            self.network.mend()

    def any(self, shard: int) -> FleetHost | None:
        """Any host, more often one of another cluster than that of a shard."""
        running = [host for host in self.hosts.values() if not host.process.is_over]
        others = [host for host in running if host.process.host.cluster.number != shard]
        found = others if others and self.random.random() < 0.7 else running
        return self.random.choice(found) if found else None


class FleetSimulation(ClusterSimulation):
    """Requests go through hosts of any cluster."""

    unlocks_groups = True
    has_manager = True

    def __init__(self, machine: Machine, fleet: Fleet) -> None:
        super().__init__(machine, fleet.clusters)
        self.fleet = fleet
        self._routers: dict[int, PeerRouter] = {}
        self._of_gateway: dict[int, Call] = {}

    async def call(self, request: Request) -> Call:
        """See Simulation. Each request has an id of its own: routers try again."""
        if not isinstance(request.operation, ReceiveMessage | UndoReceive):
            request = msgspec.structs.replace(request, request_id=self.new_id())
        asked = self.fleet.gateway
        if asked is not None and asked.takes(request, self.history):
            return await self._call_gateway(asked, request)
        return await super().call(request)

    async def _call_gateway(self, asked: SimulatedGateway, request: Request) -> Call:
        await self.connected()
        for part in request.queue.all_parts():
            self._leader(self.clusters[part.shard])  # its clock is the shard's
        call = Call(self.time.read())
        call.ticket = asked.submit(request, partial(self._answer, call))
        self._of_gateway[id(call)] = call
        return call

    @override
    def clients_end(self) -> None:
        if self.fleet.gateway is not None and (finding := self.fleet.gateway.end()):
            self.machine.violations.append(finding)

    def _ended(self, host: ShardHost) -> None:
        self.fleet.ended(host)
        super()._ended(host)

    def _try(self, call: Call, request: Request, until_s: float) -> None:
        if isinstance(request.operation, ContinueQueue | DropQueue):
            super()._try(call, request, until_s)
            return
        self._leader(self.clusters[request.queue.shard])  # its clock is the shard's
        host = self.fleet.any(request.queue.shard)
        if host is None:
            self._again(call, request, until_s)
            return
        self._asked[id(call)] = call, host.process
        request = self.machine.queues.renewed(request) or request
        host.process.host.enter(partial(self._route, call, host, request))

    def _route(self, call: Call, host: FleetHost, request: Request) -> None:
        if host.process.is_over:
            return  # the connection is lost

        def on_answer(answer: Answer | QueueError) -> None:
            if host.process.is_over or self._asked.pop(id(call), None) is None:
                return
            self._count_retry(call)
            self._answer(call, answer)

        age_s = 0.0
        if isinstance(request.operation, UndoReceive):
            age_s = asyncio.get_running_loop().time() - self._undoing[request.request_id]
        self._routers[id(call)] = host.router
        call.ticket = host.router.submit(
            request, on_answer, age_ms=ceil(age_s * 1000), is_offered=call.is_offered
        )

    def hang_up(self, call: Call) -> bool:
        """See Simulation."""
        if self._of_gateway.get(id(call)) is call:
            assert self.fleet.gateway is not None
            assert call.ticket is not None
            return not call.reply.done() and self.fleet.gateway.cancel(call.ticket)
        if isinstance(call.ticket, SplitReceive):
            return super().hang_up(call)
        if call.reply.done() or id(call) not in self._asked or call.ticket is None:
            return False
        if self._routers[id(call)].cancel(call.ticket):
            self._asked.pop(id(call), None)
            self._count_retry(call)
            return True
        return False

    def _count_retry(self, call: Call) -> None:
        """A receive whose first answer was lost counts, also if its messages are back by now, or
        if its host ends before it has it undone."""
        ticket = call.ticket
        if isinstance(ticket, Routed) and ticket.is_retry:
            if isinstance(ticket.request.operation, ReceiveMessage):
                self.history.unknown_receives[ticket.request.queue.name] += 1


def _name(host: ShardHost) -> str:
    return f"c{host.cluster.number}-{host.name}"


def _term_of(host: ShardHost) -> int:
    return host.store.replica.journal.promise.term
