"""Worker: the parts that answer requests: listener, gateway and shards.

It reads queues from the catalog's view. Changes of queues, users and keys belong to the owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Protocol

import structlog

from auth.caller import Caller
from auth.credentials import CredentialSet
from auth.envelope import SealBroken
from auth.identities import Identities
from auth.sigv4 import Verifier
from auth.unverified import open_caller, refuse_browsers
from cluster.catalog.catalog import Catalog
from cluster.clock import Clock, Entropy
from cluster.keys.keyring import Keyring, KeysAway
from cluster.shards.delivery import Deliveries
from cluster.shards.lead import ShardParts
from cluster.shards.queue_watch import QueueWatch
from cluster.shards.router import Router
from cluster.shards.shard import Shard
from cluster.shards.shard_report import ArchiveLimits
from sqs_api.admin.every_host import EveryHost
from sqs_api.admin.queue_metrics import QueueMetrics
from sqs_api.admin.queue_samples import QueueSamples
from sqs_api.admin.service_metrics import Parts, ServiceMetrics
from sqs_api.admin.storage_metrics import StorageMetrics
from sqs_api.archiving.archived_messages import ArchivedMessages
from sqs_api.cloudwatch.metric_actions import Reader
from sqs_api.gateway.access import Access
from sqs_api.gateway.accounting import Accounting
from sqs_api.gateway.client import Authenticate
from sqs_api.gateway.deletions import Deletions
from sqs_api.gateway.disk_space import DiskSpace
from sqs_api.gateway.gateway import Gateway
from sqs_api.gateway.memory import RequestMemory
from sqs_api.gateway.metrics import Metrics
from sqs_api.gateway.payload import Payloads
from sqs_api.gateway.queue_actions import QueueActions
from sqs_api.gateway.rates import Rates
from sqs_api.gateway.sealer import Sealer
from sqs_api.gateway.stalls import STALL_CHECK_S, StallWatch
from sqs_api.http.fallback import OtherPages
from sqs_api.http.server import SERVER_CHECK_S, Server
from sqs_api.operators.desk import Desk
from sqs_api.operators.people import People
from sqs_api.operators.readings import Readings
from sqs_api.periodic import Periodic
from sqs_api.settings.config import AuthMode, Settings, Switch
from sqs_api.settings.origins import AllowedOrigins
from storage.engines.durable import DurableStore
from storage.engines.flushed_rows import FlushedRows
from storage.engines.opening import open_store
from storage.engines.store import Store
from storage.engines.store_options import StoreOptions
from storage.histogram import Histogram

_STOP_S = 10.0
"""Time that a stop waits for running requests."""
_DISCONNECT_S = 0.05
"""Time that a stop waits for idle connections to close."""
_DISK_CHECK_S = 0.05
"""A client alone may write 200 MB a second: the reserve must not be used up between two looks."""
_GIVE_BACK_S = 5.0
"""Interval of flushes on a disk that is short."""
_DATA_KEY_CHECK_S = 15.0
"""Interval of renewing old data keys; KmsDataKeyReusePeriodSeconds is a minute or more."""


MakeRouter = Callable[[Iterable[Shard]], Router]


class Stores(Protocol):
    """Opens the stores of shards, and knows the one that each shard opened last."""

    async def open(self, number: int, folder: Path) -> Store:
        """Open the store of a shard. Raises StoreFailed."""

    def of(self, number: int) -> FlushedRows:
        """The store that the shard uses now."""

    def can_grow(self) -> bool:
        """False when a log finds no space to grow."""

    def give_back_space(self) -> None:
        """The disk is short: remove what the shards do not need."""


class OwnStores:
    """The stores of a single host."""

    def __init__(
        self, options: StoreOptions, queue_names: Callable[[int], Mapping[int, str]]
    ) -> None:
        """`queue_names` gives the names of a shard's queues by id."""
        self._options = options
        self._queue_names = queue_names
        self._opened: dict[int, DurableStore] = {}

    async def open(self, number: int, folder: Path) -> DurableStore:
        """Open the store of a shard. Raises StoreFailed."""
        options = self._options._replace(queue_names=self._queue_names(number))
        store = await asyncio.to_thread(open_store, folder, options)
        self._opened[number] = store
        return store

    def of(self, number: int) -> DurableStore:
        """The store that the shard uses now."""
        return self._opened[number]

    def can_grow(self) -> bool:
        """False when a log finds no space to grow."""
        return all(store.can_grow for store in self._opened.values())

    def give_back_space(self) -> None:
        """The disk is short: remove what the shards do not need."""
        for store in self._opened.values():
            store.give_back_space()


