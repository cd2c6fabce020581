"""Node: the running service: one process that is both owner and worker, put together in visible
order.

The only place that constructs clocks, entropy, stores, transport and coordination.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

from auth.credentials import AccessKey
from cluster.clock import SystemClock, SystemEntropy
from cluster.fleet.fleet_records import FleetCluster
from sqs_api.admin.backup_points import ClusterPoint, quiesce
from sqs_api.admin.every_host import EveryHost
from sqs_api.admission import AdminSide
from sqs_api.archiving.service import archive_limits
from sqs_api.cloudwatch.minute_store import MinuteStore
from sqs_api.cloudwatch.recorder import Recorder
from sqs_api.cluster_host import ClusterHost, open_cluster_host
from sqs_api.failures.failure_index import counting
from sqs_api.gateway.disk_space import DiskSpace
from sqs_api.gateway.measures import Measures
from sqs_api.gateway.usage_journal import ALONE, Writer
from sqs_api.gateway_host import GatewayHost, open_gateway_host
from sqs_api.http.server import Server
from sqs_api.joined import join, own_cluster
from sqs_api.operators.marks import PREFIX as MARKS
from sqs_api.operators.marks import Marks
from sqs_api.owner import Owner
from sqs_api.parts import Feature, Process, parts_of
from sqs_api.periodic import Periodic
from sqs_api.plan_host import manager_feature
from sqs_api.process_places import MemberPlace, place_of
from sqs_api.service_records import Records, open_records
from sqs_api.settings.config import Settings, Switch, shards_of
from sqs_api.settings.member_settings import MemberSettings, member_settings
from sqs_api.settings.reserve import flush_bytes
from sqs_api.shards import Shards, open_shards
from sqs_api.single_host import SingleHost, open_single_host
from sqs_api.start_refusals import refusals, refused_address
from sqs_api.traces.span_exporter import tracing
from sqs_api.webhook.announcements import announcements
from sqs_api.worker import Worker
from sqs_api.workers.worker_backups import serve_backups
from sqs_api.workers.worker_host import WorkerHost, WorkerPlace, open_worker_host
from storage.engines.store_options import StoreOptions
from storage.files.folder import history_file

Host = SingleHost | WorkerHost | ClusterHost | GatewayHost
STOP_S = 10.0
"""Time that a stop waits for periodic work."""
_RESERVES_FOR_HISTORY = 2.0
"""Below this multiple of the disk reserve the history of queues is not stored."""
_GC_THRESHOLDS = (50_000, 20, 100)
"""Start-up objects are frozen, and full collections are rare: they took up to 14 ms."""


class Node(NamedTuple):
    """The running service."""

    address: str
    first_key: AccessKey | None
    """The access key that this host made at first start, to be shown once."""
    owner: Owner
    shards: Shards
    worker: Worker
    admin: AdminSide
    opened: AsyncExitStack

    async def stop(self) -> None:
        """Take no new requests, finish running ones, end long polls early, close everything."""
        await self.opened.aclose()


def _nothing() -> None:
    """The default: a single host is never removed."""


async def start_node(
    settings: Settings,
    on_removed: Callable[[], None] = _nothing,
    place: WorkerPlace | MemberPlace | None = None,
) -> Node:
    """Open everything and listen; requests are answered once this returns.

    `on_removed` is called when the cluster has removed this host, which is to stop then. `place` is
    that of one of several workers. Raises NodeRefused, with nothing left open.
    """
    gc.freeze()  # modules: to look for garbage among them would be a tenth of the start
    async with AsyncExitStack() as opened:
        process = Process(settings, SystemClock(), SystemEntropy(), opened)
        node = await _start(process, on_removed, place)
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        return node._replace(opened=opened.pop_all())


async def _start(
    process: Process, on_removed: Callable[[], None], place: WorkerPlace | MemberPlace | None
) -> Node:
    """Open files first and shards last; each part receives its needs as arguments."""
    settings, clock, _, opened = process
    measures = Measures(clock.monotonic_s)
    here = place_of(settings, place)
    with refusals(settings.data):
        transport = Server(settings, clock.wall_s, here.listening)
        opened.callback(transport.close)
        member = member_settings(settings)
        cluster = None if member is None else await own_cluster(process, member)
        if member is not None and cluster is not None:
            member = member._replace(number=cluster.number)
        numbers = range(shards_of(settings)) if cluster is None else cluster.numbers
        folders, all_shards = here.folders(numbers)
        archive = archive_limits(settings)
        host = await _host(
            process, member, cluster, folders, measures, on_removed, place, transport
        )
        records = await open_records(process, host, all_shards, here.lines)
        shards = await open_shards(
            process,
            host,
            folders,
            records.catalog,
            records.keyring,
            archive=archive,
            shard_clock=partial(SystemClock, on_leap=measures.clock_leapt),
        )
        hosts = EveryHost(host.questions, is_one_machine=here.is_one_machine)
        owner = _owner(process, host, records, shards, hosts)
        worker = Worker(
            process,
            owner,
            shards,
            transport,
            hosts,
            features=(
                *owner.features,
                host.feature,
                _manager(process, host, shards, owner, measures, transport),
                announcements(process, records.catalog, shards.router),
                counting(process, records.catalog, shards.router, shards.sealer, hosts),
                tracing(process),
                Feature(parts={Marks: Marks(host.below(MARKS))}),
            ),
            measures=measures,
            recorder=_recorder(settings, host, shards.disk),
            doors=host.doors,
        )
        serving = asyncio.Event()
        admin = AdminSide(
            process,
            owner,
            shards,
            worker,
            hosts,
            parts=parts_of(worker.features),
            records=host.own_records,
            is_ready=lambda: serving.is_set() and shards.router.ready,
            metrics=here.metrics(worker.metrics, hosts),
            local_key=here.local_key,
        )
        with refused_address(settings.peer_listen or settings.peer_address):
            await host.connect()
        await owner.declared_queues.make()
        with refused_address(f"{settings.host}:{settings.port}", "; choose another with --port"):
            places = host.places if isinstance(host, WorkerHost) else None
            address = await worker.listen(admin.pages, places)
        first_key = await here.first_key(owner)  # a start that fails would not show it
    here.served(admin, address, transport.admin_address)
    periodic = Periodic()
    for feature in worker.features:
        for repeated in feature.periodic:
            periodic.begin(repeated)
    serving.set()

    async def wind_down() -> None:
        """Let others lead, take no new requests, finish running ones."""
        serving.clear()
        here.stopping(owner)
        await host.leave()
        here.left(admin)
        periodic.begin_to_stop()
        worker.begin_to_stop()
        await owner.stop()
        await worker.stop()
        await periodic.stop(STOP_S)
        await host.finish()

    opened.push_async_callback(wind_down)
    return Node(address, first_key, owner, shards, worker, admin, opened)


def _owner(
    process: Process, host: Host, records: Records, shards: Shards, hosts: EveryHost
) -> Owner:
    quiesced = partial(quiesce, shards.deliveries, records.catalog)
    if not isinstance(host, WorkerHost):
        point = host.backup_point(quiesced, shards.router)
        owner = Owner(process, records, shards, point, hosts)
        if host.questions is not None and isinstance(point, ClusterPoint):
            point.own.serve(host.questions, owner.backups.make_part)
        return owner
    all_point, copied = host.backup(quiesced, shards.store_of)
    writer = Writer(host.place.number, host.place.workers)
    owner = Owner(process, records, shards, all_point, hosts, copied=copied, usage_writer=writer)
    if not host.place.number:
        serve_backups(host.questions, owner.backups)
    return owner


def _recorder(settings: Settings, host: Host, disk: DiskSpace) -> Recorder | None:
    """Stores the history of queues; each worker of a folder has a file, and its share of the
    space."""
    writer = (
        Writer(host.place.number, host.place.workers) if isinstance(host, WorkerHost) else ALONE
    )
    if not settings.history_mib:
        return None
    file = history_file(settings.data, writer.number)
    store = MinuteStore(file, (settings.history_mib << 20) // writer.total)
    return Recorder(store, lambda: not disk.is_shorter_than(_RESERVES_FOR_HISTORY))


def _manager(
    process: Process,
    host: Host,
    shards: Shards,
    owner: Owner,
    measures: Measures,
    transport: Server,
) -> Feature:
    """The manager of a host of a cluster; other hosts have none."""
    if not isinstance(host, ClusterHost):
        return Feature()
    return manager_feature(
        process,
        host.joined,
        host.questions,
        shards,
        owner.accounting,
        measures,
        transport,
        host.fleet_pages(),
    )


async def _host(
    process: Process,
    member: MemberSettings | None,
    cluster: FleetCluster | None,
    folders: Mapping[int, Path],
    measures: Measures,
    on_removed: Callable[[], None],
    place: WorkerPlace | MemberPlace | None,
    server: Server,
) -> Host:
    """A single host, one of its workers, a gateway, or a member of the cluster that this host
    joins. Raises FolderRefused, MembershipRefused, LeadersUnknown."""
    settings = process.settings
    options = StoreOptions(
        settings.durability,
        flush_bytes=flush_bytes(settings),
        accepts_loss=settings.accept_loss is Switch.ON,
        monotonic_s=process.clock.monotonic_s,
        sync_s=measures.sync_s,
        replication=settings.replication,
    )
    disk = DiskSpace(settings.data, settings.disk_reserve_mib << 20)
    if isinstance(place, WorkerPlace):
        return open_worker_host(process, place, options, disk, server)
    if member is None:
        return await open_single_host(process, options, disk)
    if not member.number:
        return await open_gateway_host(process, member, disk)
    joined = await join(process, member, cluster, folders, on_removed)
    return open_cluster_host(process, joined, options, disk)
