"""ReplicatedStores: opens the stores of a host's replicas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

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


class ReplicatedStores:
    """Opens each shard's store, and knows the one that was opened last."""

    def __init__(
        self,
        host: str,
        messages: Messages,
        *,
        leadership_of: Callable[[int], Leadership],
        log_id_of: Callable[[int], bytes],
        peers: Callable[[], Sequence[str]],
        options: StoreOptions,
        clock: Clock,
        entropy: Entropy,
        timing: Timing | None = None,
        checkpoints: CheckpointTraffic | None,
        written_as: Callable[[], int],
        place: RowsPlace = ON_THIS_MACHINE,
        reluctance_s: Callable[[int], float],
        has_space: Callable[[], bool],
        has_much_space: Callable[[], bool],
    ) -> None:
        """`peers` are the names of the other hosts as of now; they may change. Without
        `checkpoints`, a host that no log reaches back to stays behind. `written_as` is the format
        of Entries that all members read. `reluctance_s`: the seconds for which a free shard is left
        to other hosts. `has_space` is False while this host's disk is short; for `has_much_space`
        see `LogRetention`."""
        self._written_as = written_as
        self._place = place
        assert options.durability is Durability.FSYNC, "peers count on what is synced"
        self._host = host
        self._messages = messages
        self._leadership_of = leadership_of
        self._log_id_of = log_id_of
        self._peers = peers
        self._options = options
        self._clock = clock
        self._entropy = entropy
        usual = ASYNC_TIMING if options.replication is Replication.ASYNC else Timing()
        self._timing = timing or usual
        self._checkpoints = checkpoints
        self._reluctance_s = reluctance_s
        self._has_space = has_space
        self._has_much_space = has_much_space
        self._opened: dict[int, ReplicatedStore] = {}
        self._log = structlog.get_logger("replicas")

    async def open(self, number: int, folder: Path) -> ReplicatedStore:
        """Open the store of a shard; it follows once the shard says so. Raises StoreFailed."""
        files, in_thread = self._place.files, self._place.in_thread
        replaced = await in_thread(partial(_prepared, files, folder))
        rows = await in_thread(partial(self._place.open_rows, folder))
        disk = self._place.new_disk()
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
        place = self._place
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
        port = ReplicaPort(self._messages, number)
        try:
            applied = rows.applied()
            journal = Journal(
                disk,
                log_folder(rows.folder),
                log_id=self._log_id_of(number),
                new_replica_id=partial(new_replica_id, self._entropy),
                segment_bytes=self._options.segment_bytes,
                written_as=self._written_as,
            )
            opening = partial(journal.open, applied, rows_replaced=rows_replaced)
            await self._options.in_thread(opening)
        except BaseException as error:
            rows.close()
            disk.stop()
            if isinstance(error, OSError | LogMismatch | OtherLog | DamagedRecord):
                raise StoreFailed(f"cannot open {rows.folder}: {error}") from error
            raise
        store = self._opened[number] = ReplicatedStore(
            rows,
            disk,
            self._options,
            applied=applied,
            replica_of=partial(self._replica, number, journal, port),
            source_of=source_of,
            now_ms=self._wall_ms,
            peers=self._peers,
            has_much_space=self._has_much_space,
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
            self._host,
            self._peers(),
            journal=journal,
            network=port,
            leadership=self._leadership_of(number),
            owner=owner,
            times=Times(self._clock.monotonic_s, self._clock.wall_s),
            timing=self._timing,
            has_space=self._has_space,
            reluctance_s=partial(self._reluctance_s, number),
        )

    def _wall_ms(self) -> int:
        return int(self._clock.wall_s() * 1000)

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
        """See `LeaderKey.freed`."""
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
