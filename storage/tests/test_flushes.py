"""Flushes of a DurableStore: they let the log forget, and appends wait when they are far behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from storage.engines.store import StoreFailed
from storage.engines.store_options import StoreOptions
from storage.tests.durable_stores import (
    SMALL,
    HeldFlush,
    Open,
    end_of_flush,
    fill,
    is_flushing,
    live,
    row,
    rows_up_to,
    segments,
)
from storage.tests.on_disk import log_of
from storage.tests.store_places import append, commit, crash_copy, everything


async def test_flushes_let_the_log_use_its_segments_again(opened: Open, tmp_path: Path) -> None:
    store = opened()
    live_bytes = []
    for number in range(1, 400):
        await commit(store, row(number))
        await end_of_flush(store)
        live_bytes.append(log_of(store).live_bytes)

    assert max(live_bytes) < 20 << 10
    assert len(segments(store.folder)) <= 4
    crashed = crash_copy(store.folder, tmp_path / "crashed")
    again = opened(SMALL, crashed)
    assert everything(again) == rows_up_to(399)


async def test_what_is_committed_during_a_flush_stays_in_the_log(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 14: the flushed rows do not have it."""
    store = opened()
    held = HeldFlush(store, monkeypatch)
    held.ends_late = True
    number = 0
    while not is_flushing(store):
        number += 1
        await commit(store, row(number))
    await asyncio.to_thread(held.begun.wait, 20)
    await fill(store, number + 1, number + 30)  # more than a segment

    held.goes_on.set()
    await end_of_flush(store)

    assert log_of(store).live_bytes > 30 * 500


async def test_a_short_disk_costs_no_entry_that_is_not_applied(opened: Open) -> None:
    """Rule 14: a flush makes room while some are under way."""
    store = opened()
    await fill(store, 1, 1)
    for number in range(2, 32):
        append(store, row(number), ())

    store.give_back_space()
    await end_of_flush(store)

    assert log_of(store).live_bytes > 30 * 500


async def test_a_service_that_crashes_again_and_again_takes_no_more_space(
    opened: Open, tmp_path: Path
) -> None:
    store = opened()
    for number in range(1, 30):
        await fill(store, number, number)
        store = opened(SMALL, crash_copy(store.folder, tmp_path / f"crashed-{number}"))

    assert len(segments(store.folder)) <= 4
    assert everything(store) == rows_up_to(29)


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


async def test_there_is_no_room_while_a_flush_is_far_behind_and_its_end_is_told(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened()
    held = HeldFlush(store, monkeypatch)
    room: list[bool] = []
    store.on_room(lambda: room.append(store.has_room))
    number = 0
    while store.has_room:
        number += 1
        await commit(store, row(number))
    assert 40 << 10 <= log_of(store).live_bytes < 42 << 10
    assert (held.count, room) == (1, [])

    held.goes_on.set()
    await end_of_flush(store)

    assert room == [True]
    assert everything(store) == rows_up_to(number)


async def test_a_flush_that_its_loop_left_behind_calls_nobody(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened()
    monkeypatch.setattr(store.rows, "flush", lambda: None)
    called: list[bool] = []
    store.on_room(lambda: called.append(True))

    flush = store._flush(None, 8)
    flush.send(None)
    flush.close()

    assert called == []


async def test_there_is_no_room_at_twice_the_row_changes_of_a_flush(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(StoreOptions(segment_bytes=16 << 10, flush_rows=8))
    held = HeldFlush(store, monkeypatch)
    room: list[bool] = []
    store.on_room(lambda: room.append(store.has_room))
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
    store.on_room(lambda: room.append(held.count))
    number = 0
    while not is_flushing(store):
        number += 1
        await commit(store, row(number))
    held.goes_on.set()
    await end_of_flush(store)
    assert room == [1]
    live_bytes = log_of(store).live_bytes

    held.failure = None
    await commit(store, row(number + 1))
    assert log_of(store).live_bytes > live_bytes
    await end_of_flush(store)

    assert room == [1, 2]
    assert log_of(store).live_bytes < 16 << 10
    assert everything(store) == rows_up_to(number + 1)


@pytest.mark.parametrize(("segment_bytes", "expected"), [(16 << 10, 4 << 10), (16 << 20, 4 << 20)])
def test_a_turn_takes_a_quarter_of_a_segment(
    opened: Open, segment_bytes: int, expected: int
) -> None:
    assert opened(StoreOptions(segment_bytes=segment_bytes)).turn_bytes_max == expected
