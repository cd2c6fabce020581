"""A gateway starts from its table while etcd is away, and goes on from there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from auth.envelope import BUILT_IN_KEY
from cluster.clock import SystemEntropy
from cluster.coordination.coordination import (
    Change,
    Done,
    OnChange,
    Outcome,
    Snapshot,
    Transaction,
    Unavailable,
)
from cluster.coordination.etcd_coordination import EtcdCoordination
from cluster.fleet.saved_records import FOLDER, SavedPart, SavedRecords
from cluster.keys.key_records import block_of
from cluster.keys.keyring import Keyring, KeysAway
from cluster.keys.spare_blocks import SpareBlocks
from cluster.tests.members.joining import SimulatedWorld
from cluster.tests.virtual_time import LoopClock, virtual

A = "a/"


def saved(root: EtcdCoordination | Silent, folder: Path) -> SavedRecords:
    return SavedRecords(root, folder, "fleet", at_once)


async def at_once(work: Callable[[], None]) -> None:
    """In place of a thread: virtual time has none."""
    work()


async def begun(part: SavedPart) -> Snapshot:
    """Read and watch, as each user of records does."""
    found = await part.read_all()
    assert isinstance(found, Snapshot)
    await part.watch(found, lambda change: None)
    return found


class Silent:
    """A coordination whose store does not answer, but whose watches work once it does again."""

    def __init__(self, whole: EtcdCoordination) -> None:
        self._whole = whole
        self._parts: list[Silent] = []
        self.is_away = True

    def below(self, folder: str) -> Silent:
        part = Silent(self._whole.below(folder))
        self._parts.append(part)
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
        await begun(records.below(prefix))
    await records.save()
    await records.below(A).close()
    await root.commit(Transaction({}, {"a/1": b"later", "a/3": b"three", "a/2": None}))

    unreachable = Silent(root)
    again = saved(unreachable, tmp_path)
    part, other = again.below(A), again.below("b/")
    found = await part.read_all()
    assert isinstance(found, Snapshot)
    assert [(each.key, each.value) for each in found.records] == [("1", b"one"), ("2", b"two")]
    assert again.is_away
    few = await other.read(["1", "2"])
    assert isinstance(few, Snapshot)
    assert [each.value for each in few.records] == [b"other"]

    heard: dict[str, bytes | None] = {}

    def hear(change: Change) -> None:
        heard.update(change.records)

    unreachable.back()
    with capture_logs() as logs:
        await part.watch(found, hear)
        await asyncio.sleep(1)
    assert heard == {"1": b"later", "2": None, "3": b"three"}
    assert not [line for line in logs if line["log_level"] == "warning"], "nothing is amiss"
    assert isinstance(await other.commit(Transaction({}, {})), Done), "etcd was heard"
    await again.save()
    third = saved(Silent(root), tmp_path).below(A)
    found = await third.read_all()
    assert isinstance(found, Snapshot)
    assert [each.value for each in found.records] == [b"later", b"three"]
    await world.close()


@pytest.mark.parametrize("more", [0, 2])
def test_an_etcd_of_another_past_that_got_as_far_is_noticed(tmp_path: Path, more: int) -> None:
    """It was restored while the gateway was down, and has the table's revision again."""

    @virtual
    async def run() -> None:
        world, other = SimulatedWorld(), SimulatedWorld()
        root, restored = world.all.host(name="g"), other.all.host(name="g")
        await root.commit(Transaction({}, {"a/1": b"one", "a/2": b"two", "a/3": b"three"}))
        records = saved(root, tmp_path)
        table = await begun(records.below(A))
        await records.save()
        await restored.commit(Transaction({}, {"a/1": b"one", "a/2": b"another"}))
        for number in range(more):
            await restored.commit(Transaction({}, {f"b/{number}": b"elsewhere"}))

        silent = Silent(restored)
        part = saved(silent, tmp_path).below(A)
        found = await part.read_all()
        assert isinstance(found, Snapshot)
        heard: list[Change] = []
        await part.watch(found, heard.append)
        silent.back()
        await asyncio.sleep(5)

        assert heard[0].records == {"2": b"another", "3": None}
        assert heard[0].revision >= table.revision
        await restored.commit(Transaction({}, {"a/2": b"later"}))
        await asyncio.sleep(1)
        assert heard[-1].records == {"2": b"later"}
        for each in (world, other):
            await each.close()

    run()


