"""Days of use go with their keys, whichever hosts write and remove at once."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from cluster.coordination.coordination import Transaction
from cluster.keys.identity_records import IdentitiesUnreadable
from cluster.keys.identity_store import IdentityStore
from cluster.tests.memory_coordination import MemoryCoordination
from cluster.tests.stores import ACCOUNT, Place, memory_place
from cluster.tests.virtual_time import some_secrets


class Hosts:
    """The identities of two hosts, whose watches may be late, and a key."""

    def __init__(self, place: Place, memory: MemoryCoordination) -> None:
        self.memory = memory
        self._place = place
        self.one: IdentityStore
        self.other: IdentityStore
        self.key_id = ""

    async def open(self) -> Hosts:
        self.one, self.other = await self._store(), await self._store()
        self.key_id = (await self.one.add_key(ACCOUNT)).access_key_id
        return self

    async def _store(self) -> IdentityStore:
        records = await self._place.opened(IdentitiesUnreadable, shown_s=0.01)
        return IdentityStore(records, some_secrets(), self._place.clock, self._place.entropy)

    def uses(self) -> set[str]:
        return {key for key in self.memory.records if key.startswith("uses/")}


@pytest.fixture
async def hosts() -> AsyncIterator[Hosts]:
    async with memory_place() as (place, memory):
        yield await Hosts(place, memory).open()


async def test_a_day_of_use_is_removed_with_a_key_that_another_host_uses(hosts: Hosts) -> None:
    hosts.memory.held_back = []
    await hosts.one.note_uses({hosts.key_id: 20_000})

    await hosts.other.remove_key(hosts.key_id)

    assert hosts.uses() == set()


async def test_a_day_of_use_is_not_written_for_a_key_that_another_host_removed(
    hosts: Hosts,
) -> None:
    hosts.memory.held_back = []
    await hosts.one.remove_key(hosts.key_id)

    await hosts.other.note_uses({hosts.key_id: 20_000})

    assert hosts.uses() == set()


@pytest.mark.parametrize("value", [b"20000", b"damaged"])
async def test_days_of_keys_that_are_gone_are_removed(hosts: Hosts, value: bytes) -> None:
    await hosts.memory.commit(Transaction({}, {"uses/AKIAGONE": value}))

    await hosts.one.note_uses({hosts.key_id: 20_000})

    assert hosts.uses() == {f"uses/{hosts.key_id}"}
