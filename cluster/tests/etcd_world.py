"""Hosts on one simulated etcd, in virtual time."""

from __future__ import annotations

import asyncio
from random import Random
from typing import NamedTuple

from cluster.coordination.coordination import Snapshot
from cluster.coordination.etcd_client import Access
from cluster.coordination.etcd_coordination import EtcdCoordination
from cluster.tests.coordinations import Hosts
from cluster.tests.simulated_etcd import ELECTION_S, SimulatedEtcd
from cluster.tests.simulated_wire import SimulatedWire
from cluster.tests.virtual_time import LoopClock, SeededEntropy


class Host(NamedTuple):
    coordination: EtcdCoordination
    wire: SimulatedWire


class World:
    """Hosts on one simulated etcd."""

    def __init__(self, seed: int, hosts: int = 3) -> None:
        self.random = Random(seed)
        self.etcd = SimulatedEtcd(self.random)
        self._hosts = Hosts(Access(self.etcd.endpoints), self._wire, LoopClock())
        self.hosts: list[Host] = []
        for number in range(hosts):
            wire, entropy = self._wire(), SeededEntropy(f"{seed}/{number}")
            self.hosts.append(Host(self._hosts.host(wire, entropy=entropy), wire))

    def _wire(self) -> SimulatedWire:
        return SimulatedWire(self.etcd, self.random)

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def read(self, host: int = 0) -> dict[str, bytes]:
        found = await self.hosts[host].coordination.read_all()
        assert isinstance(found, Snapshot), found
        return {record.key: record.value for record in found.records}

    async def trouble(self, for_s: float) -> None:
        """Faults of all kinds, one after the other; none afterwards."""
        for host in self.hosts:
            host.wire.loss = self.random.choice([0.0, 0.02, 0.1])
        end_s = self.now_s() + for_s
        while self.now_s() < end_s:
            await asyncio.sleep(self.random.uniform(0.2, 4))
            wire = self.random.choice(self.hosts).wire
            if self.random.random() < 0.5:
                self.etcd.compact()
            elif self.etcd.has_leader:
                self.etcd.lose_leader(self.random.choice([ELECTION_S, 10.0]))
            wire.is_cut = not wire.is_cut
        for host in self.hosts:
            host.wire.loss, host.wire.is_cut = 0.0, False

    async def close(self) -> None:
        await self._hosts.close()
