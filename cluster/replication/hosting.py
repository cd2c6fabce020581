"""ReplicatedStores: opens the stores of a host's replicas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import structlog

from cluster.clock import Clock, Entropy
from cluster.replication.checkpointing import ON_THIS_MACHINE, CheckpointTraffic, RowsPlace
from cluster.replication.contract import ASYNC_TIMING, ReplicaOwner, ReplicaReport, Times, Timing
from cluster.replication.journal import Journal
from cluster.replication.journal_files import OtherLog
from cluster.replication.leadership import Leadership
from cluster.replication.replacement import RowSource
from cluster.replication.replica import Replica
from cluster.replication.replica_port import Messages, ReplicaPort
from cluster.replication.replicated_store import ReplicatedStore, SourceOf
from storage.copies.checkpoint_files import CheckpointFiles
from storage.copies.replaced_rows import (
    drop_incoming,
    finish_replacing,
    forget_replacing,
    remove_outgoing,
    replace_rows,
)
from storage.engines.store import RowStore, StoreFailed
from storage.engines.store_options import Durability, Replication, StoreOptions, log_folder
from storage.log import ANSWERED_FILE, Disk, LogMismatch, Promise, PromiseFile, SystemDisk
from visibility.rows.row_codec import DamagedRecord


def new_replica_id(entropy: Entropy) -> str:
    """A random id of a replica."""
    return f"{entropy.bits128():032x}"


def replica_id_of(folder: Path, entropy: Entropy, disk: Disk | None = None) -> str:
    """The id of a shard folder's replica, made and stored if there is none; blocks.

    For a host that is registered before its cluster is founded: nothing may have the folder open.
    Raises OSError.
    """
    rows, folder, disk = folder, log_folder(folder), disk or SystemDisk()
    disk.make_folder(folder)
    file = PromiseFile(disk, folder)
    try:
        if file.promise is None:
            if ANSWERED_FILE in disk.list(folder):
                _tell_of_damage(rows)
            file.promise = Promise(new_replica_id(entropy))
            file.write_now(file.promise)
        return file.promise.replica_id
    finally:
        file.close()


def _tell_of_damage(folder: Path) -> None:
    structlog.get_logger("replicas").error(
        "replica_damaged",
        folder=str(folder),
        reason="there is no readable promise",
        means="this copy does not count until it has caught up; without a majority of copies that "
        "have theirs the shard gets no leader",
        action="check the disk; see `Losing a majority` in the runbook if the shard has no leader",
    )


def _prepared(files: CheckpointFiles, folder: Path) -> bool:
    """Finish what a crash interrupted; True if the rows came from a checkpoint, and the log was
    not opened over them. Blocks. Raises StoreFailed."""
    try:
        remove_outgoing(files, folder)
        return finish_replacing(files, folder) is not None
    except OSError as error:
        raise StoreFailed(f"cannot open {folder}: {error}") from error


def _no_source(store: ReplicatedStore) -> None:
    """The default: no rows can be fetched."""


class HostInCluster(NamedTuple):
    """A host among the hosts of its cluster, as its replicas ask about it."""

    host: str
    messages: Messages
    peers: Callable[[], Sequence[str]]
    """Names of the other hosts as of now; they may change."""
    leadership_of: Callable[[int], Leadership]
    log_id_of: Callable[[int], bytes]
    written_as: Callable[[], int]
    """The format of Entries that all members read."""
    reluctance_s: Callable[[int], float]
    """Seconds for which a free shard is left to other hosts."""


class HostParts(NamedTuple):
    """The parts of a host that its stores share."""

    options: StoreOptions
    clock: Clock
    entropy: Entropy
    has_space: Callable[[], bool]
    """False while this host's disk is short."""
    has_much_space: Callable[[], bool]
    """See `LogRetention`."""
    place: RowsPlace = ON_THIS_MACHINE


