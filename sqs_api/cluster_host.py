"""ClusterHost: this host's part in a cluster.

join      through etcd, as a member of the cluster; its shards' logs are known from then on
route     requests to the host that leads their shard
connect   with the other hosts, once the shards are open
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from importlib import metadata
from pathlib import Path

import structlog

from cluster.catalog.catalog import Catalog
from cluster.catalog.record_codec import CatalogUnreadable
from cluster.clock import Clock, Entropy
from cluster.coordination.etcd_coordination import EtcdCoordination
from cluster.members.balancing import LeaderBalance
from cluster.members.copied_records import RECORDS_FILE, read_copied
from cluster.members.host_folder import open_identity, save_identity
from cluster.members.host_lease import HostLease
from cluster.members.leader_view import LeaderView
from cluster.members.member_records import Cluster, MembershipRefused
from cluster.members.membership import Me, Membership
from cluster.members.shard_keys import ShardKeys
from cluster.members.status import StatusPage
from cluster.peers.forwarded import ForwardedRequests
from cluster.peers.forwarding import PeerRouter
from cluster.peers.peer_settings import Address, Channel, ForwardingSettings, PeerSettings
from cluster.peers.questions import Questions
from cluster.peers.revision_barrier import RevisionBarrier
from cluster.peers.transport import Transport
from cluster.replication.checkpointing import CheckpointTraffic
from cluster.replication.hosting import ReplicatedStores, replica_id_of
from cluster.shards.issued_ids import RaisedIds
from cluster.shards.router import Router
from cluster.shards.shard import Shard
from sqs_api.admin.backup_points import ClusterPoint
from sqs_api.admin.cluster_metrics import ClusterMetrics
from sqs_api.admin.cluster_pages import ClusterPages
from sqs_api.admin.shared_routes import SharedRoutes
from sqs_api.admin.still import ACTION, HoldStill, Still
from sqs_api.gateway.disk_space import DiskSpace
from sqs_api.gateway.metrics import Metrics
from sqs_api.periodic import Periodic
from sqs_api.settings.cluster_records import coordination_of
from sqs_api.settings.config import Settings
from sqs_api.settings.member_settings import MemberSettings, open_network
from storage.engines.store_options import StoreOptions
from storage.log import NEWEST_FORMAT

_PEERS = PeerSettings()
_CERTIFICATES_CHECK_S = 5.0
_BALANCE_CHECK_S = 1.0


class ClusterHost:
    """Belongs to the event loop's thread. Call `join`, `route`, `connect`, `begin`."""

    membership: Membership
    leaders: LeaderView
    stores: ReplicatedStores
    questions: Questions

    def __init__(
        self,
        settings: Settings,
        member: MemberSettings,
        *,
        on_removed: Callable[[], None],
        clock: Clock,
        entropy: Entropy,
        opened: AsyncExitStack,
    ) -> None:
        """`opened` closes everything opened here, last first. Raises MembershipRefused."""
        self._settings = settings
        self._member = member
        self._on_removed = on_removed
        self._clock = clock
        self._entropy = entropy
        self._opened = opened
        self._network = open_network(member, _PEERS, clock.monotonic_s)
        self._log = structlog.get_logger("cluster")
        self._root: EtcdCoordination
        self._members: EtcdCoordination
        self._transport: Transport
        self._balance: LeaderBalance
        self._status: StatusPage
        self._still: Still

    # -- join --------------------------------------------------------------------------------------

    async def join(self, folders: Mapping[int, Path], options: StoreOptions) -> None:
        """Become a member; waits for etcd and for the founding hosts.

        Raises MembershipRefused, LeadersUnknown.
        """
        member = self._member
        await self._bind()
        self._root = coordination_of(member, "", self._clock, self._entropy)
        self._opened.push_async_callback(self._root.close)
        lease = HostLease(self._root)
        self._opened.push_async_callback(lease.release)
        cluster = await self._join(lease, folders)
        leaders = self._root.below("leaders/")
        self.leaders = LeaderView(leaders, cluster.shards)
        await self.leaders.begin()
        keys = ShardKeys(leaders, lease)
        self._opened.push_async_callback(keys.close)
        self._open_transport(cluster)
        stores = self.stores = ReplicatedStores(
            member.host,
            self._transport,
            leadership_of=keys.of_shard,
            log_id_of=cluster.log_ids.__getitem__,
            peers=lambda: list(self.membership.peers),
            options=options,
            clock=self._clock,
            entropy=self._entropy,
            checkpoints=CheckpointTraffic(
                self._transport, monotonic_s=self._clock.monotonic_s, entropy=self._entropy
            ),
            written_as=lambda: self.membership.shown.formats,
        )
        self.leaders.subscribe(self._leader_changed)
        self._balance = LeaderBalance(
            self.membership,
            self.leaders,
            stores.replicas,
            self._clock.monotonic_s,
            lambda: stores.has_space(),
        )
        stores.reluctance_s = self._balance.reluctance_s
        self._status = StatusPage(
            member.cluster,
            self._transport,
            self.membership,
            self.leaders,
            stores.reports,
            self._root.members,
        )

    async def _bind(self) -> None:
        """Take the peer address before it is registered: another process may have it. Raises
        MembershipRefused."""
        host, port = self._member.peer_listen
        try:
            await self._network.bind(self._member.peer_listen)
        except OSError as error:
            reason = error.strerror or error
            raise MembershipRefused(f"cannot listen on {host}:{port}: {reason}") from error
        self._opened.callback(self._network.close)

    def _leader_changed(self, shard: int) -> None:
        leader = self.leaders.leader_of(shard)
        name = "shard_lost_leader" if leader is None else "shard_has_leader"
        self._log.info(name, shard=shard, host=leader)
        if leader is None:
            self.stores.key_freed(shard)

    async def _join(self, lease: HostLease, folders: Mapping[int, Path]) -> Cluster:
        member, data = self._member, self._settings.data
        self._members = self._root.below("members/")
        me = Me(
            name=member.host,
            peer_address=member.peer_address,
            version=metadata.version("holdfast"),
            founders=member.founders,
            shards=len(folders),
            formats=NEWEST_FORMAT,
            cluster=member.cluster,
        )
        self.membership = Membership(
            me,
            open_identity(data, self._entropy),
            root=self._root,
            records=self._members,
            lease=lease,
            entropy=self._entropy,
            save=partial(save_identity, data),
            replica_ids=partial(self._replica_ids, folders),
            restored_records=partial(_restored_records, data),
        )
        self.membership.on_removed = self._on_removed
        self._opened.push_async_callback(self.membership.close)
        cluster = await self.membership.join()
        (data / RECORDS_FILE).unlink(missing_ok=True)  # they lie in etcd
        return cluster

    def _replica_ids(self, folders: Mapping[int, Path], shards: int) -> list[str]:
        if shards != len(folders):
            raise MembershipRefused(
                f"data folder {self._settings.data} was made for {len(folders)} shards, and the "
                f"cluster has {shards}: start on a new folder with --shards {shards}"
            )
        return [replica_id_of(folders[number], self._entropy) for number in range(shards)]

    def _open_transport(self, cluster: Cluster) -> None:
        self._transport = Transport(
            cluster=cluster.cluster_id,
            host=self._member.host,
            log_ids=lambda: dict(enumerate(cluster.log_ids)),
            network=self._network,
            settings=_PEERS,
            clock=self._clock,
            entropy=self._entropy,
        )
        self._transport.on_lost.append(self._peer_lost)
        self._opened.push_async_callback(self._transport.stop)
        self.questions = Questions(self._transport)

    def _peer_lost(self, host: str, channel: Channel) -> None:
        """A member of etcd may have gone with it: watches on that would be silent."""
        if channel is Channel.REPLICATION:
            self._root.test_watches()

    # -- route -------------------------------------------------------------------------------------

    def coordination(self, folder: str) -> EtcdCoordination:
        """The cluster's records below a folder, such as `catalog/`."""
        return self._root.below(folder)

    def route(self, catalog: Catalog, disk: DiskSpace, shards: Iterable[Shard]) -> Router:
        """The router over this host's shards, which asks other hosts where they lead."""
        self.stores.has_space = lambda: not disk.is_short
        self.stores.has_much_space = lambda: disk.is_half_free
        router = PeerRouter(
            shards,
            transport=self._transport,
            leaders=self.leaders,
            view=catalog,
            settings=ForwardingSettings(),
            clock=self._clock,
            entropy=self._entropy,
            refusal=disk.refusal,
        )
        decided = ForwardedRequests(router.shards, self.leaders, catalog, disk.refusal)
        self._transport.serve(Channel.REQUESTS, decided.service)
        catalog.spread = RevisionBarrier(self._transport, catalog).spread
        catalog.ids_raised = RaisedIds(router.shards, router.ask).wait
        return router

    # -- connect -----------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Listen for the other hosts and connect to them. Raises OSError."""
        await self._transport.start(self._member.peer_listen)
        self.membership.subscribe(self._set_peers)
        self._set_peers(self.membership.peers)

    def _set_peers(self, peers: Mapping[str, Address]) -> None:
        self._transport.set_peers(peers)

    def begin(self, periodic: Periodic, metrics: Metrics) -> None:
        """Start periodic work, and show the metrics of this host's copies."""
        certificate = self._member.peer_tls.certificate
        metrics.attach(ClusterMetrics(self.stores.reports, certificate))
        periodic.every(_CERTIFICATES_CHECK_S, self._transport.reload)
        periodic.every(_BALANCE_CHECK_S, self._balance.tick)

    async def leave(self) -> None:
        """Hand over what this host leads, for a bounded time: it is about to stop."""
        await self._balance.leave()

    def backup_point(self, hold_still: HoldStill, router: Router) -> ClusterPoint:
        """The point of a backup that this host makes; it also holds still for those of others."""
        self._still = Still(hold_still, self.stores.opened, router.leads)
        self._opened.push_async_callback(self._still.stop)
        return ClusterPoint(
            self._member.cluster, self.questions, self._root, self.stores.opened, self._entropy
        )

    def parts(self) -> dict[type, object]:
        """The parts that answer routes of the admin API."""
        self.questions.answers[ACTION] = self._still.answer
        return {
            ClusterPages: ClusterPages(self._status, self._members),
            SharedRoutes: SharedRoutes(self.questions, self.leaders, self.stores.replicas()),
        }


def _restored_records(data: Path) -> Mapping[str, bytes]:
    """Raises MembershipRefused."""
    try:
        return read_copied(data)
    except (OSError, CatalogUnreadable) as error:
        raise MembershipRefused(f"restore the backup again: {error}") from error
