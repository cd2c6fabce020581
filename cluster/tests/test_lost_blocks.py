"""etcd is restored from before blocks of data keys that a process goes on sealing with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random

import pytest

from auth.envelope import BUILT_IN_KEY, DataKey, SealBroken
from cluster.coordination.coordination import Snapshot, Transaction
from cluster.coordination.etcd_client import Access
from cluster.coordination.records import Records
from cluster.keys.key_records import BLOCK, block_of
from cluster.keys.keyring import Keyring, KeysAway
from cluster.tests.coordinations import Hosts, until
from cluster.tests.memory_coordination import MemoryCoordination
from cluster.tests.simulated_etcd import SimulatedEtcd
from cluster.tests.simulated_wire import SimulatedWire
from cluster.tests.stores import ACCOUNT, Place, found, memory_place


class World:
    """A keyring on records that go back to a copy."""

    def __init__(self, place: Place, coordination: MemoryCoordination) -> None:
        self.place = place
        self.coordination = coordination
        self.copy = Snapshot(0, [])
        self.keyring: Keyring

    async def open(self) -> World:
        self.keyring = await self.place.keyring()
        await self.take_copy()
        return self

    async def take_copy(self) -> None:
        self.copy = await self.place.snapshot()

    def restore(self) -> None:
        """Let the records be as in the copy."""
        there, copied = self.coordination.records, {each.key: each for each in self.copy.records}
        changes = {
            key: copied[key].value if key in copied else None
            for key, record in there.items()
            if record != copied.get(key)
        }
        self.coordination.change(Transaction({}, changes))

    async def new_key(self, keyring: Keyring | None = None) -> DataKey:
        own = keyring or self.keyring
        return await own.new_data_key(own.names()[0])


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with memory_place() as (place, coordination):
        yield await World(place, coordination).open()


async def opened(keyring: Keyring, key: DataKey, sealed: bytes) -> bytes:
    """The records as another process reads them."""
    return (await found(keyring, key.number))[1].open(sealed)


async def test_a_block_that_etcd_lost_is_put_back(world: World) -> None:
    key = await world.new_key()
    sealed = key.seal(b"sent before")

    world.restore()
    await until(lambda: world.keyring.can_seal(key))

    other = await world.place.keyring()
    assert await opened(other, key, sealed) == b"sent before"
    assert block_of((await world.new_key(other)).number) > block_of(key.number)


async def test_nothing_is_sealed_under_a_block_that_is_lost(world: World) -> None:
    key = await world.new_key()
    told: list[bool] = []
    world.keyring.subscribe(lambda: told.append(world.keyring.can_seal(key)))
    world.restore()
    world.coordination.is_away = True

    assert told == [False]
    assert not world.keyring.can_seal(key)
    with pytest.raises(KeysAway):
        await world.new_key()

    world.coordination.is_away = False
    assert block_of((await world.new_key()).number) > block_of(key.number), "not issued again"
    await until(lambda: world.keyring.can_seal(key))


async def test_a_number_that_was_issued_again_seals_for_its_new_owner_only(world: World) -> None:
    key = await world.new_key()
    sealed = key.seal(b"sent before")
    world.coordination.held_back = []
    world.restore()
    other = await world.place.keyring()
    issuing = asyncio.create_task(world.new_key(other))
    await until(lambda: len(world.coordination.held_back or ()) == 2)
    world.coordination.report()
    theirs = await issuing
    assert block_of(theirs.number) == block_of(key.number)

    await until(lambda: not world.keyring.can_seal(key))

    assert await opened(world.keyring, theirs, theirs.seal(b"theirs")) == b"theirs"
    mine = await world.new_key()
    assert block_of(mine.number) > block_of(key.number)
    assert await opened(other, mine, mine.seal(b"mine")) == b"mine"
    with pytest.raises(SealBroken):
        await opened(other, key, sealed)


async def test_a_block_of_a_lost_version_is_put_back_under_the_one_that_is_there(
    world: World,
) -> None:
    await world.keyring.rotate(BUILT_IN_KEY)
    key = await world.new_key()
    sealed = key.seal(b"sent before")

    world.restore()
    await until(lambda: world.keyring.can_seal(key))

    other = await world.place.keyring()
    assert await opened(other, key, sealed) == b"sent before"
    await other.rotate(BUILT_IN_KEY)
    assert await other.rewrap(BUILT_IN_KEY) == 1
    await world.place.heard(world.keyring)
    late = await world.new_key()
    assert await opened(other, late, late.seal(b"late")) == b"late"
    assert await opened(world.keyring, key, sealed) == b"sent before"


async def test_a_version_whose_number_was_issued_again_is_the_new_one(world: World) -> None:
    await world.keyring.rotate(BUILT_IN_KEY)
    world.coordination.held_back = []
    world.restore()
    other = await world.place.keyring()
    rotating = asyncio.create_task(other.rotate(BUILT_IN_KEY))
    await until(lambda: len(world.coordination.held_back or ()) == 2)
    world.coordination.report()
    await rotating

    theirs = await world.new_key(other)
    assert await opened(world.keyring, theirs, theirs.seal(b"theirs")) == b"theirs"


async def test_a_block_whose_named_key_is_lost_too_stays_lost(world: World) -> None:
    await world.keyring.add("bills", ACCOUNT)
    key = await world.keyring.new_data_key(world.keyring.named("bills"))

    world.restore()
    await until(lambda: world.coordination.records.get("ids/block") is not None)

    assert not world.keyring.can_seal(key)
    assert "data/1" not in world.coordination.records
    assert block_of((await world.new_key()).number) > block_of(key.number), "not issued again"


async def test_many_blocks_are_put_back(world: World) -> None:
    named = [await world.keyring.add(f"key-{number}", ACCOUNT) for number in range(120)]
    await world.take_copy()
    for each in named:
        await world.keyring.new_data_key(each)
    before = {key for key in world.coordination.records if key.startswith("data/")}
    assert len(before) == 120

    world.restore()

    await until(lambda: before <= world.coordination.records.keys())


async def test_rewrapped_blocks_are_not_lost(world: World) -> None:
    key = await world.new_key()
    other = await world.place.keyring()
    await other.rotate(BUILT_IN_KEY)
    calls: list[bool] = []
    world.keyring.subscribe(lambda: calls.append(world.keyring.can_seal(key)))

    await other.rewrap(BUILT_IN_KEY)
    await world.place.heard(world.keyring)

    assert calls
    assert all(calls)


async def test_of_several_processes_each_puts_back_what_it_knows() -> None:
    random = Random(5)
    etcd = SimulatedEtcd(random)
    hosts = Hosts(Access(etcd.endpoints), lambda: SimulatedWire(etcd, random))
    place = Place(None, hosts)  # type: ignore[arg-type]
    keyrings: list[Keyring] = []

    async def opened_keyring() -> Keyring:
        keyring = await Keyring.open(
            hosts.host(), b"m" * 32, place.clock, place.entropy, is_shared=True
        )
        keyrings.append(keyring)
        return keyring

    try:
        for _ in range(3):
            await opened_keyring()
        copy = etcd.copy()
        keys = [await each.new_data_key(each.names()[0]) for each in keyrings]
        sealed = [key.seal(b"sent before") for key in keys]
        etcd.restore(copy)

        records = await Records.open(hosts.host(), KeysAway)
        await until(lambda: len(records.view.below("data/")) == 3)
        await records.close()

        await opened_keyring()
        for key, message in zip(keys, sealed, strict=True):
            assert await opened(keyrings[-1], key, message) == b"sent before"
        last = await keyrings[-1].new_data_key(keyrings[-1].names()[0])
        assert last.number == 3 * BLOCK + 1
    finally:
        for keyring in keyrings:
            await keyring.close()
        await hosts.close()
