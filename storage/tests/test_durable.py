"""DurableStore: a start has all synced Entries, flushed or not; flushes let the log forget."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.engines.opening import open_replayed
from storage.engines.rocks import RocksRows
from storage.engines.store import StoreFailed
from storage.engines.store_options import Durability, StoreOptions, log_folder
from storage.histogram import SYNC_BOUNDS_S, Histogram
from storage.log import Position, SystemDisk, read_answered
from storage.rows.entry_body import decode_body
from storage.tests.durable_stores import SMALL, Open, fill, live, refuse, row, rows_up_to
from storage.tests.on_disk import log_of
from storage.tests.store_places import append, commit, crash_copy, everything, synced

# -- replay ----------------------------------------------------------------------------------------


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
    positions = []
    for number in range(1, 4):
        append(store, row(number))
        positions.append(log_of(store).last)
    assert await synced(store) is None

    for number, position in enumerate(positions, 1):
        store.apply(row(number))
        assert store.rows.applied() == position

    term = log_of(store).term
    assert [(each.term, each.index) for each in positions] == [(term, n) for n in (1, 2, 3)]
    await store.close()
    again = opened()
    assert again.rows.applied() == positions[-1]
    assert (log_of(again).term, log_of(again).last.index) == (term + 1, 3)


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
    last = store.applied

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
    assert store.rows.applied().index == 5


async def test_a_second_opening_of_a_folder_is_refused(opened: Open) -> None:
    store = opened()

    with pytest.raises(StoreFailed, match=f"cannot open {store.folder}"):
        opened()

    await commit(store, row(1))
    await store.close()
    assert everything(opened()) == rows_up_to(1)


async def test_a_start_on_a_full_disk_asks_for_space_only(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened()
    await fill(store, 1, 5)
    await store.close()

    with monkeypatch.context() as full:
        full.setattr(SystemDisk, "pwrite", refuse_for_want_of_space)
        with pytest.raises(StoreFailed, match=r"No space left on device\. Free some space$"):
            opened()

    assert everything(opened()) == rows_up_to(5)


@pytest.mark.parametrize(
    ("call", "number"), [("fdatasync", errno.EIO), ("pwrite", errno.EIO), ("open", errno.EACCES)]
)
async def test_a_start_that_a_disk_refuses_is_to_be_tried_again(
    opened: Open, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    """Nothing is missing: who restored a backup would lose what came after it."""
    store = opened()
    await fill(store, 1, 5)
    await store.close()

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as refusing:
        refusing.setattr(SystemDisk, call, refuse)
        with pytest.raises(StoreFailed, match=os.strerror(number)) as refused:
            opened()

    assert "then start again" in str(refused.value)
    assert "accept-loss" not in str(refused.value)
    assert everything(opened()) == rows_up_to(5)


def refuse_for_want_of_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# -- durability ------------------------------------------------------------------------------------


async def test_with_os_nothing_waits_and_a_crash_of_the_process_loses_nothing(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = SMALL._replace(durability=Durability.OS)
    store = opened(options)
    monkeypatch.setattr(store._disk, "fdatasync", refuse)
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


# -- folders that nothing uses ---------------------------------------------------------------------


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


async def test_replayingrefuses_a_log_that_came_back_shorter(opened: Open, tmp_path: Path) -> None:
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


async def test_with_memory_a_start_has_what_the_log_of_an_earlier_start_holds(
    opened: Open, tmp_path: Path
) -> None:
    store = opened()
    await fill(store, 1, 9)
    crashed = crash_copy(store.folder, tmp_path / "crashed")

    memory = opened(SMALL._replace(durability=Durability.MEMORY), crashed)
    assert everything(memory) == rows_up_to(9)
    await fill(memory, 10, 11)
    await memory.close()

    again = opened(SMALL, crashed)
    assert everything(again) == rows_up_to(11)


async def test_the_last_entry_is_noted_though_the_note_before_it_took_long(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened()
    assert store._note is not None
    wanted: list[Callable[[Exception | None], None]] = []
    noted: list[int] = []

    def write(position: Position, done: Callable[[Exception | None], None]) -> None:
        noted.append(position.index)
        wanted.append(done)

    monkeypatch.setattr(store._note, "write", write)
    monkeypatch.setattr("storage.engines.durable.NOTE_S", 0.0)
    for number in (1, 2):
        await commit(store, row(number))
        async with asyncio.timeout(20):
            while store._note_timer is not None:  # noqa: ASYNC110
                await asyncio.sleep(0)
    assert noted == [1]

    wanted.pop()(None)
    async with asyncio.timeout(20):
        while not wanted:  # noqa: ASYNC110
            await asyncio.sleep(0)

    assert noted == [1, 2]
    wanted.pop()(None)
