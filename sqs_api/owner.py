"""Owner: the parts that a cluster has once: catalog, keys, audit log, usage, backups, lake,
schedule.

It has no listener and no shard; it reaches shards through the router that it is given.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from importlib import metadata
from pathlib import Path

import structlog

from auth.credentials import AccessKey, CredentialSet
from auth.identities import Identities
from auth.sigv4 import Verifier
from cluster.catalog.catalog import Catalog
from cluster.catalog.catalog_records import PREFIX as CATALOG
from cluster.catalog.queue_rules import Waits
from cluster.clock import Clock, Entropy
from cluster.copies.backup import remove_leftovers
from cluster.keys.identity_records import PREFIX as IDENTITIES
from cluster.keys.identity_records import IdentitiesUnreadable
from cluster.keys.identity_store import IdentityStore
from cluster.keys.keyring import Keyring
from cluster.shards.queue_watch import QueueWatch
from cluster.shards.router import Router
from sqs_api.admin.backup_points import BackupPoint
from sqs_api.admin.backups import Backups
from sqs_api.admin.every_host import EveryHost
from sqs_api.admin.usage_page import UsagePage
from sqs_api.archiving.archive_pages import ArchivePages
from sqs_api.archiving.service import Archiving
from sqs_api.gateway.access import Access
from sqs_api.gateway.accounting import Accounting
from sqs_api.gateway.audit import FILE_NAME as AUDIT_FILE
from sqs_api.gateway.audit import AuditLog
from sqs_api.gateway.deletions import Deletions
from sqs_api.gateway.disk_space import DiskSpace
from sqs_api.gateway.metrics import Metrics
from sqs_api.gateway.usage import FILE_NAME as USAGE_FILE
from sqs_api.gateway.usage import Usage, UsageRow, read_usage
from sqs_api.gateway.used_keys import UsedKeys
from sqs_api.operators.people import People
from sqs_api.periodic import Periodic
from sqs_api.settings.config import AuthMode, Settings, Switch
from sqs_api.settings.declaring import DeclaredQueues, declare_users
from sqs_api.settings.key_stores import Below, open_keyring
from storage.engines.flushed_rows import FlushedRows
from visibility.contract.errors import ServiceUnavailable

_USAGE_WRITE_S = 60.0
_DELETION_CHECK_S = 60.0
"""Interval at which deleted queues are dropped that can be restored no more; a restore checks the
time itself."""
_RESUME_CHECK_S = 2.0
"""Interval at which a host, which may lead by now, goes on with what the last leader began, and
makes the declared queues that had to wait."""
_SHORT_DISK_CHECK_S = 1.0
_RESERVES_FOR_DELETED = 2.0
"""Deleted queues are dropped early below this multiple of the disk reserve, so that sends go on."""


class Owner:
    """Belongs to the event loop's thread. Call `open`, `serve`, `begin`; then `stop`, then
    close."""

    keyring: Keyring
    identities: IdentityStore
    credentials: CredentialSet
    users: Identities
    audit: AuditLog | None
    catalog: Catalog
    declared_queues: DeclaredQueues
    accounting: Accounting
    deletions: Deletions
    backups: Backups
    lake: Archiving | None

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock,
        entropy: Entropy,
        records: Below,
        opened: AsyncExitStack,
    ) -> None:
        """`records` are those of this host, or of the cluster; `opened` closes, last first, what
        this opens."""
        self._settings = settings
        self._clock = clock
        self._entropy = entropy
        self._records = records
        self._opened = opened
        self._disk: DiskSpace
        self._used_keys: UsedKeys
        self._log = structlog.get_logger("owner")
        self.first_key: AccessKey | None = None
        """The access key that this host made at first start, to be shown once."""

    async def open(self, shards: Iterable[int]) -> None:
        """Open all files, and make the users that the configuration declares.

        Raises KeysUnusable, IdentitiesUnreadable, AuditUnusable, CatalogUnreadable,
        DeclarationRefused, sqlite3.Error.
        """
        settings = self._settings
        clock, entropy = self._clock, self._entropy
        self.keyring = await open_keyring(
            settings, self._records, clock, entropy, owner=settings.account
        )
        self._opened.push_async_callback(self.keyring.close)
        self.identities = await IdentityStore.open(
            self._records(IDENTITIES), self.keyring.secrets, clock, entropy
        )
        self._opened.push_async_callback(self.identities.close)
        self._open_audit()
        await declare_users(settings, self.identities, self._note_declared)
        self.credentials = self.identities.credentials()
        self.users = self.identities.users()
        self.catalog = await self._open_catalog(shards)
        self.declared_queues = DeclaredQueues(settings, self.catalog, self._note_declared)

    def _note_declared(self, event: str, **fields: object) -> None:
        self.note(event, uid=os.getuid(), **fields)

    def _open_audit(self) -> None:
        self.audit = None
        if self._settings.audit is Switch.ON:
            file, host = self._settings.data / AUDIT_FILE, self._settings.host_name
            self.audit = AuditLog(file, self._clock.wall_s, host)
            self._opened.callback(self.audit.close)
        self.note("started", version=metadata.version("holdfast"), uid=os.getuid())

    async def _open_catalog(self, shards: Iterable[int]) -> Catalog:
        catalog = await Catalog.open(
            self._records(CATALOG),
            clock=self._clock,
            entropy=self._entropy,
            secrets=self.keyring.secrets,
            shards=shards,
            waits=Waits() if self._settings.aws_waits is Switch.ON else Waits(0, 0),
            restore_window_ms=self._settings.restore_deleted_s * 1000,
        )
        self._opened.push_async_callback(catalog.close)
        return catalog

    async def make_first_key(self) -> None:
        """Make an access key if signatures are asked for and there is none; of the hosts of a
        cluster one makes it."""
        if self._settings.auth is AuthMode.SIGV4 and not len(self.credentials):
            self.first_key = await self.identities.add_first_key(self._settings.account)
            if self.first_key is not None:
                self.note("first_access_key", access_key_id=self.first_key.access_key_id)

    def serve(
        self,
        router: Router,
        watch: QueueWatch,
        folders: Mapping[int, Path],
        store_of: Callable[[int], FlushedRows],
        disk: DiskSpace,
        point: BackupPoint,
    ) -> None:
        """Make what works on shards; `store_of` gives the store that a shard uses now, `point` is
        that of a backup."""
        settings = self._settings
        self._disk = disk
        self._router = router
        self.deletions = Deletions(self.catalog, router, watch)
        self.deletions.report_unknown()
        self._opened.push_async_callback(self.deletions.stop)
        remove_leftovers(settings.data)
        usage = Usage(settings.data / USAGE_FILE, self._clock.wall_s, settings.usage_days)
        self.accounting = Accounting(usage, self.audit)
        self._opened.push_async_callback(self.accounting.write)
        self.backups = Backups(
            settings.data,
            folders,
            point=point,
            store_of=store_of,
            clock=self._clock,
            version=metadata.version("holdfast"),
        )
        self.lake = None
        if settings.lake is not None:
            self.lake = Archiving(
                settings, router, self.catalog, self._clock, store_of=store_of, disk=disk
            )

    def parts(self, hosts: EveryHost) -> dict[type, object]:
        """The parts that answer routes of the admin API."""
        usage = UsagePage(self._read_usage, self._settings.host_name or "", hosts)
        parts: dict[type, object] = {Backups: self.backups, UsagePage: usage}
        return parts if self.lake is None else {**parts, ArchivePages: self.lake.pages()}

    async def _read_usage(self, account: str | None, since: str | None) -> list[UsageRow]:
        file = self._settings.data / USAGE_FILE
        return await asyncio.to_thread(read_usage, file, account, since)

    def people(self, verifier: Verifier, access: Access) -> People:
        """Users and access keys for the console; whoever changes them, `verifier` and `access` get
        them."""

        def adopt() -> None:
            try:
                verifier.replace(self.identities.credentials())
                access.replace(self.identities.users())
            except IdentitiesUnreadable as error:
                self._log.error("access_keys_unreadable", error=str(error))

        adopt()
        self.identities.subscribe(adopt)
        self.identities.subscribe(partial(self._noted, "access_keys_reloaded"))
        self.keyring.subscribe(partial(self._noted, "keyring_reloaded"))
        self._used_keys = UsedKeys(verifier, self.identities.note_uses)
        self._opened.push_async_callback(self._used_keys.stop)
        return People(self.identities, verifier.used)

    def _noted(self, event: str) -> None:
        self._log.info(event)
        self.note(event)

    async def catch_up(self) -> None:
        """Wait until all changes of users and keys are known here that were made before. Raises
        IdentitiesUnreadable, KeysAway."""
        await self.identities.catch_up()
        await self.keyring.catch_up()

    def begin(self, periodic: Periodic, metrics: Metrics) -> None:
        """Start periodic work. `people` was called before."""
        periodic.every(_USAGE_WRITE_S, self.accounting.write, first_s=0.0)
        periodic.every(_USAGE_WRITE_S, self._used_keys.write)
        periodic.every(_DELETION_CHECK_S, self._look_at_deletions, first_s=0.0)
        periodic.every(_SHORT_DISK_CHECK_S, self._make_room)
        if self._settings.etcd is not None:
            periodic.every(_RESUME_CHECK_S, self.deletions.go_on)
            periodic.every(_RESUME_CHECK_S, self.declared_queues.make_late)
        if self.lake is not None:
            self.lake.begin(metrics, periodic)

    def note(self, event: str, **fields: object) -> None:
        """Tell the audit log of what happened to the service itself."""
        if self.audit is not None:
            self.audit.note(event, **fields)

    async def _make_room(self) -> None:
        if self._disk.is_shorter_than(_RESERVES_FOR_DELETED):
            await self._look_at_deletions()

    async def _look_at_deletions(self) -> None:
        """Drop deleted and purged queues that can be restored no more, or that the disk has no
        space for."""
        try:
            trusted_ms = self._router.trusted_ms()
            await self.deletions.look(
                trusted_ms or int(self._clock.wall_s() * 1000),
                disk_is_short=self._disk.is_shorter_than(_RESERVES_FOR_DELETED),
            )
        except ServiceUnavailable as error:
            self._log.error("deleted_queues_not_dropped", error=str(error))

    async def stop(self) -> None:
        """End backups, and the processes that work for the lake."""
        await self.backups.stop()
        if self.lake is not None:
            await self.lake.stop()
