"""Clusters that are founded on a restored backup, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from cluster.coordination.coordination import RECORDS_MAX, Record, Snapshot, Transaction
from cluster.members.copied_records import put_back
from cluster.members.member_records import Identity, MembershipRefused
from cluster.members.membership import Membership
from cluster.tests.members.joining import FOUNDERS, SimulatedWorld
from cluster.tests.virtual_time import virtual

BACKUP = "5eed"
RECORDS = {
    "catalog/queues/1/r/q": b"queue",
    "identities/users/1/u": b"user",
    "keyring/root": b"\xff key",
}


class RestoredWorld(SimulatedWorld):
    """Founders whose folders were restored from one backup."""

    def __init__(self, records: Mapping[str, bytes] = RECORDS, seed: int = 1) -> None:
        super().__init__(seed)
        self.backup = records
        for name in FOUNDERS:
            self.folders[name] = Identity(f"id-{name}", restored=BACKUP)

    def join(self, name: str, folder: str = "", **options: object) -> Membership:
        host = self.host(name, folder, **options)
        host.membership._restored_records = lambda: self.backup
        return host.membership

    async def records_of_backup(self) -> dict[str, bytes]:
        return {k: v for k, v in (await self.records()).items() if k in self.backup}

    async def refused(self, name: str, folder: str = "", **options: object) -> str:
        with pytest.raises(MembershipRefused) as refused:
            await self.join(name, folder, **options).join()
        return str(refused.value)


@virtual
async def test_the_records_are_there_when_the_cluster_is() -> None:
    world = RestoredWorld()

    founded = await asyncio.gather(*[world.join(name).join() for name in FOUNDERS])

    assert {cluster.restored for cluster in founded} == {BACKUP}
    assert await world.records_of_backup() == RECORDS
    assert {each.restored for each in world.folders.values()} == {BACKUP}
    await world.close()


@virtual
async def test_the_formats_of_the_backup_are_those_of_the_cluster() -> None:
    world = RestoredWorld({**RECORDS, "members/formats": b"2"})

    await asyncio.gather(*[world.join(name, formats=2).join() for name in FOUNDERS])

    assert (await world.host("d", formats=1).refused()).startswith("the cluster writes formats 2")
    await world.close()


@pytest.mark.parametrize("seed", range(3))
def test_all_records_are_written_through_losses(seed: int) -> None:
    @virtual
    async def run() -> None:
        records = {f"catalog/queues/1/r/q{number}": b"x" * 9_000 for number in range(130)}
        world = RestoredWorld(records, seed)
        memberships = [world.join(name) for name in FOUNDERS]
        for wire in world.wires:
            wire.loss = 0.1

        await asyncio.gather(*[membership.join() for membership in memberships])

        assert await world.records_of_backup() == records
        await world.close()

    run()


@virtual
async def test_a_founder_that_comes_late_brings_nothing_back() -> None:
    world = RestoredWorld()
    root = world.all.host(name="client")
    await asyncio.gather(*[world.join(name).join() for name in FOUNDERS])
    (key, *_) = RECORDS
    found = await root.read([key])
    assert isinstance(found, Snapshot)
    await root.commit(Transaction({key: found.records[0].revision}, {key: None}))

    late = world.join("d", "a")
    assert list(put_back(RECORDS, await _all(world))) == []
    await late._put_back()

    assert key not in await world.records()
    await world.close()


async def _all(world: SimulatedWorld) -> Snapshot:
    return Snapshot(1, [Record(key, value, 1) for key, value in (await world.records()).items()])


@virtual
async def test_founders_have_the_same_backup_or_none() -> None:
    world = RestoredWorld()
    world.folders["b"] = Identity("id-b")
    world.folders["c"] = Identity("id-c", restored="another")
    waiting = asyncio.create_task(world.join("a").join())
    await asyncio.sleep(5)

    new, other = await world.refused("b"), await world.refused("c")

    assert new == (
        "host a was started on the restored backup 5eed, this one on a new folder: restore one "
        "backup on each founding host"
    )
    assert other.startswith("host a was started on the restored backup 5eed, this one on the rest")
    waiting.cancel()
    await asyncio.wait([waiting])
    assert "members/cluster" not in await world.records()
    await world.close()


@virtual
async def test_a_restored_folder_joins_no_cluster_that_was_there_before() -> None:
    world = RestoredWorld()
    for name in FOUNDERS:
        world.folders[name] = Identity(f"id-{name}")
    await world.founded()
    world.folders["d"] = Identity("id-d", restored=BACKUP)

    reason = await world.refused("d")

    assert reason.startswith("the data folder was restored from backup 5eed, and there is a")
    await world.close()


@virtual
async def test_a_host_joins_the_restored_cluster_with_an_empty_folder_or_the_same_backup() -> None:
    world = RestoredWorld()
    await asyncio.gather(*[world.join(name).join() for name in FOUNDERS])
    world.folders["e"] = Identity("id-e", restored=BACKUP)

    assert await world.join("d").join() == await world.join("e").join()

    await world.close()


@virtual
async def test_records_of_another_cluster_are_not_mixed_with_those_of_the_backup() -> None:
    world = RestoredWorld()
    other = {"catalog/queues/1/r/other": b"other"}
    await world.all.host(name="x").commit(Transaction(dict.fromkeys(other, 0), other))
    hosts = [world.join(name) for name in FOUNDERS]

    founding = await asyncio.gather(*[host.join() for host in hosts], return_exceptions=True)

    assert all(isinstance(refused, MembershipRefused) for refused in founding)
    assert str(founding[0]).startswith("etcd has a record catalog/queues/1/r/other that is not of")
    assert "members/cluster" not in await world.records()
    await world.close()


def test_transactions_are_as_large_as_etcd_takes() -> None:
    records = {f"catalog/{number}": b"x" * (9_000 + number) for number in range(500)}

    parts = list(put_back(records, Snapshot(0, [])))

    assert {key: value for part in parts for key, value in part.changes.items()} == records
    for part in parts:
        assert len(part.conditions) <= RECORDS_MAX
        assert sum(len(value or b"") for value in part.changes.values()) <= 1 << 20
        assert part.conditions["members/cluster"] == 0
