"""Shards: those that this process serves, with their stores, their disk and the way to all
others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import structlog

from auth.envelope import SealBroken
from cluster.catalog.catalog import Catalog
from cluster.clock import Clock
from cluster.keys.keyring import Keyring, KeysAway
from cluster.parts.shared_tasks import LOOK_S as TASKS_LOOK_S
from cluster.parts.shared_tasks import SharedTasks
from cluster.parts.split_queues import SplitQueues
from cluster.parts.unlocking import LOOK_S, Unlocking
from cluster.shards.delivery import Deliveries
from cluster.shards.queue_watch import QueueWatch
from cluster.shards.router import Router
from cluster.shards.shard import Shard
from cluster.shards.shard_parts import ShardParts
from cluster.shards.shard_report import ArchiveLimits
from sqs_api.gateway.disk_space import DiskSpace
from sqs_api.gateway.sealer import Sealer
from sqs_api.parts import Feature, Process
from sqs_api.periodic import Every
from sqs_api.settings.config import AuthMode
from storage.engines.flushed_rows import FlushedRows
from storage.engines.store import Store

_DISK_CHECK_S = 0.1
"""Interval of looks at a disk that has little space."""
_GIVE_BACK_S = 5.0
"""Interval of flushes on a disk that is short."""
_DATA_KEY_CHECK_S = 15.0
"""Interval of renewing old data keys; KmsDataKeyReusePeriodSeconds is a minute or more."""


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


class Host(Protocol):
    """The place of the shards: a single host, or a member of a cluster."""

    @property
    def disk(self) -> DiskSpace:
        """The disk of the data folder."""

    def stores(self, catalog: Catalog) -> Stores:
        """The stores of the shards."""

    def route(self, catalog: Catalog, shards: Iterable[Shard]) -> Router:
        """The router over the shards here, and those that other hosts lead."""


class Shards(NamedTuple):
    """Those of one process."""

    folders: Mapping[int, Path]
    catalog: Catalog
    stores: Stores
    disk: DiskSpace
    sealer: Sealer
    router: Router
    split: SplitQueues
    """The way to queues of several parts."""
    deliveries: Deliveries
    queue_watch: QueueWatch
    unlocking: Unlocking
    shared_tasks: SharedTasks

    @property
    def feature(self) -> Feature:
        """The work that is repeated for them."""
        return Feature(
            periodic=(
                Every(_DATA_KEY_CHECK_S, self._renew_data_keys),
                Every(_DISK_CHECK_S, self.look_at_disk),
                Every(_GIVE_BACK_S, self._give_back_space),
                Every(LOOK_S, self.unlocking.look),
                Every(TASKS_LOOK_S, self.shared_tasks.look),
            )
        )

    def store_of(self, number: int) -> FlushedRows:
        """The store that a shard uses now."""
        return self.stores.of(number)

    def look_at_disk(self) -> None:
        """Notice that space is short, or is there again."""
        self.disk.look_if_due(_DISK_CHECK_S, can_grow=self.stores.can_grow())

    def _give_back_space(self) -> None:
        if self.disk.is_short:
            self.stores.give_back_space()

    async def _renew_data_keys(self) -> None:
        """Replace data keys that sealed long enough."""
        try:
            await self.sealer.renew(self.catalog)
        except (SealBroken, KeysAway) as error:
            structlog.get_logger("worker").error("data_keys_not_renewed", error=str(error))

    def begin_to_stop(self) -> None:
        """End long polls early."""
        self.deliveries.begin_to_stop()
        self.unlocking.stop()
        self.shared_tasks.stop()
        self.split.end_waiting()
        self.router.end_waiting()


async def open_shards(
    process: Process,
    host: Host,
    folders: Mapping[int, Path],
    catalog: Catalog,
    keyring: Keyring,
    *,
    archive: ArchiveLimits | None,
    shard_clock: Callable[[], Clock],
) -> Shards:
    """Open the shards, which hear of queues from the catalog's watch; each has its own clock.

    No queue may be made before. Raises StoreFailed, DamagedRecord, CatalogOlder, SealBroken,
    KeysAway.
    """
    settings, clock, entropy, opened = process
    sealer = Sealer(keyring, clock, makes_keys=settings.auth is AuthMode.OPEN)
    stores = host.stores(catalog)
    all_shards = [
        Shard(
            number,
            ShardParts(
                open_store=partial(stores.open, number, folder),
                clock=shard_clock(),
                entropy=entropy,
                definitions=catalog,
                archive=archive,
                sealing=sealer,
                remembers=not settings.is_alone,
                shared_catalog=catalog,
            ),
        )
        for number, folder in folders.items()
    ]
    router = host.route(catalog, all_shards)
    deliveries = Deliveries(router, entropy, catalog.shards, catalog.removed_at_ms)
    opened.push_async_callback(deliveries.stop)
    unlocking = Unlocking(router, catalog, entropy)
    opened.callback(unlocking.stop)
    shared_tasks = SharedTasks(router, catalog, entropy, catalog.removed_at_ms)
    opened.callback(shared_tasks.stop)
    for shard in all_shards:
        await shard.start(catalog.highest_queue_id)
        opened.push_async_callback(shard.stop)
    watch = QueueWatch(catalog, Router(all_shards))
    split = SplitQueues(router, catalog, entropy, clock.wall_s)
    shards = Shards(
        folders,
        catalog,
        stores,
        host.disk,
        sealer,
        router,
        split,
        deliveries,
        watch,
        unlocking,
        shared_tasks,
    )
    shards.look_at_disk()
    await sealer.prepare(catalog)
    return shards
