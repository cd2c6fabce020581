"""Node: one process, wired in visible order. The only place that constructs the service's parts."""

from __future__ import annotations

import asyncio
import gc
import os
import sqlite3
from contextlib import AsyncExitStack
from functools import partial
from importlib import metadata
from pathlib import Path

import aiosqlite
import structlog

from auth.caller import Caller
from auth.credentials import AccessKey, CredentialSet
from auth.envelope import SealBroken
from auth.sigv4 import Verifier
from auth.unverified import open_caller, refuse_browsers
from cluster.catalog.catalog import CATALOG_FILE, Catalog
from cluster.catalog.catalog_rows import CatalogUnreadable
from cluster.copies.backup import remove_leftovers
from cluster.keys.identity_store import IdentitiesUnreadable, IdentityStore
from cluster.keys.master_key import KeysUnusable
from cluster.shards.clock import SystemClock, SystemEntropy
from cluster.shards.router import Router
from cluster.shards.shard import CatalogOlder, Shard
from sqs_api.admin.admission import AdminSide, admin_answers
from sqs_api.admin.backups import Backups
from sqs_api.admin.deletions import Deletions
from sqs_api.admin.queue_metrics import QueueMetrics
from sqs_api.admin.service_metrics import Parts, ServiceMetrics
from sqs_api.archiving.service import Archiving, LakeRefused, archive_limits
from sqs_api.gateway.access import Access
from sqs_api.gateway.accounting import Accounting
from sqs_api.gateway.audit import FILE_NAME as AUDIT_FILE
from sqs_api.gateway.audit import AuditLog, AuditUnusable
from sqs_api.gateway.changes import CHANGES_CHECK_S, Changes
from sqs_api.gateway.disk_space import DiskSpace
from sqs_api.gateway.gateway import Authenticate, Gateway
from sqs_api.gateway.metrics import Metrics
from sqs_api.gateway.payload import Payloads
from sqs_api.gateway.queue_actions import QueueActions
from sqs_api.gateway.rates import Rates
from sqs_api.gateway.sealing import Sealer
from sqs_api.gateway.stalls import STALL_CHECK_S, StallWatch
from sqs_api.gateway.usage import FILE_NAME as USAGE_FILE
from sqs_api.gateway.usage import Usage
from sqs_api.http.origins import AllowedOrigins
from sqs_api.http.server import SERVER_CHECK_S, Server
from sqs_api.http.tls import TlsUnusable
from sqs_api.periodic import Periodic
from sqs_api.settings.config import AuthMode, Settings, Switch
from sqs_api.settings.declaring import DeclarationRefused, declare_queues, declare_users
from sqs_api.settings.keys import identities_file, open_keyring
from storage.engines.durable import DurableStore, StoreOptions
from storage.engines.folder import FolderRefused, open_folder
from storage.engines.in_use import refuse_if_in_use
from storage.engines.opening import open_store
from storage.engines.store import StoreFailed
from storage.histogram import SYNC_BOUNDS_S, Histogram
from visibility.contract.limits import PURGE_INTERVAL_SECONDS, QUEUE_REUSE_SECONDS
from visibility.state.rows import DamagedRecord

_STOP_S = 10.0
"""Time that a stop gives running requests."""
_DISCONNECT_S = 0.05
"""Time that a stop gives idle connections to close."""
_DISK_CHECK_S = 1.0
_USAGE_WRITE_S = 60.0
_DATA_KEY_CHECK_S = 15.0
"""Interval of the check of data keys; KmsDataKeyReusePeriodSeconds is a minute or more."""
_DELETION_CHECK_S = 60.0
"""Interval at which deleted queues are dropped that can be restored no more; a restore checks the
time itself."""
_RESERVES_FOR_DELETED = 2.0
"""Deleted queues are dropped early below this multiple of the disk reserve, so that sends go on."""
_GC_THRESHOLDS = (50_000, 20, 100)
"""Start-up objects are frozen, and full collections are rare: they took up to 14 ms (SPIKE §5)."""


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
)


