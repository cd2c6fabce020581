"""Clusters of a fleet get numbers that nobody else has; their hosts found them below a prefix of
their own, and all see each other."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from cluster.coordination.coordination import Done, Transaction
from cluster.fleet.fleet_operations import (
    add_cluster,
    cluster_of_workers,
    set_draining,
    set_host_drained,
)
from cluster.fleet.fleet_records import (
    FIRST,
    FLEET,
    ClusterState,
    Fleet,
    FleetCluster,
    NewCluster,
    NextNumbers,
    place_of,
    read_fleet,
)
from cluster.fleet.fleet_view import FleetLeaders, FleetView, Gateway, watched
from cluster.members.leader_view import LeaderView
from cluster.members.member_records import MembershipRefused
from cluster.members.shard_keys import holder_key
from cluster.peers.peer_settings import Address
from cluster.peers.roles import GATEWAY_MARK, GATEWAYS, PeerRole, Place, cluster_mark
from cluster.replication.leadership import Holder
from cluster.tests.members.joining import FOUNDERS, Host, SimulatedWorld
from cluster.tests.virtual_time import virtual

NOTHING = Fleet({}, None)
SECOND = ("d", "e", "f")


async def founded_second(world: SimulatedWorld, hosts: list[Host]) -> list[Host]:
    """Add a second cluster, and start its hosts."""
    made = await add_cluster(hosts[0].root, NOTHING, NewCluster("", SECOND, 3))
    later = [
        world.host(
            name,
            founders=made.founders,
            first_shard=made.first_shard,
            below=place_of(made.number),
        )
        for name in SECOND
    ]
    await asyncio.gather(*[host.join() for host in later])
    return later


@virtual
async def test_a_cluster_gets_numbers_that_were_never_given_out() -> None:
    world = SimulatedWorld()
    hosts = await world.founded()
    before = await world.records()

    second = await add_cluster(hosts[0].root, NOTHING, NewCluster("", SECOND, 2))
    third = await add_cluster(hosts[2].root, NOTHING, NewCluster("spare", ("g",), 1))

    assert second == FleetCluster(
        number=2, name="cluster-2", first_shard=3, shards=2, founders=SECOND
    )
    assert (third.number, third.name, list(third.numbers)) == (3, "spare", [5])
    after = await world.records()
    assert {key: after[key] for key in before} == before, "the first one's stay as they are"
    assert sorted(after.keys() - before.keys()) == [
        "fleet/clusters/1",
        "fleet/clusters/2",
        "fleet/clusters/3",
        "fleet/next",
    ]
    fleet = read_fleet({key.removeprefix(FLEET): value for key, value in after.items()})
    assert fleet.next == NextNumbers(4, 6)
    assert [list(fleet.clusters[number].numbers) for number in (1, 2, 3)] == [
        [0, 1, 2],
        [3, 4],
        [5],
    ]
    await world.close()


@virtual
async def test_clusters_that_are_added_at_once_share_no_number() -> None:
    world = SimulatedWorld()
    hosts = await world.founded()

    made = await asyncio.gather(
        *[add_cluster(host.root, NOTHING, NewCluster("", (f"x-{host.name}",), 2)) for host in hosts]
    )

    assert sorted(each.number for each in made) == [2, 3, 4]
    assert sorted(shard for each in made for shard in each.numbers) == list(range(3, 9))
    await world.close()


@virtual
async def test_the_second_workers_of_a_clusters_hosts_are_a_cluster() -> None:
    world = SimulatedWorld()
    early = world.host("a")
    assert await cluster_of_workers(early.root, FIRST, 1) is None, "there are no hosts yet"
    hosts = await world.founded()

    made = await asyncio.gather(*[cluster_of_workers(host.root, FIRST, 1) for host in hosts])
    third = await cluster_of_workers(hosts[0].root, FIRST, 2)

    assert made[0] is not None
    assert made == [made[0]] * 3, "one of them added it"
    assert (made[0].number, made[0].founders) == (2, ("a.worker-2", "b.worker-2", "c.worker-2"))
    assert (list(made[0].numbers), made[0].hosts_in) == ([3, 4, 5], FIRST)
    assert third is not None
    assert (third.number, third.founders[0], list(third.numbers)) == (3, "a.worker-3", [6, 7, 8])
    assert await cluster_of_workers(hosts[1].root, FIRST, 1) == made[0]
    await world.close()


@virtual
async def test_workers_of_a_further_cluster_bear_its_mark_and_are_drained_with_their_hosts() -> (
    None
):
    world = SimulatedWorld()
    hosts = await world.founded()
    seconds = await founded_second(world, hosts)
    made = await cluster_of_workers(hosts[0].root, 2, 1)
    assert made is not None
    assert (made.number, made.founders, made.hosts_in) == (
        3,
        ("d.worker-2", "e.worker-2", "f.worker-2"),
        2,
    )
    later = [
        world.host(
            name, founders=made.founders, first_shard=made.first_shard, below=place_of(made.number)
        )
        for name in made.founders
    ]
    founded = await asyncio.gather(*[host.join() for host in later])
    view = FleetView({key: hosts[0].root.below(key) for key in watched(FIRST)}, FIRST)
    await view.begin()

    place = view.neighbours["d.worker-2"].place
    assert place == Place(founded[0].cluster_id, PeerRole.NEIGHBOUR, cluster_mark(2))

    def drained() -> list[str]:
        return [
            each.name
            for host in (*seconds, *later)
            for each in (host.membership.shown.hosts[host.name],)
            if each.is_drained
        ]

    root = later[0].root
    await set_host_drained(root, 2, "d", is_drained=True)
    await asyncio.sleep(1)
    assert drained() == ["d", "d.worker-2"], "a host with its workers"
    await set_host_drained(root, made.number, "d.worker-2", is_drained=False)
    await set_host_drained(root, made.number, "e", is_drained=True)
    await asyncio.sleep(1)
    assert drained() == ["d", "e", "e.worker-2"]
    for of_another in ("a", "x"):
        with pytest.raises(MembershipRefused, match=f"there is no host {of_another}"):
            await set_host_drained(root, made.number, of_another, is_drained=True)
    await world.close()


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (NewCluster("", ("a", "x"), 3), "has a host a already"),
        (NewCluster("", ("d",), 3), "has a host d already"),
        (NewCluster("cluster-2", ("x",), 3), "has a cluster cluster-2 already"),
        (NewCluster("", (), 3), "one to 4 hosts"),
        (NewCluster("", ("v", "w", "x", "y", "z"), 3), "one to 4 hosts"),
        (NewCluster("", ("x", "x"), 3), "each named once"),
        (NewCluster("", ("x",), 0), "one to 16 shards"),
        (NewCluster("", ("x",), 17), "one to 16 shards"),
    ],
)
def test_what_is_no_new_cluster_is_refused(asked: NewCluster, reason: str) -> None:
    @virtual
    async def run() -> None:
        world = SimulatedWorld()
        hosts = await world.founded()
        await add_cluster(hosts[0].root, NOTHING, NewCluster("", SECOND, 3))
        before = await world.records()
        with pytest.raises(MembershipRefused, match=reason):
            await add_cluster(hosts[0].root, NOTHING, asked)
        assert await world.records() == before
        await world.close()

    run()


@virtual
async def test_an_etcd_that_lost_a_cluster_gives_its_numbers_to_nobody() -> None:
    world = SimulatedWorld()
    hosts = await world.founded()
    seen = FleetCluster(number=2, name="x", first_shard=3, shards=3, founders=SECOND)

    with pytest.raises(MembershipRefused, match="lost the record of cluster 2"):
        await add_cluster(hosts[0].root, Fleet({2: seen}, None), NewCluster("", ("x",), 3))
    await world.close()


@virtual
async def test_hosts_of_two_clusters_see_each_other_and_keep_apart() -> None:
    world = SimulatedWorld()
    hosts = await world.founded()
    own = FleetView({key: hosts[0].root.below(key) for key in watched(FIRST)}, FIRST)
    await own.begin()
    assert not own.neighbours
    heard: list[int] = []
    own.subscribe(heard.append)

    later = await founded_second(world, hosts)
    await asyncio.sleep(1)

    assert hosts[0].membership.peers.keys() == {"b", "c"}
    assert later[0].membership.peers.keys() == {"e", "f"}
    assert list(own.neighbours) == list(SECOND)
    cluster = later[0].membership.shown.cluster
    assert cluster is not None
    assert cluster.numbers == range(3, 6)
    assert own.neighbours["d"].address == Address("d.test", 7000)
    assert own.neighbours["d"].place == Place(
        cluster.cluster_id, PeerRole.NEIGHBOUR, cluster_mark(2)
    )
    assert own.founded == {2: range(3, 6)}
    assert own.alive_of(2) == set(SECOND)

    other = FleetView({key: later[0].root.below(key) for key in watched(2)}, 2)
    await other.begin()
    assert list(other.neighbours) == list(FOUNDERS)
    assert other.founded == {1: range(3)}

    await _lead(later[1], 4, "fleet/2/leaders/")
    assert (own.leader_of(4), other.leader_of(4)) == ("e", None)
    assert heard == [4]
    await _lead(hosts[1], 2, "leaders/")
    assert (own.leader_of(2), other.leader_of(2)) == (None, "b")
    view = LeaderView(hosts[0].root.below("leaders/"), range(3), own.leader_of)
    await view.begin()
    leaders = FleetLeaders(view, own)
    assert [leaders.leader_of(shard) for shard in range(6)] == [None, None, "b", None, "e", None]
    assert own.hosts_that_may_lead(4) == list(SECOND)
    await world.close()


async def _lead(host: Host, shard: int, prefix: str) -> None:
    holder = msgspec.json.encode(Holder(name=host.name, replica_id="r", term=1))
    outcome = await host.root.commit(Transaction({}, {prefix + holder_key(shard): holder}))
    assert isinstance(outcome, Done)
    await asyncio.sleep(1)


@virtual
async def test_a_gateway_sees_all_clusters_and_is_admitted_also_after_its_lease() -> None:
    world = SimulatedWorld()
    hosts = await world.founded()
    await founded_second(world, hosts)
    view = FleetView({key: hosts[0].root.below(key) for key in watched(0)}, 0)
    await view.begin()
    assert list(view.neighbours) == [*FOUNDERS, *SECOND]
    assert view.founded == {1: range(3), 2: range(3, 6)}

    key, content = "fleet/gateways/g", msgspec.json.encode(Gateway("1.0"))
    await hosts[0].root.commit(Transaction({key: 0}, {key: content}))
    await asyncio.sleep(1)
    assert list(view.gateways) == ["g"]
    await hosts[0].root.commit(Transaction({}, {key: None}))
    await asyncio.sleep(1)
    assert not view.gateways
    assert view.neighbours["g"].place == Place(GATEWAYS, PeerRole.GATEWAY, GATEWAY_MARK)
    await world.close()


@virtual
async def test_a_cluster_that_etcd_lost_stays_in_the_view() -> None:
    world = SimulatedWorld()
    hosts = await world.founded()
    await founded_second(world, hosts)
    view = FleetView({FLEET: hosts[0].root.below(FLEET)}, FIRST)
    await view.begin()
    gone = {key: None for key in await world.records() if "clusters/" in key or "/cluster" in key}
    await hosts[0].root.commit(Transaction({}, {**gone}))
    await asyncio.sleep(1)
    assert list(view.neighbours) == list(SECOND)
    assert 2 in view.fleet.clusters
    await world.close()


@virtual
async def test_a_cluster_is_emptied_while_another_one_can_take_its_queues() -> None:
    world = SimulatedWorld()
    hosts = await world.founded()
    await founded_second(world, hosts)
    view = FleetView({FLEET: hosts[0].root.below(FLEET)}, FIRST)
    await view.begin()
    assert view.fleet.draining_shards == frozenset()

    emptied = await set_draining(hosts[0].root, view.fleet, 2, is_draining=True)

    assert emptied.state is ClusterState.DRAINING
    await asyncio.sleep(1)
    assert view.fleet.draining == {2}
    assert view.fleet.draining_shards == {3, 4, 5}
    with pytest.raises(MembershipRefused, match="no other cluster could take"):
        await set_draining(hosts[0].root, view.fleet, 1, is_draining=True)
    await add_cluster(hosts[0].root, view.fleet, NewCluster("", ("g",), 1))
    with pytest.raises(MembershipRefused, match="no other cluster could take"):
        await set_draining(hosts[0].root, view.fleet, 1, is_draining=True)  # 3 never started
    with pytest.raises(MembershipRefused, match="has no cluster 7"):
        await set_draining(hosts[0].root, view.fleet, 7, is_draining=True)
    again = await set_draining(hosts[0].root, view.fleet, 2, is_draining=False)
    assert again.state is ClusterState.OPEN
    await asyncio.sleep(1)
    assert view.fleet.draining == frozenset()
    await world.close()


@virtual
async def test_of_two_clusters_that_are_emptied_at_once_one_stays() -> None:
    world = SimulatedWorld()
    hosts = await world.founded()
    await founded_second(world, hosts)
    told = await asyncio.gather(
        *[set_draining(hosts[0].root, NOTHING, number, is_draining=True) for number in (1, 2)],
        return_exceptions=True,
    )
    assert sorted(type(each).__name__ for each in told) == ["FleetCluster", "MembershipRefused"]
    await world.close()
