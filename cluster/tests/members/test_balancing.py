"""Leaders are handed over as members come, go and are drained."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from cluster.coordination.coordination import Done
from cluster.members.balancing import LeaderBalance, LeaderPlan
from cluster.members.leader_view import LeaderView
from cluster.members.member_operations import set_drained
from cluster.members.shard_keys import ShardKeys
from cluster.replication.leadership import Holder
from cluster.tests.members.joining import Host, SimulatedWorld
from cluster.tests.members.member_hosts import Candidate
from cluster.tests.virtual_time import virtual

SHARDS = 3


class FakeReplica:
    """Leads, and hands over at once."""

    def __init__(self, host: Leading, shard: int) -> None:
        self.host = host
        self.shard = shard
        self.caught_up = ["a", "b", "c"]
        self.is_handing_over = False
        self.is_idle = True

    @property
    def serving(self) -> bool:
        return self.shard in self.host.led

    def hand_over(self, to: str) -> None:
        self.host.keys.of_shard(self.shard).release(self.host.led.pop(self.shard))
        self.host.others[to].wanted.append(self.shard)


class Leading:
    """A host with its shards."""

    def __init__(self, host: Host, others: dict[str, Leading]) -> None:
        self.host = host
        self.others = others
        self.keys = ShardKeys(host.root.below("leaders/"), host.lease)
        self.view = LeaderView(host.root.below("leaders/"), range(SHARDS), lambda shard: None)
        self.led: dict[int, Holder] = {}
        self.wanted: list[int] = []
        self.has_space = True
        self.replicas = {shard: FakeReplica(self, shard) for shard in range(SHARDS)}
        self.plan = LeaderPlan(host.membership, self.view, lambda: self.has_space)
        self.balance = LeaderBalance(
            self.plan,
            host.membership,
            self.view,
            lambda: cast(Any, self.replicas),
            asyncio.get_running_loop().time,
        )

    async def take(self, shard: int) -> None:
        candidate = Candidate(self.host.root, self.host.name)
        candidate.lease, candidate.keys = self.host.lease, self.keys
        seen = await candidate.read(shard)
        term = (seen.record.term if seen.record else 0) + 1
        assert isinstance(await candidate.take(seen, term, shard), Done)
        self.led[shard] = candidate.holder(term)

    def reluctance_s(self, shard: int) -> float:
        return self.plan.reluctance_s(shard)


async def led_by_a(world: SimulatedWorld) -> dict[str, Leading]:
    """A cluster of which one host leads all shards."""
    all_hosts: dict[str, Leading] = {}
    for host in await world.founded():
        all_hosts[host.name] = Leading(host, all_hosts)
        await all_hosts[host.name].view.begin()
    for shard in range(SHARDS):
        await all_hosts["a"].take(shard)
    await asyncio.sleep(1)
    return all_hosts


async def end(world: SimulatedWorld, all_hosts: dict[str, Leading]) -> None:
    for each in all_hosts.values():
        await each.keys.close()
    await world.close()


async def run(all_hosts: dict[str, Leading], for_s: int) -> None:
    for _ in range(for_s):
        for each in all_hosts.values():
            each.balance.tick()
        await asyncio.sleep(1)
        for each in all_hosts.values():
            while each.wanted:
                await each.take(each.wanted.pop())
        await asyncio.sleep(0.1)


@virtual
async def test_leaders_are_spread_and_leave_a_drained_host() -> None:
    world = SimulatedWorld()
    all_hosts = await led_by_a(world)
    a = all_hosts["a"]

    await run(all_hosts, 10)
    assert sorted(map(str, a.view.leaders().values())) == ["a", "b", "c"]

    await set_drained(a.host.records, "b", is_drained=True)
    await run(all_hosts, 10)
    leaders = list(a.view.leaders().values())
    assert sorted({leader or "" for leader in leaders}) == ["a", "c"]

    fewest = min("ac", key=leaders.count)
    most = "c" if fewest == "a" else "a"
    shard = leaders.index(most)
    free = all_hosts[most].led.pop(shard)
    all_hosts[most].keys.of_shard(shard).release(free)
    await asyncio.sleep(1)
    preferred = min("ac", key=lambda name: (list(a.view.leaders().values()).count(name), name))
    waits = {name: each.reluctance_s(shard) for name, each in all_hosts.items()}
    assert waits[preferred] == 0.0
    assert waits["b"] > max(waits["a"], waits["c"]) > 0.0
    await end(world, all_hosts)


@virtual
async def test_a_host_that_leaves_hands_over_what_others_can_take() -> None:
    world = SimulatedWorld()
    all_hosts = await led_by_a(world)
    a = all_hosts["a"]
    a.replicas[2].caught_up = []
    loop = asyncio.get_running_loop()
    begun_s = loop.time()

    await a.balance.leave(limit_s=3.0)

    assert list(a.led) == [2], "nobody could take it"
    assert 3.0 <= loop.time() - begun_s <= 3.2
    assert sorted([*all_hosts["b"].wanted, *all_hosts["c"].wanted]) == [0, 1]
    assert a.reluctance_s(0) > 1.0
    await end(world, all_hosts)


@virtual
async def test_hosts_that_leave_at_once_wait_for_nobody() -> None:
    """None of them hands its shards to another that is about to stop."""
    world = SimulatedWorld()
    all_hosts = await led_by_a(world)
    for name, shard in (("b", 1), ("c", 2)):
        all_hosts["a"].keys.of_shard(shard).release(all_hosts["a"].led.pop(shard))
        await asyncio.sleep(0.1)
        await all_hosts[name].take(shard)
    for each in all_hosts.values():  # what is under way takes a moment
        each.replicas[0].is_idle = False
    asyncio.get_running_loop().call_later(1, setattr, all_hosts["a"].replicas[0], "is_idle", True)
    begun_s = asyncio.get_running_loop().time()

    async def leave(host: Leading) -> float:
        await host.balance.leave(limit_s=5.0)
        return asyncio.get_running_loop().time() - begun_s

    took_s = await asyncio.gather(*map(leave, all_hosts.values()))

    assert 1.0 <= took_s[0] < 1.2, "its Entries are on their way"
    assert max(took_s[1:]) < 0.5
    assert not [each.wanted for each in all_hosts.values() if each.wanted]
    await end(world, all_hosts)


@virtual
async def test_a_host_with_a_short_disk_hands_over_and_lets_others_go_first() -> None:
    world = SimulatedWorld()
    all_hosts = await led_by_a(world)
    a = all_hosts["a"]
    a.replicas[2].caught_up = []
    a.has_space = False

    await run(all_hosts, 10)

    assert list(a.led) == [2], "nobody could take it"
    assert sorted([*all_hosts["b"].led, *all_hosts["c"].led]) == [0, 1]
    others = max(all_hosts[name].reluctance_s(2) for name in "bc")
    assert a.reluctance_s(2) > others
    await end(world, all_hosts)
