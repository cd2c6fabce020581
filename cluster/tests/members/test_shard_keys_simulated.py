"""Leadership of shards through losses, cuts and elections of etcd, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from random import Random

import pytest

from cluster.coordination.coordination import Done, Unavailable, Unknown
from cluster.coordination.etcd_client import Access
from cluster.coordination.etcd_messages import TXN
from cluster.coordination.etcd_wire import Reply
from cluster.members.leader_view import LeaderView
from cluster.replication.leadership import Renewal
from cluster.tests.coordinations import Hosts
from cluster.tests.members.member_hosts import TTL_S, Candidate, gone, told
from cluster.tests.simulated_etcd import SWEEP_S, SimulatedEtcd
from cluster.tests.simulated_wire import SimulatedWire
from cluster.tests.virtual_time import LoopClock, virtual


class Wire(SimulatedWire):
    """Loses transactions only, so that leases live."""

    def __init__(self, etcd: SimulatedEtcd, random: Random) -> None:
        super().__init__(etcd, random)
        self.fates: list[str] = []
        """Of the next transactions, see `SimulatedWire.lose_next`."""

    async def post(
        self, endpoint: str, path: str, body: bytes, headers: Mapping[str, str], limit_s: float
    ) -> Reply:
        if path == TXN and self.fates:
            self.lose_next = [self.fates.pop(0)]
        return await super().post(endpoint, path, body, headers, limit_s)


class World:
    """Two hosts on one simulated etcd."""

    def __init__(self, seed: int = 1) -> None:
        random = Random(seed)
        self.etcd = SimulatedEtcd(random)
        self.wires = [Wire(self.etcd, random) for _ in range(2)]
        self._hosts = Hosts(Access(self.etcd.endpoints), lambda: self.wires[0], LoopClock())
        self.hosts = [self._hosts.host(wire) for wire in self.wires]
        self.one, self.other = Candidate(self.hosts[0], "a"), Candidate(self.hosts[1], "b")

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def close(self) -> None:
        for each in (self.one, self.other):
            await each.keys.close()
        await self._hosts.close()


@virtual
async def test_a_host_that_is_cut_off_loses_its_keys_in_time() -> None:
    world = World()
    one, other = world.one, world.other
    for shard in range(2):
        await one.taken(term=1, shard=shard)
    await asyncio.sleep(10)
    assert await one.renew(1) is Renewal.KEPT
    world.wires[0].is_cut = True
    cut_s = world.now_s()

    await gone(other)

    assert world.now_s() - cut_s <= TTL_S + SWEEP_S + 0.1
    assert isinstance(await other.take(await other.read(), 2), Done)
    assert await one.renew(1) is Renewal.UNAVAILABLE
    world.wires[0].is_cut = False
    await asyncio.sleep(1)
    assert [await one.renew(1, shard) for shard in range(2)] == [Renewal.LOST] * 2
    await gone(one, shard=1)
    assert isinstance(await one.take(await one.read(1), 2, shard=1), Done)
    await world.close()


@virtual
async def test_a_key_is_looked_at_more_often_once_its_lease_may_be_gone() -> None:
    world = World()
    one = world.one.of_shard()
    assert one.renewal_s == TTL_S / 3, "nothing was taken"
    await world.one.taken(term=1)
    await asyncio.sleep(10)
    assert one.renewal_s == TTL_S
    world.wires[0].is_cut = True

    await asyncio.sleep(TTL_S)
    assert one.renewal_s == TTL_S / 3
    await gone(world.other)
    world.wires[0].is_cut = False
    await asyncio.sleep(1)

    # the host has another lease for its other records, which is not that of this key
    assert not isinstance(await world.one.lease.current(), Unavailable)
    assert one.renewal_s == TTL_S / 3
    assert await world.one.renew(1) is Renewal.LOST
    await world.close()


@pytest.mark.parametrize("away_s", [1.0, 30.0])
def test_a_leader_stays_while_etcd_is_away(away_s: float) -> None:
    @virtual
    async def run() -> None:
        world = World()
        view = LeaderView(world.hosts[1].below("leaders/"), range(1), lambda shard: None)
        await view.begin()
        await world.one.taken(term=1)

        world.etcd.lose_leader(away_s)
        while not world.etcd.has_leader:
            assert await world.one.renew(1) is not Renewal.LOST
            await asyncio.sleep(0.5)
        await asyncio.sleep(3 * TTL_S)

        assert await world.one.renew(1) is Renewal.KEPT
        assert view.leader_of(0) == "a"
        await world.close()

    run()


@virtual
async def test_without_an_answer_nothing_is_known() -> None:
    world = World()
    seen = await world.one.read()
    world.wires[0].is_cut = True

    assert isinstance(await told(world.one.keys.of_shard(0).read), Unavailable)
    assert isinstance(await world.one.take(seen, 1), Unavailable)
    assert await world.one.renew(1) is Renewal.UNAVAILABLE
    await world.close()


@pytest.mark.parametrize("fates", [["late"], ["answer"]])
def test_a_key_that_was_taken_unheard_is_given_back(fates: list[str]) -> None:
    @virtual
    async def run() -> None:
        world = World()
        await world.one.taken(term=1, shard=1)  # it has a lease
        seen = await world.one.read()
        world.wires[0].fates = [*fates, *["request"] * 8]

        assert isinstance(await world.one.take(seen, 1), Unknown)
        world.wires[0].fates = []
        await asyncio.sleep(15)

        assert (await world.other.read()).holder is None
        assert await world.one.renew(1, shard=1) is Renewal.KEPT
        await world.close()

    run()


@virtual
async def test_a_key_that_could_not_be_deleted_is_tried_again() -> None:
    world = World()
    await world.one.taken(term=1)
    await world.one.taken(term=1, shard=1)
    world.wires[0].is_cut = True
    world.one.keys.of_shard(0).release(world.one.holder(1))
    await asyncio.sleep(1)
    world.wires[0].is_cut = False

    await asyncio.sleep(10)

    assert (await world.other.read()).holder is None
    assert await world.one.renew(1, shard=1) is Renewal.KEPT
    await world.close()


@virtual
async def test_the_view_shows_who_leads_each_shard() -> None:
    world = World()
    one, other = world.one, world.other
    await one.taken(term=1)
    view = LeaderView(world.hosts[1].below("leaders/"), range(3), lambda shard: None)
    heard: list[tuple[int, str | None]] = []
    view.subscribe(lambda shard: heard.append((shard, view.leader_of(shard))))
    await view.begin()
    assert view.leaders() == {0: "a", 1: None, 2: None}

    await other.taken(term=1, shard=2)
    await asyncio.sleep(1)
    await one.lease.release()
    await asyncio.sleep(1)
    await other.taken(term=2)
    await asyncio.sleep(1)

    assert heard == [(2, "b"), (0, None), (0, "b")]
    assert view.leaders() == {0: "b", 1: None, 2: "b"}
    record = view.record_of(0)
    assert record is not None
    assert record.term == 2
    assert view.leader_of(7) is None
    await world.close()


@virtual
async def test_the_view_ends_a_leadership_when_etcd_is_wiped() -> None:
    world = World()
    view = LeaderView(world.hosts[1].below("leaders/"), range(1), lambda shard: None)
    await view.begin()
    await world.one.taken(term=1)
    await asyncio.sleep(1)
    assert view.leader_of(0) == "a"

    world.etcd.replace()
    await asyncio.sleep(30)

    assert view.leader_of(0) is None
    assert await world.one.renew(1) is Renewal.LOST
    await world.one.taken(term=2)
    await asyncio.sleep(1)
    assert view.leader_of(0) == "a"
    await world.close()
