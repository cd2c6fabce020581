"""A host: its disk, clocks, rows, and one replica after the other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING
from zlib import crc32

from msgspec.msgpack import decode

from cluster.replication import Journal, NotServing, Replica, ReplicaRole, Times, Timing
from cluster.replication.replica_messages import Message
from cluster.tests.replication.network import Port
from storage.log import BEGINNING, LogFailed, LogFull, Position, Promise, ReplicaLog
from storage.log.disk import Done, Work
from storage.log.promise import PROMISE_FILE, read_promises
from storage.tests.simulated_disk import PowerCut, SimulatedDisk

if TYPE_CHECKING:
    from cluster.tests.replication.cluster import Cluster

TICK_S = 0.2
TIMING = Timing(heartbeat_s=0.4, quiet_s=0.6, silence_s=1.2, resend_s=0.7)
WALL_S = 1_790_000_000.0
_CHECKPOINT_S = 0.3

Answer = Callable[[bool], None]


class _GatedDisk(SimulatedDisk):
    """A disk whose lanes tell a process only while it runs, and whose end is the host's."""

    def __init__(self, random: Random, host: Host) -> None:
        super().__init__(random)
        self._host = host

    def run(self, work: Work, done: Done) -> None:
        super().run(partial(self._try, work), lambda error: self._host.enter(partial(done, error)))

    def prepare(self, work: Work, done: Done) -> None:
        super().prepare(
            partial(self._try, work), lambda error: self._host.enter(partial(done, error))
        )

    def _try(self, work: Work) -> None:
        try:
            work()
        except PowerCut:
            loop = asyncio.get_running_loop()
            loop.call_soon(self._host.lose_power, self._host.life)
            raise


