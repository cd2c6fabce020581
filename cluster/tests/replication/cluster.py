"""Cluster: hosts, network, coordination and clients of one seed."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from contextlib import suppress
from random import Random
from typing import Any

from cluster.replication.leadership import Leadership
from cluster.replication.replica_messages import Message
from cluster.tests.replication.host import TIMING, Host
from cluster.tests.replication.network import SimulatedNetwork
from cluster.tests.replication.record import Record
from cluster.tests.replication.replica_coordination import Coordination, HostLeadership
from storage.log import Answered, NoteDamaged, read_answered, read_log
from storage.log.entry import read_entry
from storage.log.scan import read_segment

_ANSWER_S = 5.0
"""A client waits no longer."""
_PROGRESS_S = 90.0
"""Bound for progress once nothing goes wrong any more."""


class Cluster:
    """One seed."""

    def __init__(self, random: Random, size: int, segment_bytes: int) -> None:
        self.random = random
        self.segment_bytes = segment_bytes
        self.timing = TIMING._replace(
            batch_bytes=random.choice((1, 2_000, 1 << 20)),
            retained_bytes=random.choice((10_000, 60_000)),
            head_start_bytes=random.choice((1_000, 1 << 20)),
            silence_s=random.choice((0.6, 1.2)),
        )
        self.log_id = random.randbytes(16)
        self.record = Record()
        self.checkpoints = 0
        self.avoids_isolated = random.random() < 0.5
        """Clients send to hosts that reach coordination only; they read at any."""
        self.is_ending = False
        """Nothing goes wrong any more."""
        self.logged: list[MutableMapping[str, Any]] = []
        self.lines: list[str] = []
        """All that happened, for the digest."""
        self.names = [f"h{number}" for number in range(1, size + 1)]
        self.network = SimulatedNetwork(Random(random.getrandbits(32)), self._deliver)
        self.coordination = Coordination(Random(random.getrandbits(32)))
        self.hosts = {name: Host(self, name, Random(random.getrandbits(32))) for name in self.names}
        self._ids = Random(random.getrandbits(32))
        self._sent = 0

    def note(self, text: str) -> None:
        """Write a line of the history, behind those of the log."""
        for line in self.logged:
            words = [f"{key}={value}" for key, value in line.items() if key != "log_level"]
            self.lines.append("    " + " ".join(words))
        self.logged.clear()
        self.lines.append(f"{asyncio.get_running_loop().time():.4f} {text}")

    def new_replica_id(self) -> str:
        return f"{self._ids.getrandbits(64):016x}"

    def _deliver(self, to: str, sender: str, message: Message) -> None:
        self.hosts[to].receive(sender, message)

    def start(self) -> None:
        """Start empty hosts and make a cluster of them."""
        for host in self.hosts.values():
            host.start()
        voters = {}
        for name, host in self.hosts.items():
            assert host.replica is not None
            voters[host.replica.replica_id] = name
        self.found(voters)

    def found(self, voters: dict[str, str]) -> None:
        """Write the first term."""
        self.coordination.found(self.log_id, voters)

    def leadership_of(self, host: Host) -> Leadership:
        """The key of the shard, for a process that starts."""
        return HostLeadership(self.coordination, host.name, host.entry())

    # -- clients -----------------------------------------------------------------------------------

    async def work(self, random: Random, steps: int, pause_s: float) -> None:
        """One client: sends and reads, at whatever host says that it serves."""
        for _ in range(steps):
            await asyncio.sleep(random.uniform(0, pause_s))
            writes = random.random() < 0.6
            serving = [host for host in self.hosts.values() if host.serves]
            if writes and self.avoids_isolated:
                away = self.coordination.unreachable
                serving = [host for host in serving if host.name not in away]
            if not serving:
                continue
            host = random.choice(serving)
            if writes:
                sizes = [random.randrange(20, 1200) for _ in range(random.randint(1, 4))]
                await asyncio.gather(*[self.send(host, size) for size in sizes])
            else:
                await self.read(host)

    async def send(self, host: Host, size: int) -> bool:
        self._sent += 1
        body = self._sent.to_bytes(8, "big") + bytes(size)
        answered: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        host.enter(lambda: host.propose(body, lambda done: _set(answered, done)))
        return await _wait(answered)

    async def read(self, host: Host) -> bool:
        answered: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        wanted = self.record.highest
        host.enter(lambda: host.look(wanted, lambda done: _set(answered, done)))
        return await _wait(answered)

    # -- what may be lost --------------------------------------------------------------------------

    def may_lose(self, host: Host) -> bool:
        """True if the other voters are enough, whatever this host loses."""
        record = self.coordination.state().record
        if record is None or record.old_voters or len(record.voters) < len(self.names):
            return False
        return set(record.voters) == self._ids_on_disks() and not any(
            each.is_damaged for each in self.hosts.values() if each is not host
        )

    def _ids_on_disks(self) -> set[str]:
        return {host.id_on_disk() for host in self.hosts.values()}

    def flip_a_bit(self, host: Host) -> bool:
        """In an Entry of a host that is down, which it is known to have acknowledged."""
        told: Answered | None = None
        with suppress(NoteDamaged):  # its first write may have been short
            told = read_answered(host.disk, host.folder)
        reading = read_log(host.disk, host.folder, host.flushed, told)
        if reading.lost:
            return False
        places: list[tuple[str, int, int]] = []
        for run in reading.runs:
            data = read_segment(host.disk, host.folder, run.segment.name)
            offset = run.begin
            while offset < run.end:
                entry = read_entry(data, offset, host.seed)
                if host.flushed.index < entry.index <= reading.proven:  # type: ignore[union-attr]
                    places.append((run.segment.name, offset, entry.size))  # type: ignore[union-attr]
                offset += entry.size  # type: ignore[union-attr]
        if not places:
            return False
        name, offset, size = self.random.choice(places)
        bit = self.random.randrange(8 * (size - 8))  # not in the padding
        host.disk.flip(host.folder / name, offset + bit // 8, bit % 8)
        host.is_damaged = True
        return True

    # -- the end -----------------------------------------------------------------------------------

    async def end_well(self) -> None:
        """Nothing goes wrong any more: everybody must catch up, and a client be served."""
        self.network.end_faults()
        self.coordination.end_faults()
        for host in self.hosts.values():
            host.end_faults()
        self.note("faults are over")
        self.is_ending = True
        deadline = asyncio.get_running_loop().time() + _PROGRESS_S
        while asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.5)
            serving = [host for host in self.hosts.values() if host.serves]
            if serving and await self.send(serving[-1], 30) and self.are_whole():
                return
        self.note("no progress")
        self.record.find(f"no progress: {[host.state() for host in self.hosts.values()]}")

    def are_whole(self) -> bool:
        """True if all hosts are voters and have what was committed."""
        record = self.coordination.state().record
        if record is None or record.old_voters or set(record.voters) != self._ids_on_disks():
            return False
        leader = next((host for host in self.hosts.values() if host.serves), None)
        return leader is not None and all(
            host.is_up and host.applied.index + 3 >= leader.applied.index
            for host in self.hosts.values()
        )


def _set(future: asyncio.Future[bool], done: bool) -> None:
    if not future.done():
        future.set_result(done)


async def _wait(answered: asyncio.Future[bool]) -> bool:
    try:
        return await asyncio.wait_for(answered, _ANSWER_S)
    except TimeoutError:
        return False
