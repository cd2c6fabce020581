"""The contract of `storage/engines/store.py`, over RocksStore at each durability and over MemoryStore."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from storage.engines.memory import MemoryStore
from storage.engines.rocks import Durability, RocksStore
from storage.engines.store import Store, StoreFailed
from storage.tests.places import Place, committed, everything


def fill(store: Store, *names: str) -> None:
    """Put rows whose values are their names' in upper case."""
    for name in names:
        store.batch.put(name.encode(), name.upper().encode())


def names(store: Store) -> str:
    """The keys there are, in order."""
    return b" ".join(everything(store)).decode()


# -- reading ------------------------------------------------------------------------------------------------------------


async def test_what_was_committed_can_be_read_before_it_is_durable(place: Place) -> None:
    store = place.open()
    durable = asyncio.Event()
    fill(store, "a", "b")
    store.commit(durable.set)

    assert store.get(b"a") == b"A"
    assert store.get_many([b"b", b"a"]) == [b"B", b"A"]
    assert list(store.scan(b"a", b"z")) == [(b"a", b"A"), (b"b", b"B")]
    await asyncio.wait_for(durable.wait(), 60)


async def test_what_was_written_can_be_read_and_nothing_is_released_by_it(place: Place) -> None:
    store = place.open()
    fill(store, "a", "b")
    store.write()

    assert store.get(b"a") == b"A"
    assert store.get_many([b"b", b"a"]) == [b"B", b"A"]
    assert list(store.scan(b"a", b"z")) == [(b"a", b"A"), (b"b", b"B")]


async def test_reads_see_nothing_of_the_open_batch(place: Place) -> None:
    store = place.open()
    fill(store, "a", "b")
    await committed(store)

    fill(store, "c")
    store.batch.put(b"a", b"changed")
    store.batch.delete(b"b")
    store.batch.delete_range(b"a", b"z")

    assert store.get(b"a") == b"A"
    assert store.get_many([b"a", b"b", b"c", b"a", b"b"]) == [b"A", b"B", None, b"A", b"B"]
    assert names(store) == "a b"


async def test_a_row_that_does_not_exist_is_none_in_its_place(place: Place) -> None:
    store = place.open()
    fill(store, "b", "d")
    await committed(store)

    assert store.get(b"a") is None
    assert store.get_many([]) == []
    assert store.get_many([b"a"]) == [None]
    assert store.get_many([b"a", b"b", b"c"]) == [None, b"B", None]
    keys = [b"e", b"d", b"c", b"b", b"a", b"b"]
    assert store.get_many(keys) == [None, b"D", None, b"B", None, b"B"]


async def test_a_row_may_be_empty_which_is_not_the_same_as_none(place: Place) -> None:
    store = place.open()
    store.batch.put(b"a", b"")
    await committed(store)

    assert store.get(b"a") == b""
    assert store.get_many([b"a", b"b", b"a", b"b", b"a"]) == [b"", None, b"", None, b""]
    assert list(store.scan(b"", b"b")) == [(b"a", b"")]


async def test_a_scan_has_the_rows_of_its_range_in_the_order_of_their_bytes(place: Place) -> None:
    store = place.open()
    keys = [b"b\x00", b"b", b"a\xff", b"a", b"c", b"b\xff\xff", b"\x00", b"\xff"]
    for key in keys:
        store.batch.put(key, b"x")
    await committed(store)

    assert [key for key, _ in store.scan(b"a\xff", b"b\xff\xff")] == [b"a\xff", b"b", b"b\x00"]
    assert [key for key, _ in store.scan(b"", b"\xff\xff")] == sorted(keys)
    assert list(store.scan(b"b\x01", b"b\x02")) == []
    assert list(store.scan(b"c", b"c")) == []
    assert list(store.scan(b"x", b"y")) == []


async def test_a_scan_need_not_be_read_to_its_end(place: Place) -> None:
    store = place.open()
    fill(store, "a", "b", "c")
    await committed(store)

    assert next(store.scan(b"a", b"z")) == (b"a", b"A")

    fill(store, "d")
    await committed(store)
    assert names(store) == "a b c d"


# -- changing -----------------------------------------------------------------------------------------------------------


async def test_changes_of_one_batch_take_effect_in_their_order(place: Place) -> None:
    store = place.open()
    fill(store, "a", "b", "c", "d")
    store.batch.delete(b"a")
    store.batch.delete_range(b"c", b"d")
    fill(store, "a")
    store.batch.delete(b"b")
    store.batch.put(b"d", b"second")
    await committed(store)

    assert everything(store) == {b"a": b"A", b"d": b"second"}


async def test_changes_of_several_writes_take_effect_in_their_order(place: Place) -> None:
    store = place.open()
    fill(store, "a", "b", "c")
    store.write()
    store.batch.delete_range(b"a", b"c")
    store.write()
    fill(store, "a")
    store.write()
    store.batch.delete(b"c")
    await committed(store)

    assert names(place.reopen(store)) == "a"


