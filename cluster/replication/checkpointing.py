"""CheckpointTraffic: the checkpoints that the replicas of a host give to others, and get.

It scrubs their rows as well: damage is healed by a checkpoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from typing_extensions import override

from cluster.clock import Entropy
from cluster.peers.checkpoint_fetch import CheckpointFetch, Hosts, Wanted, ask_over
from cluster.peers.checkpoints import Checkpoints, Source
from cluster.peers.log_retention import LogRetention
from cluster.peers.peer_settings import CheckpointSettings
from cluster.peers.transport import Transport
from cluster.replication.replicated_store import ReplicatedStore
from storage.copies.checkpoint_files import (
    CheckpointFiles,
    SystemFiles,
    check_rows_of,
    make_checkpoint,
)
from storage.copies.replaced_rows import Replaced
from storage.copies.scrub import (
    InThread,
    Pace,
    RowFiles,
    Scrub,
    ScrubDamage,
    ScrubTimes,
    to_its_end,
)
from storage.engines.file_rows import FileRows
from storage.engines.rocks import RocksRows
from storage.engines.store import RowStore
from storage.log import Disk, Position, ReplicaLog, SystemDisk

_CHECK_BYTES_S = 64 << 20
"""Rows of a checkpoint are read at this rate, so that requests continue beside it."""
_SCRUB_BYTES_S = 8 << 20
"""The scrubs of all stores of a host share this rate."""


_T = TypeVar("_T")


async def _in_thread(work: Callable[[], _T], /) -> _T:
    """Cancelled, it waits for the thread: a folder is removed once nothing writes to it."""
    return await to_its_end(asyncio.to_thread(work))


class RowsPlace(NamedTuple):
    """The files of a host's rows, and what opens them: RocksDB's on this machine, unless the
    simulator says otherwise."""

    files: CheckpointFiles
    open_rows: Callable[[Path], RowStore] = RocksRows
    """May raise StoreFailed."""
    read_rows: Callable[[Path], RowFiles] = FileRows
    """Opens the files a second time, to look for damage."""
    new_disk: Callable[[], Disk] = SystemDisk
    """Makes the disk of the log beside the rows."""
    in_thread: InThread = _in_thread


ON_THIS_MACHINE = RowsPlace(SystemFiles())


class StoreSource(Source):
    """An open store that gives checkpoints: `cluster.peers.checkpoints.Source`."""

    def __init__(self, store: ReplicatedStore, read_rows: Callable[[Path], RowFiles]) -> None:
        self.folder: Path = store.folder
        self.log_id = store.replica.journal.log_id
        self.holds: LogRetention = store.holds
        self._store = store
        self._read_rows = read_rows

    @property
    @override
    def conflict(self) -> str:
        return self._store.replica.conflict

    @override
    def applied_index(self) -> int:
        return self._store.applied.index

    @override
    def log_start(self) -> int:
        return self._store.log_start

    @override
    def checkpoint(self, folder: Path) -> Position:
        return make_checkpoint(self._store.rows, folder, self._read_rows)


class StoreHosts(Hosts):
    """The hosts that may have the rows of a store: `cluster.peers.checkpoint_fetch.Hosts`."""

    def __init__(self, store: ReplicatedStore) -> None:
        self._store = store

    @override
    def sources(self) -> Sequence[str]:
        """The leader comes last."""
        leader = self.leader()
        others = [peer for peer in self._store.replica.peers if peer != leader]
        return others if leader is None else [*others, leader]

    @override
    def leader(self) -> str | None:
        promise = self._store.replica.journal.promise
        return promise.voters.get(promise.leader)


class CheckpointTraffic:
    """Gives, fetches and scrubs for all replicas of a host."""

    def __init__(
        self,
        transport: Transport,
        *,
        monotonic_s: Callable[[], float],
        entropy: Entropy,
        settings: CheckpointSettings | None = None,
        scrub_times: ScrubTimes | None = None,
        place: RowsPlace = ON_THIS_MACHINE,
    ) -> None:
        self._place = place
        self._settings = settings or CheckpointSettings()
        self._monotonic_s = monotonic_s
        self._entropy = entropy
        self._scrub_times = scrub_times
        self._scrub_pace = Pace(_SCRUB_BYTES_S, monotonic_s)
        self._scrubs: dict[int, asyncio.Task[None]] = {}
        self._ask = ask_over(transport)
        self._given = Checkpoints(
            transport,
            files=self._place.files,
            check_rows=partial(self._checked, Pace(_CHECK_BYTES_S, monotonic_s)),
            in_thread=self._place.in_thread,
            monotonic_s=monotonic_s,
            settings=self._settings,
        )

    def join(self, number: int, store: ReplicatedStore) -> None:
        """Give checkpoints of a store from now on, and scrub it."""
        self._given.join(number, StoreSource(store, self._place.read_rows))
        scrub = Scrub(
            open_rows=partial(self._place.read_rows, store.folder),
            log=partial(_open_log, store),
            on_damage=partial(_damaged, store),
            pace=self._scrub_pace,
            in_thread=self._place.in_thread,
            times=self._scrub_times,
        )
        self._scrubs[number] = asyncio.create_task(scrub.run())

    async def leave(self, number: int) -> None:
        """Give none any more; returns when nothing uses the store's files."""
        scrub = self._scrubs.pop(number, None)
        if scrub is not None:
            scrub.cancel()
            await asyncio.wait([scrub])
        await self._given.leave(number)

    async def fetch(self, number: int, store: ReplicatedStore) -> Replaced:
        """Get rows that the log of a peer reaches back to."""
        pace = Pace(_CHECK_BYTES_S, self._monotonic_s)
        fetch = CheckpointFetch(
            Wanted(number, store.folder, store.replica.journal.log_id, store.log_start),
            hosts=StoreHosts(store),
            ask=self._ask,
            check_rows=partial(self._checked, pace),
            files=self._place.files,
            in_thread=self._place.in_thread,
            monotonic_s=self._monotonic_s,
            entropy=self._entropy,
            settings=self._settings,
            on_no_good_copy=partial(store.damaged.no_good_copy, store.replica),
        )
        return await fetch.run()

    async def _checked(self, pace: Pace, folder: Path) -> Position:
        place = self._place
        return await check_rows_of(folder, pace, place.in_thread, place.read_rows)


def _open_log(store: ReplicatedStore) -> ReplicaLog | None:
    journal = store.replica.journal
    return journal.log if journal.is_open else None


def _damaged(store: ReplicatedStore, damage: ScrubDamage) -> None:
    """Heal what a scrub found. A log is opened anew: what the rows lack of it comes from the
    leader, and what they have durably was not lost."""
    if damage.place == "log":
        store.replica.fail(damage.reason)
    else:
        store.replace_rows(f"{damage.place}: {damage.reason}")
