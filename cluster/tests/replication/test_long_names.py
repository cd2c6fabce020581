"""Clusters whose hosts have names so long that a promise takes several sectors."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from cluster.tests.replication.host import Host
from cluster.tests.replication.stage import Stage, staged_on
from storage.log.promise import PROMISE_FILE, read_promises


def _name(number: int) -> str:
    return f"broker-{number}".ljust(60, "x")


class LongNames(Stage):
    """Names of 60 characters, and ids as long as those that hosts take."""

    def __init__(self) -> None:
        super().__init__()
        self.names[:] = [_name(number) for number in range(1, 4)]
        self.hosts = {name: Host(self, name, Random(name)) for name in self.names}

    def new_replica_id(self) -> str:
        return super().new_replica_id().rjust(32, "0")

    def voters(self) -> set[str]:
        record = self.coordination.state().record
        assert record is not None
        return set(record.voters.values())


@staged_on(LongNames)
async def test_a_cluster_grows_and_shrinks_and_its_shard_keeps_a_leader(stage: LongNames) -> None:
    leader = await stage.leader()
    assert await stage.sent(leader, 3)
    for number in (4, 5):
        stage.join(_name(number))
        await stage.settled()
        assert stage.voters() == set(stage.names)
    payload = _payload(leader)
    assert len(payload) > 512

    leader.crash(is_power_loss=True)
    leader.replace_disk()
    leader.start()
    await stage.settled()

    assert stage.voters() == set(stage.names)
    assert {host.applied for host in stage.hosts.values()} == {leader.applied}


@pytest.mark.slow
@staged_on(LongNames)
async def test_all_hosts_that_lose_their_power_during_an_election_come_back(
    stage: LongNames,
) -> None:
    """None of them may take its promise for damaged: no other host is left to learn from."""
    for number in (4, 5):
        await stage.leader()
        stage.join(_name(number))
        await stage.settled()
    ids = {name: host.id_on_disk() for name, host in stage.hosts.items()}
    for calls in range(24):
        for host in stage.hosts.values():
            host.crash(is_power_loss=True)
            host.disk.calls_until_cut = calls
            host.start()
        await asyncio.sleep(3)
        for host in stage.hosts.values():
            host.crash(is_power_loss=True)
        for host in stage.hosts.values():
            host.start()
        assert {name: host.id_on_disk() for name, host in stage.hosts.items()} == ids
        await stage.settled()


def _payload(host: Host) -> bytes:
    payload = read_promises(bytes(host.disk.file(host.folder / PROMISE_FILE).content)).payload
    assert payload is not None
    return payload
