"""Hosts that may not register: what they were given is another host's."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cluster.coordination.coordination import Done, Transaction, Unavailable
from cluster.members.host_folder import LEASE_FILE, former_lease, save_lease
from cluster.members.host_lease import HostLease
from cluster.members.member_operations import remove, set_drained
from cluster.members.member_records import MembershipRefused
from cluster.tests.members.joining import TTL_S, SimulatedWorld
from cluster.tests.virtual_time import virtual


@virtual
async def test_a_folder_runs_under_its_own_name_only() -> None:
    """A copy has the same replica ids, so that one host's answer would count as the other's."""
    world = SimulatedWorld()
    hosts = await world.founded()
    before = await world.records()

    as_new = await world.host("d", folder="c").refused()
    as_other = await world.host("b", folder="c").refused()

    assert as_new == "this folder is of host c: start it as c, or start d with an empty folder"
    assert as_other == "this folder is of host c: start it as c, or start b with an empty folder"
    assert await world.records() == before, "nothing was registered"
    await set_drained(hosts[0].records, "c", is_drained=True)
    await remove(hosts[0].records, "c", "abc")
    assert "host c was removed" in await world.host("d", folder="c").refused()
    await world.host("d", folder="empty").join()
    await world.close()


@virtual
async def test_an_address_belongs_to_one_host() -> None:
    """A host with the address of another one would be listed and never reached."""
    world = SimulatedWorld()
    hosts = await world.founded()
    before = await world.records()
    await hosts[2].crash()

    of_running = await world.host("d", peer_address="a.test:7000").refused()
    of_another = await world.host("e", peer_address="c.test:7000").refused()
    of_member = await world.host("c", peer_address="a.test:7000").refused()

    assert (
        of_running
        == of_member
        == ("host a has the address a.test:7000: give this host a peer_address of its own")
    )
    assert "host c has the address" in of_another
    assert (await world.records()).keys() == before.keys(), "no other host was registered"
    await world.host("c", peer_address="c.test:7001").join()
    await world.close()


@virtual
async def test_members_may_exchange_their_addresses_while_they_are_stopped() -> None:
    world = SimulatedWorld()
    hosts = await world.founded()
    await hosts[0].stop()
    await hosts[1].stop()

    await world.host("a", peer_address="b.test:7000").join()
    await world.host("b", peer_address="a.test:7000").join()
    await world.close()


@virtual
async def test_a_host_says_every_minute_what_it_waits_for() -> None:
    world = SimulatedWorld()
    host = world.host("a")
    world.wires[0].is_cut = True

    with capture_logs() as logs:
        joining = asyncio.create_task(host.join())
        await asyncio.sleep(150)
        told = [line for line in logs if line["event"] == "waits_to_join"]
        world.wires[0].is_cut = False
        await asyncio.sleep(10 * TTL_S)

    assert len(told) == 3
    assert {line["log_level"] for line in told} == {"warning"}
    assert {line["action"] for line in told} == {
        "start etcd's members, or correct the settings of etcd"
    }
    last = [line for line in logs if line["event"] == "waits_to_join"][-1]
    assert last["reason"] == "founding hosts that have not registered: b, c"
    assert last["action"] == "start them"
    joining.cancel()
    await asyncio.wait([joining])
    await world.close()


@virtual
async def test_the_name_of_a_running_host_is_taken() -> None:
    world = SimulatedWorld()
    hosts = await world.founded()

    with capture_logs() as logs:
        reason = await world.host("a", folder="x", peer_address="x.test:7000").refused()

    assert reason == (
        "another host named a is running at a.test:7000: stop it, or give this one a host_name of "
        "its own"
    )
    assert [line["log_level"] for line in logs if line["event"] == "waits_to_join"] == ["warning"]

    await asyncio.sleep(10)
    assert not hosts[0].is_removed
    await world.close()


@virtual
async def test_the_last_host_that_may_lead_is_not_drained() -> None:
    world = SimulatedWorld()
    hosts = await world.founded()
    await hosts[2].stop()
    await set_drained(hosts[0].records, "a", is_drained=True)

    with pytest.raises(MembershipRefused, match="host b is the last one that runs and is not"):
        await set_drained(hosts[0].records, "b", is_drained=True)

    await set_drained(hosts[0].records, "c", is_drained=True)
    await asyncio.sleep(1)
    assert hosts[0].drained() == ["a", "c"]
    await world.close()


def test_the_lease_of_a_folders_former_process_is_ended(tmp_path: Path) -> None:
    """Else the shards that it led would wait for the end of it."""

    @virtual
    async def run() -> None:
        world = SimulatedWorld()
        hosts = await world.founded()
        lease = HostLease(hosts[2].root, TTL_S, partial(save_lease, tmp_path))
        granted = await lease.current()
        assert not isinstance(granted, Unavailable)
        record = Transaction({}, {"key": b"x"}, {"key": granted.lease_id})
        assert isinstance(await hosts[2].root.commit(record), Done)
        await hosts[2].crash()
        assert "key" in await world.records()

        await hosts[0].root.end_lease(former_lease(tmp_path))

        assert "key" not in await world.records()
        await hosts[0].root.end_lease(former_lease(tmp_path))
        assert hosts[0].alive() == ["a", "b", "c"], "others stay"
        await world.close()

    assert former_lease(tmp_path) == 0
    run()
    (tmp_path / LEASE_FILE).write_bytes(b"rubbish")
    assert former_lease(tmp_path) == 0