class Worker:
    """Belongs to the event loop's thread. Call `load`, `serve`, `listen`, then `begin`; at the end
    `begin_to_stop`, then `stop`."""

    sealer: Sealer
    router: Router
    deliveries: Deliveries
    queue_watch: QueueWatch
    access: Access
    verifier: Verifier
    payloads: Payloads
    queue_actions: QueueActions
    gateway: Gateway
    metrics: Metrics
    samples: QueueSamples

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock,
        entropy: Entropy,
        stores: Stores,
        sync_s: Histogram,
        shard_clock: Callable[[], Clock],
        transport: Server,
        opened: AsyncExitStack,
    ) -> None:
        """Each shard has its own clock. `opened` closes everything opened here, last first."""
        self._settings = settings
        self._clock = clock
        self._shard_clock = shard_clock
        self._entropy = entropy
        self._stores = stores
        self._sync_s = sync_s
        self._opened = opened
        self._folders: Mapping[int, Path] = {}
        self._stalls = StallWatch(clock.monotonic_s)
        self._log = structlog.get_logger("worker")
        self.transport = transport
        self._origins = AllowedOrigins(settings.browser_origins)
        self.disk = DiskSpace(settings.data, settings.disk_reserve_mib << 20, stores.can_grow)

    async def load(
        self,
        folders: Mapping[int, Path],
        catalog: Catalog,
        keyring: Keyring,
        archive: ArchiveLimits | None,
        make_router: MakeRouter = Router,
    ) -> None:
        """Open the shards, which hear of queues from the catalog's watch.

        No queue may be made before. Raises StoreFailed, DamagedRecord, CatalogOlder,
        SealBroken, KeysAway.
        """
        self._folders = folders
        is_open = self._settings.auth is AuthMode.OPEN
        self.sealer = Sealer(keyring, self._clock, makes_keys=is_open)
        shards = [
            Shard(
                number,
                ShardParts(
                    open_store=partial(self._stores.open, number, folder),
                    clock=self._shard_clock(),
                    entropy=self._entropy,
                    definitions=catalog,
                    archive=archive,
                    sealing=self.sealer,
                    remembers=self._settings.etcd is not None,
                    shared_catalog=catalog,
                ),
            )
            for number, folder in folders.items()
        ]
        self.router = make_router(shards)
        self.deliveries = Deliveries(self.router, self._entropy)
        self._opened.push_async_callback(self.deliveries.stop)
        for shard in shards:
            await shard.start(catalog.highest_queue_id)
            self._opened.push_async_callback(shard.stop)
        self.queue_watch = QueueWatch(catalog, Router(shards))
        self.disk.look()
        await self.sealer.prepare(catalog)

    def serve(
        self,
        *,
        catalog: Catalog,
        keyring: Keyring,
        credentials: CredentialSet,
        users: Identities,
        deletions: Deletions,
        accounting: Accounting,
        clock_leaps: Callable[[], int],
    ) -> None:
        """Make the gateway."""
        settings = self._settings
        self.metrics = Metrics(accounting)
        is_open = settings.auth is AuthMode.OPEN
        self.access = Access(
            catalog, self._clock, keyring, enforced=not is_open, region=settings.region
        )
        self.access.replace(users)
        self.verifier = Verifier(credentials)
        self.payloads = Payloads(self.sealer)
        self.queue_actions = QueueActions(catalog, self.router, deletions, self.queue_watch)
        self.gateway = Gateway(
            authenticate=self._authenticate(),
            queues=self.queue_actions,
            router=self.router,
            accounting=accounting,
            clock=self._clock,
            entropy=self._entropy,
            public_url=settings.public_url,
            payloads=self.payloads,
            access=self.access,
            # In a cluster other hosts may have space: there the leader of each shard refuses.
            disk=self.disk if settings.etcd is None else None,
            memory=RequestMemory(settings.request_memory_bytes),
            waiting_polls_max=settings.waiting_polls_max,
            origins=self._origins,
        )
        rates = Rates(
            self._clock.monotonic_s,
            account_rate=settings.account_rate,
            queue_rate=settings.queue_rate,
            fifo_quotas=settings.fifo_quotas is Switch.ON,
        )
        self.gateway.limit(rates)
        self._show_metrics(catalog, deletions, rates, clock_leaps)

    def authenticate_for(self, service: str) -> Authenticate:
        """Establishes the callers of another service with the same credentials."""
        if self._settings.auth is not AuthMode.SIGV4:
            return self._authenticate()

        def authenticate(
            method: bytes, target: bytes, headers: dict[bytes, bytes], body: bytes, now_s: float
        ) -> Caller:
            known = self.verifier
            verifier = Verifier(known.credentials, service, used=known.used)
            return verifier.verify(method, target, headers, body, now_s)

        return authenticate

    def _authenticate(self) -> Authenticate:
        settings = self._settings
        if settings.auth is AuthMode.SIGV4:
            return self.verifier.verify
        claimed = partial(open_caller, account=settings.account, region=settings.region)
        origins = self._origins.names

        def authenticate(
            method: bytes, target: bytes, headers: dict[bytes, bytes], body: bytes, now_s: float
        ) -> Caller:
            refuse_browsers(headers, origins)
            return claimed(method, target, headers)

        return authenticate

    def _show_metrics(
        self, catalog: Catalog, deletions: Deletions, rates: Rates, clock_leaps: Callable[[], int]
    ) -> None:
        settings, gateway = self._settings, self.gateway
        self.samples = QueueSamples(catalog, self.router, gateway.counts)
        queues = QueueMetrics(
            catalog,
            self.samples,
            gateway.counts.send_to_receive_s,
            self._clock.wall_s,
            settings.metrics_queues_max,
        )
        parts = Parts(
            router=self.router,
            access=self.access,
            disk=self.disk,
            sealer=self.sealer,
            stalls=self._stalls,
            rates=rates,
            sync_s=self._sync_s,
            outstanding=lambda: gateway.outstanding,
            queues=lambda: len(catalog),
            deletions=deletions,
            clock_leaps=clock_leaps,
            wall_s=self._clock.wall_s,
            version=metadata.version("holdfast"),
            durability=settings.durability,
        )
        self.metrics.attach(queues, ServiceMetrics(parts), StorageMetrics(self._folders))

    def desk(
        self,
        *,
        catalog: Catalog,
        deletions: Deletions,
        hosts: EveryHost,
        history: Callable[[str, str], Reader],
        people: People,
        keyring: Keyring,
    ) -> Desk:
        """The parts that the operators' API works with."""
        return Desk(
            catalog=catalog,
            router=self.router,
            deletions=deletions,
            payloads=self.payloads,
            sealer=self.sealer,
            readings=Readings(self.router, catalog, self._clock.monotonic_s),
            wall_s=self._clock.wall_s,
            bits128=self._entropy.bits128,
            hosts=hosts,
            account=self._settings.account,
            actions=self.queue_actions,
            history=history,
            archive=ArchivedMessages(self._settings.lake),
            people=people,
            find_key=keyring.find,
        )

    async def listen(self, pages: OtherPages) -> str:
        """Take requests. Returns the address. Raises OSError."""
        return await self.transport.open(self.gateway, pages, self.metrics)

    def begin(self, periodic: Periodic, catalog: Catalog) -> None:
        """Start periodic work."""

        async def renew_data_keys() -> None:
            """Replace data keys that sealed long enough."""
            try:
                await self.sealer.renew(catalog)
            except (SealBroken, KeysAway) as error:
                self._log.error("data_keys_not_renewed", error=str(error))

        periodic.every(_DATA_KEY_CHECK_S, renew_data_keys)
        periodic.every(SERVER_CHECK_S, self.transport.look)
        periodic.every(_DISK_CHECK_S, self.disk.look)
        periodic.every(_GIVE_BACK_S, self._give_back_space)
        periodic.every(STALL_CHECK_S, self._stalls.look)

    def _give_back_space(self) -> None:
        if self.disk.is_short:
            self._stores.give_back_space()

    def begin_to_stop(self) -> None:
        """Take no new connections, end long polls early."""
        self.transport.close()
        self.deliveries.begin_to_stop()
        self.router.end_waiting()

    async def stop(self) -> None:
        """Finish running requests, close connections."""
        try:
            await asyncio.wait_for(self.gateway.drain(), _STOP_S)
        except TimeoutError:
            self._log.warning("stopped_with_requests_running", requests=self.gateway.outstanding)
        await self.transport.disconnect(_DISCONNECT_S)
