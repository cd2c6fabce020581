"""Voters change only if those who run go on with the new set."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cluster.replication import ReplicaRole, leading
from cluster.replication.leadership import Holder, Seen, TermRecord
from cluster.replication.replica_messages import Append
from cluster.replication.voters import next_voters
from cluster.tests.replication.host import Host
from cluster.tests.replication.shard_hosts import Reply, ShardCluster
from cluster.tests.replication.stage import Stage, last_index, staged
from cluster.tests.replication.test_shards import Q
from cluster.tests.replication.test_shards import staged as with_shards
from storage.log import Position
from storage.tests.simulated_disk import SimulatedFile
from visibility.contract.results import SendMessageResult
from visibility.tests import prepared


def are_voters(stage: Stage, *hosts: Host) -> bool:
    """True if the replicas of these hosts count, and no others."""
    record = stage.coordination.state().record
    ids = {host.id_on_disk() for host in hosts}
    return record is not None and not record.old_voters and set(record.voters) == ids


def has_all(leader: Host, host: Host) -> bool:
    """True if the leader knows that the host has its whole log."""
    assert leader.replica is not None
    return (host.name, last_index(leader)) in [
        (peer.name, peer.matched) for peer in leader.replica.peer_reports()
    ]


def slow_down(patch: pytest.MonkeyPatch, host: Host, before_s: float, after_s: float) -> None:
    """Delay this host's writes and their answers."""
    assert host.replica is not None
    loop, leadership = asyncio.get_running_loop(), host.replica.leadership
    take = leadership.take

    def slow(seen: Seen, holder: Holder, record: TermRecord, done: Callable[..., None]) -> None:
        loop.call_later(before_s, take, seen, holder, record, partial(answer, done))

    def answer(done: Callable[..., None], outcome: object) -> None:
        loop.call_later(after_s, done, outcome)

    patch.setattr(leadership, "take", slow)
    patch.setattr(leadership, "ttl_s", 1.0)  # it looks at the key three times a second


def test_a_lost_voter_is_dropped_before_that_of_a_removed_host() -> None:
    voters = {"a": "h1", "b": "h2", "c": "h3"}

    assert next_voters(voters, {"x": "h3"}, {"h1", "h3"}) == {"a": "h1", "b": "h2"}


@staged
async def test_the_voter_that_runs_is_not_dropped_for_one_that_is_lost(stage: Stage) -> None:
    leader = await stage.leader()
    assert await stage.sent(leader, 3)
    new, removed = stage.others(leader)
    new.crash(is_power_loss=True)
    new.replace_disk()
    stage.drop(lambda sender, to, message: isinstance(message, Append) and to == new.name)
    new.start()
    await asyncio.sleep(1)
    before = stage.coordination.state().record

    for host, peer in ((leader, new), (new, leader)):
        assert host.replica is not None
        host.replica.set_peers([peer.name])
    await asyncio.sleep(10)

    assert stage.coordination.state().record.voters == before.voters  # type: ignore[union-attr]
    for host in (leader, new):
        assert host.replica is not None
        host.replica.set_peers([name for name in stage.names if name != host.name])
    stage.heal()
    await stage.until(lambda: are_voters(stage, leader, new, removed))
    await stage.settled()


@staged
async def test_a_learner_that_died_does_not_become_a_voter(stage: Stage) -> None:
    leader = await stage.leader()
    assert await stage.sent(leader, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leading, "PLAN_S", 10.0)  # it catches up and dies between two looks
        new = stage.join("h4")
        await stage.until(lambda: has_all(leader, new))
        new.crash(is_power_loss=True)
        await asyncio.sleep(5)
    await asyncio.sleep(5)

    assert leader.serves
    record = stage.coordination.state().record
    assert record is not None
    assert "h4" not in record.voters.values()
    assert await stage.sent(leader)
    new.start()
    await stage.settled()


@staged
async def test_a_leader_stays_while_the_answer_to_its_change_is_on_its_way(stage: Stage) -> None:
    leader = await stage.leader()
    await stage.sent(leader)
    with capture_logs() as logs, pytest.MonkeyPatch.context() as patch:
        slow_down(patch, leader, 0.0, 1.0)
        stage.join("h4")
        await stage.until(lambda: are_voters(stage, *stage.hosts.values()))

    assert leader.serves
    assert not [line["event"] for line in logs if line["event"] in ("lease_lost", "steps_down")]


@staged
async def test_a_leader_that_lost_its_key_during_a_change_steps_down(stage: Stage) -> None:
    leader = await stage.leader()
    await stage.sent(leader)
    term = stage.coordination.state().record.term  # type: ignore[union-attr]
    with pytest.MonkeyPatch.context() as patch:
        slow_down(patch, leader, 1.5, 0.0)
        stage.join("h4")
        await stage.until(lambda: leader.replica.is_changing_voters)  # type: ignore[union-attr]
        holder = stage.coordination.state().holder
        assert holder is not None
        stage.coordination.release(holder)
        await stage.until(lambda: not leader.serves, patience_s=5)

    await stage.settled()
    assert stage.coordination.state().record.term > term  # type: ignore[union-attr]


@with_shards
async def test_a_leader_goes_on_while_its_voters_change(cluster: ShardCluster) -> None:
    """A request that comes before the first Entry of the new term is committed waits for that."""
    leader = await cluster.leader()
    gone = next(host for host in cluster.hosts.values() if host is not leader)
    replies: list[Reply] = []

    with capture_logs() as logs:
        gone.crash(is_power_loss=False)
        cluster.names.remove(gone.name)
        while not _has_dropped(cluster, gone.name):
            if leader.store.replica.role is ReplicaRole.LEADER and not leader.store.replica.serving:
                replies.append(cluster.ask(leader, prepared.send(Q, "a")))
            await asyncio.sleep(0.0002)
        await cluster.until(lambda: all(reply.answers for reply in replies))

    assert {type(reply.answers[0]) for reply in replies} == {SendMessageResult}
    assert not [line for line in logs if line["log_level"] == "error"]
    assert leader.leads


def _has_dropped(cluster: ShardCluster, name: str) -> bool:
    record = cluster.coordination.state().record
    return record is not None and not record.old_voters and name not in record.voters.values()


@pytest.mark.parametrize("puts_back", ["the disk that was replaced", "the older copy again"])
def test_a_leader_without_two_replicas_goes_on_when_either_is_put_back(puts_back: str) -> None:
    """As the runbook says: the leader asked the older copy to be a learner before it heard that
    the other host has a new disk."""

    @staged
    async def story(stage: Stage) -> None:
        leader = await stage.leader()
        new, older = stage.others(leader)
        await stage.settled()
        copy = older.disk.copied(), older.flushed
        assert await stage.sent(leader, 3)
        await stage.settled()
        replaced = new.disk.copied(), new.flushed
        for host in (new, older):
            host.crash(is_power_loss=False)
        stage.drop(lambda sender, to, message: isinstance(message, Append))
        new.replace_disk()
        put_back(older, *copy)
        new.start()
        older.start()
        await asyncio.sleep(1)
        stage.heal()
        await asyncio.sleep(30)
        assert not await stage.sent(leader)

        host, disk = (older, copy) if "older" in puts_back else (new, replaced)
        host.crash(is_power_loss=False)
        put_back(host, *disk)
        host.start()

        assert await stage.sent(await stage.leader(), 3)
        await stage.settled()

    story()


def put_back(host: Host, disk: Mapping[Path, SimulatedFile], flushed: Position) -> None:
    """Give a host another disk, on which the rows are as of `flushed`."""
    host.disk.put_back(disk)
    host.flushed = flushed
