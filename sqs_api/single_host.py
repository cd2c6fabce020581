"""SingleHost: a host without a cluster, as `cluster_host.ClusterHost` is a member of one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cluster.catalog.catalog import Catalog
from cluster.catalog.host_records import HostRecords
from cluster.catalog.other_hosts import NO_OTHERS, OtherHosts
from cluster.coordination.coordination import Coordination
from cluster.members.host_folder import refuse_member_folder
from cluster.peers.questions import Questions
from cluster.shards.router import Router
from cluster.shards.shard import Shard
from sqs_api.admin.backup_points import OwnPoint
from sqs_api.admin.cluster_parts import BackupPoint
from sqs_api.admin.quiesce import Quiesce
from sqs_api.gateway.disk_space import DiskSpace
from sqs_api.parts import Feature, Process
from storage.engines.durable import DurableStore
from storage.engines.opening import open_store
from storage.engines.store_options import StoreOptions

_COMMAND_S = 5.0
"""Time that a start waits for a command that changes users or keys of the folder."""


def queue_names(catalog: Catalog, shard: int) -> dict[int, str]:
    """The names of a shard's queues by id."""
    return {each.queue_id: each.name for each in catalog.all_queues() if each.shard == shard}


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


class SingleHost(NamedTuple):
    """`open_single_host` makes one."""

    records: HostRecords
    options: StoreOptions
    disk: DiskSpace
    questions: Questions | None = None
    others: OtherHosts = NO_OTHERS
    feature: Feature = Feature()
    doors: None = None
    """There is one."""

    def below(self, kind: str) -> Coordination:
        """The records of one kind, such as `catalog/`."""
        return self.records.below(kind)

    @property
    def own_records(self) -> Coordination:
        """All of them, for commands."""
        return self.records.below("")

    def stores(self, catalog: Catalog) -> OwnStores:
        """The stores of the shards."""
        return OwnStores(self.options, partial(queue_names, catalog))

    def route(self, catalog: Catalog, shards: Iterable[Shard]) -> Router:
        """The router over the shards."""
        return Router(shards, refusal=self.disk.refusal)

    def backup_point(self, quiesce: Quiesce, router: Router) -> BackupPoint:
        """The point of a backup."""
        return OwnPoint(quiesce)

    async def connect(self) -> None:
        """There is no other host."""

    async def leave(self) -> None:
        """There is no other host."""

    async def finish(self) -> None:
        """There is no other host."""


async def open_single_host(process: Process, options: StoreOptions, disk: DiskSpace) -> SingleHost:
    """Open the records of the folder. Raises FolderRefused of a member's, sqlite3.Error."""
    data = process.settings.data
    refuse_member_folder(data)
    records = await HostRecords.open(data, _COMMAND_S)
    process.opened.push_async_callback(records.close)
    return SingleHost(records, options, disk)
