"""WorkerHost: the place of a worker: its shards of the data folder, the supervisor's records, and
the other workers, as `cluster_host.ClusterHost` is that of a member of a cluster.

Which worker leads a shard never changes while the service runs: shard i is led by worker i modulo
their number. There are no leases; RocksDB's lock of a shard's folder keeps a second process out.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from typing_extensions import override

from auth.credentials import AccessKey
from cluster.catalog.catalog import Catalog
from cluster.catalog.other_hosts import OtherHosts
from cluster.coordination.coordination import Coordination
from cluster.copies.backup import CopiedStore
from cluster.peers.forwarded import ForwardedRequests
from cluster.peers.forwarding import PeerRouter
from cluster.peers.peer_settings import Address, Channel, ForwardingSettings, PeerSettings
from cluster.peers.questions import Questions
from cluster.peers.readiness import Leaders
from cluster.peers.revision_barrier import RevisionBarrier, spread
from cluster.peers.transport import Transport
from cluster.shards.router import Router
from cluster.shards.shard import Shard
from sqs_api.admin.backups import Backups
from sqs_api.admin.cluster_parts import BackupPoint
from sqs_api.admin.quiesce import Quiesce
from sqs_api.admin.shared_routes import SharedRoutes
from sqs_api.gateway.audit import AuditLines
from sqs_api.gateway.disk_space import DiskSpace
from sqs_api.gateway.lent_rates import Doors
from sqs_api.http.server import Inherited, Server
from sqs_api.parts import Feature, Process
from sqs_api.periodic import Every
from sqs_api.single_host import OwnStores, queue_names
from sqs_api.workers.connection_places import LOADS, LOOK_S, ConnectionPlaces
from sqs_api.workers.pair_network import PairNetwork, worker_name
from sqs_api.workers.shared_records import SharedRecords
from sqs_api.workers.worker_backups import AllShards, BackupsOfFirst, WorkersPoint
from storage.engines.store_options import StoreOptions

PEERS = PeerSettings(reconnect_max_s=0.1, handshake_s=10.0)
"""A worker that ended is back within a second, or longer on a busy machine, and nothing but its end
breaks a connection."""
FORWARDING = ForwardingSettings(hold_s=25.0)
"""Nobody else answers for a worker that is away, and it comes back: to wait is all that helps.
Clients give up a request after 30 s or more."""
_CHANNELS = (Channel.REQUESTS, Channel.CATALOG, Channel.PAGES)


class WorkerPlace(NamedTuple):
    """All that the supervisor gives to a worker."""

    number: int
    workers: int
    """Their number."""
    folders: Mapping[int, Path]
    """Folders of all shards, by their numbers."""
    records: SharedRecords
    lines: AuditLines
    """Takes the lines of the audit log."""
    descriptors: socket.socket
    """Over which ends of pairs come from the other workers."""
    listening: Inherited
    local_key: AccessKey
    drained: Callable[[], Awaitable[None]]
    """Says that the last request is answered, and waits until that holds for all workers."""

    @property
    def own_folders(self) -> dict[int, Path]:
        """Folders of the shards that this worker leads."""
        return {n: folder for n, folder in self.folders.items() if n % self.workers == self.number}


class FixedLeaders(Leaders):
    """The workers that lead the shards; they do not change."""

    def __init__(self, workers: int, shards: Iterable[int]) -> None:
        self._names = {shard: worker_name(shard % workers) for shard in shards}

    @override
    def leader_of(self, shard: int) -> str | None:
        return self._names.get(shard)

    @override
    def subscribe(self, on_change: Callable[[int], None]) -> None:
        """There is nothing to do."""


class _OtherWorkers(OtherHosts):
    """The records are never older than the shards."""

    is_shared = True

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @override
    async def spread(self, revision: int) -> None:
        await spread(self._transport, revision)


class WorkerHost(NamedTuple):
    """`open_worker_host` makes one."""

    process: Process
    place: WorkerPlace
    options: StoreOptions
    disk: DiskSpace
    transport: Transport
    questions: Questions
    leaders: FixedLeaders
    places: ConnectionPlaces
    doors: Doors

    @property
    def others(self) -> OtherHosts:
        """The other workers."""
        return _OtherWorkers(self.transport)

    def below(self, kind: str) -> Coordination:
        """The records of one kind, such as `catalog/`."""
        return self.place.records.below(kind)

    @property
    def own_records(self) -> Coordination:
        """All of them, for commands."""
        return self.place.records

    def stores(self, catalog: Catalog) -> OwnStores:
        """The stores of this worker's shards."""
        return OwnStores(self.options, partial(queue_names, catalog))

    def route(self, catalog: Catalog, shards: Iterable[Shard]) -> Router:
        """The router over this worker's shards, which asks the other workers for theirs."""
        refusal = self.disk.refusal
        router = PeerRouter(
            shards,
            transport=self.transport,
            leaders=self.leaders,
            view=catalog,
            settings=FORWARDING,
            clock=self.process.clock,
            entropy=self.process.entropy,
            refusal=refusal,
        )
        decided = ForwardedRequests(router.shards, self.leaders, catalog, refusal)
        self.transport.serve(Channel.REQUESTS, decided.service)
        barrier = RevisionBarrier(catalog).service
        barrier.on_message[LOADS] = self.places.heard
        self.transport.serve(Channel.CATALOG, barrier)
        return router

    def backup(
        self, quiesce: Quiesce, store_of: Callable[[int], CopiedStore]
    ) -> tuple[BackupPoint, AllShards]:
        """The point of a backup, and all shards, which the first worker copies. `store_of` gives
        the stores of this one's."""
        point = WorkersPoint(self.questions, quiesce, store_of, self.process.entropy)
        self.process.opened.push_async_callback(point.stop)

        def lost(worker: str, channel: Channel) -> None:
            if worker == worker_name(0):
                point.maker_lost()

        self.transport.on_lost.append(lost)

        def store(shard: int) -> CopiedStore:
            leader = self.leaders.leader_of(shard) or ""
            own = shard % self.place.workers == self.place.number
            return store_of(shard) if own else point.elsewhere(shard, leader)

        return point, AllShards(self.place.folders, store)

    @property
    def feature(self) -> Feature:
        """The answers that lie in other workers."""
        shared = SharedRoutes(self.questions, self.leaders, self.place.folders)
        parts: dict[type, object] = {SharedRoutes: shared}
        if self.place.number:
            parts[Backups] = BackupsOfFirst(self.questions, worker_name(0))
        return Feature(parts=parts, periodic=(Every(LOOK_S, self.places.look),))

    async def connect(self) -> None:
        """Connect with the other workers."""
        names = map(worker_name, range(self.place.workers))
        addresses = {name: Address(name, 0) for name in names}
        await self.transport.start(addresses[self.transport.host])
        self.transport.set_peers(addresses)

    async def leave(self) -> None:
        """There is nothing to hand over."""

    async def finish(self) -> None:
        """Go on deciding for the other workers until they are drained, too."""
        await self.place.drained()


def open_worker_host(
    process: Process, place: WorkerPlace, options: StoreOptions, disk: DiskSpace, server: Server
) -> WorkerHost:
    """The worker, whose shards are not open yet. `server` has its connections."""
    network = PairNetwork(place.descriptors, server.take)
    transport = Transport(
        cluster="workers",
        host=worker_name(place.number),
        log_ids=dict,
        network=network,
        settings=PEERS,
        clock=process.clock,
        entropy=process.entropy,
        channels=_CHANNELS,
    )
    process.opened.push_async_callback(transport.stop)
    questions = Questions(transport)
    leaders = FixedLeaders(place.workers, place.folders)
    places = ConnectionPlaces(
        transport,
        leaders,
        network.give,
        server,
        process.clock.monotonic_s,
    )
    counts = Questions(transport, channel=Channel.COUNTS)
    doors = Doors(counts, lambda: worker_name(0), lambda: place.workers)
    return WorkerHost(process, place, options, disk, transport, questions, leaders, places, doors)
