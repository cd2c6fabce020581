"""The contract of `storage/engines/store.py`, over DurableStore at each durability and over
MemoryStore."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from storage.engines.store import Store, StoreFailed
from storage.engines.store_options import Durability
from storage.tests.memory_store import MemoryStore
from storage.tests.store_places import KINDS, Place, append, commit, everything, place_of, synced
from visibility.rows.row_changes import Changes


@pytest.fixture(params=KINDS)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    async with place_of(request.param, tmp_path / "shard-0") as made:
        yield made


def rows_of(*names: str) -> Changes:
    """Puts of rows whose values are their names' in upper case."""
    changes = Changes()
    for name in names:
        changes.put(name.encode(), name.upper().encode())
    return changes


def names(store: Store) -> str:
    """The keys there are, in order."""
    return b" ".join(everything(store)).decode()


# -- reading ---------------------------------------------------------------------------------------


async def test_what_was_applied_can_be_read_before_it_is_flushed(place: Place) -> None:
    store = place.open()
    await commit(store, rows_of("a", "b"))

    assert store.get(b"a") == b"A"
    assert store.get_many([b"b", b"a"]) == [b"B", b"A"]
    assert list(store.scan(b"a", b"z")) == [(b"a", b"A"), (b"b", b"B")]


async def test_reads_see_nothing_of_an_entry_that_was_not_applied(place: Place) -> None:
    store = place.open()
    await commit(store, rows_of("a", "b"))
    changes = rows_of("c")
    changes.put(b"a", b"changed")
    changes.delete(b"b")
    changes.delete_range(b"a", b"z")

    append(store, changes)
    assert await synced(store) is None

    assert store.get(b"a") == b"A"
    assert store.get_many([b"a", b"b", b"c", b"a", b"b"]) == [b"A", b"B", None, b"A", b"B"]
    assert names(store) == "a b"
    store.apply(changes)
    assert names(store) == ""


async def test_a_row_that_does_not_exist_is_none_in_its_place(place: Place) -> None:
    store = place.open()
    await commit(store, rows_of("b", "d"))

    assert store.get(b"a") is None
    assert store.get_many([]) == []
    assert store.get_many([b"a"]) == [None]
    assert store.get_many([b"a", b"b", b"c"]) == [None, b"B", None]
    keys = [b"e", b"d", b"c", b"b", b"a", b"b"]
    assert store.get_many(keys) == [None, b"D", None, b"B", None, b"B"]


async def test_a_row_may_be_empty_which_is_not_the_same_as_none(place: Place) -> None:
    store = place.open()
    changes = Changes()
    changes.put(b"a", b"")
    await commit(store, changes)

    assert store.get(b"a") == b""
    assert store.get_many([b"a", b"b", b"a", b"b", b"a"]) == [b"", None, b"", None, b""]
    assert list(store.scan(b"a", b"b")) == [(b"a", b"")]


async def test_a_scan_has_the_rows_of_its_range_in_the_order_of_their_bytes(place: Place) -> None:
    store = place.open()
    keys = [b"b\x00", b"b", b"a\xff", b"a", b"c", b"b\xff\xff", b"\x01", b"\xff"]
    changes = Changes()
    for key in keys:
        changes.put(key, b"x")
    await commit(store, changes)

    assert [key for key, _ in store.scan(b"a\xff", b"b\xff\xff")] == [b"a\xff", b"b", b"b\x00"]
    assert [key for key, _ in store.scan(b"\x01", b"\xff\xff")] == sorted(keys)
    assert list(store.scan(b"b\x01", b"b\x02")) == []
    assert list(store.scan(b"c", b"c")) == []
    assert list(store.scan(b"x", b"y")) == []


async def test_a_scan_need_not_be_read_to_its_end(place: Place) -> None:
    store = place.open()
    await commit(store, rows_of("a", "b", "c"))

    assert next(store.scan(b"a", b"z")) == (b"a", b"A")

    await commit(store, rows_of("d"))
    assert names(store) == "a b c d"


# -- changing --------------------------------------------------------------------------------------


async def test_changes_of_one_entry_take_effect_in_their_order(place: Place) -> None:
    store = place.open()
    changes = rows_of("a", "b", "c", "d")
    changes.delete(b"a")
    changes.delete_range(b"c", b"d")
    changes.put(b"a", b"A")
    changes.delete(b"b")
    changes.put(b"d", b"second")
    await commit(store, changes)

    assert everything(store) == {b"a": b"A", b"d": b"second"}
    if place.kind != Durability.MEMORY:
        assert everything(await place.reopen_after_abandon(store)) == {b"a": b"A", b"d": b"second"}


async def test_changes_of_one_row_take_effect_in_their_order(place: Place) -> None:
    store = place.open()
    changes = rows_of("d", "b", "c", "a")
    for key, value in ((b"a", None), (b"d", b"1"), (b"b", b"1"), (b"b", None), (b"d", b"0")):
        if value is None:
            changes.delete(key)
        else:
            changes.put(key, value)
    changes.put(b"a", b"again")
    await commit(store, changes)

    assert everything(store) == {b"a": b"again", b"c": b"C", b"d": b"0"}


