"""Coordination on a single host: records in a SQLite file with a second copy.

One process has it open at a time. All work is done in the thread of an aiosqlite connection, in
order. Removed records stay as tombstones until the next start, for the sake of a watch that begins
at an earlier revision.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import aiosqlite
from typing_extensions import override

from cluster.coordination import coordination
from cluster.coordination.part import Part
from cluster.tasks import retrieved
from storage.copies.checked_database import mend_attached_copy
from storage.copies.second_copy import open_with_copy
from storage.files.refusing_disk import naming_disk

T = TypeVar("T")

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS records "
    "(key TEXT PRIMARY KEY, value BLOB, revision INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS revisions (last INTEGER NOT NULL)",
)


def _opened(file: Path, first: Callable[[], Mapping[str, bytes]]) -> tuple[sqlite3.Connection, int]:
    """The database and its last revision."""
    try:
        database = open_with_copy(file, partial(_prepare, first))
        (last,) = database.execute("SELECT last FROM revisions").fetchone()
        return database, last
    except OSError as error:
        raise sqlite3.OperationalError(error.strerror) from error


class SqliteCoordination(coordination.Coordination):
    """Keeps the records of a host in SQLite."""

    def __init__(
        self,
        folder: Path,
        database: sqlite3.Connection,
        connection: aiosqlite.Connection,
        told: int,
    ) -> None:
        """Call `open` instead."""
        self._folder = folder
        self._database = database
        self._connection = connection
        self._watchers: list[coordination.OnChange] = []
        self._told = told
        """The last revision of which watches were told, or are about to be."""
        self._is_copy_doubtful = False
        """True if the second copy may lack a transaction."""

    @classmethod
    async def open(
        cls, file: Path, first: Callable[[], Mapping[str, bytes]] = dict
    ) -> SqliteCoordination:
        """Open or create the file; a new one begins with the records of `first`. Raises
        sqlite3.Error, and the errors of `first`. `:memory:` keeps the records in memory only."""
        database, last = await asyncio.to_thread(_opened, file, first)
        connection = await aiosqlite.Connection(lambda: database, iter_chunk_size=64)
        return cls(file.parent, database, connection, last)

    def below(self, folder: str) -> coordination.Coordination:
        """The records whose keys begin with this; closing them does not close the file."""
        return Part(self, folder)

    @override
    async def close(self) -> None:
        self._watchers.clear()
        await self._connection.close()

    @override
    async def read_all(self) -> coordination.Snapshot | coordination.Unavailable:
        try:
            return await self._in_thread(lambda: read_records(self._database))
        except sqlite3.Error as error:
            return coordination.Unavailable(str(error))

    @override
    async def read(self, keys: Collection[str]) -> coordination.Snapshot | coordination.Unavailable:
        found = await self.read_all()
        return found if isinstance(found, coordination.Unavailable) else found.of(keys)

    @override
    async def commit(self, transaction: coordination.Transaction) -> coordination.Outcome:
        assert not transaction.leases, "a single host has none"

        def report(done: tuple[coordination.Outcome, list[coordination.Change]]) -> None:
            for change in done[1]:
                for on_change in self._watchers:
                    on_change(change)

        outcome, _ = await self._in_thread(lambda: self._commit_and_look(transaction), report)
        return outcome

    @override
    async def watch(self, after: coordination.Snapshot, on_change: coordination.OnChange) -> None:

        def begin(missed: list[coordination.Change]) -> None:
            for change in missed:
                on_change(change)
            self._watchers.append(on_change)

        await self._in_thread(lambda: self._missed_since(after.revision), begin)

    def unwatch(self, on_change: coordination.OnChange) -> None:
        """End a watch."""
        if on_change in self._watchers:
            self._watchers.remove(on_change)

    @override
    def expect(self, revision: int) -> None:
        """Watches never lag."""

    # -- in the thread -----------------------------------------------------------------------------

    async def _in_thread(self, work: Callable[[], T], then: Callable[[T], None] | None = None) -> T:
        """Run some work in the thread. `then` runs on the event loop, in the order of the work,
        even if the caller is gone."""

        async def run() -> T:
            # A transaction is several statements that nothing may come between: one function, not
            # aiosqlite's calls.
            result: T = await self._connection._execute(work)  # type: ignore[no-untyped-call]
            if then is not None:
                then(result)
            return result

        task = asyncio.create_task(run())
        task.add_done_callback(retrieved)
        return await asyncio.shield(task)

    def _commit_and_look(
        self, transaction: coordination.Transaction
    ) -> tuple[coordination.Outcome, list[coordination.Change]]:
        """The outcome, and the changes that watches do not know.

        A commit can fail although the file has it: the file and its copy do not commit as one, so
        on a disk that is just full the copy's part may be refused.
        """
        outcome = self._commit(transaction)
        if isinstance(outcome, coordination.Done) and outcome.revision == self._told + 1:
            self._told = outcome.revision
            return outcome, [coordination.Change(outcome.revision, transaction.changes)]
        missed: list[coordination.Change] = []
        with suppress(sqlite3.Error):  # the next commit looks again
            missed = self._missed_since(self._told)
        if missed:
            self._told = missed[-1].revision
        return outcome, missed

    def _missed_since(self, revision: int) -> list[coordination.Change]:
        (last,) = self._database.execute("SELECT last FROM revisions").fetchone()
        changes = self._changes_after(revision)
        if last > max([revision, *(change.revision for change in changes)]):
            changes.append(coordination.Change(last, {}))
        return changes

    def _commit(self, transaction: coordination.Transaction) -> coordination.Outcome:
        database = self._database
        try:
            with naming_disk(self._folder):
                self._mend_copy()
                database.execute("BEGIN IMMEDIATE")
                (last,) = database.execute("SELECT last FROM revisions").fetchone()
                for key, revision in transaction.conditions.items():
                    query = "SELECT revision FROM records WHERE key = ? AND value IS NOT NULL"
                    found = database.execute(query, (key,)).fetchone()
                    if (found[0] if found else 0) != revision:
                        database.execute("ROLLBACK")
                        return coordination.Conflict(last)
                database.execute("UPDATE revisions SET last = ?", (last + 1,))
                database.executemany(
                    "INSERT INTO records VALUES (?, ?, ?) "
                    "ON CONFLICT (key) DO UPDATE SET value = excluded.value, revision = "
                    "excluded.revision",
                    [(key, value, last + 1) for key, value in transaction.changes.items()],
                )
        except sqlite3.Error as error:
            self._roll_back()
            return coordination.Unavailable(str(error))
        try:
            with naming_disk(self._folder):
                database.execute("COMMIT")
        except sqlite3.Error as error:
            self._is_copy_doubtful = True
            self._roll_back()
            return coordination.Unknown(str(error))
        return coordination.Done(last + 1)

    def _mend_copy(self) -> None:
        """Raises sqlite3.Error."""
        if self._is_copy_doubtful:
            mend_attached_copy(self._database)
            self._is_copy_doubtful = False

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):  # there is no transaction any more
            self._database.execute("ROLLBACK")

    def _changes_after(self, revision: int) -> list[coordination.Change]:
        query = "SELECT key, value, revision FROM records WHERE revision > ? ORDER BY revision"
        changes: dict[int, dict[str, bytes | None]] = {}
        for key, value, at in self._database.execute(query, (revision,)):
            changes.setdefault(at, {})[key] = value
        return [coordination.Change(at, records) for at, records in changes.items()]


def _prepare(first: Callable[[], Mapping[str, bytes]], database: sqlite3.Connection) -> None:
    for statement in _SCHEMA:
        database.execute(statement)
    if not database.execute("SELECT count(*) FROM revisions").fetchone()[0]:
        rows = [(key, value) for key, value in first().items()]
        database.execute("INSERT INTO revisions VALUES (?)", (1 if rows else 0,))
        database.executemany("INSERT INTO records VALUES (?, ?, 1)", rows)
    database.execute("DELETE FROM records WHERE value IS NULL")


def write_records(file: Path, records: Mapping[str, bytes]) -> None:
    """Make a file with these records. Raises OSError, sqlite3.Error."""
    open_with_copy(file, partial(_prepare, lambda: records)).close()


def read_records(database: sqlite3.Connection) -> coordination.Snapshot:
    """All records in a file. Raises sqlite3.Error."""
    (last,) = database.execute("SELECT last FROM revisions").fetchone()
    query = "SELECT key, value, revision FROM records WHERE value IS NOT NULL ORDER BY key"
    return coordination.Snapshot(
        last, [coordination.Record(*row) for row in database.execute(query)]
    )
