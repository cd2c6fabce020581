"""Small durable stores for tests: rows that name their Entry, and flushes that wait or fail."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.engines.durable import DurableStore
from storage.engines.opening import read_above
from storage.engines.rocks import RocksRows
from storage.engines.store import StoreFailed
from storage.engines.store_options import StoreOptions, log_folder
from storage.log import Entry, SystemDisk
from storage.tests.on_disk import log_of
from storage.tests.store_places import commit
from visibility.rows.row_changes import Changes

SMALL = StoreOptions(segment_bytes=16 << 10, flush_bytes=20 << 10)
"""Some fifteen Entries of `row` fill a segment, twenty begin a flush."""
Open = Callable[..., DurableStore]


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
        return list(
            read_above(rows.applied(), SystemDisk(), log_folder(rows.folder), None).entries()
        )
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


async def end_of_preparing(store: DurableStore) -> None:
    """Wait until the next segment of the log is ready, or could not be made."""
    async with asyncio.timeout(60):
        while log_of(store).spares.is_preparing:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


class HeldFlush:
    """Holds the flushes of a store up, and may let them fail."""

    def __init__(self, store: DurableStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Event()
        self.goes_on = threading.Event()
        self.failure: StoreFailed | None = None
        self.ends_late = False
        """True: it is held up once the rows are durable."""
        self.count = 0
        self._flush = store.rows.flush
        monkeypatch.setattr(store.rows, "flush", self.flush)

    def flush(self) -> None:
        self.count += 1
        if self.ends_late:
            self._flush()
        self.begun.set()
        assert self.goes_on.wait(20)
        if self.failure is not None:
            raise self.failure
        if not self.ends_late:
            self._flush()


def refuse(*_: object) -> None:
    """Stands for a call to a broken disk."""
    raise OSError(5, "the disk is broken")