class Host:
    """See above. It is its replica's owner as well."""

    def __init__(self, cluster: Cluster, name: str, random: Random) -> None:
        self.cluster = cluster
        self.name = name
        self.folder = Path(f"/{name}/shard-0.log")
        self.replica: Replica | None = None
        self.is_paused = False
        self.lives = 0
        self.applied = BEGINNING
        self.flushed = BEGINNING
        """Of the rows that survive a crash."""
        self.is_replaced = False
        """The rows are of another host, and the log was not opened over them since."""
        self.ahead_s = 0.0
        """Of its wall clock."""
        self.speed = 1.0
        """Of its monotonic clock."""
        self.is_damaged = False
        """Something it acknowledged is gone from its disk."""
        self._random = random
        self._queue: deque[Callable[[], None]] = deque()
        """Messages and callbacks that reached a stopped process."""
        self.life = 0
        self._pending: dict[int, tuple[bytes, Answer]] = {}
        self._copying = False
        self._told: tuple[ReplicaLog | None, int] = None, 0
        """The log as it was after the last step, and its last index."""
        self.disk = self._new_disk()

    def _new_disk(self) -> SimulatedDisk:
        return _GatedDisk(Random(self._random.getrandbits(32)), self)

    @property
    def is_up(self) -> bool:
        return self.replica is not None

    # -- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process; a disk that fails ends it again."""
        self.life += 1
        self.lives += 1
        self.applied = self.flushed
        journal = Journal(
            self.disk,
            self.folder,
            log_id=self.cluster.log_id,
            new_replica_id=self.cluster.new_replica_id,
            segment_bytes=self.cluster.segment_bytes,
        )
        try:
            journal.open(self.flushed, rows_replaced=self.is_replaced)
            self.is_replaced = False
        except OSError:
            self.crash(is_power_loss=False)
            return
        except PowerCut:
            self.crash(is_power_loss=True)
            return
        self.replica = Replica(
            self.name,
            [name for name in self.cluster.names if name != self.name],
            journal=journal,
            network=Port(self.cluster.network, self.name),
            leadership=self.cluster.leadership_of(self),
            owner=self,
            times=Times(self._monotonic_s, self._wall_s),
            timing=self.cluster.timing,
            has_space=lambda: True,
            reluctance_s=lambda: 0.0,
        )
        self.cluster.note(f"{self.name} up: {journal.log.last_index} {journal.damage}")
        self.on_committed(self.replica.commit)
        self._tick(self.life)

    def crash(self, *, is_power_loss: bool) -> None:
        """End the process."""
        if self.replica is not None:
            self.cluster.note(f"{self.name} {'power loss' if is_power_loss else 'kill -9'}")
        self.life += 1
        self.replica = None
        self.is_paused = False
        self._queue.clear()
        self._forget_pending()
        if is_power_loss:
            self.disk.crash()
        else:
            self.disk.kill()

    def lose_power(self, life: int) -> None:
        """The power was cut while a thread worked."""
        if life == self.life:
            self.crash(is_power_loss=True)

    def replace_disk(self) -> None:
        """A new, empty disk, while the host is down."""
        assert self.replica is None
        self.disk = self._new_disk()
        self.applied = self.flushed = BEGINNING
        self.is_replaced = False
        self.is_damaged = True

    def pause(self) -> None:
        """SIGSTOP."""
        self.is_paused = True

    def resume(self) -> None:
        """SIGCONT: all that came meanwhile is there."""
        self.is_paused = False
        while self._queue and not self.is_paused:
            self._run(self._queue.popleft())

    def entry(self) -> Callable[[Callable[[], None]], None]:
        """Enters this life only."""
        return partial(self._enter_life, self.life)

    def _enter_life(self, life: int, work: Callable[[], None]) -> None:
        if life == self.life:
            self.enter(work)

    def enter(self, work: Callable[[], None]) -> None:
        """Do something in the process, once it runs."""
        if self.is_paused:
            self._queue.append(work)
        else:
            self._run(work)

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except PowerCut:
            self.crash(is_power_loss=True)
        if self.replica is not None and self.replica.journal.is_open:
            self._tell_written(self.replica.log)

    def _tell_written(self, log: ReplicaLog) -> None:
        """Tell the record which Entries are in the log since the last step."""
        told = self._told[1] if self._told[0] is log else log.start.index
        for index in range(max(told, log.start.index) + 1, log.last_index + 1):
            position = log.position_at(index)
            assert position is not None
            self.cluster.record.written(self.name, position)
        self._told = log, log.last_index

    def _tick(self, life: int) -> None:
        if life != self.life or self.replica is None:
            return
        loop = asyncio.get_running_loop()
        loop.call_later(TICK_S * self._random.uniform(0.8, 1.2), self._tick, life)
        if not self.is_paused:
            self._run(self.replica.tick)
            if self.applied.index > self.flushed.index and self._random.random() < 0.05:
                self._run(self.flush)

    def receive(self, sender: str, message: Message) -> None:
        """A message arrives."""
        if self.replica is not None:
            life = self.life
            self.enter(lambda: self._receive(life, sender, message))

    def _receive(self, life: int, sender: str, message: Message) -> None:
        if self.replica is not None and life == self.life:
            self.replica.receive(sender, message)

    def _monotonic_s(self) -> float:
        return asyncio.get_running_loop().time() * self.speed

    def _wall_s(self) -> float:
        return WALL_S + asyncio.get_running_loop().time() + self.ahead_s

    # -- looking in --------------------------------------------------------------------------------

    @property
    def seed(self) -> int:
        """Of the checksums of its records."""
        return crc32(self.cluster.log_id)

    def id_on_disk(self) -> str:
        """The replica's id, empty if there is none."""
        if PROMISE_FILE not in self.disk.list(self.folder):
            return ""
        slots = read_promises(bytes(self.disk.file(self.folder / PROMISE_FILE).content))
        return "" if slots.payload is None else decode(slots.payload, type=Promise).replica_id

    def state(self) -> str:
        """For a message."""
        if self.replica is None:
            return f"{self.name} down"
        role, behind = self.replica.role, self.replica.needs_checkpoint
        return f"{self.name} {role} applied {self.applied.index} behind {behind}"

    def end_faults(self) -> None:
        """Let nothing go wrong any more; it runs."""
        disk = self.disk
        disk.failing_syncs = disk.short_writes = 0
        disk.is_full = False
        disk.calls_until_cut = None
        disk.sync_s = (0.0001, 0.002)
        self.ahead_s, self.speed = 0.0, 1.0
        self.resume()
        if self.replica is None:
            self.start()

    # -- rows --------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make the rows durable; the log may forget what they hold."""
        replica = self.replica
        if replica is not None and replica.role is not ReplicaRole.RECOVERING:
            self.flushed = self.applied
            replica.release(self.flushed.index)

    # -- ReplicaOwner ------------------------------------------------------------------------------

    def first_body(self) -> bytes:
        return b""

    def on_committed(self, index: int) -> None:
        replica = self.replica
        assert replica is not None
        record = self.cluster.record
        for each in range(self.applied.index + 1, index + 1):
            entry = replica.log.entries.read_now(each)
            record.applied(self.name, entry.position, entry.body)
            self.applied = entry.position
            waiting = self._pending.pop(each, None)
            if waiting is not None:
                body, answer = waiting
                record.acknowledge(entry.position, body)
                answer(True)

    def on_synced(self) -> None:
        """Nothing is answered early."""

    def on_serving(self, term: int) -> None:
        self.cluster.note(f"{self.name} serves in term {term}")
        self.cluster.record.served.append(term)
        wanted = self.cluster.record.highest_until(term)
        if not self._holds(wanted):
            self.cluster.record.find(f"{self.name} serves without acknowledged {wanted.index}")

    def on_deposed(self) -> None:
        self._forget_pending()

    def on_behind(self, leader: str) -> None:
        """Copy the leader's rows, after a while."""
        if not self._copying:
            self._copying = True
            self.cluster.note(f"{self.name} needs a checkpoint")
            loop = asyncio.get_running_loop()
            loop.call_later(_CHECKPOINT_S, self._copy, self.life, leader)

    def _copy(self, life: int, leader: str) -> None:
        self._copying = False
        if life == self.life:
            self.take_rows(self.cluster.hosts[leader])

    def take_rows(self, source: Host) -> bool:
        """Start over the rows of another host, unless they are older than the log."""
        replica = self.replica
        if replica is None or source.replica is None or replica.role is ReplicaRole.RECOVERING:
            return False
        if self.is_paused or source.applied.index < replica.log.start.index:
            return False
        self.applied = self.flushed = source.applied
        self.is_replaced = True
        self.cluster.checkpoints += 1
        self.crash(is_power_loss=False)
        self.start()
        return True

    def _forget_pending(self) -> None:
        pending, self._pending = self._pending, {}
        for _, answer in pending.values():
            answer(False)

    # -- clients -----------------------------------------------------------------------------------

    @property
    def serves(self) -> bool:
        return self.replica is not None and self.replica.serving

    @property
    def leads(self) -> bool:
        return self.replica is not None and self.replica.role is ReplicaRole.LEADER

    def propose(self, body: bytes, answer: Answer) -> None:
        """A client sends; it is answered True once the Entry is committed."""
        leading = None if self.replica is None else self.replica.leading
        if leading is None:
            answer(False)
            return
        try:
            self._pending[leading.propose(body)] = body, answer
        except (NotServing, LogFailed, LogFull):
            answer(False)

    def look(self, wanted: Position, answer: Answer) -> None:
        """A client reads; the answer leaves once all it shows is committed and the term confirmed.

        `wanted` was acknowledged before the client asked.
        """
        replica, record = self.replica, self.cluster.record
        if replica is None or not replica.serving:
            answer(False)
            return
        decided, holds = replica.log.last_index, self._holds(wanted)

        def confirmed(is_leader: bool) -> None:
            if not is_leader or replica.commit < decided:
                answer(False)
                return
            record.answered_reads += 1
            if not holds:
                record.find(f"{self.name} answered a read without Entry {wanted.index}")
            answer(True)

        replica.confirm(confirmed)

    def _holds(self, wanted: Position) -> bool:
        assert self.replica is not None
        log = self.replica.log
        return self.cluster.record.holds(log.position_at(wanted.index), log.start.index, wanted)
