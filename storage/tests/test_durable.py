"""DurableStore: a start has all that was synced, whatever was flushed; flushes let the log forget."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from storage.engines.durable import (
    Durability,
    DurableStore,
    StoreOptions,
    log_folder,
    open_replayed,
    open_store,
    read_shard_log,
)
from storage.engines.rocks import RocksRows
from storage.engines.store import StoreFailed
from storage.histogram import SYNC_BOUNDS_S, Histogram
from storage.log import Entry, SystemDisk, read_answered
from storage.rows.changes import Changes
from storage.rows.entry_body import decode_body
from storage.tests.places import append, commit, crash_copy, everything, synced

SMALL = StoreOptions(segment_bytes=16 << 10, flush_bytes=20 << 10)
"""Some fifteen Entries of `row` fill a segment, twenty begin a flush."""
Open = Callable[..., DurableStore]


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Open]:
    """Opens a store that is let go of at the end; by default in the same folder."""
    stores: list[DurableStore] = []

    def opened_store(options: StoreOptions = SMALL, folder: Path | None = None) -> DurableStore:
        stores.append(open_store(folder or tmp_path / "shard-0", options))
        return stores[-1]

    yield opened_store
    for store in stores:
        await store.abandon()


def row(number: int) -> Changes:
    changes = Changes()
    changes.put(b"%04d" % number, b"%d" % number * 500)
    changes.delete(b"%04d" % (number - 3))
    return changes


def rows_up_to(number: int) -> dict[bytes, bytes]:
    return {b"%04d" % each: b"%d" % each * 500 for each in range(max(1, number - 2), number + 1)}


async def fill(store: DurableStore, first: int, last: int) -> None:
    for number in range(first, last + 1):
        await commit(store, row(number))


def live(folder: Path) -> list[Entry]:
    """The log's Entries that the rows do not have, in a folder that nothing uses."""
    rows = RocksRows(folder)
    try:
        return list(read_shard_log(rows, SystemDisk()).entries())
    finally:
        rows.close()


def segments(folder: Path) -> list[str]:
    return sorted(file.name for file in log_folder(folder).glob("segment-*"))


def is_flushing(store: DurableStore) -> bool:
    return store._flushing is not None


async def end_of_flush(store: DurableStore) -> None:
    async with asyncio.timeout(60):
        while is_flushing(store):  # noqa: ASYNC110
            await asyncio.sleep(0.001)


# -- replay -------------------------------------------------------------------------------------------------------------


async def test_a_crash_without_a_flush_loses_nothing(opened: Open, tmp_path: Path) -> None:
    store = opened(StoreOptions(segment_bytes=16 << 10))
    await fill(store, 1, 40)
    append(store, row(41))
    assert await synced(store) is None
    crashed = crash_copy(store.folder, tmp_path / "crashed")

    assert len(live(crash_copy(store.folder, tmp_path / "looked-at"))) == 41
    for _ in range(2):  # the second after a start that flushed nothing
        again = opened(StoreOptions(segment_bytes=16 << 10), crashed)
        assert everything(again) == rows_up_to(41)
        assert not again.came_back_shorter
        crashed = crash_copy(crashed, crashed.with_name(crashed.name + "-again"))


@pytest.mark.parametrize("flushed_at", range(7))
@pytest.mark.parametrize("under_way", [0, 2])
async def test_a_start_replays_what_follows_the_flush_wherever_that_came(
    opened: Open, tmp_path: Path, flushed_at: int, under_way: int
) -> None:
    """Also if Entries were appended and synced when the flush began, and applied after it."""
    store = opened()
    for number in range(1, 7 + under_way):
        append(store, row(number))
        assert await synced(store) is None
        if number > under_way:
            store.apply(row(number - under_way))
        if number - under_way == flushed_at:
            await asyncio.to_thread(store.flush)
    crashed = crash_copy(store.folder, tmp_path / "crashed")
    rest = live(crash_copy(store.folder, tmp_path / "looked-at"))

    again = opened(SMALL, crashed)

    assert [entry.index for entry in rest] == [*range(flushed_at + 1, 7 + under_way)]
    assert everything(again) == rows_up_to(6 + under_way)
    await commit(again, row(7 + under_way))
    assert everything(again) == rows_up_to(7 + under_way)