@pytest.mark.parametrize("damage", ["bit", "end", "other fleet", "none"])
def test_without_a_sound_table_there_is_no_start(tmp_path: Path, damage: str) -> None:
    @virtual
    async def run() -> None:
        world = SimulatedWorld()
        root = world.all.host(name="g")
        await root.commit(Transaction({}, {"a/1": b"one"}))
        records = saved(root, tmp_path)
        await begun(records.below(A))
        await records.save()
        file, name = tmp_path / FOLDER / "a.table", "fleet"
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
        again = SavedRecords(Silent(root), tmp_path, name, at_once)
        assert isinstance(await again.below(A).read_all(), Unavailable)
        await world.close()

    run()


class Counting(Silent):
    """Counts the reads of everything, which are answered."""

    reads = 0

    async def read_all(self) -> Snapshot | Unavailable:
        Counting.reads += 1
        return await self._whole.read_all()

    def below(self, folder: str) -> Counting:
        return Counting(self._whole.below(folder))


@virtual
async def test_a_table_is_kept_up_to_date_without_another_read(tmp_path: Path) -> None:
    world = SimulatedWorld()
    root = world.all.host(name="g")
    await root.commit(Transaction({}, {"a/1": b"one", "a/2": b"two"}))
    records, Counting.reads = saved(Counting(root), tmp_path), 0
    await begun(records.below(A))
    await records.save()
    file = tmp_path / FOLDER / "a.table"
    first = file.stat()
    await records.save()
    await root.commit(Transaction({}, {"a/1": b"later", "a/2": None}))
    await asyncio.sleep(1)
    assert file.stat() == first, "nothing is written before it is due"
    await records.save()
    assert Counting.reads == 1

    file.unlink()
    await root.commit(Transaction({}, {"a/3": b"three"}))
    await asyncio.sleep(1)
    for _ in range(2):
        await records.save()
    assert Counting.reads == 2, "once more, since the disk has lost it"
    found = await begun(saved(Silent(root), tmp_path).below(A))
    assert {each.key: each.value for each in found.records} == {"1": b"later", "3": b"three"}
    await world.close()


@virtual
async def test_a_start_from_what_etcd_says_leaves_the_same_table_alone(tmp_path: Path) -> None:
    world = SimulatedWorld()
    root = world.all.host(name="g")
    await root.commit(Transaction({}, {"a/1": b"one"}))
    for _ in range(2):
        records = saved(root, tmp_path)
        await begun(records.below(A))
        await records.save()
        file = tmp_path / FOLDER / "a.table"
        first = file.stat().st_ino
    assert file.stat().st_ino == first
    await world.close()


@virtual
async def test_while_etcd_is_away_it_is_waited_for_once(tmp_path: Path) -> None:
    world = SimulatedWorld()
    root = world.all.host(name="g")
    await root.commit(Transaction({}, {"a/1": b"one", "b/1": b"two"}))
    records = saved(root, tmp_path)
    for prefix in (A, "b/"):
        await begun(records.below(prefix))
    await records.save()
    world.wires[-1].is_cut = True
    again = saved(root, tmp_path)
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    part = again.below(A)
    await begun(part)
    await begun(again.below("b/"))
    assert isinstance(await part.commit(Transaction({}, {"2": b"x"})), Unavailable)
    assert loop.time() - begun_s < 3.5
    world.wires[-1].is_cut = False
    await asyncio.sleep(10)
    assert isinstance(await part.commit(Transaction({}, {"2": b"x"})), Done)
    await world.close()


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
