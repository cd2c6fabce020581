"""Node: one process that is both worker and owner, wired in visible order.

The only place that constructs clocks, entropy, stores, transport and coordination.
"""

from __future__ import annotations

import gc
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from errno import EACCES, EADDRINUSE
from functools import partial
from importlib import metadata
from pathlib import Path

import structlog

from auth.credentials import AccessKey
from auth.envelope import SealBroken
from cluster.catalog.host_records import HostRecords
from cluster.catalog.record_codec import CatalogUnreadable
from cluster.clock import SystemClock, SystemEntropy
from cluster.keys.identity_records import IdentitiesUnreadable
from cluster.keys.keyring import KeysAway
from cluster.keys.master_key import KeysUnusable
from cluster.members.host_folder import refuse_member_folder
from cluster.members.leader_view import LeadersUnknown
from cluster.members.member_records import MembershipRefused
from cluster.shards.issued_ids import CatalogOlder
from cluster.shards.router import Router
from sqs_api.admin.backup_points import BackupPoint, OwnPoint, hold_still
from sqs_api.admin.every_host import EveryHost
from sqs_api.admission import AdminSide
from sqs_api.archiving.service import LakeRefused, archive_limits
from sqs_api.cloudwatch.history import HISTORY_CHECK_S, History
from sqs_api.cloudwatch.monitoring import SERVICE, HistoryReader, Monitoring
from sqs_api.cluster_host import ClusterHost
from sqs_api.gateway.audit import AuditUnusable
from sqs_api.gateway.late_news import LateNews
from sqs_api.http.server import Server
from sqs_api.http.tls import TlsUnusable
from sqs_api.owner import Owner
from sqs_api.periodic import Periodic
from sqs_api.settings.config import Settings, Switch, shards_of
from sqs_api.settings.declaring import DeclarationRefused
from sqs_api.settings.key_stores import Below
from sqs_api.settings.member_settings import member_settings
from sqs_api.settings.outgoing_settings import secret_of
from sqs_api.settings.reserve import check_reserve, flush_bytes
from sqs_api.traces.span_exporter import ANSWER_S, EXPORT_S, TRACES_PATH, SpanExporter
from sqs_api.traces.spans import Spans
from sqs_api.webhook.dead_letter_watch import WATCH_S, DeadLetterWatch
from sqs_api.webhook.webhook_delivery import ATTEMPT_S, HttpPost, WebhookDelivery
from sqs_api.worker import MakeRouter, OwnStores, Stores, Worker
from storage.engines.in_use import refuse_if_in_use
from storage.engines.store import StoreFailed
from storage.engines.store_options import Durability, StoreOptions
from storage.files.folder import FolderRefused, open_folder, renew_format
from storage.histogram import SYNC_BOUNDS_S, Histogram
from visibility.rows.row_codec import DamagedRecord

_STOP_S = 10.0
"""Time that a stop waits for periodic work."""
_COMMAND_S = 5.0
"""Time that a start waits for a command that changes users or keys of the folder."""
_GC_THRESHOLDS = (50_000, 20, 100)
"""Start-up objects are frozen, and full collections are rare: they took up to 14 ms."""
_REFUSALS = (
    FolderRefused,
    IdentitiesUnreadable,
    KeysUnusable,
    CatalogOlder,
    CatalogUnreadable,
    LakeRefused,
    DeclarationRefused,
    StoreFailed,
    DamagedRecord,
    TlsUnusable,
    AuditUnusable,
    MembershipRefused,
    LeadersUnknown,
)


class NodeRefused(Exception):
    """The node cannot start; the text says why in one line."""


def _nothing() -> None:
    """The default: a single host is never removed."""


def _refuse_unsynced(settings: Settings, shards: int) -> None:
    """Refuse several shards without syncs. Raises FolderRefused.

    A shard that came back without its last Entries would give numbers again that another one
    remembers: it would take the messages for old ones.
    """
    if shards > 1 and settings.durability is not Durability.FSYNC:
        raise FolderRefused(
            f"{settings.data} has {shards} shards, and with durability {settings.durability} a "
            "power loss may cost messages between them: start with --durability fsync"
        )


