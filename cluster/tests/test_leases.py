"""Leases of every coordination that has them."""

from __future__ import annotations

import asyncio

import pytest

from cluster.coordination.coordination import (
    EMPTY,
    Change,
    Done,
    LeaseLost,
    Snapshot,
    Transaction,
)
from cluster.coordination.etcd_client import EtcdClient
from cluster.coordination.etcd_coordination import EtcdCoordination
from cluster.coordination.etcd_lease import EtcdLease
from cluster.tests.coordinations import Hosts, until

TTL_S = 1


class Lost:
    """Counts the leases that were lost."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


async def granted(host: EtcdCoordination, lost: Lost | None = None) -> EtcdLease:
    lease = await host.grant(TTL_S, lost or Lost())
    assert isinstance(lease, EtcdLease), lease
    return lease


def leader_key(name: bytes, lease: EtcdLease) -> Transaction:
    """Become the leader; the record of the term stays."""
    changes = {"leader": name, "term": b"1"}
    return Transaction({"leader": 0}, changes, {"leader": lease.lease_id})


async def keys(host: EtcdCoordination) -> list[str]:
    found = await host.read_all()
    assert isinstance(found, Snapshot), found
    return [record.key for record in found.records]


async def test_records_bound_to_a_lease_go_when_it_is_released(hosts: Hosts) -> None:
    one, other = hosts.host(), hosts.host()
    heard: list[Change] = []
    lost = Lost()
    await other.watch(EMPTY, heard.append)
    lease = await granted(one, lost)
    assert isinstance(await one.commit(leader_key(b"one", lease)), Done)
    assert lease.is_held()

    await lease.release()

    assert not lease.is_held()
    assert await keys(other) == ["term"]
    await until(lambda: bool(heard) and heard[-1].records == {"leader": None})
    assert lost.count == 0, "whoever releases it knows"


@pytest.mark.slow  # a lease ends in real time
async def test_a_lease_that_is_renewed_outlives_its_time(hosts: Hosts) -> None:
    one, other = hosts.host(), hosts.host()
    lease = await granted(one)
    await one.commit(leader_key(b"one", lease))
    first_end_s = lease.held_until_s

    await until(lambda: hosts.clock.monotonic_s() > first_end_s)

    assert lease.held_until_s > first_end_s
    found = await keys(other)
    assert "leader" in found or not lease.is_held()


@pytest.mark.slow  # a lease ends in real time
async def test_no_record_goes_while_its_holder_may_believe_in_it(hosts: Hosts) -> None:
    one, other = hosts.host(), hosts.host()
    lease = await granted(one)
    await one.commit(leader_key(b"one", lease))
    lease.stop()

    while "leader" in await keys(other):  # noqa: ASYNC110
        await asyncio.sleep(0.01)

    assert not lease.is_held()
    assert hosts.clock.monotonic_s() >= lease.held_until_s


async def test_a_lease_that_etcd_no_longer_has_is_lost(hosts: Hosts) -> None:
    host = hosts.host()
    lost = Lost()
    lease = await granted(host, lost)
    wire = hosts.make_wire()
    client = EtcdClient(hosts.access, wire)
    ended_elsewhere = EtcdLease(client, lease.lease_id, hosts.clock.monotonic_s, Lost())

    await ended_elsewhere.release()
    await wire.close()

    await until(lambda: lost.count == 1)
    assert not lease.is_held()
    assert lease.held_until_s - TTL_S < hosts.clock.monotonic_s()


async def test_a_record_cannot_be_bound_to_a_lease_that_ended(hosts: Hosts) -> None:
    host = hosts.host()
    lease = await granted(host)
    await lease.release()

    assert await host.commit(leader_key(b"one", lease)) == LeaseLost()

    assert await keys(host) == []
    again = await granted(host)
    assert isinstance(await host.commit(leader_key(b"one", again)), Done)


async def test_a_key_that_bears_a_lease_is_taken_once(hosts: Hosts) -> None:
    several = [hosts.host() for _ in range(4)]
    leases = await asyncio.gather(*[granted(host) for host in several])

    outcomes = await asyncio.gather(
        *[
            host.commit(leader_key(b"%d" % number, lease))
            for number, (host, lease) in enumerate(zip(several, leases, strict=True))
        ]
    )

    assert sum(isinstance(outcome, Done) for outcome in outcomes) == 1


async def test_parts_of_the_records_have_watches_and_transactions_of_their_own(
    hosts: Hosts,
) -> None:
    whole, heard = hosts.host(), list[Change]()
    part, other = whole.below("part/"), whole.below("other/")
    await part.watch(EMPTY, heard.append)
    lease = await granted(whole)

    await other.commit(Transaction({}, {"a": b"1"}))
    bound = Transaction({}, {"a": b"2"}, {"a": lease.lease_id})
    assert isinstance(await part.commit(bound), Done)
    both = await whole.commit(Transaction({}, {"part/b": b"3", "other/b": b"4"}))
    assert isinstance(both, Done)

    assert await keys(part) == ["a", "b"]
    await until(lambda: bool(heard) and heard[-1].revision == both.revision)
    assert [dict(each.records) for each in heard if each.records] == [{"a": b"2"}, {"b": b"3"}]
    await part.close()
    assert isinstance(await other.commit(Transaction({}, {"a": b"5"})), Done)
