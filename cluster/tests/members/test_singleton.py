"""One host does what a cluster does once, through cuts and elections of etcd."""

from __future__ import annotations

import asyncio

import pytest

from cluster.coordination.coordination import Done, Snapshot, Transaction
from cluster.coordination.etcd_client import Access
from cluster.coordination.etcd_wire import HttpWire
from cluster.members.singleton import Singleton
from cluster.tests.coordinations import Hosts, until
from cluster.tests.etcd_processes import EtcdProcesses
from cluster.tests.members.joining import SimulatedWorld
from cluster.tests.simulated_etcd import ELECTION_S, SWEEP_S
from cluster.tests.virtual_time import virtual

TTL_S = 3


class Stage(SimulatedWorld):
    """Hosts that all want to be the one."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__(seed)
        self.told: list[str] = []
        self.hosts = {name: self.singleton(name) for name in "abc"}

    def singleton(self, name: str) -> Singleton:
        root = self.all.host(self.wire(), name=name)
        made = Singleton(root.below("once/"), "host", name, ttl_s=TTL_S)
        made.on_gained.append(lambda: self.told.append(f"+{name}"))
        made.on_lost.append(lambda: self.told.append(f"-{name}"))
        made.start()
        return made

    def holders(self) -> list[str]:
        return [name for name, each in self.hosts.items() if each.is_held()]

    async def close(self) -> None:
        for each in self.hosts.values():
            await each.stop()
        await super().close()


@virtual
async def test_one_host_is_the_one_until_it_stops() -> None:
    stage = Stage()
    await asyncio.sleep(10)
    (first,) = stage.holders()

    await stage.hosts[first].stop()
    assert stage.told == [f"+{first}", f"-{first}"]
    await asyncio.sleep(TTL_S)

    (second,) = stage.holders()
    assert second != first
    await stage.close()


@virtual
async def test_a_host_that_is_cut_off_is_not_the_one_before_another_is() -> None:
    stage = Stage()
    await asyncio.sleep(10)
    (first,) = stage.holders()
    wire = stage.wires["abc".index(first)]

    wire.is_cut = True
    for _ in range(int(10 * (TTL_S + SWEEP_S + TTL_S))):
        await asyncio.sleep(0.1)
        assert len(stage.holders()) <= 1
    (second,) = stage.holders()
    wire.is_cut = False
    await asyncio.sleep(30)

    assert stage.holders() == [second]
    assert stage.told == [f"+{first}", f"-{first}", f"+{second}"]
    await stage.close()


@virtual
async def test_a_host_that_stops_while_it_tries_keeps_nothing() -> None:
    stage = Stage()
    tried = [stage.hosts.pop("b"), stage.hosts.pop("c")]
    for each in tried:
        await each.stop()
    await stage.hosts["a"].stop()
    for after_ms in range(20):
        stage.hosts["a"].start()
        await asyncio.sleep(after_ms / 1000)
        await stage.hosts["a"].stop()
        await asyncio.sleep(2 * TTL_S)

        found = await stage.all.host().below("once/").read(["host"])
        assert isinstance(found, Snapshot)
        assert found.records == []
    await stage.close()


@pytest.mark.parametrize("seed", range(5))
def test_never_two_hosts_are_the_one(seed: int) -> None:
    @virtual
    async def run() -> None:
        stage = Stage(seed)
        for wire in stage.wires:
            wire.loss = 0.05
        for step in range(600):
            await asyncio.sleep(0.1)
            assert len(stage.holders()) <= 1
            if step % 100 == 50:
                stage.etcd.lose_leader(stage.random.choice([ELECTION_S, 4.0]))
            if step % 70 == 30:
                wire = stage.random.choice(stage.wires)
                wire.is_cut = not wire.is_cut
        for wire in stage.wires:
            wire.loss, wire.is_cut = 0.0, False
        await asyncio.sleep(20)

        assert len(stage.holders()) == 1
        assert all(gained[0] == "+" for gained in stage.told[::2])
        await stage.close()

    run()


@pytest.mark.slow
async def test_one_host_is_the_one_on_a_real_etcd(etcd: EtcdProcesses) -> None:
    hosts = Hosts(Access(etcd.endpoints), HttpWire)
    both = [Singleton(hosts.host(), "once", name, ttl_s=1) for name in "ab"]
    for each in both:
        each.start()
    await until(lambda: any(each.is_held() for each in both))
    (first,) = [each for each in both if each.is_held()]
    (other,) = [each for each in both if each is not first]

    await first.stop()
    await until(other.is_held)

    assert not first.is_held()
    await other.stop()
    assert isinstance(await hosts.host().commit(Transaction({"once": 0}, {})), Done)
    await hosts.close()
