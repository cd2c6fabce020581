"""Voters change only if those who run go on with the new set."""

from __future__ import annotations

import asyncio

import pytest

from cluster.replication import leading
from cluster.replication.messages import Append
from cluster.replication.voters import next_voters
from cluster.tests.replication.host import Host
from cluster.tests.replication.stage import Stage, last_index, staged


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
        patch.setattr(leading, "_PLAN_S", 10.0)  # it catches up and dies between two looks
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