async def test_changes_of_several_entries_take_effect_in_their_order(place: Place) -> None:
    store = place.open()
    rest = Changes()
    rest.delete_range(b"a", b"c")
    last = Changes()
    last.delete(b"c")
    for changes in (rows_of("a", "b", "c"), rest, rows_of("a"), last):
        await commit(store, changes)

    assert names(await place.reopen(store)) == "a"


async def test_entries_that_are_under_way_together_are_applied_in_their_order(place: Place) -> None:
    store = place.open()
    first, second = rows_of("a", "b"), Changes()
    second.delete(b"a")
    done: list[str] = []
    append(store, first)
    store.sync(lambda failure: done.append(f"first {failure}"))
    append(store, second)
    store.sync(lambda failure: done.append(f"second {failure}"))
    append(store, rows_of("c"))
    assert await synced(store) is None

    assert done == ["first None", "second None"]
    for changes in (first, second, rows_of("c")):
        store.apply(changes)
    assert names(store) == "b c"
    if place.kind != Durability.MEMORY:
        assert names(await place.reopen_after_abandon(store)) == "b c"


async def test_a_range_is_removed_from_its_begin_to_before_its_end(place: Place) -> None:
    store = place.open()
    await commit(store, rows_of("a", "b", "bb", "c", "d"))

    changes = Changes()
    changes.delete_range(b"b", b"c")
    changes.delete_range(b"d", b"d")
    changes.delete(b"nothing")
    await commit(store, changes)

    assert names(store) == "a c d"


async def test_the_next_entry_may_be_appended_when_one_is_done(place: Place) -> None:
    store = place.open()
    ended = asyncio.get_running_loop().create_future()

    def commit_next(turns: int) -> None:
        changes = rows_of(chr(96 + turns))
        append(store, changes)
        store.sync(lambda failure: done(failure, changes, turns))

    def done(failure: StoreFailed | None, changes: Changes, turns: int) -> None:
        assert failure is None
        store.apply(changes)
        if turns > 1:
            commit_next(turns - 1)
        else:
            ended.set_result(None)

    commit_next(20)
    await asyncio.wait_for(ended, 60)

    assert names(store) == " ".join("abcdefghijklmnopqrst")


async def test_a_sync_of_nothing_is_done_all_the_same(place: Place) -> None:
    store = place.open()

    assert await synced(store) is None

    assert names(store) == ""


async def test_an_entry_that_changes_nothing_is_one_all_the_same(place: Place) -> None:
    store = place.open()
    await commit(store)
    await commit(store, rows_of("a"))

    assert names(await place.reopen(store)) == "a"


# -- durability ------------------------------------------------------------------------------------


async def test_what_was_synced_is_there_after_a_failure_whether_it_was_applied_or_not(
    place: Place,
) -> None:
    store = place.open()
    await commit(store, rows_of("a"))
    append(store, rows_of("b"))
    append(store, rows_of("c"))
    assert await synced(store) is None

    store = await place.reopen_after_abandon(store)

    if place.kind != Durability.MEMORY:  # which survives a clean stop only
        assert names(store) == "a b c"
    assert not store.came_back_shorter


async def test_closing_makes_everything_durable(place: Place) -> None:
    store = place.open()
    await commit(store, rows_of("a"))
    await commit(store, rows_of("b"))

    store = await place.reopen(store)

    assert names(store) == "a b"


async def test_entries_survive_several_openings(place: Place) -> None:
    store = place.open()

    for name in "abcd":
        await commit(store, rows_of(name))
        store = await place.reopen(store)
        assert not store.came_back_shorter

    assert names(store) == "a b c d"


async def test_a_store_has_room_while_nothing_waits_for_a_flush(place: Place) -> None:
    store = place.open()
    await commit(store, rows_of("a"))

    assert store.has_room


# -- loss of power, which MemoryStore simulates ----------------------------------------------------


def test_a_power_loss_forgets_what_was_not_synced_and_tells_nobody() -> None:
    store = MemoryStore(auto_sync=False)
    done: list[int] = []
    append(store, rows_of("a"))
    store.sync(lambda failure: done.append(1))
    store.sync_all()
    store.apply(rows_of("a"))
    append(store, rows_of("b"))
    store.sync(lambda failure: done.append(2))

    store.crash()
    store.sync_all()

    assert done == [1]
    assert names(store) == "a"


def test_a_power_loss_keeps_what_was_synced_and_not_applied() -> None:
    store = MemoryStore(auto_sync=False)
    append(store, rows_of("a", "b"))
    cleared = Changes()
    cleared.delete_range(b"a", b"b")
    append(store, cleared)
    store.sync(lambda failure: None)
    store.sync_all()
    assert names(store) == ""

    store.crash()

    assert names(store) == "b"