class Node:
    """The running service."""

    owner: Owner
    worker: Worker
    dead_letters: DeadLetterWatch | None = None
    """None without a webhook."""
    spans: SpanExporter | None = None
    """None without a collector."""

    def __init__(self, settings: Settings, on_removed: Callable[[], None] = _nothing) -> None:
        """`on_removed` is called when the cluster has removed this host, which is to stop then."""
        self._settings = settings
        self._on_removed = on_removed
        self._clock_leaps = 0
        self._clock = SystemClock()  # the shards' clocks report leaps
        self._entropy = SystemEntropy()
        self._log = structlog.get_logger("node")
        self._ready = False
        self._host: ClusterHost | None = None
        """This host's part in a cluster; None of a single host."""
        self._records: HostRecords | None = None
        """The records of a single host."""
        self._opened = AsyncExitStack()
        self._periodic: Periodic
        self._admin: AdminSide

    def _clock_leapt(self, leap_s: float) -> None:
        self._clock_leaps += 1
        self._log.warning("clock_leapt", leap_s=round(leap_s, 3))

    @property
    def first_key(self) -> AccessKey | None:
        """The access key made at first start, to be shown once."""
        return self.owner.first_key

    async def start(self) -> str:
        """Open everything and listen. Returns the address, once requests are answered.

        Raises NodeRefused, with nothing left open.
        """
        try:
            return await self._start()
        except BaseException:
            await self._opened.aclose()
            raise

    async def _start(self) -> str:
        settings = self._settings
        try:
            await self._open()
        except _REFUSALS as error:
            raise NodeRefused(str(error)) from error
        except SealBroken as error:
            raise NodeRefused(f"cannot use the keys of {settings.data}: {error}") from error
        except sqlite3.Error as error:
            raise NodeRefused(f"cannot open the records of {settings.data}: {error}") from error
        owner, worker = self.owner, self.worker
        try:
            worker.serve(
                catalog=owner.catalog,
                keyring=owner.keyring,
                credentials=owner.credentials,
                users=owner.users,
                deletions=owner.deletions,
                accounting=owner.accounting,
                clock_leaps=lambda: self._clock_leaps,
            )
            await self._connect()
            await owner.declared_queues.make()
            hosts = EveryHost(None if self._host is None else self._host.questions)
            history = self._monitor(hosts)
            address = await self._listen(hosts, partial(HistoryReader, history, hosts))
            await owner.make_first_key()  # a start that fails would not show it
        except (IdentitiesUnreadable, KeysAway, DeclarationRefused) as error:
            raise NodeRefused(str(error)) from error
        self._admin.leave_note(address, worker.transport.admin_address)
        self._periodic = Periodic()
        self._periodic.every(HISTORY_CHECK_S, history.look)
        self._watch_dead_letters()
        self._trace()
        worker.begin(self._periodic, owner.catalog)
        if self._host is not None:
            self._host.begin(self._periodic, worker.metrics)
        owner.begin(self._periodic, worker.metrics)
        self._ready = True
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        return address

    async def _open(self) -> None:
        """Open files first and shards last; each role receives its needs as arguments."""
        settings, clock, entropy = self._settings, self._clock, self._entropy
        transport = Server(settings, clock.wall_s)
        self._opened.callback(transport.close)
        folders = open_folder(settings.data, shards_of(settings))
        _refuse_unsynced(settings, len(folders))
        check_reserve(settings, len(folders))
        refuse_if_in_use(settings.data, folders.values())
        renew_format(settings.data)
        archive = archive_limits(settings)
        sync_s = Histogram(SYNC_BOUNDS_S)
        stores = await self._stores(folders, sync_s)
        owner = self.owner = Owner(
            settings,
            clock=clock,
            entropy=entropy,
            records=await self._open_records(),
            opened=self._opened,
        )
        worker = self.worker = Worker(
            settings,
            clock=clock,
            entropy=entropy,
            stores=stores,
            sync_s=sync_s,
            shard_clock=partial(SystemClock, on_leap=self._clock_leapt),
            transport=transport,
            opened=self._opened,
        )
        await owner.open(sorted(folders))
        make_router: MakeRouter = partial(Router, refusal=worker.disk.refusal)
        if self._host is not None:
            make_router = partial(self._host.route, owner.catalog, worker.disk)
        await worker.load(folders, owner.catalog, owner.keyring, archive, make_router)
        still = partial(hold_still, worker.deliveries, owner.catalog)
        point: BackupPoint = OwnPoint(still)
        if self._host is not None:
            point = self._host.backup_point(still, worker.router)
        owner.serve(worker.router, worker.queue_watch, folders, stores.of, worker.disk, point)

    async def _stores(self, folders: Mapping[int, Path], sync_s: Histogram) -> Stores:
        """The stores of a single host, or of a member of the cluster that this host joins."""
        settings = self._settings
        options = StoreOptions(
            settings.durability,
            flush_bytes=flush_bytes(settings),
            accepts_loss=settings.accept_loss is Switch.ON,
            monotonic_s=self._clock.monotonic_s,
            sync_s=sync_s,
            replication=settings.replication,
        )
        member = member_settings(settings)
        if member is None:
            refuse_member_folder(settings.data)
            return OwnStores(options, self._queue_names)
        self._host = ClusterHost(
            settings,
            member,
            on_removed=self._on_removed,
            clock=self._clock,
            entropy=self._entropy,
            opened=self._opened,
        )
        await self._host.join(folders, options)
        return self._host.stores

    def _queue_names(self, shard: int) -> dict[int, str]:
        queues = self.owner.catalog.all_queues()
        return {queue.queue_id: queue.name for queue in queues if queue.shard == shard}

    async def _open_records(self) -> Below:
        if self._host is not None:
            return self._host.coordination
        records = self._records = await HostRecords.open(self._settings.data, _COMMAND_S)
        self._opened.push_async_callback(records.close)
        return records.below

    async def _connect(self) -> None:
        """Connect with the other hosts of a cluster."""
        try:
            if self._host is not None:
                await self._host.connect()
        except OSError as error:
            listen = self._settings.peer_listen or self._settings.peer_address
            raise NodeRefused(f"cannot listen on {listen}: {error.strerror or error}") from error

    def _monitor(self, hosts: EveryHost) -> History:
        """Answer CloudWatch's calls, too."""
        worker, wall_s = self.worker, self._clock.wall_s
        queues_max = self._settings.metrics_queues_max
        history = History(self.owner.catalog, worker.samples, wall_s, queues_max)
        worker.gateway.others.append(
            Monitoring(history, hosts, worker.authenticate_for(SERVICE), worker.access, wall_s)
        )
        return history

    def _watch_dead_letters(self) -> None:
        """Announce the first message of a dead-letter queue, if there is an address for that."""
        url, secret = self._settings.webhook_url, self._settings.webhook_secret
        if url is None or secret is None:
            return
        wall_s = self._clock.wall_s
        delivery = WebhookDelivery(
            HttpPost(url, ATTEMPT_S), secret_of(secret.get_secret_value()), wall_s
        )
        self._opened.push_async_callback(delivery.stop)
        self.dead_letters = DeadLetterWatch(
            self.owner.catalog,
            self.worker.router,
            delivery.deliver,
            wall_s,
            self._entropy.bits128,
        )
        self._periodic.every(WATCH_S, self.dead_letters.look)

    def _trace(self) -> None:
        """Export spans of messages, if there is a collector."""
        endpoint = self._settings.otlp_endpoint
        if endpoint is None:
            return
        post = HttpPost(endpoint.rstrip("/") + TRACES_PATH, ANSWER_S)
        host = self._settings.host_name or ""
        self.spans = SpanExporter(post, metadata.version("holdfast"), host)
        spans = Spans(self.spans.add, self._entropy.bits128)
        self.worker.payloads.on_opened = spans.received
        self._periodic.every(EXPORT_S, self.spans.export)
        self._opened.push_async_callback(self.spans.export)

    async def _listen(self, hosts: EveryHost, history: Callable[[str, str], HistoryReader]) -> str:
        settings, worker = self._settings, self.worker
        self._admin = AdminSide(
            settings,
            self._clock,
            self._entropy,
            access=worker.access,
            verifier=worker.verifier,
            audit=self.owner.audit,
        )
        owner = self.owner
        people = owner.people(worker.verifier, worker.access)
        worker.gateway.late_news = LateNews(worker.queue_actions, worker.sealer, owner.catch_up)
        desk = worker.desk(
            catalog=owner.catalog,
            deletions=owner.deletions,
            hosts=hosts,
            history=history,
            people=people,
            keyring=owner.keyring,
        )
        parts = {**owner.parts(hosts), **({} if self._host is None else self._host.parts())}
        pages = self._admin.pages(
            worker.metrics,
            self._is_ready,
            parts,
            desk,
            worker.samples,
            hosts,
            None if self._records is None else self._records.below(""),
        )
        try:
            address = await worker.listen(pages)
        except OSError as error:
            reason, *_ = (error.strerror or str(error)).split(" (while")  # the rest repeats it
            if error.errno in (EADDRINUSE, EACCES):
                reason += "; choose another with --port"
            raise NodeRefused(
                f"cannot listen on {settings.host}:{settings.port}: {reason}"
            ) from error
        return address

    def _is_ready(self) -> bool:
        return self._ready and self.worker.router.ready

    async def stop(self) -> None:
        """Take no new requests, finish running ones, end long polls early, close everything."""
        self._ready = False
        self.owner.note("stopping")
        if self._host is not None:
            await self._host.leave()
        self._admin.remove_note()
        self._periodic.begin_to_stop()
        self.worker.begin_to_stop()
        await self.owner.stop()
        await self.worker.stop()
        await self._periodic.stop(_STOP_S)
        await self._opened.aclose()
