"""Hosts of two versions in one cluster, and the formats that they write, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from cluster.coordination.coordination import Snapshot, Transaction, Unavailable
from cluster.members.member_operations import raise_formats
from cluster.members.member_records import MembershipRefused
from cluster.tests.members.joining import Host, SimulatedWorld
from cluster.tests.virtual_time import virtual

KEY = "members/formats"


def shown(*hosts: Host) -> set[int]:
    return {host.membership.shown.formats for host in hosts}


async def restarted(world: SimulatedWorld, host: Host, formats: int) -> Host:
    await host.stop()
    again = world.host(host.name, formats=formats)
    await again.join()
    return again


async def refused(host: Host) -> str:
    with pytest.raises(MembershipRefused) as refused:
        await raise_formats(host.records)
    return str(refused.value)


@virtual
async def test_newer_formats_are_written_once_all_hosts_read_them_and_an_operator_says_so() -> None:
    world = SimulatedWorld()
    a, b, c = await world.founded()
    c = await restarted(world, c, 2)
    assert shown(a, b, c) == {1}, "a host of the next version writes what the others read"
    assert await refused(a) == "the cluster writes formats 1, the newest that a, b can read"
    b = await restarted(world, b, 2)
    await a.stop()
    assert await refused(c) == "the cluster writes formats 1, the newest that a can read"
    a = world.host("a", formats=3)
    await a.join()
    await asyncio.sleep(1)
    assert shown(a, b, c) == {1}, "nothing changes by itself"

    assert await raise_formats(a.records) == 2

    await asyncio.sleep(1)
    assert shown(a, b, c) == {2}
    assert await refused(b) == "the cluster writes formats 2, the newest that b, c can read"
    await world.close()


@virtual
async def test_no_host_joins_that_cannot_read_what_is_written() -> None:
    world = SimulatedWorld()
    a, b, c = [await restarted(world, host, 2) for host in await world.founded()]
    await raise_formats(a.records)
    await c.stop()
    text = "the cluster writes formats 2, and this version of holdfast knows 1: install a later one"

    assert await world.host("c", formats=1).refused() == text
    assert await world.host("d", formats=1).refused() == text

    await world.host("d", formats=2).join()
    await asyncio.sleep(1)
    assert "d" in a.membership.shown.hosts
    assert not a.is_removed
    assert not b.is_removed
    await world.close()


@virtual
async def test_a_host_that_joins_while_formats_are_raised_is_not_overlooked() -> None:
    """It registers after the operation has read the hosts."""
    world = SimulatedWorld()
    a, *_ = [await restarted(world, host, 2) for host in await world.founded()]
    joined: list[Host] = []

    class Late:
        """The records, as the operation sees them."""

        commit = a.records.commit

        async def read_all(self) -> Snapshot | Unavailable:
            found = await a.records.read_all()
            if not joined:
                joined.append(world.host("d", formats=1))
                await joined[0].join()
            return found

    with pytest.raises(MembershipRefused) as late:
        await raise_formats(Late())  # type: ignore[arg-type]

    assert str(late.value) == "the cluster writes formats 1, the newest that d can read"
    await world.close()


@virtual
async def test_a_running_host_stops_when_it_could_not_read_what_is_written() -> None:
    """Etcd was changed by hand, or put back."""
    world = SimulatedWorld()
    a, b, c = await world.founded()
    c = await restarted(world, c, 2)
    root = world.all.host(name="x")
    found = await root.read([KEY])
    assert isinstance(found, Snapshot)
    await root.commit(Transaction({KEY: found.records[0].revision}, {KEY: b"2"}))
    await asyncio.sleep(1)

    assert [host.is_removed for host in (a, b, c)] == [True, True, False]

    await world.close()
