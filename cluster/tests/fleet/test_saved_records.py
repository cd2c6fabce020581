"""A gateway starts from its table while etcd is away, and goes on from there."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path

import pytest

from auth.envelope import BUILT_IN_KEY
from cluster.clock import SystemEntropy
from cluster.coordination.coordination import (
    Change,
    OnChange,
    Outcome,
    Snapshot,
    Transaction,
    Unavailable,
)
from cluster.coordination.etcd_coordination import EtcdCoordination
from cluster.fleet.saved_records import FILE_NAME, SavedRecords
from cluster.keys.key_records import block_of
from cluster.keys.keyring import Keyring, KeysAway
from cluster.keys.spare_blocks import SpareBlocks
from cluster.tests.members.joining import SimulatedWorld
from cluster.tests.virtual_time import LoopClock, virtual

A = "a/"


def saved(root: EtcdCoordination | Silent, folder: Path) -> SavedRecords:
    return SavedRecords(root, folder, "fleet")


class Silent:
    """A coordination whose store does not answer, but whose watches work once it does again."""

    def __init__(self, whole: EtcdCoordination) -> None:
        self._whole = whole
        self.is_away = True

    def below(self, folder: str) -> Silent:
        part = Silent(self._whole.below(folder))
        self._parts = [*getattr(self, "_parts", []), part]
        return part

    def back(self) -> None:
        """It answers again."""
        self.is_away = False
        for part in self._parts:
            part.is_away = False

    async def read_all(self) -> Snapshot | Unavailable:
        return Unavailable("it is away") if self.is_away else await self._whole.read_all()

    async def read(self, keys: Collection[str]) -> Snapshot | Unavailable:
        return Unavailable("it is away") if self.is_away else await self._whole.read(keys)

    async def commit(self, transaction: Transaction) -> Outcome:
        return Unavailable("it is away") if self.is_away else await self._whole.commit(transaction)

    async def watch(self, after: Snapshot, on_change: OnChange) -> None:
        await self._whole.watch(after, on_change)

    def expect(self, revision: int) -> None:
        self._whole.expect(revision)

    async def close(self) -> None:
        await self._whole.close()


@virtual
async def test_records_are_read_from_the_table_and_watched_from_there(tmp_path: Path) -> None:
    world = SimulatedWorld()
    root = world.all.host(name="g")
    await root.commit(Transaction({}, {"a/1": b"one", "a/2": b"two", "b/1": b"other"}))
    records = saved(root, tmp_path)
    for prefix in (A, "b/"):
        assert isinstance(await records.below(prefix).read_all(), Snapshot)
    await records.save()
    await root.commit(Transaction({}, {"a/1": b"later", "a/3": b"three", "a/2": None}))

    unreachable = Silent(root)
    again = saved(unreachable, tmp_path)
    part, other = again.below(A), again.below("b/")
    found = await part.read_all()
    assert isinstance(found, Snapshot)
    assert [(each.key, each.value) for each in found.records] == [("1", b"one"), ("2", b"two")]
    assert again.is_from_table
    few = await other.read(["1", "2"])
    assert isinstance(few, Snapshot)
    assert [each.value for each in few.records] == [b"other"]

    heard: dict[str, bytes | None] = {}

    def hear(change: Change) -> None:
        heard.update(change.records)

    await part.watch(found, hear)
    await asyncio.sleep(1)
    assert heard == {"1": b"later", "2": None, "3": b"three"}
    unreachable.back()
    await again.save()
    third = saved(Silent(root), tmp_path).below(A)
    found = await third.read_all()
    assert isinstance(found, Snapshot)
    assert [each.value for each in found.records] == [b"later", b"three"]
    await world.close()


@pytest.mark.parametrize("damage", ["bit", "end", "other fleet", "none"])
def test_without_a_sound_table_there_is_no_start(tmp_path: Path, damage: str) -> None:
    @virtual
    async def run() -> None:
        world = SimulatedWorld()
        root = world.all.host(name="g")
        await root.commit(Transaction({}, {"a/1": b"one"}))
        records = saved(root, tmp_path)
        await records.below(A).read_all()
        await records.save()
        file, name = tmp_path / FILE_NAME, "fleet"
        if damage == "bit":
            content = bytearray(file.read_bytes())
            content[-3] ^= 1
            file.write_bytes(content)
        elif damage == "end":
            file.write_bytes(file.read_bytes()[:-2])
        elif damage == "none":
            file.unlink()
        else:
            name = "another"
        again = SavedRecords(Silent(root), tmp_path, name)
        assert isinstance(await again.below(A).read_all(), Unavailable)
        await world.close()

    run()


@virtual
async def test_a_spare_block_of_data_keys_is_used_once(tmp_path: Path) -> None:
    world = SimulatedWorld()
    records = saved(world.all.host(name="g"), tmp_path)
    spares = SpareBlocks(tmp_path)
    keyring = await opened(records, spares)
    first = await keyring.new_data_key(keyring.named(BUILT_IN_KEY))
    await keyring.keep_spares()
    await records.save()

    silent = saved(Silent(world.all.host(name="g2")), tmp_path)
    restarted = await opened(silent, SpareBlocks(tmp_path), founds=False)
    key = await restarted.new_data_key(restarted.named(BUILT_IN_KEY))
    assert block_of(key.number) != block_of(first.number), "its last process may have used that"
    assert key.count > 0, "a copy of the disk has the same block, and begins elsewhere"
    sealed = key.seal(b"body")
    assert keyring.data_key(key.number)[1].open(sealed) == b"body"

    silent = saved(Silent(world.all.host(name="g3")), tmp_path)
    third = await opened(silent, SpareBlocks(tmp_path), founds=False)
    with pytest.raises(KeysAway):
        await third.new_data_key(third.named(BUILT_IN_KEY))
    await world.close()


async def opened(records: SavedRecords, spares: SpareBlocks, *, founds: bool = True) -> Keyring:
    return await Keyring.open(
        records.below("keyring/"),
        b"m" * 32,
        LoopClock(),
        SystemEntropy(),
        founds=founds,
        spares=spares,
    )
