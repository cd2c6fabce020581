"""Rows of a closed shard folder, changed behind the service's back, and stores for shards over
memory."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from rocksdict import Rdict

from storage.engines.durable import DurableStore
from storage.engines.opening import open_replayed, open_store
from storage.engines.rocks import RocksRows, rocks_options
from storage.engines.store_options import StoreOptions
from storage.log import Log, Position
from storage.tests.store_places import SEGMENT_BYTES
from visibility.rows.row_changes import Changes

S = TypeVar("S")


@contextmanager
def rows_of(folder: Path) -> Iterator[RocksRows]:
    """The rows of a folder that no service uses, with its log replayed."""
    rows = open_replayed(folder)
    try:
        yield rows
    finally:
        rows.close()


@contextmanager
def changing(folder: Path) -> Iterator[Changes]:
    """Changes that the folder has durably afterwards."""
    with rows_of(folder) as rows:
        changes = Changes()
        yield changes
        rows.write(changes.ops)
        rows.flush()


def compact(folder: Path) -> None:
    """Compact the rows of a closed folder: its files are replaced."""
    rows = Rdict(str(folder), rocks_options())
    rows.compact_range(None, None)
    rows.close()


def log_of(store: DurableStore) -> Log:
    """The log of a store that has one."""
    assert store._log is not None
    return store._log


def note_more(folder: Path, entries: int) -> None:
    """Note that this number of Entries more than a closed folder holds were acknowledged."""
    store = open_store(folder, StoreOptions(segment_bytes=SEGMENT_BYTES))
    assert store._note is not None
    last = log_of(store).last
    store._note.write_now(Position(last.term, last.index + entries, 0))
    asyncio.run(store.abandon())


def opener(store: S) -> Callable[[], Awaitable[S]]:
    """A function that opens this store on every call."""

    async def opened() -> S:
        return store

    return opened


def tables(schema: str) -> Callable[[sqlite3.Connection], None]:
    """A `prepare` for `open_with_copy` that executes statements, which end with semicolons."""

    def prepare(database: sqlite3.Connection) -> None:
        for statement in schema.split(";"):
            database.execute(statement)

    return prepare
