"""RocksView of a folder in use: one instant of it, during flushes and reuse of segments."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from storage.engines import durable
from storage.engines.durable import DurableStore
from storage.engines.opening import open_store
from storage.engines.rocks_view import RocksView
from storage.engines.store import StoreFailed
from storage.engines.store_options import StoreOptions, log_folder
from storage.log import Entry, Reading
from storage.tests.store_places import append, commit, crash_copy, everything, synced
from visibility.rows.row_changes import Changes
from visibility.rows.row_keys import APPLIED_KEY

SMALL = StoreOptions(segment_bytes=16 << 10, flush_bytes=20 << 10)
KEPT = 3


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[DurableStore]:
    opened = open_store(tmp_path / "shard-0", SMALL)
    yield opened
    await opened.abandon()


def row(number: int) -> Changes:
    """The rows of an instant: the last three numbers, and the last one separately."""
    changes = Changes()
    changes.put(b"last", b"%d" % number)
    changes.put(b"%08d" % number, b"%d" % number * 100)
    changes.delete(b"%08d" % (number - KEPT))
    return changes


async def fill(store: DurableStore, first: int, last: int) -> None:
    for number in range(first, last + 1):
        await commit(store, row(number))


def seen(view: RocksView) -> int:
    """The number of the last Entry that the view has; all of it is of that instant."""
    rows = everything(view)
    last = int(rows.pop(b"last", b"0"))
    expected = range(max(1, last - KEPT + 1), last + 1)
    assert rows == {b"%08d" % number: b"%d" % number * 100 for number in expected}
    keys = [b"%08d" % number for number in range(last + 2)]
    assert view.get_many(keys) == [rows.get(key) for key in keys]
    assert [view.get(key) for key in keys[-3:]] == [rows.get(key) for key in keys[-3:]]
    return last


def look(folder: Path) -> int:
    view = RocksView(folder)
    try:
        return seen(view)
    finally:
        view.close()


def content(folder: Path) -> dict[Path, bytes]:
    return {
        file: file.read_bytes()
        for each in (folder, log_folder(folder))
        for file in each.iterdir()
        if file.is_file()
    }


async def test_a_view_has_what_lies_in_the_log_only(
    store: DurableStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "NOTE_S", 3600.0)  # no note of answers is written meanwhile
    await fill(store, 1, 5)
    assert look(store.folder) == 5
    await asyncio.to_thread(store.flush)
    assert look(store.folder) == 5
    await fill(store, 6, 9)
    append(store, row(10))
    assert await synced(store) is None
    before = content(store.folder)

    assert look(store.folder) == 10

    assert content(store.folder) == before


async def test_a_view_stays_at_its_instant(store: DurableStore) -> None:
    await fill(store, 1, 25)
    view = RocksView(store.folder)
    await fill(store, 26, 200)

    assert seen(view) == 25
    view.close()


async def test_views_beside_a_service_that_flushes_all_the_time_have_one_instant_each(
    store: DurableStore,
) -> None:
    number = looks = 0
    while looks < 15 or number < 300:
        looks += 1
        looking = asyncio.ensure_future(asyncio.to_thread(_look_until_it_opens, store.folder))
        while not looking.done():
            number += 1
            await commit(store, row(number))
        assert await looking <= number
    assert look(store.folder) == number


def _look_until_it_opens(folder: Path) -> int:
    """Segments of 16 KiB are used again after so few Entries that each of a view's tries may be too
    slow."""
    for _ in range(50):
        try:
            return look(folder)
        except StoreFailed:
            continue
    raise AssertionError("no view could be opened")


async def test_a_segment_that_is_used_again_while_the_view_reads_it_has_the_view_begin_anew(
    store: DurableStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log was scanned; before its Entries are read, others of the same sizes take their
    places."""
    await fill(store, 101, 110)
    older = crash_copy(store.folder, store.folder.with_name("older"))
    await fill(store, 111, 900)
    await store.close()
    entries = Reading.entries
    tries = 0

    def swapped(reading: Reading) -> Iterator[Entry]:
        nonlocal tries
        tries += 1
        if tries == 1:
            for folder in (older, log_folder(older)):
                shutil.rmtree(folder)
            crash_copy(store.folder, older)
        return entries(reading)

    monkeypatch.setattr(Reading, "entries", swapped)

    assert look(older) == 900
    assert tries == 2


@pytest.mark.parametrize("flushed", [True, False])
async def test_a_view_opens_though_the_row_of_the_applied_entry_is_damaged(
    store: DurableStore, flushed: bool
) -> None:
    await fill(store, 1, 5)
    store.rows.write([APPLIED_KEY, b"rubbish"])
    await asyncio.to_thread(store.flush)
    if not flushed:
        append(store, row(6))
        assert await synced(store) is None

    view = RocksView(store.folder)

    assert view.log.lost == []
    assert any("replayed" in warning for warning in view.log.warnings)
    assert view.get(APPLIED_KEY) == b"rubbish"
    assert seen(view) == (5 if flushed else 6)
    view.close()


async def test_a_log_that_is_damaged_is_no_reason_to_show_nothing(
    store: DurableStore, tmp_path: Path
) -> None:
    await fill(store, 1, 9)
    crashed = crash_copy(store.folder, tmp_path / "crashed")
    for file in log_folder(crashed).glob("segment-*"):
        data = bytearray(file.read_bytes())
        at = data.find(b"4" * 100)
        if at >= 0:
            data[at + 50] ^= 1
            file.write_bytes(data)

    view = RocksView(crashed)

    (lost,) = view.log.lost
    assert (lost.first, lost.last) == (4, 4)
    rows = everything(view)
    assert rows[b"last"] == b"9"
    view.close()