class NodeRefused(Exception):
    """The node cannot start; the text says why in one line."""


class Node:
    """The running service."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._clock_leaps = 0
        self._clock = SystemClock()
        self._shard_clocks: list[SystemClock] = []
        """They alone know the time before a start, and report leaps."""
        self._entropy = SystemEntropy()
        self._log = structlog.get_logger("node")
        self._sync_s = Histogram(SYNC_BOUNDS_S)
        self._stalls = StallWatch(self._clock.monotonic_s)
        self._ready = False
        self._opened = AsyncExitStack()
        self._stores: dict[int, DurableStore] = {}
        """The store that each shard opened last."""
        self.first_key: AccessKey | None = None
        """The access key made at first start, to be shown once."""

    def _clock_leapt(self, leap_s: float) -> None:
        self._clock_leaps += 1
        self._log.warning("clock_leapt", leap_s=round(leap_s, 3))

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
            self._server = Server(settings, self._clock.wall_s)
            self._folders = folders = open_folder(settings.data)
            refuse_if_in_use(settings.data, folders.values())
            self._archive_limits = archive_limits(settings)
            self._keyring = open_keyring(settings, self._clock, self._entropy, settings.account)
            self._opened.callback(self._keyring.close)
            self._identities = IdentityStore(
                identities_file(settings.data), self._keyring.secrets, self._clock, self._entropy
            )
            self._opened.callback(self._identities.close)
            self._open_audit()
            note_declared = partial(self._note, uid=os.getuid())
            declare_users(settings, self._identities, note_declared)
            self._credentials = self._identities.credentials()
            self._users = self._identities.users()
            self._catalog = await self._open_catalog(sorted(folders))
            await declare_queues(settings, self._catalog, note_declared)
            self._sealer = Sealer(
                self._keyring, self._clock, makes_keys=settings.auth is AuthMode.OPEN
            )
            self._router = Router(self._shard(number, path) for number, path in folders.items())
            for shard in self._router.shards.values():
                await shard.start(self._catalog.highest_queue_id)
                self._opened.push_async_callback(shard.stop)
            self._deletions = Deletions(self._catalog, self._router)
            self._deletions.report_unknown()
            self._opened.push_async_callback(self._deletions.stop)
            remove_leftovers(settings.data)
        except _REFUSALS as error:
            raise NodeRefused(str(error)) from error
        except aiosqlite.Error as error:
            raise NodeRefused(f"cannot open the catalog of {settings.data}: {error}") from error
        if settings.auth is AuthMode.SIGV4 and not len(self._credentials):
            self.first_key = self._identities.add_key(settings.account)
            self._note("first_access_key", access_key_id=self.first_key.access_key_id)
            self._credentials = CredentialSet([self.first_key])
        return await self._listen()

    async def _open_catalog(self, shards: list[int]) -> Catalog:
        waits = self._settings.aws_waits is Switch.ON
        catalog = await Catalog.open(
            self._settings.data / CATALOG_FILE,
            clock=self._clock,
            entropy=self._entropy,
            secrets=self._keyring.secrets,
            shards=shards,
            deleted_name_wait_ms=QUEUE_REUSE_SECONDS * 1000 if waits else 0,
            purge_interval_ms=PURGE_INTERVAL_SECONDS * 1000 if waits else 0,
            restore_window_ms=self._settings.restore_deleted_s * 1000,
        )
        self._opened.push_async_callback(catalog.close)
        return catalog

    def _shard(self, number: int, folder: Path) -> Shard:
        options = StoreOptions(
            self._settings.durability,
            accepts_loss=self._settings.accept_loss is Switch.ON,
            monotonic_s=self._clock.monotonic_s,
            sync_s=self._sync_s,
        )
        clock = SystemClock(on_leap=self._clock_leapt)
        self._shard_clocks.append(clock)

        async def opened() -> DurableStore:
            store = self._stores[number] = await asyncio.to_thread(open_store, folder, options)
            return store

        return Shard(
            number,
            open_store=opened,
            clock=clock,
            entropy=self._entropy,
            definitions=self._catalog,
            archive=self._archive_limits,
            sealing=self._sealer,
        )

    def _stores_can_grow(self) -> bool:
        return all(store.can_grow for store in self._stores.values())

    async def _listen(self) -> str:
        settings = self._settings
        is_open = settings.auth is AuthMode.OPEN
        self._disk = DiskSpace(
            settings.data, settings.disk_reserve_mib << 20, self._stores_can_grow
        )
        self._disk.look()
        try:
            self._sealer.prepare(self._catalog)
        except (SealBroken, sqlite3.Error) as error:
            raise NodeRefused(f"cannot use the keys of {settings.data}: {error}") from error
        self._access = Access(
            self._catalog,
            self._clock,
            self._keyring,
            enforced=not is_open,
            region=settings.region,
        )
        self._access.replace(self._users)
        self._open_accounting()
        self._gateway = Gateway(
            authenticate=self._authenticate(),
            queues=QueueActions(self._catalog, self._router, self._deletions),
            router=self._router,
            accounting=self._accounting,
            clock=self._clock,
            entropy=self._entropy,
            public_url=settings.public_url,
            payloads=Payloads(self._sealer),
            access=self._access,
            disk=self._disk,
            waiting_polls_max=settings.waiting_polls_max,
            origins=AllowedOrigins(settings.browser_origins),
        )
        rates = Rates(
            self._clock.monotonic_s,
            account_rate=settings.account_rate,
            queue_rate=settings.queue_rate,
            fifo_quotas=settings.fifo_quotas is Switch.ON,
        )
        self._gateway.limit(rates)
        self._show_metrics(rates)
        self._backups = Backups(
            settings.data,
            self._folders,
            catalog=self._catalog,
            store_of=self._stores.__getitem__,
            clock=self._clock,
            version=metadata.version("holdfast"),
        )
        self._lake: Archiving | None = None
        if settings.lake is not None:
            self._lake = Archiving(
                settings,
                self._router,
                self._catalog,
                self._clock,
                store_of=self._stores.__getitem__,
                disk=self._disk,
            )
        self._admin = AdminSide(
            settings,
            self._clock,
            self._entropy,
            access=self._access,
            verifier=self._verifier,
            audit=self._audit,
        )
        answers = admin_answers(self._backups, self._catalog, self._deletions, self._lake)
        pages = self._admin.pages(self._metrics, self._is_ready, answers)
        try:
            address = await self._server.open(self._gateway, pages, self._metrics)
        except OSError as error:
            reason, *_ = (error.strerror or str(error)).split(" (while")  # the rest repeats it
            raise NodeRefused(
                f"cannot listen on {settings.host}:{settings.port}: {reason}"
            ) from error
        self._admin.leave_note(address, self._server.admin_address)
        self._watch()
        if self._lake is not None:
            self._lake.begin(self._metrics, self._periodic)
        self._ready = True
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        return address

    def _open_audit(self) -> None:
        self._audit: AuditLog | None = None
        if self._settings.audit is Switch.ON:
            self._audit = AuditLog(self._settings.data / AUDIT_FILE, self._clock.wall_s)
            self._opened.callback(self._audit.close)
        self._note("started", version=metadata.version("holdfast"), uid=os.getuid())

    def _open_accounting(self) -> None:
        settings = self._settings
        usage = Usage(settings.data / USAGE_FILE, self._clock.wall_s, settings.usage_days)
        self._accounting = Accounting(usage, self._audit)
        self._opened.push_async_callback(self._accounting.write)
        self._metrics = Metrics(self._accounting)

    def _note(self, event: str, **fields: object) -> None:
        """Note an event of the node itself in the audit log."""
        if self._audit is not None:
            self._audit.note(event, **fields)

    def _show_metrics(self, rates: Rates) -> None:
        settings = self._settings
        queues = QueueMetrics(
            self._catalog,
            self._router,
            self._clock.wall_s,
            (self._gateway.empty_receives, self._gateway.duplicates),
            settings.metrics_queues_max,
        )
        parts = Parts(
            router=self._router,
            access=self._access,
            disk=self._disk,
            sealer=self._sealer,
            stalls=self._stalls,
            rates=rates,
            sync_s=self._sync_s,
            outstanding=lambda: self._gateway.outstanding,
            queues=lambda: len(self._catalog),
            deletions=self._deletions,
            clock_leaps=lambda: self._clock_leaps,
            version=metadata.version("holdfast"),
            durability=settings.durability,
        )
        self._metrics.attach(queues, ServiceMetrics(parts))

    def _authenticate(self) -> Authenticate:
        settings = self._settings
        self._verifier = Verifier(self._credentials)
        if settings.auth is AuthMode.SIGV4:
            return self._verifier.verify
        claimed = partial(open_caller, account=settings.account, region=settings.region)
        origins = AllowedOrigins(settings.browser_origins).names

        def authenticate(
            method: bytes, target: bytes, headers: dict[bytes, bytes], body: bytes, now_s: float
        ) -> Caller:
            refuse_browsers(headers, origins)
            return claimed(method, target, headers)

        return authenticate

    def _is_ready(self) -> bool:
        return self._ready and self._router.ready

    # -- periodic work -----------------------------------------------------------------------------

    def _watch(self) -> None:
        self._periodic = Periodic()
        every = self._periodic.every
        changes = Changes(
            self._identities,
            self._keyring,
            verifier=self._verifier,
            access=self._access,
            note=self._note,
        )
        every(CHANGES_CHECK_S, changes.look_at_identities)
        every(CHANGES_CHECK_S, changes.look_at_keys)
        every(_DATA_KEY_CHECK_S, self._renew_data_keys)
        every(SERVER_CHECK_S, self._server.look)
        every(_DISK_CHECK_S, self._look_at_disk)
        every(_USAGE_WRITE_S, self._accounting.write, first_s=0.0)
        every(_DELETION_CHECK_S, self._look_at_deletions, first_s=0.0)
        every(STALL_CHECK_S, self._stalls.look)

    async def _renew_data_keys(self) -> None:
        """Replace data keys that sealed long enough."""
        try:
            await self._sealer.renew(self._catalog)
        except (SealBroken, sqlite3.Error) as error:
            self._log.error("data_keys_not_renewed", error=str(error))

    async def _look_at_disk(self) -> None:
        self._disk.look()
        if self._disk.is_shorter_than(_RESERVES_FOR_DELETED):
            await self._look_at_deletions()

    async def _look_at_deletions(self) -> None:
        """Drop deleted and purged queues that can be restored no more, or that the disk has no
        space for."""
        try:
            trusted = (clock.trusted_ms(clock.now_ms()) for clock in self._shard_clocks)
            trusted_ms = min(filter(None, trusted), default=0)
            await self._deletions.look(
                trusted_ms or int(self._clock.wall_s() * 1000),
                disk_is_short=self._disk.is_shorter_than(_RESERVES_FOR_DELETED),
            )
        except aiosqlite.Error as error:
            self._log.error("deleted_queues_not_dropped", error=str(error))

    # -- the end -----------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Take no new requests, finish running ones, end long polls early, close everything."""
        self._ready = False
        self._note("stopping")
        self._admin.remove_note()
        self._server.close()
        self._periodic.begin_to_stop()
        for shard in self._router.shards.values():
            shard.end_long_polls()
        await self._backups.stop()
        if self._lake is not None:
            await self._lake.stop()
        try:
            await asyncio.wait_for(self._gateway.drain(), _STOP_S)
        except TimeoutError:
            self._log.warning("stopped_with_requests_running", requests=self._gateway.outstanding)
        await self._server.disconnect(_DISCONNECT_S)
        await self._periodic.stop(_STOP_S)
        await self._opened.aclose()
