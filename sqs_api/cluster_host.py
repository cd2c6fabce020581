"""ClusterHost: a host as a member of a cluster: its copies of the shards, the requests that hosts
send each other, and the pages about the cluster."""

from __future__ import annotations

from asyncio import Future, get_running_loop
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import structlog

from cluster.catalog.catalog import Catalog
from cluster.coordination.coordination import Coordination
from cluster.fleet.fleet_shards import FleetShards
from cluster.members.balancing import LeaderBalance, LeaderPlan
from cluster.members.status import StatusPage
from cluster.peers.forwarded import ForwardedRequests
from cluster.peers.forwarding import PeerRouter
from cluster.peers.peer_settings import Channel, ForwardingSettings
from cluster.peers.questions import Questions
from cluster.peers.queue_news import tell
from cluster.peers.revision_barrier import RevisionBarrier, spread
from cluster.peers.roles import PeerRole
from cluster.peers.transport import Transport
from cluster.replication.checkpointing import CheckpointTraffic
from cluster.replication.hosting import HostInCluster, HostParts, ReplicatedStores
from cluster.replication.replica_port import PeerMessages
from cluster.shards.router import Router
from cluster.shards.shard import Shard
from sqs_api.admin.backup_points import ClusterPoint, OtherCluster
from sqs_api.admin.cluster_metrics import ClusterMetrics, UnheardShards
from sqs_api.admin.cluster_pages import ClusterPages
from sqs_api.admin.fleet_pages import FleetPages
from sqs_api.admin.quiesce import ACTION, Quiesce, QuiescedHost
from sqs_api.admin.shared_routes import SharedRoutes
from sqs_api.gateway.disk_space import DiskSpace
from sqs_api.gateway.lent_rates import Doors
from sqs_api.joined import HEAR_S, IDLE_CHECK_S, PEERS, Joined
from sqs_api.parts import Feature, Process
from sqs_api.periodic import Every
from storage.engines.store_options import StoreOptions

_CERTIFICATES_CHECK_S = 5.0
_BALANCE_CHECK_S = 1.0


class ClusterHost(NamedTuple):
    """Routes before it connects; `open_cluster_host` makes one."""

    process: Process
    joined: Joined
    disk: DiskSpace
    transport: Transport
    questions: Questions
    replicas: ReplicatedStores
    balance: LeaderBalance
    others: FleetShards
    catalog: Future[Catalog]
    """Known with the router."""
    doors: Doors

    def below(self, kind: str) -> Coordination:
        """The records of one kind, such as `catalog/`."""
        return self.joined.root.below(kind)

    @property
    def own_records(self) -> None:
        """They are the cluster's: commands ask etcd."""

    def stores(self, catalog: Catalog) -> ReplicatedStores:
        """The stores of the shards."""
        return self.replicas

    def route(self, catalog: Catalog, shards: Iterable[Shard]) -> Router:
        """The router over this host's shards, which asks other hosts where they lead."""
        refusal, leaders = self.disk.refusal, self.joined.leaders
        router = PeerRouter(
            shards,
            transport=self.transport,
            leaders=leaders,
            view=catalog,
            settings=ForwardingSettings(),
            clock=self.process.clock,
            entropy=self.process.entropy,
            refusal=refusal,
        )
        decided = ForwardedRequests(router.shards, leaders, catalog, refusal)
        self.transport.serve(Channel.REQUESTS, decided.service)
        for role in (PeerRole.NEIGHBOUR, PeerRole.GATEWAY):
            self.transport.serve(Channel.REQUESTS, decided.service_for(role), role)
        barrier = RevisionBarrier(catalog, partial(tell, catalog))
        self.transport.serve(Channel.CATALOG, barrier.service)
        self.catalog.set_result(catalog)
        self.others.routed(router, catalog)
        return router

    def backup_point(self, quiesce: Quiesce, router: Router) -> ClusterPoint:
        """The point of a backup that this host makes; it also holds still for those of others."""
        quiesced = QuiescedHost(quiesce, self.replicas.opened, router.leads)
        self.process.opened.push_async_callback(quiesced.stop)
        self.questions.serve(ACTION, quiesced.answer)
        cluster, root = self.joined.member.cluster, self.joined.root
        entropy = self.process.entropy
        return ClusterPoint(
            cluster,
            self.questions,
            root,
            self.replicas.opened,
            entropy,
            self.joined.member.number,
            self._other_clusters,
        )

    def _other_clusters(self) -> dict[int, OtherCluster]:
        fleet = self.joined.fleet
        found: dict[int, OtherCluster] = {}
        for number, shards in fleet.founded.items():
            alive = fleet.alive_of(number)
            hosts = sorted(fleet.hosts_of(number), key=lambda host: host not in alive)
            found[number] = OtherCluster(hosts, shards)
        return found

    @property
    def feature(self) -> Feature:
        """The answers about the cluster, the metrics of this host's copies, and repeated work; the
        shards are open."""
        joined, stores, others = self.joined, self.replicas, self.others
        certificate = joined.member.peer_tls.certificate
        status = StatusPage(
            joined.member.cluster,
            self.transport,
            joined.membership,
            joined.own_leaders,
            stores.reports,
            joined.root.members,
            joined.member.number,
        )
        pages = ClusterPages(status, joined.members, joined.root, joined.fleet, self.questions)
        pages.serve()
        return Feature(
            parts={
                ClusterPages: pages,
                FleetPages: self.fleet_pages(),
                SharedRoutes: SharedRoutes(
                    self.questions,
                    joined.leaders,
                    stores.replicas(),
                    lambda: [s for numbers in joined.fleet.founded.values() for s in numbers],
                ),
            },
            metrics=(
                ClusterMetrics(stores.reports, certificate),
                UnheardShards(others.unheard),
            ),
            periodic=(
                Every(HEAR_S, others.hear, first_s=1.0),
                Every(_CERTIFICATES_CHECK_S, self.transport.reload),
                Every(_BALANCE_CHECK_S, self.balance.tick),
                Every(IDLE_CHECK_S, self.transport.close_idle),
            ),
        )

    def fleet_pages(self) -> FleetPages:
        """The answers about the fleet; the catalog is known."""
        joined = self.joined
        return FleetPages(
            joined.member.cluster,
            joined.member.host,
            joined.fleet,
            joined.membership,
            joined.leaders,
            self.catalog.result(),
            joined.root,
            self.others.unheard,
        )

    async def connect(self) -> None:
        """Listen for the other hosts and connect to them. Raises OSError."""
        membership = self.joined.membership
        await self.transport.start(self.joined.member.peer_listen)
        membership.subscribe(self.transport.set_peers)
        self.transport.set_peers(membership.peers)
        fleet = self.joined.fleet
        fleet.subscribe_neighbours(self.transport.set_neighbours)
        self.transport.set_neighbours(fleet.neighbours)

    async def leave(self) -> None:
        """Hand over what this host leads, for a bounded time: it is about to stop."""
        await self.balance.leave()

    async def finish(self) -> None:
        """Other hosts lead already."""


