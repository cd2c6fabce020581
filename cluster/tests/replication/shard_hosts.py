"""Hosts with real shards over replicated stores, on simulated time, disks, rows and network."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from zlib import crc32

from cluster.replication.hosting import replica_id_of
from cluster.replication.replacement import RowSource
from cluster.replication.replica import Replica
from cluster.replication.replica_messages import Message
from cluster.replication.replicated_store import ReplicatedStore
from cluster.shards.shard import Shard
from cluster.shards.shard_report import Phase
from cluster.tests.replication.host import TIMING, WALL_S
from cluster.tests.replication.network import SimulatedNetwork
from cluster.tests.replication.replica_coordination import Coordination
from cluster.tests.replication.shard_process import SHARD, Checkpointing, Process
from cluster.tests.simulation.disk_of_life import WatchedDisk
from cluster.tests.simulation.row_folders import RowFolders
from cluster.tests.simulation.simulated_rows import RowFiles
from cluster.tests.simulation.simulated_worker import SimulatedEntropy
from storage.copies.replaced_rows import MARK_FILE, Replaced, incoming_of
from storage.engines.store import StoreFailed
from storage.engines.store_options import StoreOptions
from storage.log import Position
from storage.tests.simulated_disk import PowerCut
from visibility.contract.errors import QueueError, ServiceUnavailable
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.outcomes import Answer
from visibility.rows.row_values import NotedParts
from visibility.tests.prepared import KnownQueues


class ShardHost:
    """Everything that outlives the process: disk, rows and clocks."""

    def __init__(self, cluster: ShardCluster, name: str, random: Random) -> None:
        self.cluster = cluster
        self.name = name
        self.random = random
        self.folder = Path(f"/{name}/shard-{SHARD}")
        self.disk = WatchedDisk(Random(random.getrandbits(64)))
        self.folders = RowFolders(Random(f"{cluster.log_id.hex()} {name}"))
        self._watch_power()
        self.process: Process | None = None
        self.lives = 0
        self.ahead_s = 0.0
        """Of its wall clock."""
        self.is_paused = False
        self._queue: deque[Callable[[], object]] = deque()
        """Messages and callbacks that reached a stopped process."""
        self._speed = 1.0
        self._speed_since = self._monotonic_then = 0.0
        self._starting: asyncio.Task[None] | None = None
        self._time: Callable[[], float] = _running_time

    def _watch_power(self) -> None:
        self.disk.on_cut = self.folders.on_cut = partial(self.crash, is_power_loss=True)

    def replace_disk(self, random: Random) -> None:
        """A new, empty disk, while the host is down."""
        assert self.process is None
        self.disk = WatchedDisk(Random(random.getrandbits(64)))
        self.folders = RowFolders(Random(random.getrandbits(64)))
        self._watch_power()

    # -- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process."""
        self.lives += 1
        self._time = asyncio.get_running_loop().time
        self.process = Process(self)
        self._starting = asyncio.create_task(self.process.start())
        self.cluster.note(f"{self.name} starts")

    def crash(self, *, is_power_loss: bool) -> None:
        """End the process."""
        process, self.process = self.process, None
        if process is None:
            return
        self.cluster.note(f"{self.name} {'power loss' if is_power_loss else 'kill -9'}")
        self.is_paused = False
        self._queue.clear()
        process.end()
        if is_power_loss:
            self.disk.crash()
            self.folders.crash()
        else:
            self.disk.kill()
            self.folders.kill()
        self.cluster.ended(self)

    async def stop(self) -> None:
        """Stop cleanly."""
        process = self.process
        assert process is not None
        try:
            await process.shard.stop()
        except (PowerCut, StoreFailed):
            self.cluster.note(f"{self.name} did not stop well")
        if process.is_over:
            return  # it crashed meanwhile
        process.end()
        self.process = None
        self.disk.kill()
        self.folders.kill()
        self.cluster.ended(self)

    def pause(self) -> None:
        """SIGSTOP."""
        self.is_paused = True

    def resume(self) -> None:
        """SIGCONT: all that came meanwhile is there."""
        self.is_paused = False
        while self._queue and not self.is_paused:
            with suppress(PowerCut):  # the host has crashed
                self._queue.popleft()()

    def enter(self, work: Callable[[], object]) -> None:
        """Do something in the process, once it runs."""
        if self.is_paused:
            self._queue.append(work)
        else:
            work()

    def end_faults(self) -> None:
        """Let nothing go wrong any more; it runs."""
        disk = self.disk
        disk.failing_syncs = disk.short_writes = 0
        disk.is_full = False
        disk.calls_until_cut = None
        disk.sync_s = (0.0001, 0.002)
        self.files.failing_flushes = 0
        self.folders.calls_until_cut = None
        self.folders.wrong_reads = self.folders.wrong_views = 0
        self.ahead_s, self.speed = 0.0, 1.0
        self.resume()
        if not self.is_up:
            self.start()

    # -- looking in --------------------------------------------------------------------------------

    @property
    def serves(self) -> bool:
        return self.leads

    @property
    def files(self) -> RowFiles:
        """The rows on the disk: where a crash interrupted their replacement, the new ones."""
        incoming = incoming_of(self.folder)
        is_replaced = MARK_FILE in self.folders.names(incoming)
        try:
            return self.folders.rows(incoming if is_replaced else self.folder)
        except StoreFailed as error:
            raise AssertionError(f"{self.name}: {error}") from error

    @property
    def seed(self) -> int:
        """Of the checksums of its records."""
        return crc32(self.cluster.log_id)

    @property
    def is_up(self) -> bool:
        return self.process is not None

    @property
    def shard(self) -> Shard:
        assert self.process is not None
        return self.process.shard

    @property
    def store(self) -> ReplicatedStore:
        assert self.process is not None
        assert self.process.store is not None
        return self.process.store

    @property
    def replica(self) -> Replica | None:
        return self.process.store.replica if self.process and self.process.store else None

    @property
    def leads(self) -> bool:
        return self.process is not None and self.process.shard.phase is Phase.LEADING

    @property
    def rows(self) -> dict[bytes, bytes]:
        """The rows as they are read."""
        assert self.process is not None
        assert self.process.rows is not None
        return self.process.rows.rows

    @property
    def last_index(self) -> int:
        """Of its log."""
        return self.store.replica.log.last_index

    async def appended(self, index: int) -> None:
        """Wait for an Entry; no time passes, so that it stays under way."""
        for _ in range(100):
            if self.last_index == index:
                return
            await asyncio.sleep(0)
        raise AssertionError("no Entry comes")

    def state(self) -> str:
        """For a message."""
        if self.process is None:
            return f"{self.name} down"
        if self.process.store is None:
            return f"{self.name} starts"
        report = self.process.store.report()
        return (
            f"{self.name} {self.process.shard.phase} {report.role} term {report.term} "
            f"applied {report.applied} of {report.last_index}"
        )

    # -- clocks ------------------------------------------------------------------------------------

    @property
    def speed(self) -> float:
        """Of its monotonic clock."""
        return self._speed

    @speed.setter
    def speed(self, speed: float) -> None:
        self._monotonic_then = self.monotonic_s()
        self._speed_since = self._time()
        self._speed = speed

    def monotonic_s(self) -> float:
        return self._monotonic_then + (self._time() - self._speed_since) * self._speed

    def wall_s(self) -> float:
        return WALL_S + self._time() + self.ahead_s


