"""Registering, founding and joining a cluster, in virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from cluster.clock import SystemEntropy
from cluster.coordination.coordination import Outcome, Transaction
from cluster.coordination.etcd_client import Access
from cluster.coordination.etcd_wire import HttpWire
from cluster.members.host_folder import MEMBER_FILE, open_identity, save_identity
from cluster.members.leader_view import LeaderView
from cluster.members.member_operations import remove, set_drained
from cluster.members.member_records import Identity, MembershipRefused, parse_address
from cluster.members.membership import COUNT_S
from cluster.peers.peer_settings import Address
from cluster.replication.leadership import TermRecord
from cluster.tests.coordinations import Hosts, until
from cluster.tests.etcd_processes import EtcdProcesses
from cluster.tests.members.joining import FOUNDERS, SHARDS, TTL_S, SimulatedWorld, World, peers
from cluster.tests.simulated_etcd import ELECTION_S
from cluster.tests.virtual_time import virtual
from storage.log import have_room

# -- founding --------------------------------------------------------------------------------------


@virtual
async def test_founders_agree_on_one_cluster() -> None:
    world = SimulatedWorld()
    hosts = [world.host(name) for name in FOUNDERS]

    joined = await asyncio.gather(*[host.join() for host in hosts])
    await asyncio.sleep(1)

    assert joined == [joined[0]] * 3
    cluster = joined[0]
    assert len(set(cluster.log_ids)) == SHARDS
    records = await world.records()
    for shard, log_id in enumerate(cluster.log_ids):
        found = msgspec.json.decode(records[f"leaders/term/{shard}"], type=TermRecord)
        assert found == TermRecord(0, log_id, {f"{name}-{shard}": name for name in FOUNDERS})
    assert all(each.cluster_id == cluster.cluster_id for each in world.folders.values())
    assert [dict(host.membership.peers) for host in hosts] == [
        peers("b", "c"),
        peers("a", "c"),
        peers("a", "b"),
    ]
    assert hosts[0].alive() == ["a", "b", "c"]
    view = LeaderView(hosts[0].root.below("leaders/"), cluster.numbers, lambda shard: None)
    await view.begin()
    record = view.record_of(2)
    assert record is not None
    assert record.log_id == cluster.log_ids[2]
    await world.close()


@pytest.mark.parametrize("seed", range(5))
def test_founders_agree_through_losses_and_elections(seed: int) -> None:
    @virtual
    async def run() -> None:
        world = SimulatedWorld(seed)
        hosts = [world.host(name) for name in FOUNDERS]
        for wire in world.wires:
            wire.loss = 0.1
        joining = asyncio.gather(*[host.join() for host in hosts])
        await asyncio.sleep(world.random.uniform(0, 2))
        world.etcd.lose_leader(ELECTION_S)

        joined = await joining

        assert joined == [joined[0]] * 3
        await world.close()

    run()


@virtual
async def test_a_cluster_is_founded_once_all_founders_are_there() -> None:
    world = SimulatedWorld()
    joining = [asyncio.create_task(world.host(name).join()) for name in ("a", "b")]
    await asyncio.sleep(60)
    assert not any(task.done() for task in joining)
    assert "members/cluster" not in await world.records()

    last = await world.host("c").join()

    assert await asyncio.gather(*joining) == [last, last]
    await world.close()


@virtual
async def test_a_founder_that_was_cut_off_while_it_waited_is_alive() -> None:
    world = SimulatedWorld()
    first = world.host("a")
    joining = asyncio.create_task(first.join())
    await asyncio.sleep(5)
    world.wires[0].is_cut = True
    await asyncio.sleep(5 * TTL_S)
    world.wires[0].is_cut = False

    await asyncio.gather(joining, *[world.host(name).join() for name in ("b", "c")])
    await asyncio.sleep(5 * TTL_S)

    assert first.alive() == ["a", "b", "c"]
    await world.close()


@virtual
async def test_founders_that_were_told_different_things_are_refused() -> None:
    world = SimulatedWorld()
    waiting = [asyncio.create_task(world.host("a").join())]
    await asyncio.sleep(5)

    other_list = await world.host("b", founders=("a", "b")).refused()
    other_shards = await world.host("c", shards=5).refused()

    assert other_list == ("host a was started with the founding hosts a, b, c, this one with a, b")
    assert other_shards == "host a was started for 3 shards, this one for 5"
    waiting[0].cancel()
    await asyncio.wait(waiting)
    await world.close()


@virtual
async def test_a_host_without_founders_founds_nothing() -> None:
    world = SimulatedWorld()

    reason = await world.host("a", founders=()).refused()

    assert reason == (
        "no cluster named `holdfast` in this etcd: check --cluster, or name --cluster-hosts to "
        "found it"
    )
    await world.close()


# -- joining ---------------------------------------------------------------------------------------


@virtual
async def test_a_later_host_joins_and_the_others_hear_of_it() -> None:
    world = SimulatedWorld()
    hosts = await world.founded()

    later = world.host("d", founders=(), shards=9)
    cluster = await later.join()
    await asyncio.sleep(1)

    assert cluster == await world.host("a").join()
    assert later.membership.peers == peers("a", "b", "c")
    assert hosts[0].heard[-1] == peers("b", "c", "d")
    registered = hosts[0].membership.shown.hosts["d"]
    assert registered.replica_ids == ("d-0", "d-1", "d-2")
    await world.close()


@virtual
async def test_a_host_that_a_promise_has_no_room_for_is_refused() -> None:
    """Else the shards would have no leader any more, once it is to vote."""
    world = SimulatedWorld()
    names = tuple(f"n{number}".ljust(253, "x") for number in range(60))

    reason = await world.host(names[0], founders=names).refused()

    assert reason == (
        "a cluster has no room for 60 hosts with names of 253 characters on average: "
        "use shorter names"
    )
    assert await world.records() == {}
    most = max(count for count in range(60) if have_room(names[:count]))
    founders, later = names[:3], names[3:most]
    await asyncio.gather(*[world.host(name, founders=founders).join() for name in founders])
    for name in later:
        host = world.host(name)
        await host.join()
        await host.stop()

    reason = await world.host(names[most]).refused()

    assert reason.startswith(f"a cluster has no room for {most + 1} hosts")
    assert f"members/hosts/{names[most]}" not in await world.records()
    await world.host(later[-1]).join()
    await world.close()


@virtual
async def test_a_host_comes_back_before_its_lease_is_over() -> None:
    world = SimulatedWorld()
    hosts = await world.founded()
    await hosts[0].crash()

    again = world.host("a")
    await again.join()
    await asyncio.sleep(10 * TTL_S)

    assert again.alive() == hosts[1].alive() == ["a", "b", "c"]
    await world.close()


@virtual
async def test_a_host_that_is_gone_is_not_alive() -> None:
    world = SimulatedWorld()
    hosts = await world.founded()
    await asyncio.sleep(1)

    await hosts[0].crash()
    await hosts[1].stop()
    await asyncio.sleep(2 * TTL_S)

    assert hosts[2].alive() == ["c"]
    assert hosts[2].membership.peers == peers("a", "b"), "they are members all the same"
    await world.close()


@virtual
async def test_of_two_new_hosts_with_one_name_one_joins() -> None:
    world = SimulatedWorld()
    await world.founded()

    outcomes = await asyncio.gather(
        *[world.host("d", folder=folder).join() for folder in ("x", "y")], return_exceptions=True
    )

    assert sorted(type(each).__name__ for each in outcomes) == ["Cluster", "MembershipRefused"]
    await world.close()


@virtual
async def test_a_host_with_a_new_disk_takes_its_name_back() -> None:
    world = SimulatedWorld()
    hosts = await world.founded()
    await hosts[0].crash()

    again = world.host("a", folder="new")
    await again.join()
    await asyncio.sleep(1)

    assert hosts[1].membership.shown.hosts["a"].host_id == "id-new"
    assert hosts[1].membership.shown.hosts["a"].replica_ids[0] == "new-0"
    await world.close()


@virtual
async def test_an_older_copy_of_a_folder_is_refused() -> None:
    """Its host would vote on what it acknowledged since, and does not have any more."""
    world = SimulatedWorld()
    hosts = await world.founded()
    older = world.folders["c"]
    await hosts[2].crash()
    again = world.host("c")
    await again.join()
    await again.crash()
    later, world.folders["c"] = world.folders["c"], older

    reason = await world.host("c").refused()

    assert reason == (
        "this folder is an older copy of that of host c (state 1, the host was at 2): it lacks "
        "what that acknowledged since. Put the later one there, or start with an empty folder "
        "while the other hosts have theirs. If such copies are all that is left, see the runbook, "
        "Replacing a disk"
    )
    world.folders["c"] = later
    await world.host("c").join()
    await world.close()


@virtual
async def test_a_copy_that_was_made_since_the_last_start_is_refused_soon() -> None:
    world = SimulatedWorld()
    hosts = await world.founded()
    older = world.folders["c"]
    await asyncio.sleep(COUNT_S + 1)
    await hosts[2].crash()
    later, world.folders["c"] = world.folders["c"], older

    assert "(state 1, the host was at 2)" in await world.host("c").refused()

    world.folders["c"] = later
    await world.host("c").join()
    assert not any(host.is_removed for host in hosts)
    await world.close()


@virtual
async def test_what_the_disk_does_not_take_counts_nowhere_while_a_host_runs() -> None:
    world = SimulatedWorld()
    hosts = await world.founded()
    hosts[2].fill_disk()
    await asyncio.sleep(2 * COUNT_S + 1)
    await hosts[2].crash()

    await world.host("c").join()
    await world.close()


@virtual
async def test_a_start_that_the_disk_does_not_take_counts_nowhere() -> None:
    world = SimulatedWorld()
    hosts = await world.founded()
    await hosts[2].crash()

    full = world.host("c", is_disk_full=True)
    await full.join()
    await full.crash()

    await world.host("c").join()
    assert world.folders["c"].starts == 2
    await world.close()


@virtual
async def test_a_host_starts_when_etcd_is_older_than_its_folder() -> None:
    world = SimulatedWorld()
    hosts = await world.founded()
    await hosts[2].crash()
    world.folders["c"] = msgspec.structs.replace(world.folders["c"], starts=7)

    await world.host("c").join()

    assert world.folders["c"].starts == 8
    await world.close()


@virtual
async def test_a_folder_of_another_cluster_is_refused() -> None:
    world = SimulatedWorld()
    await world.founded()
    world.folders["d"] = Identity("id-d", "f" * 32)

    reason = await world.host("d").refused()

    cluster_id = world.folders["a"].cluster_id
    assert reason == (
        f"the data folder belongs to cluster {'f' * 32}, and this one is {cluster_id}"
    )
    await world.close()


# -- etcd ------------------------------------------------------------------------------------------


@virtual
async def test_a_host_announces_itself_anew_after_its_lease_was_lost() -> None:
    world = SimulatedWorld()
    hosts = await world.founded()
    world.wires[0].is_cut = True
    await asyncio.sleep(3 * TTL_S)
    assert hosts[1].alive() == ["b", "c"]

    world.wires[0].is_cut = False
    await asyncio.sleep(3 * TTL_S)

    assert hosts[1].alive() == ["a", "b", "c"]
    assert not hosts[0].is_removed
    await world.close()


@virtual
async def test_a_bug_does_not_keep_a_host_from_announcing_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = SimulatedWorld()
    hosts = [world.host(name) for name in FOUNDERS]
    records, failing = hosts[0].records, [RuntimeError("a bug"), OSError("another")]
    await asyncio.gather(*[host.join() for host in hosts])
    commit = records.commit

    async def commits(transaction: Transaction) -> Outcome:
        if failing:
            raise failing.pop()
        return await commit(transaction)

    monkeypatch.setattr(records, "commit", commits)
    world.wires[0].is_cut = True
    await asyncio.sleep(3 * TTL_S)
    world.wires[0].is_cut = False
    await asyncio.sleep(3 * TTL_S)

    assert not failing
    assert hosts[1].alive() == ["a", "b", "c"]
    await world.close()


@virtual
async def test_hosts_go_on_when_etcd_lost_everything() -> None:
    world = SimulatedWorld()
    hosts = await world.founded()
    copy = world.etcd.copy()

    world.etcd.replace()
    await asyncio.sleep(60)

    assert hosts[0].membership.peers == peers("b", "c")
    assert not any(host.is_removed for host in hosts)
    await hosts[0].crash()
    assert "restore etcd's data first" in await world.host("a").refused()
    assert await world.records() == {}, "nothing is founded anew"

    world.etcd.restore(copy)
    await asyncio.sleep(60)
    await world.host("a").join()
    await asyncio.sleep(1)

    assert hosts[1].alive() == ["a", "b", "c"]
    await world.close()


# -- operations ------------------------------------------------------------------------------------


@virtual
async def test_a_host_is_drained_and_stays_so_over_a_restart() -> None:
    world = SimulatedWorld()
    hosts = await world.founded()

    await set_drained(hosts[1].records, "a", is_drained=True)
    await hosts[0].stop()
    await world.host("a").join()
    await asyncio.sleep(1)
    assert hosts[1].drained() == ["a"]
    await set_drained(hosts[1].records, "a", is_drained=False)
    await asyncio.sleep(1)

    assert hosts[1].drained() == []
    await world.close()


@virtual
async def test_a_removed_host_stops_and_does_not_come_back() -> None:
    world = SimulatedWorld()
    hosts = await world.founded()
    with pytest.raises(MembershipRefused, match="host a is running: drain it first, or stop it"):
        await remove(hosts[1].records, "a", "abc")
    await set_drained(hosts[1].records, "a", is_drained=True)

    await remove(hosts[1].records, "a", "abc")
    await asyncio.sleep(1)

    assert hosts[0].is_removed
    assert not hosts[1].is_removed
    assert hosts[1].heard[-1] == peers("c")
    await hosts[0].stop()
    assert "was removed from the cluster" in await world.host("a").refused()
    await world.host("a", folder="empty").join()
    await asyncio.sleep(1)
    assert hosts[1].heard[-1] == peers("a", "c")
    await world.close()


@virtual
async def test_what_is_not_there_cannot_be_changed() -> None:
    world = SimulatedWorld()
    host = world.host("a", founders=("a",))
    await host.join()

    for change in (remove(host.records, "x", "a"), set_drained(host.records, "x", is_drained=True)):
        with pytest.raises(MembershipRefused, match="there is no host x"):
            await change
    await host.lease.release()
    with pytest.raises(MembershipRefused, match="host a is the last one"):
        await remove(host.records, "a", "a")
    await world.close()


# -- a real etcd, a real folder --------------------------------------------------------------------


@pytest.mark.slow
async def test_founders_agree_on_a_real_etcd(etcd: EtcdProcesses) -> None:
    world = World(Hosts(Access(etcd.endpoints), HttpWire))

    hosts = await world.founded()

    await until(lambda: all(host.alive() == ["a", "b", "c"] for host in hosts))
    cluster_ids = {identity.cluster_id for identity in world.folders.values()}
    assert len(cluster_ids) == 1
    assert cluster_ids != {""}
    await hosts[0].stop()
    await until(lambda: hosts[1].alive() == ["b", "c"])
    await world.close()


def test_a_folder_keeps_its_identity(tmp_path: Path) -> None:
    identity = open_identity(tmp_path, SystemEntropy())
    assert open_identity(tmp_path, SystemEntropy()) == identity

    member = Identity(identity.host_id, "c" * 32)
    save_identity(tmp_path, member)
    assert open_identity(tmp_path, SystemEntropy()) == member

    (tmp_path / MEMBER_FILE).write_bytes(b"rubbish")
    with pytest.raises(MembershipRefused, match=r"member\.json cannot be read"):
        open_identity(tmp_path, SystemEntropy())


@pytest.mark.parametrize("file", ["records.sqlite", "records.sqlite.copy", "catalog.sqlite"])
def test_a_single_host_s_folder_begins_no_cluster(tmp_path: Path, file: str) -> None:
    """Its rows would be those of queues that the cluster does not know."""
    (tmp_path / file).touch()

    with pytest.raises(MembershipRefused, match="is of a single host: a cluster begins with empty"):
        open_identity(tmp_path, SystemEntropy())

    assert not (tmp_path / MEMBER_FILE).exists()


def test_an_address_is_host_and_port() -> None:
    assert parse_address("a.test:7000") == Address("a.test", 7000)
    assert parse_address("[::1]:7000") == Address("::1", 7000)
    for text in ("a.test", "a.test:", ":7000", "a.test:x", "a.test:0", "a.test:70000"):
        with pytest.raises(ValueError, match="is not HOST:PORT"):
            parse_address(text)