def open_cluster_host(
    process: Process, joined: Joined, options: StoreOptions, disk: DiskSpace
) -> ClusterHost:
    """The host, whose shards are not open yet, and which listens once it connects."""
    clock, entropy, membership = process.clock, process.entropy, joined.membership
    transport = Transport(
        cluster=joined.cluster.cluster_id,
        host=joined.member.host,
        log_ids=joined.cluster.logs,
        network=joined.network,
        settings=PEERS,
        clock=clock,
        entropy=entropy,
        mark=joined.member.mark,
    )
    transport.on_lost.append(partial(_peer_lost, joined))
    process.opened.push_async_callback(transport.stop)
    plan = LeaderPlan(membership, joined.own_leaders, disk.has_space)
    stores = ReplicatedStores(
        HostInCluster(
            joined.member.host,
            PeerMessages(transport),
            peers=lambda: list(membership.peers),
            leadership_of=joined.keys.of_shard,
            log_id_of=joined.cluster.logs().__getitem__,
            written_as=lambda: membership.shown.formats,
            reluctance_s=plan.reluctance_s,
        ),
        HostParts(options, clock, entropy, disk.has_space, disk.has_much_space),
        CheckpointTraffic(transport, monotonic_s=clock.monotonic_s, entropy=entropy),
    )
    joined.own_leaders.subscribe(partial(_leader_changed, joined, stores))
    balance = LeaderBalance(
        plan, membership, joined.own_leaders, stores.replicas, clock.monotonic_s
    )
    fleet = joined.fleet
    others = FleetShards(
        fleet, joined.leaders.leader_of, joined.cluster.numbers, partial(spread, transport)
    )
    questions = Questions(transport, fleet.all_hosts)
    counts = Questions(transport, fleet.all_hosts, Channel.COUNTS)
    doors = Doors(
        counts, others.lender, lambda: len(counts.hosts_of_all_clusters) + len(fleet.gateways)
    )
    catalog = get_running_loop().create_future()
    return ClusterHost(
        process, joined, disk, transport, questions, stores, balance, others, catalog, doors
    )


def _peer_lost(joined: Joined, host: str, channel: Channel) -> None:
    """A member of etcd may have gone with it: watches on that would be silent."""
    if channel is Channel.REPLICATION:
        joined.root.test_watches()


def _leader_changed(joined: Joined, stores: ReplicatedStores, shard: int) -> None:
    leader = joined.own_leaders.leader_of(shard)
    name = "shard_lost_leader" if leader is None else "shard_has_leader"
    structlog.get_logger("cluster").info(name, shard=shard, host=leader)
    if leader is None:
        stores.key_freed(shard)