class Reply:
    """Answers to a request."""

    def __init__(self) -> None:
        self.answers: list[Answer | QueueError] = []
        self.answered = asyncio.Event()

    def take(self, answer: Answer | QueueError) -> None:
        self.answers.append(answer)
        self.answered.set()


class ShardCluster:
    """Hosts, network and coordination of one shard."""

    def __init__(
        self,
        random: Random,
        *,
        size: int = 3,
        options: StoreOptions | None = None,
        number: int = 0,
    ) -> None:
        self.number = number
        """The shard's."""
        self.began: Callable[[Process], object] = _ignore
        """Called with each process before it starts."""
        self.random = random
        self.log_id = random.randbytes(16)
        self.queues = KnownQueues()
        self.timing = TIMING
        self.options = options or StoreOptions(segment_bytes=64 << 10)
        self.thread_s_max = 0.01
        self.checkpoints: Checkpointing | None = None
        """None if hosts neither give nor fetch checkpoints."""
        self.lines: list[str] = []
        """All that happened."""
        self.violations: list[str] = []
        self.is_ending = False
        """Nothing goes wrong any more."""
        self.is_gone = False
        """Switched off for good."""
        self.committed: dict[int, Position] = {}
        """By index, those that came into the rows of some host."""
        self.given_back: Callable[[Request], object] = _ignore
        """Called with each request that gives messages back."""
        self.catch_up: Callable[[], Awaitable[bool]] = _at_once
        """Lets a host see the latest definitions; False if it cannot."""
        self.is_catalog_away = False
        """True while no record of the catalog can be written."""
        self.ended: Callable[[ShardHost], object] = _ignore
        """Called when a process has ended."""
        self.leads: Callable[[], object] = lambda: None
        """Called when a host begins to lead."""
        self.names = [f"h{number}" for number in range(1, size + 1)]
        self.network = SimulatedNetwork(Random(random.getrandbits(32)), self._deliver)
        self.coordination = Coordination(Random(random.getrandbits(32)))
        self.hosts = {
            name: ShardHost(self, name, Random(random.getrandbits(32))) for name in self.names
        }

    def others(self, name: str) -> list[str]:
        return [other for other in self.names if other != name]

    def note(self, text: str) -> None:
        self.lines.append(f"{asyncio.get_running_loop().time():.4f} {text}")

    def applied(self, host: ShardHost, position: Position) -> None:
        """The rows of a host get this Entry: no index is committed twice."""
        known = self.committed.setdefault(position.index, position)
        if known != position:
            self.violations.append(f"{host.name} applied another Entry {position.index}")

    def _deliver(self, to: str, sender: str, message: Message) -> None:
        process = self.hosts[to].process
        if process is not None:
            process.receive(sender, message)

    def start(self) -> None:
        """Found the cluster, and start its hosts."""
        entropy = SimulatedEntropy(Random(self.random.getrandbits(64)))
        voters = {
            replica_id_of(host.folder, entropy, host.disk): host.name
            for host in self.hosts.values()
        }
        self.coordination.found(self.log_id, voters)
        for host in self.hosts.values():
            host.start()

    # -- the catalog, as `Catalog` answers ---------------------------------------------------------

    @property
    def highest_queue_id(self) -> int:
        return self.queues.highest_queue_id

    def etcd_went_back(self) -> None:
        """The watches of all hosts report older records, which `queues` has."""
        for host in self.hosts.values():
            if host.process is not None:
                host.enter(host.process.catalog.went_back)

    async def caught_up(self) -> bool:
        return await self.catch_up()

    async def raise_ids(self, at_least: int) -> None:
        if self.is_catalog_away:
            raise ServiceUnavailable()
        self.queues.issued = max(self.queues.issued, at_least)

    async def write_back_parts(self, noted: Mapping[bytes, NotedParts]) -> list[QueueDefinition]:
        if self.is_catalog_away and noted:
            raise ServiceUnavailable()
        return self.queues.write_back(noted)

    # -- stories -----------------------------------------------------------------------------------

    async def until(self, holds: Callable[[], bool], patience_s: float = 60.0) -> None:
        """Wait until it is so."""
        loop = asyncio.get_running_loop()
        end = loop.time() + patience_s
        while not holds():
            assert loop.time() < end, [host.state() for host in self.hosts.values()]
            await asyncio.sleep(0.02)

    def leading(self, *, but: ShardHost | None = None) -> ShardHost | None:
        hosts = self.hosts.values()
        return next((host for host in hosts if host.leads and host is not but), None)

    async def leader(self, *, but: ShardHost | None = None) -> ShardHost:
        """Whoever leads, soon."""
        await self.until(lambda: self.leading(but=but) is not None)
        found = self.leading(but=but)
        assert found is not None
        return found

    def ask(self, host: ShardHost, request: Request) -> Reply:
        """Ask this host's shard."""
        reply = Reply()
        host.shard.submit(request, reply.take)
        return reply

    async def answer(self, host: ShardHost, request: Request) -> Answer | QueueError:
        """The only answer of this host's shard."""
        reply = self.ask(host, request)
        await asyncio.wait_for(reply.answered.wait(), 60)
        (answer,) = reply.answers
        return answer

    def isolate(self, host: ShardHost) -> None:
        """Cut it from its peers and from coordination."""
        for other in self.names:
            self.network.cut.update({(host.name, other), (other, host.name)})
        self.coordination.unreachable.add(host.name)

    def heal(self) -> None:
        self.network.cut.clear()
        self.coordination.end_faults()

    async def alike(self) -> None:
        """All hosts have applied the same Entries, all that there are."""

        def are_alike() -> bool:
            if not all(host.process and host.process.store for host in self.hosts.values()):
                return False
            places = {host.store.applied for host in self.hosts.values()}
            leader = self.leading()
            return leader is not None and places == {leader.store.replica.log.last}

        await self.until(are_alike)


def _running_time() -> float:
    return asyncio.get_running_loop().time()


async def _at_once() -> bool:
    """The definitions are the latest."""
    return True


def _ignore(what: object) -> None:
    """Does nothing."""


def restart(cluster: ShardCluster, **options: int) -> None:
    """Start all hosts anew, with other options."""
    cluster.options = cluster.options._replace(**options)  # type: ignore[arg-type]
    for host in cluster.hosts.values():
        host.crash(is_power_loss=True)
        host.start()


def fetching(cluster: ShardCluster) -> list[str]:
    """Lets each host fetch rows, without an end; returns the names of those that do."""
    found: list[str] = []

    async def fetch(name: str) -> Replaced:
        found.append(name)
        never: asyncio.Future[Replaced] = asyncio.get_running_loop().create_future()
        return await never

    async def leave() -> None:
        """Returns at once: the rows are not in use."""

    for host in cluster.hosts.values():
        source = RowSource(partial(fetch, host.name), lambda replaced: None, leave, leave)
        host.store.replacement.source = source
    return found
