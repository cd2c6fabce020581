"""DurableStore on a disk that fails for a while: it fails, and reopens with all acknowledged data.

A limit on the size of files simulates the full disk: it needs no privileges and affects only this
process.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage.engines.opening import open_store
from storage.engines.store import StoreFailed
from storage.engines.store_options import StoreOptions
from storage.tests.store_places import append, commit, everything, synced
from visibility.rows.row_changes import Changes

SMALL = StoreOptions(segment_bytes=16 << 10, flush_bytes=20 << 10)


@contextmanager
def full_disk(size: int = 0) -> Iterator[None]:
    """No file of this process can grow beyond `size`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def row(name: bytes) -> Changes:
    return Changes([name, name * 500])


@pytest.mark.slow
async def test_a_store_that_cannot_append_on_a_full_disk_lets_go_of_it(tmp_path: Path) -> None:
    store = open_store(tmp_path / "shard-0", SMALL)
    await commit(store, row(b"kept"))

    with full_disk():
        with pytest.raises(StoreFailed, match=r"cannot append to the log: .*File too large"):
            append(store, row(b"refused"))
        await store.abandon()
    again = open_store(tmp_path / "shard-0", SMALL)

    assert not again.came_back_shorter
    assert set(everything(again)) == {b"kept"}
    await commit(again, row(b"next"))
    await again.close()


@pytest.mark.slow
async def test_a_store_that_cannot_flush_on_a_full_disk_has_everything_in_its_log(
    tmp_path: Path,
) -> None:
    """The log's segments exist already: it continues until rows cannot be written any more."""
    store = open_store(tmp_path / "shard-0", SMALL)
    committed: set[bytes] = set()

    async def write_on() -> None:
        while True:
            name = b"%04d" % len(committed)
            append(store, row(name))
            failure = await synced(store)
            if failure is not None:
                raise failure
            committed.add(name)
            store.apply(row(name))

    with full_disk(16 << 10):
        with pytest.raises(StoreFailed):
            await asyncio.wait_for(write_on(), 60)
        await store.abandon()
    again = open_store(tmp_path / "shard-0", SMALL)

    assert len(committed) > 10
    assert not again.came_back_shorter
    assert set(everything(again)) == committed
    await commit(again, row(b"next"))
    await again.close()


async def test_a_full_disk_is_named_at_a_start_which_works_once_there_is_room(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path / "shard-0", SMALL)
    await commit(store, row(b"kept"))
    await store.close()

    with full_disk(), pytest.raises(StoreFailed, match=f"cannot open {tmp_path / 'shard-0'}"):
        open_store(tmp_path / "shard-0", SMALL)

    again = open_store(tmp_path / "shard-0", SMALL)
    assert set(everything(again)) == {b"kept"}
    await again.close()