async def test_the_applied_row_is_the_position_of_the_entry_applied_last(opened: Open) -> None:
    store = opened()
    assert store._log is not None
    positions = []
    for number in range(1, 4):
        append(store, row(number))
        positions.append(store._log.last)
    assert await synced(store) is None

    for number, position in enumerate(positions, 1):
        store.apply(row(number))
        assert store._rows.applied() == position

    term = store._log.term
    assert [(each.term, each.index) for each in positions] == [(term, n) for n in (1, 2, 3)]
    await store.close()
    again = opened()
    assert again._rows.applied() == positions[-1]
    assert again._log is not None
    assert (again._log.term, again._log.last.index) == (term + 1, 3)


async def test_an_entry_in_the_log_is_what_was_appended(opened: Open, tmp_path: Path) -> None:
    store = opened()
    await commit(store, row(1), queue_ids=[7, 9])

    (entry,) = live(crash_copy(store.folder, tmp_path / "crashed"))

    body = decode_body(entry.body)
    assert (body.stamp_ms, body.request_ids, body.ops) == (1_000, ["request"], row(1).ops)
    assert entry.queue_ids == (7, 9)


async def test_a_closed_folder_has_no_live_log_and_a_note_of_its_end(opened: Open) -> None:
    store = opened()
    await fill(store, 1, 5)
    last = store._applied

    await store.close()

    assert live(store.folder) == []
    noted = read_answered(SystemDisk(), log_folder(store.folder))
    assert noted is not None
    assert noted.position == last
    again = opened()
    assert everything(again) == rows_up_to(5)


async def test_opening_and_closing_changes_no_rows(opened: Open) -> None:
    store = opened()
    await fill(store, 1, 5)
    for _ in range(3):
        await store.close()
        store = opened()

    assert everything(store) == rows_up_to(5)
    assert store._rows.applied().index == 5


async def test_a_second_opening_of_a_folder_is_refused(opened: Open) -> None:
    store = opened()

    with pytest.raises(StoreFailed, match=f"cannot open {store.folder}"):
        opened()

    await commit(store, row(1))
    await store.close()
    assert everything(opened()) == rows_up_to(1)


# -- flushes ------------------------------------------------------------------------------------------------------------


async def test_flushes_let_the_log_use_its_segments_again(opened: Open, tmp_path: Path) -> None:
    store = opened()
    assert store._log is not None
    live_bytes = []
    for number in range(1, 400):
        await commit(store, row(number))
        await end_of_flush(store)
        live_bytes.append(store._log.live_bytes)

    assert max(live_bytes) < 20 << 10
    assert len(segments(store.folder)) <= 4
    crashed = crash_copy(store.folder, tmp_path / "crashed")
    again = opened(SMALL, crashed)
    assert everything(again) == rows_up_to(399)


async def test_a_flush_begins_at_a_number_of_row_changes(opened: Open, tmp_path: Path) -> None:
    store = opened(StoreOptions(segment_bytes=16 << 10, flush_rows=8))

    await fill(store, 1, 3)
    assert not is_flushing(store)
    await fill(store, 4, 4)
    assert is_flushing(store)

    await end_of_flush(store)
    await fill(store, 5, 6)
    crashed = crash_copy(store.folder, tmp_path / "crashed")
    assert [entry.index for entry in live(crashed)] == [5, 6]


