"""Leadership of shards while members of a real etcd are away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cluster.coordination.coordination import Done
from cluster.coordination.etcd_client import Access
from cluster.coordination.etcd_wire import HttpWire
from cluster.replication.leadership import Renewal
from cluster.tests.coordinations import Hosts
from cluster.tests.etcd_processes import EtcdProcesses
from cluster.tests.members.member_hosts import Candidate, gone

pytestmark = pytest.mark.slow


@pytest.fixture
async def hosts(etcd: EtcdProcesses) -> AsyncIterator[Hosts]:
    made = Hosts(Access(etcd.endpoints), HttpWire)
    yield made
    await made.close()
    etcd.repair()


async def test_a_leader_stays_when_all_of_etcd_restarts(etcd: EtcdProcesses, hosts: Hosts) -> None:
    one = Candidate(hosts.host(deadline_s=1.0), "a")
    await one.taken(term=1)

    for member in etcd.members:
        etcd.kill(member)
    assert await one.renew(1) is Renewal.UNAVAILABLE
    await asyncio.to_thread(etcd.repair)
    renewed = Renewal.UNAVAILABLE
    while renewed is Renewal.UNAVAILABLE:
        renewed = await one.renew(1)

    assert renewed is Renewal.KEPT
    await one.stop()


async def test_keys_are_taken_and_kept_when_etcds_leader_is_killed(
    etcd: EtcdProcesses, hosts: Hosts
) -> None:
    one, other = Candidate(hosts.host(), "a"), Candidate(hosts.host(), "b")
    await one.taken(term=1)

    etcd.kill(etcd.leader())

    assert await one.renew(1) is Renewal.KEPT
    assert isinstance(await other.take(await other.read(1), 1, shard=1), Done)
    one.keys.of_shard(0).release(one.holder(1))
    await gone(other)
    await one.stop()
    await other.stop()
