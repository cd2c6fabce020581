"""GatewayHost: a process without shards, as `cluster_host.ClusterHost` is a host of a cluster.

It authenticates, checks and seals, and has the leaders of all clusters decide. It starts from the
table of its last run while etcd is away.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog
from typing_extensions import override

from cluster.catalog.catalog import Catalog
from cluster.coordination.coordination import Coordination, Done, Transaction, Unavailable
from cluster.coordination.etcd_coordination import EtcdCoordination
from cluster.fleet.fleet_records import FLEET
from cluster.fleet.fleet_shards import FleetShards
from cluster.fleet.fleet_view import GATEWAYS_KEY, FleetView, Gateway, watched
from cluster.fleet.gateway_view import GatewayLeaders, GatewayReadiness
from cluster.fleet.saved_records import SavedRecords
from cluster.members.host_lease import HostLease
from cluster.peers.forwarding import PeerRouter
from cluster.peers.peer_settings import Channel, ForwardingSettings
from cluster.peers.questions import Questions
from cluster.peers.queue_news import QueueNews
from cluster.peers.roles import GATEWAY_MARK, GATEWAYS
from cluster.peers.transport import Transport
from cluster.shards.router import Router
from cluster.shards.shard import Shard
from sqs_api.admin.cluster_metrics import UnheardShards
from sqs_api.admin.cluster_pages import ClusterPages, OfGateway
from sqs_api.admin.cluster_parts import BackupPoint
from sqs_api.admin.quiesce import Quiesce
from sqs_api.gateway.disk_space import DiskSpace
from sqs_api.gateway.lent_rates import Doors
from sqs_api.joined import HEAR_S, IDLE_CHECK_S, PEERS
from sqs_api.parts import Feature, Process
from sqs_api.periodic import Every
from sqs_api.settings.cluster_records import coordination_of
from sqs_api.settings.config import installed_version
from sqs_api.settings.member_settings import MemberSettings, open_network
from storage.copies.manifest import BackupRefused
from storage.engines.flushed_rows import FlushedRows
from storage.engines.store import Store
from storage.files.folder import FORMAT_FILE, FolderRefused

_SAVE_S = 10.0
_REGISTER_S = 1.0


class _NoStores:
    """A gateway has no shards."""

    async def open(self, number: int, folder: Path) -> Store:
        raise AssertionError("a gateway has no shards")

    def of(self, number: int) -> FlushedRows:
        raise AssertionError("a gateway has no shards")

    def can_grow(self) -> bool:
        return True

    def give_back_space(self) -> None:
        pass


class _NoPoint(BackupPoint):
    """A gateway has nothing to copy."""

    @override
    def folder(self, target: Path) -> Path:
        raise BackupRefused("a gateway has no messages: have a host make the backup")


class GatewayHost(NamedTuple):
    """`open_gateway_host` makes one."""

    process: Process
    member: MemberSettings
    root: EtcdCoordination
    records: SavedRecords
    fleet: FleetView
    transport: Transport
    lease: HostLease
    disk: DiskSpace
    others: FleetShards
    """Hosts and other gateways are not waited for: they ask etcd before they refuse what they do
    not know."""
    doors: Doors
    questions: Questions | None = None

    def below(self, kind: str) -> Coordination:
        """The records of one kind, such as `catalog/`."""
        return self.records.below(kind)

    @property
    def own_records(self) -> None:
        """They are the fleet's: commands ask etcd."""

    def stores(self, catalog: Catalog) -> _NoStores:
        """There are none."""
        return _NoStores()

    def route(self, catalog: Catalog, shards: Iterable[Shard]) -> Router:
        """The router, which asks the hosts of all clusters."""
        router = PeerRouter(
            shards,
            transport=self.transport,
            leaders=GatewayLeaders(self.fleet, self.transport),
            view=catalog,
            settings=ForwardingSettings(),
            clock=self.process.clock,
            entropy=self.process.entropy,
            readiness=GatewayReadiness(self.fleet, self.transport),
            shown_leader_of=self.fleet.leader_of,
            news=QueueNews(self.transport, catalog),
        )
        self.others.routed(router, catalog)
        return router

    def backup_point(self, quiesce: Quiesce, router: Router) -> _NoPoint:
        """There is nothing to copy."""
        return _NoPoint()

    @property
    def feature(self) -> Feature:
        """Repeated work."""
        return Feature(
            parts={ClusterPages: OfGateway()},
            metrics=(UnheardShards(self.others.unheard),),
            periodic=(
                Every(HEAR_S, self.others.hear, first_s=1.0),
                Every(_SAVE_S, self.records.save, first_s=0.0),
                Every(IDLE_CHECK_S, self.transport.close_idle),
                Every(_REGISTER_S, self._register, first_s=0.0),
            ),
        )

    async def _register(self) -> None:
        """Tell the hosts that this gateway runs; they admit no other."""
        if self.member.host in self.fleet.gateways:
            return
        lease = await self.lease.current()
        if isinstance(lease, Unavailable):
            return
        key = f"{FLEET}{GATEWAYS_KEY}{self.member.host}"
        content = msgspec.json.encode(Gateway(installed_version()))
        outcome = await self.root.commit(
            Transaction({key: 0}, {key: content}, {key: lease.lease_id})
        )
        if isinstance(outcome, Done):
            structlog.get_logger("gateway").info("gateway_registered")

    async def connect(self) -> None:
        """Reach the hosts of all clusters from now on."""
        self.fleet.subscribe_neighbours(self.transport.set_neighbours)
        self.transport.set_neighbours(self.fleet.neighbours)
        if not self.records.is_away:  # else the hosts knew it before
            await self._register()

    async def leave(self) -> None:
        """It leads nothing."""

    async def finish(self) -> None:
        """Nothing is left to do."""


async def open_gateway_host(
    process: Process, member: MemberSettings, disk: DiskSpace
) -> GatewayHost:
    """The gateway, from etcd or from its table; raises LeadersUnknown without both, FolderRefused,
    MembershipRefused."""
    settings, clock, entropy, opened = process
    network = open_network(member, PEERS, clock.monotonic_s)
    root = coordination_of(member, "", clock, entropy)
    opened.push_async_callback(root.close)
    lease = HostLease(root)
    opened.push_async_callback(lease.release)
    records = SavedRecords(root, settings.data, member.cluster)
    fleet = FleetView({key: records.below(key) for key in watched(0)}, 0)
    await fleet.begin()
    transport = Transport(
        cluster=GATEWAYS,
        host=member.host,
        log_ids=dict,
        network=network,
        settings=PEERS,
        clock=clock,
        entropy=entropy,
        mark=GATEWAY_MARK,
    )
    opened.push_async_callback(transport.stop)
    others = FleetShards(fleet, fleet.leader_of)
    counts = Questions(transport, fleet.all_hosts, Channel.COUNTS)

    def doors() -> int:
        return len(fleet.all_hosts()) + len(fleet.gateways.keys() | {transport.host})

    return GatewayHost(
        process,
        member,
        root,
        records,
        fleet,
        transport,
        lease,
        disk,
        others,
        Doors(counts, others.lender, doors),
    )


def prepare_folder(data: Path) -> None:
    """Make the folder of a gateway. Raises FolderRefused."""
    try:
        data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FolderRefused(f"cannot make data folder {data}: {error.strerror}") from error
    if (data / FORMAT_FILE).exists():
        raise FolderRefused(f"{data} has messages of a host: give the gateway a folder of its own")