class HeldFlush:
    """Holds the flushes of a store up, and may let them fail."""

    def __init__(self, store: DurableStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Event()
        self.goes_on = threading.Event()
        self.failure: StoreFailed | None = None
        self.count = 0
        self._flush = store._rows.flush
        monkeypatch.setattr(store._rows, "flush", self.flush)

    def flush(self) -> None:
        self.count += 1
        self.begun.set()
        assert self.goes_on.wait(20)
        if self.failure is not None:
            raise self.failure
        self._flush()


async def test_there_is_no_room_while_a_flush_is_far_behind_and_its_end_is_told(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened()
    held = HeldFlush(store, monkeypatch)
    room: list[bool] = []
    store.on_room = lambda: room.append(store.has_room)
    number = 0
    while store.has_room:
        number += 1
        await commit(store, row(number))
    assert store._log is not None
    assert 40 << 10 <= store._log.live_bytes < 42 << 10
    assert (held.count, room) == (1, [])

    held.goes_on.set()
    await end_of_flush(store)

    assert room == [True]
    assert everything(store) == rows_up_to(number)


async def test_there_is_no_room_at_twice_the_row_changes_of_a_flush(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(StoreOptions(segment_bytes=16 << 10, flush_rows=8))
    held = HeldFlush(store, monkeypatch)
    room: list[bool] = []
    store.on_room = lambda: room.append(store.has_room)
    for number in range(1, 9):
        await commit(store, row(number))
        room.append(store.has_room)
    assert room == [True] * 7 + [False]

    held.goes_on.set()
    await end_of_flush(store)
    assert room[-1]


async def test_row_changes_that_a_start_replayed_count_for_the_next_flush(
    opened: Open, tmp_path: Path
) -> None:
    options = StoreOptions(segment_bytes=16 << 10, flush_rows=8)
    store = opened(options)
    await fill(store, 1, 3)

    again = opened(options, crash_copy(store.folder, tmp_path / "crashed"))
    await fill(again, 4, 4)

    assert is_flushing(again)


@pytest.mark.parametrize("options", [SMALL, StoreOptions(segment_bytes=16 << 10, flush_rows=60)])
async def test_a_flush_that_failed_releases_nothing_and_is_tried_again(
    opened: Open, monkeypatch: pytest.MonkeyPatch, options: StoreOptions
) -> None:
    store = opened(options)
    held = HeldFlush(store, monkeypatch)
    held.failure = StoreFailed("cannot flush: the disk is full")
    room: list[int] = []
    store.on_room = lambda: room.append(held.count)
    number = 0
    while not is_flushing(store):
        number += 1
        await commit(store, row(number))
    held.goes_on.set()
    await end_of_flush(store)
    assert room == [1]
    assert store._log is not None
    live_bytes = store._log.live_bytes

    held.failure = None
    await commit(store, row(number + 1))
    assert store._log.live_bytes > live_bytes
    await end_of_flush(store)

    assert room == [1, 2]
    assert store._log.live_bytes < 16 << 10
    assert everything(store) == rows_up_to(number + 1)


# -- failures -----------------------------------------------------------------------------------------------------------


def _refuse(*_: object) -> None:
    raise OSError(5, "the disk is broken")


async def test_after_a_failed_append_nothing_is_taken_until_it_is_opened_anew(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened()
    assert store._log is not None
    await commit(store, row(1))
    monkeypatch.setattr(store._log, "_pwrite", _refuse)

    with pytest.raises(StoreFailed, match=r"cannot append to the log: .*the disk is broken"):
        append(store, row(2))
    monkeypatch.undo()
    with pytest.raises(StoreFailed, match="cannot append"):
        append(store, row(2))

    await store.abandon()
    again = opened()
    assert everything(again) == rows_up_to(1)
    await commit(again, row(2))


async def test_after_a_failed_sync_nothing_is_taken_until_it_is_opened_anew(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened()
    await commit(store, row(1))
    monkeypatch.setattr(store._disk, "fdatasync", _refuse)
    append(store, row(2))

    failure = await synced(store)
    monkeypatch.undo()
    assert "cannot sync the log" in str(failure)
    with pytest.raises(StoreFailed, match="cannot sync"):
        append(store, row(3))
    assert await synced(store) is not None

    await store.abandon()
    again = opened()
    assert everything(again) in (rows_up_to(1), rows_up_to(2)), "its outcome is unknown"
    assert not again.came_back_shorter
    await commit(again, row(3))


async def test_an_entry_that_cannot_be_applied_is_committed_and_there_after_the_next_start(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened()
    await commit(store, row(1))
    append(store, row(2))
    assert await synced(store) is None
    store._rows.close()

    with pytest.raises(StoreFailed, match="cannot write"):
        store.apply(row(2))

    await store.abandon()
    assert everything(opened()) == rows_up_to(2)


async def test_without_space_for_another_segment_it_cannot_grow_and_goes_on_with_what_it_has(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(StoreOptions(segment_bytes=16 << 10))
    monkeypatch.setattr(store._disk, "write_zeros", _refuse)
    number = 0
    async with asyncio.timeout(60):
        while store.can_grow:
            number += 1
            await commit(store, row(number))
    assert len(segments(store.folder)) == 3, "one that cannot be made ready is among them"

    await commit(store, row(number + 1))
    with pytest.raises(StoreFailed, match="cannot make another segment of the log"):
        await fill(store, number + 2, number + 40)

    monkeypatch.undo()
    committed = everything(store)
    assert max(committed) > b"%04d" % (number + 1)
    await store.abandon()
    again = opened()
    assert again.can_grow
    assert everything(again) == committed


# -- the end ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [DurableStore.close, DurableStore.abandon])
async def test_an_end_waits_for_the_flush_that_is_under_way(
    opened: Open,
    monkeypatch: pytest.MonkeyPatch,
    end: Callable[[DurableStore], Awaitable[None]],
) -> None:
    store = opened()
    held = HeldFlush(store, monkeypatch)
    number = 0
    while not is_flushing(store):
        number += 1
        await commit(store, row(number))
    await asyncio.to_thread(held.begun.wait)

    ending = asyncio.ensure_future(end(store))
    await asyncio.sleep(0)
    assert not ending.done()
    held.goes_on.set()
    await ending

    assert everything(opened()) == rows_up_to(number)


async def test_a_store_that_fails_during_a_backup_is_let_go_after_it(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened()
    await commit(store, row(1))
    begun, goes_on = threading.Event(), threading.Event()
    rows = store._rows
    assert isinstance(rows, RocksRows)
    check_open = rows._check_open

    def check_and_wait() -> None:
        check_open()
        begun.set()
        assert goes_on.wait(20)

    monkeypatch.setattr(store._rows, "_check_open", check_and_wait)
    flushing = asyncio.create_task(asyncio.to_thread(store.flush))
    await asyncio.to_thread(begun.wait)

    with pytest.raises(StoreFailed, match="a backup is just using it"):
        await store.abandon()
    goes_on.set()
    await flushing
    await store.abandon()

    assert everything(opened()) == rows_up_to(1)
    with pytest.raises(StoreFailed, match="closed meanwhile"):
        store.flush()


async def test_an_abandoned_store_calls_nothing_any_more(opened: Open) -> None:
    store = opened()
    done: list[StoreFailed | None] = []
    append(store, row(1))
    store.sync(done.append)

    await store.abandon()

    assert done == []


async def test_a_close_that_cannot_flush_says_so_and_lets_go(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened()
    await commit(store, row(1))
    held = HeldFlush(store, monkeypatch)
    held.failure = StoreFailed("cannot flush: the disk is full")
    held.goes_on.set()

    with pytest.raises(StoreFailed, match="the disk is full"):
        await store.close()

    assert everything(opened()) == rows_up_to(1)


# -- durability ---------------------------------------------------------------------------------------------------------


async def test_with_os_nothing_waits_and_a_crash_of_the_process_loses_nothing(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = SMALL._replace(durability=Durability.OS)
    store = opened(options)
    monkeypatch.setattr(store._disk, "fdatasync", _refuse)
    done: list[StoreFailed | None] = []
    append(store, row(1))
    store.sync(done.append)
    assert done == [None]
    store.apply(row(1))
    monkeypatch.undo()
    await fill(store, 2, 9)

    again = opened(options, crash_copy(store.folder, tmp_path / "crashed"))

    assert everything(again) == rows_up_to(9)
    assert "answered" not in [file.name for file in log_folder(store.folder).iterdir()]


async def test_with_os_rows_may_be_ahead_of_a_log_that_lost_its_tail(
    opened: Open, tmp_path: Path
) -> None:
    options = SMALL._replace(durability=Durability.OS)
    store = opened(options)
    await fill(store, 1, 3)
    older = crash_copy(store.folder, tmp_path / "older")
    await fill(store, 4, 9)
    await store.close()
    log_folder(store.folder).rename(tmp_path / "newer.log")
    log_folder(older).rename(log_folder(store.folder))

    again = opened(options)

    assert everything(again) == rows_up_to(9)
    await commit(again, row(10))
    crashed = crash_copy(again.folder, tmp_path / "crashed")
    assert [entry.index for entry in live(crashed)] == [10]
    assert everything(opened(options, crashed)) == rows_up_to(10)


async def test_with_memory_there_is_no_log_and_a_clean_stop_keeps_everything(opened: Open) -> None:
    options = StoreOptions(Durability.MEMORY)
    store = opened(options)
    await fill(store, 1, 5)
    assert not log_folder(store.folder).exists()
    assert store.has_room
    assert store.can_grow

    await store.close()

    assert everything(opened(options)) == rows_up_to(5)


async def test_a_folder_may_be_opened_with_another_durability_each_time(opened: Open) -> None:
    number = 0
    for durability in (*Durability, *Durability, Durability.OS, Durability.FSYNC):
        store = opened(SMALL._replace(durability=durability))
        assert not store.came_back_shorter
        number += 1
        await commit(store, row(number))
        await store.close()

    assert everything(opened()) == rows_up_to(number)


async def test_syncs_are_timed(opened: Open) -> None:
    now_s = iter([10.0, 10.25]).__next__
    sync_s = Histogram(SYNC_BOUNDS_S)
    store = opened(SMALL._replace(monotonic_s=now_s, sync_s=sync_s))

    await commit(store, row(1))

    assert (sync_s.count, sync_s.total) == (1, 0.25)


# -- folders that nothing uses ------------------------------------------------------------------------------------------


async def test_replayed_rows_have_what_the_log_holds_and_are_durable(
    opened: Open, tmp_path: Path
) -> None:
    store = opened()
    await fill(store, 1, 30)
    crashed = crash_copy(store.folder, tmp_path / "crashed")

    rows = open_replayed(crashed)
    assert everything(rows) == rows_up_to(30)
    rows.checkpoint(tmp_path / "checkpoint")
    rows.close()

    assert live(crashed) == []
    alone = RocksRows(tmp_path / "checkpoint")
    assert everything(alone) == rows_up_to(30)
    alone.close()
    again = opened(SMALL, crashed)
    assert everything(again) == rows_up_to(30)
    await commit(again, row(31))


async def test_replaying_refuses_a_log_that_came_back_shorter(opened: Open, tmp_path: Path) -> None:
    store = opened()
    await fill(store, 1, 5)
    older = crash_copy(store.folder, tmp_path / "older")
    await fill(store, 6, 9)
    await store.close()
    (log_folder(older) / "answered").write_bytes(
        (log_folder(store.folder) / "answered").read_bytes()
    )

    with pytest.raises(StoreFailed, match=r"came back shorter: 4 entries .*--accept-loss on"):
        open_replayed(older)


async def test_rows_without_a_log_are_replayed_as_they_are(tmp_path: Path) -> None:
    rows = RocksRows(tmp_path / "shard-0")
    rows.write(row(1).ops)
    rows.flush()
    rows.close()

    replayed = open_replayed(tmp_path / "shard-0")

    assert everything(replayed) == rows_up_to(1)
    replayed.close()
    assert not log_folder(tmp_path / "shard-0").exists()


async def test_a_folder_in_use_is_not_replayed(opened: Open) -> None:
    store = opened()

    with pytest.raises(StoreFailed, match=f"cannot open {store.folder}"):
        open_replayed(store.folder)