class ReplicatedStores:
    """Opens each shard's store, and knows the one that was opened last."""

    def __init__(
        self,
        cluster: HostInCluster,
        own: HostParts,
        checkpoints: CheckpointTraffic | None,
        timing: Timing | None = None,
    ) -> None:
        """Without `checkpoints`, a host that no log reaches back to stays behind."""
        options = own.options
        assert options.durability is Durability.FSYNC, "peers count on what is synced"
        self._cluster = cluster
        self._own = own
        self._checkpoints = checkpoints
        usual = ASYNC_TIMING if options.replication is Replication.ASYNC else Timing()
        self._timing = timing or usual
        self._opened: dict[int, ReplicatedStore] = {}
        self._log = structlog.get_logger("replicas")

    async def open(self, number: int, folder: Path) -> ReplicatedStore:
        """Open the store of a shard; it follows once the shard says so. Raises StoreFailed."""
        files, in_thread = self._own.place.files, self._own.place.in_thread
        replaced = await in_thread(partial(_prepared, files, folder))
        rows = await in_thread(partial(self._own.place.open_rows, folder))
        disk = self._own.place.new_disk()
        source_of = partial(self._source_of, number, folder)
        store = await self.assemble(number, rows, disk, source_of, rows_replaced=replaced)
        try:
            if replaced:
                await in_thread(partial(forget_replacing, files, folder))
            if self._checkpoints is not None:
                self._checkpoints.join(number, store)
        except BaseException as error:
            await store.abandon()  # else the rows would stay locked, and a replica without a shard
            if isinstance(error, OSError):
                raise StoreFailed(f"cannot open {folder}: {error}") from error
            raise
        return store

    def _source_of(self, number: int, folder: Path, store: ReplicatedStore) -> RowSource | None:
        if self._checkpoints is None:
            return None
        place = self._own.place
        return RowSource(
            fetch=partial(self._checkpoints.fetch, number, store),
            replace=partial(replace_rows, place.files, folder),
            leave=partial(self._checkpoints.leave, number),
            drop=partial(place.in_thread, partial(drop_incoming, place.files, folder)),
        )

    async def assemble(
        self,
        number: int,
        rows: RowStore,
        disk: Disk,
        source_of: SourceOf = _no_source,
        *,
        rows_replaced: bool = False,
    ) -> ReplicatedStore:
        """The same over any rows and any disk, which are closed on failure. Raises StoreFailed."""
        port = ReplicaPort(self._cluster.messages, number)
        try:
            applied = rows.applied()
            journal = Journal(
                disk,
                log_folder(rows.folder),
                log_id=self._cluster.log_id_of(number),
                new_replica_id=partial(new_replica_id, self._own.entropy),
                segment_bytes=self._own.options.segment_bytes,
                written_as=self._cluster.written_as,
            )
            opening = partial(journal.open, applied, rows_replaced=rows_replaced)
            await self._own.options.in_thread(opening)
        except BaseException as error:
            rows.close()
            disk.stop()
            if isinstance(error, OSError | LogMismatch | OtherLog | DamagedRecord):
                raise StoreFailed(f"cannot open {rows.folder}: {error}") from error
            raise
        store = self._opened[number] = ReplicatedStore(
            rows,
            disk,
            self._own.options,
            applied=applied,
            replica_of=partial(self._replica, number, journal, port),
            source_of=source_of,
            now_ms=self._wall_ms,
            peers=self._cluster.peers,
            has_much_space=self._own.has_much_space,
            on_closing=port.leave,
        )
        port.join(store.replica.receive)
        if journal.damage:
            self._log.error("replica_damaged", shard=number, reason=journal.damage)
        return store

    def _replica(
        self, number: int, journal: Journal, port: ReplicaPort, owner: ReplicaOwner
    ) -> Replica:
        return Replica(
            self._cluster.host,
            self._cluster.peers(),
            journal=journal,
            network=port,
            leadership=self._cluster.leadership_of(number),
            owner=owner,
            times=Times(self._own.clock.monotonic_s, self._own.clock.wall_s),
            timing=self._timing,
            has_space=self._own.has_space,
            reluctance_s=partial(self._cluster.reluctance_s, number),
        )

    def _wall_ms(self) -> int:
        return int(self._own.clock.wall_s() * 1000)

    def of(self, number: int) -> ReplicatedStore:
        """The store that the shard uses now."""
        return self._opened[number]

    def opened(self) -> Mapping[int, ReplicatedStore]:
        """The stores of this host by shard."""
        return self._opened

    def replicas(self) -> dict[int, Replica]:
        """The replicas of this host by shard."""
        return {number: store.replica for number, store in self._opened.items()}

    def key_freed(self, number: int) -> None:
        """Coordination reported that the key of a shard is free."""
        store = self._opened.get(number)
        if store is not None:
            store.replica.key.freed()

    def can_grow(self) -> bool:
        """False when a log finds no space to grow."""
        return all(store.can_grow for store in self._opened.values())

    def give_back_space(self) -> None:
        """The disk is short: remove what the shards do not need."""
        for store in self._opened.values():
            store.give_back_space()

    def reports(self) -> dict[int, ReplicaReport]:
        """The replicas of this host by shard."""
        return {number: store.report() for number, store in self._opened.items()}
