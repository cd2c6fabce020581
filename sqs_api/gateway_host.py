"""GatewayHost: a process without shards, as `cluster_host.ClusterHost` is a host of a cluster.

It authenticates, checks and seals, and has the leaders of all clusters decide. It starts from the
table of its last run while etcd is away.
"""

from __future__ import annotations

from asyncio import Future, get_running_loop
from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog
from typing_extensions import override

from cluster.catalog.catalog import Catalog
from cluster.catalog.catalog_records import QueueName
from cluster.catalog.queue_view import QueueView
from cluster.coordination.coordination import Coordination, Done, Transaction, Unavailable
from cluster.coordination.etcd_coordination import EtcdCoordination
from cluster.fleet.fleet_records import FLEET
from cluster.fleet.fleet_view import GATEWAYS_KEY, FleetView, Gateway, watched
from cluster.fleet.gateway_view import GatewayLeaders, GatewayReadiness
from cluster.fleet.new_queues import shard_for
from cluster.fleet.saved_records import SavedRecords
from cluster.members.host_lease import HostLease
from cluster.peers.forwarding import PeerRouter
from cluster.peers.peer_settings import Channel, ForwardingSettings, PeerSettings
from cluster.peers.questions import Questions
from cluster.peers.queue_news import QueueNews
from cluster.peers.roles import GATEWAY_MARK, GATEWAYS
from cluster.peers.transport import Transport
from cluster.shards.issued_ids import RaisedIds
from cluster.shards.router import Router
from cluster.shards.shard import Shard
from sqs_api.admin.cluster_metrics import UnheardShards
from sqs_api.admin.cluster_parts import BackupPoint
from sqs_api.admin.quiesce import Quiesce
from sqs_api.gateway.disk_space import DiskSpace
from sqs_api.gateway.lent_rates import Doors
from sqs_api.parts import Feature, Process
from sqs_api.periodic import Every
from sqs_api.settings.cluster_records import coordination_of
from sqs_api.settings.config import installed_version
from sqs_api.settings.member_settings import MemberSettings, open_network
from storage.copies.manifest import BackupRefused
from storage.engines.flushed_rows import FlushedRows
from storage.engines.store import Store
from storage.files.folder import FORMAT_FILE, FolderRefused

_PEERS = PeerSettings()
_SAVE_S = 10.0
_IDLE_CHECK_S = 60.0
_REGISTER_S = 1.0
_HEAR_S = 5.0
"""Time after which shards that have not answered are asked again."""


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
    """Belongs to the event loop's thread; `open_gateway_host` makes one."""

    process: Process
    member: MemberSettings
    root: EtcdCoordination
    records: SavedRecords
    fleet: FleetView
    transport: Transport
    lease: HostLease
    disk: DiskSpace
    ids: Future[RaisedIds]
    """Known with the router."""
    doors: Doors
    questions: Questions | None = None

    def below(self, kind: str) -> Coordination:
        """The records of one kind, such as `catalog/`."""
        return self.records.below(kind)

    @property
    def own_records(self) -> None:
        """They are the fleet's: commands ask etcd."""

    async def spread(self, revision: int) -> None:
        """Nobody is waited for: hosts and other gateways ask etcd before they refuse what they do
        not know."""

    async def ids_raised(self, shard: int) -> None:
        """See `RaisedIds`: of all shards of the cluster that keeps this one."""
        of_fleet = (numbers for numbers in self.fleet.founded.values() if shard in numbers)
        await (await self.ids).wait(next(of_fleet, range(shard, shard + 1)))

    async def all_heard(self) -> None:
        """See `RaisedIds`: of all shards of the fleet."""
        await (await self.ids).wait_for_all(self._shards())

    async def hear_shards(self) -> None:
        """Ask the shards that have not answered yet."""
        await self.ids.result().ask_all(self._shards())

    def unheard(self) -> set[int]:
        """The shards that parts cannot be changed for want of; the router is known."""
        return self.ids.result().unheard(self._shards())

    def _shards(self) -> list[int]:
        return list(chain.from_iterable(self.fleet.founded.values()))

    def choose(self, view: QueueView, name: QueueName) -> Sequence[int]:
        """The shard for a new queue."""
        clusters, leader_of = self.fleet.founded, self.fleet.leader_of
        draining = self.fleet.fleet.draining
        return [shard_for(name, clusters, leader_of, view.queues_of_shard, draining)]

    def draining_shards(self) -> Collection[int]:
        """See `QueueView`."""
        return self.fleet.fleet.draining_shards

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
        self.ids.set_result(RaisedIds(router.ask_leader, lambda: catalog.times_restored))
        return router

    def backup_point(self, quiesce: Quiesce, router: Router) -> _NoPoint:
        """There is nothing to copy."""
        return _NoPoint()

    @property
    def feature(self) -> Feature:
        """Repeated work."""
        return Feature(
            metrics=(UnheardShards(self.unheard),),
            periodic=(
                Every(_HEAR_S, self.hear_shards, first_s=1.0),
                Every(_SAVE_S, self.records.save, first_s=0.0),
                Every(_IDLE_CHECK_S, self.transport.close_idle),
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
    network = open_network(member, _PEERS, clock.monotonic_s)
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
        settings=_PEERS,
        clock=clock,
        entropy=entropy,
        mark=GATEWAY_MARK,
    )
    opened.push_async_callback(transport.stop)
    ids = get_running_loop().create_future()
    doors = _doors(transport, fleet)
    return GatewayHost(process, member, root, records, fleet, transport, lease, disk, ids, doors)


def _doors(transport: Transport, fleet: FleetView) -> Doors:
    """All hosts and gateways, as a gateway sees them."""

    def hosts() -> list[str]:
        return [host for number in fleet.founded for host in fleet.hosts_of(number)]

    def lender() -> str | None:
        return fleet.leader_of(fleet.first_shard()) if fleet.founded else None

    def total() -> int:
        return len(hosts()) + len(fleet.gateways.keys() | {transport.host})

    return Doors(Questions(transport, hosts, Channel.COUNTS), lender, total)


def prepare_folder(data: Path) -> None:
    """Make the folder of a gateway. Raises FolderRefused."""
    try:
        data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FolderRefused(f"cannot make data folder {data}: {error.strerror}") from error
    if (data / FORMAT_FILE).exists():
        raise FolderRefused(f"{data} has messages of a host: give the gateway a folder of its own")
