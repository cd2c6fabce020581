"""Owner: the parts that a machine has once: keys, users, queues and their deletions, accounting,
audit log, backups, archive.

It has no listener and no shard; it reaches shards through the router that it is given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

import structlog

from auth.credentials import AccessKey
from cluster.copies.backup import CopiedStore
from cluster.parts.draining import DRAIN_CHECK_S, Draining
from cluster.shards.queue_watch import QueueWatch
from cluster.shards.router import Router
from sqs_api.admin.backups import Backups
from sqs_api.admin.cluster_parts import BackupPoint
from sqs_api.admin.every_host import EveryHost
from sqs_api.admin.usage_page import UsagePage
from sqs_api.archiving.service import Archiving
from sqs_api.gateway.accounting import Accounting
from sqs_api.gateway.deletions import Deletions
from sqs_api.gateway.disk_space import DiskSpace
from sqs_api.gateway.usage import FILE_NAME as USAGE_FILE
from sqs_api.gateway.usage import GatewayRow, Usage, UsageRow, read_gateways, read_usage
from sqs_api.gateway.usage_journal import ALONE, Writer
from sqs_api.parts import Feature, Process
from sqs_api.periodic import Every
from sqs_api.service_records import Records
from sqs_api.settings.cluster_settings import ProcessRole
from sqs_api.settings.config import AuthMode, installed_version
from sqs_api.settings.declaring import DeclaredQueues
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
_SPARES_CHECK_S = 5.0
_RESERVES_FOR_DELETED = 2.0
"""Deleted queues are dropped early below this multiple of the disk reserve, so that sends go on."""


class CopiedShards(Protocol):
    """The shards that a backup copies."""

    @property
    def folders(self) -> Mapping[int, Path]:
        """The folders of their rows."""

    @property
    def store_of(self) -> Callable[[int], CopiedStore]:
        """Gives the store that a shard uses now."""


class ReachedShards(Protocol):
    """The shards as an owner reaches them."""

    @property
    def folders(self) -> Mapping[int, Path]:
        """The folders of their rows."""

    @property
    def router(self) -> Router:
        """The way to all shards."""

    @property
    def queue_watch(self) -> QueueWatch:
        """Waits until the shards know of a change of a queue."""

    @property
    def disk(self) -> DiskSpace:
        """The disk of the data folder."""

    def store_of(self, number: int) -> FlushedRows:
        """The store that a shard uses now."""


class Owner:
    """`start` it, then `stop`."""

    def __init__(
        self,
        process: Process,
        records: Records,
        shards: ReachedShards,
        point: BackupPoint,
        hosts: EveryHost,
        *,
        copied: CopiedShards | None = None,
        usage_writer: Writer = ALONE,
    ) -> None:
        """`point` is that of a backup, of the shards that are `copied`, by default `shards`."""
        settings, clock, _, opened = process
        self._settings = settings
        self._wall_s = clock.wall_s
        self._disk = shards.disk
        self._router = router = shards.router
        self._log = structlog.get_logger("owner")
        self.keyring, self.identities, self.audit, self.catalog = records
        self.note, self.catch_up = records.note, records.catch_up
        self.declared_queues = DeclaredQueues(settings, self.catalog, records.note_declared)
        self.deletions = Deletions(self.catalog, router, shards.queue_watch)
        self.deletions.report_unknown()
        opened.push_async_callback(self.deletions.stop)
        usage = Usage(settings.data / USAGE_FILE, clock.wall_s, settings.usage_days, usage_writer)
        self.accounting = Accounting(usage, self.audit)
        opened.push_async_callback(self.accounting.write)
        copied = shards if copied is None else copied
        self.backups = Backups(
            settings.data,
            copied.folders,
            point=point,
            store_of=copied.store_of,
            clock=clock,
            version=installed_version(),
        )
        self._archiving = Archiving(
            settings, router, self.catalog, clock, store_of=shards.store_of, disk=self._disk
        )
        usage_page = UsagePage(
            partial(_read_usage, settings.data / USAGE_FILE), settings.host_name or "", hosts
        )
        self.features = (
            Feature(
                parts={UsagePage: usage_page},
                periodic=(Every(_USAGE_WRITE_S, self.accounting.write, first_s=0.0),),
            ),
            Feature(periodic=(Every(DRAIN_CHECK_S, Draining(self.catalog, router).look),)),
            Feature(parts={Backups: self.backups}),
            Feature(
                periodic=(
                    Every(_DELETION_CHECK_S, self.look_at_deletions, first_s=0.0),
                    Every(_RESUME_CHECK_S, self.deletions.go_on),
                    Every(_SHORT_DISK_CHECK_S, self._make_room),
                ),
            ),
            Feature(periodic=() if settings.is_alone else self._late()),
            Feature(periodic=self._spared() if settings.role is ProcessRole.GATEWAY else ()),
            self._archiving.feature,
        )

    def _late(self) -> tuple[Every, ...]:
        return (Every(_RESUME_CHECK_S, self.declared_queues.make_late),)

    def _spared(self) -> tuple[Every, ...]:
        """A gateway takes blocks of data keys beforehand."""
        return (Every(_SPARES_CHECK_S, self.keyring.keep_spares),)

    async def make_first_key(self) -> AccessKey | None:
        """Make an access key if signatures are asked for and there is none; of the hosts of a
        cluster one makes it."""
        if self._settings.auth is not AuthMode.SIGV4 or len(self.identities.credentials()):
            return None
        key = await self.identities.add_first_key(self._settings.account)
        if key is not None:
            self.note("first_access_key", access_key_id=key.access_key_id)
        return key

    async def _make_room(self) -> None:
        if self._disk.is_shorter_than(_RESERVES_FOR_DELETED):
            await self.look_at_deletions()

    async def look_at_deletions(self) -> None:
        """Drop deleted and purged queues that can be restored no more, or that the disk has no
        space for."""
        try:
            trusted_ms = self._router.trusted_ms()
            await self.deletions.look(
                trusted_ms or int(self._wall_s() * 1000),
                disk_is_short=self._disk.is_shorter_than(_RESERVES_FOR_DELETED),
            )
        except ServiceUnavailable as error:
            self._log.error("deleted_queues_not_dropped", error=str(error))

    async def stop(self) -> None:
        """End backups, and the processes that work for the archive."""
        await self.backups.stop()
        await self._archiving.stop()


async def _read_usage(
    file: Path, account: str | None, since: str | None
) -> tuple[list[UsageRow], list[GatewayRow]]:
    of_gateways = await asyncio.to_thread(read_gateways, file, account, since)
    return await asyncio.to_thread(read_usage, file, account, since), of_gateways
