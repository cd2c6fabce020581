"""Hosts that give each other checkpoints: real RocksDB folders, a simulated network, virtual
time."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from random import Random
from typing import TypeVar

from cluster.peers.checkpoint_fetch import CheckpointFetch, Wanted, ask_over
from cluster.peers.checkpoint_messages import Begin, Read, Request
from cluster.peers.checkpoints import Checkpoints
from cluster.peers.log_retention import LogRetention
from cluster.peers.peer_outcomes import Outcome
from cluster.peers.peer_settings import CheckpointSettings
from cluster.tests.peers.peers import SETTINGS, Peer, start
from cluster.tests.peers.simulated_network import SimulatedNetwork
from cluster.tests.virtual_time import CountingEntropy
from storage.copies.checkpoint_files import SystemFiles, check_rows_of, make_checkpoint
from storage.copies.replaced_rows import Replaced, incoming_of
from storage.copies.scrub import Pace
from storage.engines.rocks import RocksRows
from storage.engines.store import StoreFailed
from storage.log import Position
from visibility.rows.row_changes import Ops
from visibility.rows.row_codec import encode_row

T = TypeVar("T")
LOG_ID = b"l" * 16
SHARD = 3
CHUNK = 16 << 10
ROWS = 60
ROW_BYTES = 2_000
CHECKPOINTS = CheckpointSettings(chunk_bytes=CHUNK, reserve_bytes=1 << 20)


def loop_s() -> float:
    return asyncio.get_running_loop().time()


async def in_thread(work: Callable[[], T], /) -> T:
    """Without a thread: time is virtual."""
    await asyncio.sleep(0)
    return work()


def read_all(folder: Path) -> Awaitable[Position]:
    """Read all rows of a folder."""
    return check_rows_of(folder, Pace(1 << 40, loop_s), in_thread)


class HostFiles(SystemFiles):
    """The files of one host, which may fail."""

    def __init__(self) -> None:
        self.wrong_reads = 0
        """Number of reads to come that give other bytes than the file has."""
        self.is_full = False
        self.freed: int | None = None

    def read(self, file: Path, offset: int, size: int) -> bytes:
        data = super().read(file, offset, size)
        if self.wrong_reads and data and file.suffix == ".sst":
            self.wrong_reads -= 1
            return bytes([data[0] ^ 1]) + data[1:]
        return data

    def write(self, file: Path, data: bytes, offset: int) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(file, data, offset)

    def free(self, folder: Path) -> int:
        return super().free(folder) if self.freed is None else self.freed


class SourceShard:
    """A shard that is open."""

    log_id = LOG_ID

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows = RocksRows(folder)
        self.holds = LogRetention(loop_s, lambda: True)
        self.start = 0
        self.made = 0
        self.conflict = ""
        self.is_failing = False

    def write(self, count: int = 1) -> None:
        """Entries that each put many rows."""
        for _ in range(count):
            index = self.applied_index() + 1
            ops: Ops = []
            for number in range(ROWS):
                key = b"%08d.%08d" % (index, number)
                ops += [key, encode_row(Random(key).randbytes(ROW_BYTES))]
            self.rows.write(ops, Position(1, index, index))

    def applied_index(self) -> int:
        return self.rows.applied().index

    def log_start(self) -> int:
        return self.start

    def checkpoint(self, folder: Path) -> Position:
        self.made += 1
        if self.is_failing:
            raise StoreFailed("the disk is full")
        return make_checkpoint(self.rows, folder)

    def flip(self) -> None:
        """A flipped bit in the middle of its largest file."""
        self.rows.flush()
        file = max(self.folder.glob("*.sst"), key=lambda each: each.stat().st_size)
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        # Hard links show it too.
        with file.open("r+b") as stream:
            stream.write(content)


class CheckpointHost:
    """A host that may fetch, and gives what it has."""

    def __init__(self, name: str, network: SimulatedNetwork, top: Path) -> None:
        self.name = name
        self.peer = Peer(name, network, SETTINGS)
        self.files = HostFiles()
        top.mkdir()
        self.folder = top / "shard-0"
        self.shard: SourceShard | None = None
        self.check_rows: Callable[[Path], Awaitable[Position]] = read_all
        self.checkpoints = Checkpoints(
            self.peer.transport,
            files=self.files,
            check_rows=self._check,
            in_thread=self._work,
            monotonic_s=loop_s,
            settings=CHECKPOINTS,
        )
        self.work_s = 0.0
        """Duration of each step of giving."""
        self.asked: list[tuple[str, Request]] = []
        self.under_way = 0
        self.under_way_max = 0
        self.ask_transport = ask_over(self.peer.transport)
        self.known_sources: list[str] = []
        self.known_leader: str | None = None
        self.write_s = 0.0
        """Duration of each step of fetching."""

    async def _work(self, work: Callable[[], T], /) -> T:
        await asyncio.sleep(self.work_s)
        return work()

    def open(self, entries: int = 5) -> SourceShard:
        """The shard, with some rows."""
        self.shard = SourceShard(self.folder)
        self.shard.write(entries)
        self.checkpoints.join(SHARD, self.shard)
        return self.shard

    def outgoing(self) -> list[str]:
        """Folders of checkpoints that it gives."""
        return [path.name for path in self.folder.parent.glob("*.outgoing-*")]

    # -- fetching ----------------------------------------------------------------------------------

    def sources(self) -> Sequence[str]:
        return list(self.known_sources)

    def leader(self) -> str | None:
        return self.known_leader

    async def ask(self, host: str, request: Request, timeout_s: float, /) -> Outcome:
        self.asked.append((host, request))
        self.under_way += isinstance(request, Read)
        self.under_way_max = max(self.under_way_max, self.under_way)
        try:
            return await self.ask_transport(host, request, timeout_s)
        finally:
            self.under_way -= isinstance(request, Read)

    def begun(self) -> list[str]:
        """The hosts that were asked for a checkpoint."""
        return [host for host, request in self.asked if isinstance(request, Begin)]

    async def _in_thread(self, work: Callable[[], T], /) -> T:
        await asyncio.sleep(self.write_s)
        return work()

    def _check(self, folder: Path) -> Awaitable[Position]:
        return self.check_rows(folder)

    def fetch(self, *sources: str, leader: str | None = None, at_least: int = 0) -> CheckpointFetch:
        self.no_good_copies = 0
        self.known_sources = list(sources)
        self.known_leader = leader
        return CheckpointFetch(
            Wanted(SHARD, self.folder, LOG_ID, at_least),
            hosts=self,
            ask=self.ask,
            check_rows=self._check,
            files=self.files,
            in_thread=self._in_thread,
            monotonic_s=loop_s,
            entropy=CountingEntropy(),
            settings=CHECKPOINTS,
            on_no_good_copy=self._note_no_good_copy,
        )

    def _note_no_good_copy(self) -> None:
        self.no_good_copies += 1

    def fetched(self, replaced: Replaced) -> dict[bytes, bytes]:
        """The rows that were fetched, which are as of this Entry."""
        copy = self.folder.with_name("look")
        shutil.copytree(incoming_of(self.folder), copy)
        with closing(RocksRows(copy)) as rows:
            assert rows.applied() == replaced.position
            found = dict(rows.scan(b"", b"\xff" * 33))
        shutil.rmtree(copy)
        return found


def rows_of(shard: SourceShard) -> dict[bytes, bytes]:
    """The rows as they are now."""
    return dict(shard.rows.scan(b"", b"\xff" * 33))


@asynccontextmanager
async def hosts(tmp_path: Path, names: str = "abc") -> AsyncIterator[list[CheckpointHost]]:
    """Connected hosts without shards."""
    network = SimulatedNetwork()
    made = [CheckpointHost(name, network, tmp_path / name) for name in names]
    await start([host.peer for host in made])
    try:
        yield made
    finally:
        network.mend()
        for host in made:
            await host.checkpoints.leave(SHARD)
            await host.peer.transport.stop()
            if host.shard is not None:
                host.shard.rows.close()
            assert not host.outgoing()
