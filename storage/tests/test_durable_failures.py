"""DurableStore when its disk fails, and its end while something is under way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from storage.engines.durable import DurableStore
from storage.engines.rocks import RocksRows
from storage.engines.store import StoreFailed
from storage.engines.store_options import StoreOptions
from storage.tests.durable_stores import (
    HeldFlush,
    Open,
    end_of_preparing,
    fill,
    is_flushing,
    refuse,
    row,
    rows_up_to,
    segments,
)
from storage.tests.on_disk import log_of
from storage.tests.store_places import append, commit, everything, synced


async def test_after_a_failed_append_nothing_is_taken_until_it_is_opened_anew(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened()
    await commit(store, row(1))
    monkeypatch.setattr(log_of(store), "_pwrite", refuse)

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
    monkeypatch.setattr(store._disk, "fdatasync", refuse)
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
    store.rows.close()

    with pytest.raises(StoreFailed, match="cannot write"):
        store.apply(row(2))

    await store.abandon()
    assert everything(opened()) == rows_up_to(2)


async def test_without_space_for_another_segment_it_cannot_grow_and_goes_on_with_what_it_has(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(StoreOptions(segment_bytes=16 << 10))
    monkeypatch.setattr(store._disk, "write_zeros", refuse)
    number = 0
    async with asyncio.timeout(60):
        while store.can_grow:
            number += 1
            await commit(store, row(number))
            await end_of_preparing(store)
    assert len(segments(store.folder)) == 2, "one that could not be made ready is removed"

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


# -- the end ---------------------------------------------------------------------------------------


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
    rows = store.rows
    assert isinstance(rows, RocksRows)
    check_open = rows._check_open

    def check_and_wait() -> None:
        check_open()
        begun.set()
        assert goes_on.wait(20)

    monkeypatch.setattr(store.rows, "_check_open", check_and_wait)
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
