"""Replicas whose leadership lies on a model of etcd: failover, and etcd away, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import msgspec
import pytest

from cluster.coordination.coordination import Transaction, Unavailable
from cluster.coordination.etcd_client import Access
from cluster.members.host_lease import TTL_S, HostLease
from cluster.members.shard_keys import ShardKeys, ShardLeadership, term_key
from cluster.replication import Timing
from cluster.replication.leadership import Holder, Leadership, Renewal, Seen, TermRecord
from cluster.tests.coordinations import Hosts
from cluster.tests.replication.host import Host
from cluster.tests.replication.stage import Stage
from cluster.tests.simulated_etcd import ELECTION_S, SimulatedEtcd
from cluster.tests.simulated_wire import SimulatedWire
from cluster.tests.virtual_time import LoopClock, virtual


class ProcessLeadership:
    """The leadership of a process: outcomes reach it only while it runs."""

    def __init__(self, real: ShardLeadership, enter: Callable[[Callable[[], None]], None]) -> None:
        self.ttl_s = real.ttl_s
        self._real = real
        self._enter = enter

    @property
    def renewal_s(self) -> float:
        return self._real.renewal_s

    def _late(self, done: Callable[[Any], None]) -> Callable[[Any], None]:
        return lambda outcome: self._enter(partial(done, outcome))

    def read(self, done: Callable[[Seen | Unavailable], None]) -> None:
        self._real.read(self._late(done))

    def take(self, seen: Seen, holder: Holder, record: TermRecord, done: Any) -> None:
        self._real.take(seen, holder, record, self._late(done))

    def renew(self, holder: Holder, done: Callable[[Renewal], None]) -> None:
        self._real.renew(holder, self._late(done))

    def release(self, holder: Holder) -> None:
        self._real.release(holder)


class EtcdStage(Stage):
    """Three hosts whose processes reach one etcd."""

    def __init__(self) -> None:
        super().__init__()
        self.timing = Timing()
        self.etcd = SimulatedEtcd(Random(2))
        self.wires: dict[str, SimulatedWire] = {}
        self._shared = Hosts(Access(self.etcd.endpoints), self._wire, LoopClock())
        self._keys: list[ShardKeys] = []

    def _wire(self) -> SimulatedWire:
        return SimulatedWire(self.etcd, Random(len(self._keys)))

    def found(self, voters: dict[str, str]) -> None:
        record = msgspec.json.encode(TermRecord(0, self.log_id, voters))
        root = self._shared.host().below("leaders/")
        self._keys[0].start(self._write(root, record))

    async def _write(self, root: Any, record: bytes) -> None:
        await root.commit(Transaction({}, {term_key(0): record}))

    def leadership_of(self, host: Host) -> Leadership:
        wire = self.wires[host.name] = self._wire()
        root = self._shared.host(wire, name=host.name)
        keys = ShardKeys(root.below("leaders/"), HostLease(root))
        self._keys.append(keys)
        return ProcessLeadership(keys.of_shard(0), host.entry())

    def kill(self, host: Host) -> None:
        """kill -9: nothing of the process is sent any more."""
        self.wires[host.name].is_cut = True
        host.crash(is_power_loss=False)

    def stop(self, host: Host) -> None:
        """SIGSTOP."""
        self.wires[host.name].is_cut = True
        host.pause()

    def cut(self, host: Host) -> None:
        """From its peers and from etcd."""
        self.wires[host.name].is_cut = True
        self.cut_off(host)

    async def pause_s(self, old: Host) -> float:
        """Time until another host has acknowledged a message."""
        begun_s = asyncio.get_running_loop().time()
        assert await self.send(await self.leader(but=old), 600)
        return asyncio.get_running_loop().time() - begun_s

    async def catch_up(self) -> None:
        await self.send(await self.leader(), 600)
        await self.until(lambda: len({each.applied for each in self.hosts.values()}) == 1)

    async def close(self) -> None:
        for host in self.hosts.values():
            host.crash(is_power_loss=False)
        for keys in self._keys:
            await keys.close()
        await self._shared.close()
        await asyncio.sleep(1)
        assert not self.record.findings


@pytest.mark.parametrize("fault", [EtcdStage.kill, EtcdStage.stop, EtcdStage.cut])
@pytest.mark.parametrize("after_s", [0.0, 0.4, 0.9])
def test_another_host_leads_two_seconds_after_the_lease_at_most(
    fault: Callable[[EtcdStage, Host], None], after_s: float
) -> None:
    @virtual
    async def run() -> None:
        stage = EtcdStage()
        stage.start()
        old = await stage.leader()
        assert await stage.sent(old, 3)
        await asyncio.sleep(5 + after_s)

        fault(stage, old)
        assert await stage.pause_s(old) <= TTL_S + 2.0

        stage.wires[old.name].is_cut = False
        stage.heal()
        old.resume()
        if not old.is_up:
            old.start()
        await stage.catch_up()
        await stage.close()

    run()


@virtual
async def test_a_key_that_is_reported_to_be_free_is_looked_at_without_waiting() -> None:
    """Else each look is half a second after the last."""
    stage = EtcdStage()
    stage.start()
    old = await stage.leader()
    await asyncio.sleep(5)
    looked_at_s: list[float] = []
    other = stage.others(old)[0].replica
    assert other is not None
    stage.kill(old)
    read = other.leadership.read

    def look(done: Callable[[Seen | Unavailable], None]) -> None:
        looked_at_s.append(asyncio.get_running_loop().time())
        read(done)

    other.leadership.read = look  # type: ignore[method-assign]
    await stage.until(lambda: bool(looked_at_s))
    await asyncio.sleep(0.12)
    other.key.freed()
    await asyncio.sleep(0.15)

    assert len(looked_at_s) == 2
    assert looked_at_s[1] - looked_at_s[0] < Timing().read_s
    await stage.close()


@virtual
async def test_another_host_leads_soon_though_etcds_leader_fails_too() -> None:
    stage = EtcdStage()
    stage.start()
    old = await stage.leader()
    await asyncio.sleep(5)

    stage.kill(old)
    stage.etcd.lose_leader(ELECTION_S)

    assert await stage.pause_s(old) <= TTL_S + 2.0 + 3.0
    await stage.close()


@pytest.mark.slow
@virtual
async def test_messages_are_acknowledged_while_etcd_is_away() -> None:
    stage = EtcdStage()
    stage.start()
    leader = await stage.leader()
    served = list(stage.record.served)

    stage.etcd.lose_leader(30.0)
    for _ in range(40):
        assert await stage.send(leader, 600)
        await asyncio.sleep(1)

    assert stage.record.served == served, "no other term"
    await stage.close()


@virtual
async def test_a_cluster_goes_on_after_etcd_lost_everything() -> None:
    stage = EtcdStage()
    stage.start()
    leader = await stage.leader()
    assert await stage.sent(leader, 3)

    stage.etcd.replace()
    await asyncio.sleep(30)
    await stage.catch_up()

    assert stage.record.served == sorted(set(stage.record.served))
    await stage.close()


@virtual
async def test_a_shard_is_handed_over_in_a_moment() -> None:
    stage = EtcdStage()
    stage.start()
    leader = await stage.leader()
    assert await stage.sent(leader, 3)
    assert leader.replica is not None
    await stage.until(lambda: len(leader.replica.caught_up) == 2)  # type: ignore[union-attr]
    heir = stage.others(leader)[1]

    leader.replica.hand_over(heir.name)
    pause_s = await stage.pause_s(leader)

    assert heir.serves
    assert pause_s < Timing().silence_s
    await stage.catch_up()
    await stage.close()
