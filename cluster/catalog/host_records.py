"""The records of a single host: all kinds in one file, `records.sqlite`, with a second copy.

An earlier version had a database for each kind. The first start takes them over and removes them.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing
from pathlib import Path

from cluster.catalog.old_databases import CATALOG_FILE, old_records, remove_old
from cluster.coordination.coordination import Record, Snapshot
from cluster.coordination.sqlite_coordination import SqliteCoordination, read_records
from storage.copies.checked_database import open_unchanged
from storage.copies.second_copy import is_there, repair
from storage.engines.in_use import lock_records
from storage.files.folder import FolderRefused, sync_folder

FILE_NAME = "records.sqlite"
_AGAIN_S = 0.05


def has_records(data: Path) -> bool:
    """True for the data folder of a single host that was started once."""
    return is_there(data / FILE_NAME) or is_there(data / CATALOG_FILE)


class HostRecords:
    """The records of a data folder, which no other process has open."""

    def __init__(self, lock: int, coordination: SqliteCoordination) -> None:
        """Call `open` instead."""
        self._lock = lock
        self.all = coordination
        """All of them."""
        self.below = coordination.below
        """The records of one kind, by the beginning of their keys."""

    @classmethod
    async def open(cls, data: Path, wait_s: float = 0.0) -> HostRecords:
        """Open or make the records; waits for the end of a command that uses them.

        Raises FolderRefused if another process has them open, sqlite3.Error, OSError.
        """
        lock = await _locked(data, wait_s)
        try:
            return cls(lock, await _open(data))
        except BaseException:
            os.close(lock)
            raise

    async def close(self) -> None:
        """Close the file."""
        await self.all.close()
        os.close(self._lock)


async def _locked(data: Path, wait_s: float) -> int:
    """Take the lock, as `lock_records` says; the handle of its file."""
    now_s = asyncio.get_running_loop().time
    end_s = now_s() + wait_s
    while True:
        try:
            return lock_records(data)
        except FolderRefused:
            if now_s() >= end_s:
                raise
        await asyncio.sleep(_AGAIN_S)


async def _open(data: Path) -> SqliteCoordination:

    def first() -> dict[str, bytes]:
        found = old_records(data, _repaired)
        if not found and any(data.glob("shard-*/CURRENT")):
            reason = f"{data} has queues, but its {FILE_NAME} is missing. Restore a backup"
            raise sqlite3.DatabaseError(reason)
        return found

    opened = await SqliteCoordination.open(data / FILE_NAME, first)
    try:
        sync_folder(data)
        remove_old(data)
    except BaseException:
        await opened.close()
        raise
    return opened


def _repaired(file: Path) -> sqlite3.Connection:
    repair(file)
    return sqlite3.connect(file)


def read_host_records(data: Path) -> Snapshot:
    """The records of a data folder or a backup, in use or not, without changing anything. Raises
    sqlite3.Error, OSError."""
    if (data / FILE_NAME).exists():
        with closing(open_unchanged(data / FILE_NAME)) as database:
            return read_records(database)
    found = old_records(data, open_unchanged)
    return Snapshot(1, [Record(key, value, 1) for key, value in sorted(found.items())])
