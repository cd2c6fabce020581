"""Node: one process that is both worker and owner, wired in visible order.

The only place that constructs clocks, entropy, stores, transport and coordination.
"""

from __future__ import annotations

import gc
import sqlite3
from contextlib import AsyncExitStack
from functools import partial

import structlog

from auth.credentials import AccessKey
from auth.envelope import SealBroken
from cluster.catalog.record_codec import CatalogUnreadable
from cluster.catalog.sqlite_coordination import CATALOG_FILE, SqliteCoordination
from cluster.keys.identity_records import IdentitiesUnreadable
from cluster.keys.keyring import KeysAway
from cluster.keys.master_key import KeysUnusable
from cluster.shards.clock import SystemClock, SystemEntropy
from cluster.shards.shard import CatalogOlder
from sqs_api.admin.admission import AdminSide
from sqs_api.archiving.service import LakeRefused, archive_limits
from sqs_api.gateway.audit import AuditUnusable
from sqs_api.http.server import Server
from sqs_api.http.tls import TlsUnusable
from sqs_api.owner import Owner
from sqs_api.periodic import Periodic
from sqs_api.settings.config import Settings
from sqs_api.settings.declaring import DeclarationRefused
from sqs_api.worker import Stores, Worker
from storage.engines.folder import FolderRefused, open_folder, renew_format
from storage.engines.in_use import refuse_if_in_use
from storage.engines.store import StoreFailed
from visibility.state.rows import DamagedRecord

_STOP_S = 10.0
"""Time that a stop waits for periodic work."""
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

    owner: Owner
    worker: Worker

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._clock_leaps = 0
        self._clock = SystemClock()  # the shards' clocks report leaps
        self._entropy = SystemEntropy()
        self._log = structlog.get_logger("node")
        self._ready = False
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
        except sqlite3.Error as error:
            raise NodeRefused(f"cannot open the catalog of {settings.data}: {error}") from error
        owner, worker = self.owner, self.worker
        try:
            owner.make_first_key()
            worker.serve(
                owner.catalog,
                owner.keyring,
                owner.credentials,
                owner.users,
                owner.deletions,
                owner.accounting,
                lambda: self._clock_leaps,
            )
        except (IdentitiesUnreadable, KeysAway) as error:
            raise NodeRefused(str(error)) from error
        except (SealBroken, sqlite3.Error) as error:
            raise NodeRefused(f"cannot use the keys of {settings.data}: {error}") from error
        address = await self._listen()
        self._periodic = Periodic()
        worker.begin(self._periodic, owner.catalog)
        owner.begin(self._periodic, worker.metrics, verifier=worker.verifier, access=worker.access)
        self._ready = True
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        return address

    async def _open(self) -> None:
        """Open files first and shards last; each role receives its needs as arguments."""
        settings, clock, entropy = self._settings, self._clock, self._entropy
        transport = Server(settings, clock.wall_s)
        folders = open_folder(settings.data)
        refuse_if_in_use(settings.data, folders.values())
        renew_format(settings.data)
        archive = archive_limits(settings)
        stores = Stores(settings, clock.monotonic_s)
        owner = self.owner = Owner(
            settings,
            clock=clock,
            entropy=entropy,
            open_coordination=partial(SqliteCoordination.open, settings.data / CATALOG_FILE),
            opened=self._opened,
        )
        worker = self.worker = Worker(
            settings,
            clock=clock,
            entropy=entropy,
            stores=stores,
            shard_clock=partial(SystemClock, on_leap=self._clock_leapt),
            transport=transport,
            opened=self._opened,
        )
        await owner.open(sorted(folders))
        await worker.load(folders, owner.catalog, owner.keyring, archive)
        owner.serve(worker.router, worker.queue_watch, folders, stores.of, worker.disk)

    async def _listen(self) -> str:
        settings, worker = self._settings, self.worker
        self._admin = AdminSide(
            settings,
            self._clock,
            self._entropy,
            access=worker.access,
            verifier=worker.verifier,
            audit=self.owner.audit,
        )
        pages = self._admin.pages(worker.metrics, self._is_ready, self.owner.answers())
        try:
            address = await worker.listen(pages)
        except OSError as error:
            reason, *_ = (error.strerror or str(error)).split(" (while")  # the rest repeats it
            raise NodeRefused(
                f"cannot listen on {settings.host}:{settings.port}: {reason}"
            ) from error
        self._admin.leave_note(address, worker.transport.admin_address)
        return address

    def _is_ready(self) -> bool:
        return self._ready and self.worker.router.ready

    async def stop(self) -> None:
        """Take no new requests, finish running ones, end long polls early, close everything."""
        self._ready = False
        self.owner.note("stopping")
        self._admin.remove_note()
        self._periodic.begin_to_stop()
        self.worker.begin_to_stop()
        await self.owner.stop()
        await self.worker.stop()
        await self._periodic.stop(_STOP_S)
        await self._opened.aclose()