async def test_a_range_is_removed_from_its_begin_to_before_its_end(place: Place) -> None:
    store = place.open()
    fill(store, "a", "b", "bb", "c", "d")
    await committed(store)

    store.batch.delete_range(b"b", b"c")
    store.batch.delete_range(b"d", b"d")
    store.batch.delete(b"nothing")
    await committed(store)

    assert names(store) == "a c d"


async def test_the_next_turn_may_be_committed_in_the_release(place: Place) -> None:
    store = place.open()
    done = asyncio.get_running_loop().create_future()

    def commit_next(turns: int) -> None:
        fill(store, chr(96 + turns))
        store.commit(lambda: commit_next(turns - 1) if turns > 1 else done.set_result(None))

    commit_next(20)
    await asyncio.wait_for(done, 60)

    assert names(store) == " ".join("abcdefghijklmnopqrst")


async def test_nothing_is_committed_and_released_all_the_same(place: Place) -> None:
    store = place.open()

    store.write()
    await committed(store)

    assert names(store) == ""


# -- what lasts ---------------------------------------------------------------------------------------------------------


async def test_what_was_written_is_durable_by_the_next_commit(place: Place) -> None:
    store = place.open()
    fill(store, "a")
    store.write()
    fill(store, "b")
    store.write()
    await committed(store)

    if place.kind != Durability.MEMORY:  # which survives a clean stop only
        store = place.reopen_after_abandon(store)

    assert names(store) == "a b"


async def test_an_open_batch_is_gone_when_the_store_is_abandoned(place: Place) -> None:
    store = place.open()
    fill(store, "a")
    assert store.get(b"a") is None

    store = place.reopen_after_abandon(store)

    assert names(store) == ""


async def test_closing_makes_everything_durable(place: Place) -> None:
    store = place.open()
    fill(store, "a")
    await committed(store)
    fill(store, "b")
    store.write()
    fill(store, "c")

    store = place.reopen(store)

    assert names(store) == "a b c"


async def test_batches_survive_several_openings(place: Place) -> None:
    store = place.open()

    for name in "abcd":
        fill(store, name)
        await committed(store)
        store = place.reopen(store)

    assert names(store) == "a b c d"
    assert not place.failures


# -- one store only -----------------------------------------------------------------------------------------------------


async def test_a_second_opening_of_a_folder_is_refused(tmp_path: Path) -> None:
    failures: list[StoreFailed] = []
    store = RocksStore(tmp_path, Durability.FSYNC, failures.append)

    with pytest.raises(StoreFailed, match="cannot open"):
        RocksStore(tmp_path, Durability.FSYNC, failures.append)

    store.close()
    RocksStore(tmp_path, Durability.FSYNC, failures.append).close()


async def test_abandoned_rocks_releases_nothing_any_more(tmp_path: Path) -> None:
    released: list[int] = []
    failures: list[StoreFailed] = []
    store = RocksStore(tmp_path, Durability.FSYNC, failures.append)
    fill(store, "a")
    store.commit(lambda: released.append(1))

    store.abandon()
    for _ in range(5):
        await asyncio.sleep(0)

    assert released == []


@pytest.mark.parametrize("durability", Durability)
async def test_rocks_that_cannot_write_says_so_at_once(
    tmp_path: Path, durability: Durability
) -> None:
    """A write is in the middle of a turn, which must not go on: it raises, while a commit reports."""
    released: list[int] = []
    failures: list[StoreFailed] = []
    store = RocksStore(tmp_path, durability, failures.append)
    store.abandon()

    fill(store, "a")
    with pytest.raises(StoreFailed, match="cannot write"):
        store.write()
    fill(store, "b")
    store.commit(lambda: released.append(1))

    assert released == []


def test_a_power_loss_forgets_what_was_not_synced_and_releases_nothing() -> None:
    store = MemoryStore(auto_sync=False)
    released: list[int] = []
    fill(store, "a")
    store.commit(lambda: released.append(1))
    store.sync()
    fill(store, "b")
    store.commit(lambda: released.append(2))
    fill(store, "c")
    store.write()
    store.batch.delete(b"a")
    store.write()
    fill(store, "d")
    assert names(store) == "b c"

    store.crash()
    store.sync()

    assert released == [1]
    assert names(store) == "a"


def test_a_power_loss_after_a_write_leaves_what_was_there_before() -> None:
    store = MemoryStore(auto_sync=False)
    fill(store, "a")
    store.commit(lambda: None)
    store.sync()

    store.batch.delete_range(b"a", b"z")
    fill(store, "b")
    store.write()
    assert names(store) == "b"
    store.crash()

    assert names(store) == "a"
    fill(store, "c")
    store.commit(lambda: None)
    store.sync()
    store.crash()
    assert names(store) == "a c"
