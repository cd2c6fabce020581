"""Usage: requests and bytes of each account and queue, by day (UTC).

The gateway adds to numbers in a journal, which `kill -9` cannot take back (`usage_journal.py`).
Once a minute, and at a stop, the journal ends and a thread adds it to `usage.sqlite`. That is
synced, so a power failure costs a minute at most. The database names the journals that it has, so
none counts twice, whenever the process ends. A request counts as AWS bills it: once for each 64 KiB
of payload it carries, at least once.

A gateway hands its rows over to hosts (`handing_over.py`), as sums of each day since its folder was
made. Hosts keep them by its name and the folder's id; of several that have a row, the greatest sum
counts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, date, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeAlias

import structlog

from sqs_api.gateway.usage_journal import (
    ALONE,
    COUNTER_MAX,
    UsageJournal,
    Writer,
    journals_in,
    own_journals_in,
    read_journal,
)
from storage.files.folder import sync_folder

FILE_NAME = "usage.sqlite"
CHUNK_BYTES = 64 * 1024
Counters: TypeAlias = "list[int] | memoryview[int]"
"""Requests, billed requests, bytes in, bytes out."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS usage (
    day TEXT NOT NULL, account TEXT NOT NULL, queue TEXT NOT NULL, requests INTEGER NOT NULL,
    billed_requests INTEGER NOT NULL, bytes_in INTEGER NOT NULL, bytes_out INTEGER NOT NULL,
    PRIMARY KEY (day, account, queue));
CREATE TABLE IF NOT EXISTS journals (name TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS gateways (
    gateway TEXT NOT NULL, day TEXT NOT NULL, account TEXT NOT NULL, queue TEXT NOT NULL,
    requests INTEGER NOT NULL, billed_requests INTEGER NOT NULL, bytes_in INTEGER NOT NULL,
    bytes_out INTEGER NOT NULL, PRIMARY KEY (gateway, day, account, queue));
CREATE TABLE IF NOT EXISTS folder (id TEXT NOT NULL, handed_over TEXT NOT NULL);
"""
_ADD = """
INSERT INTO usage VALUES (?,?,?,?,?,?,?) ON CONFLICT (day, account, queue) DO UPDATE SET
    requests = requests + excluded.requests, billed_requests = billed_requests + excluded.billed_requests,
    bytes_in = bytes_in + excluded.bytes_in, bytes_out = bytes_out + excluded.bytes_out
"""  # noqa: E501

_TAKE_OVER = """
INSERT INTO gateways VALUES (?,?,?,?,?,?,?,?)
    ON CONFLICT (gateway, day, account, queue) DO UPDATE SET
    requests = max(requests, excluded.requests),
    billed_requests = max(billed_requests, excluded.billed_requests),
    bytes_in = max(bytes_in, excluded.bytes_in), bytes_out = max(bytes_out, excluded.bytes_out)
"""


class UsageRow(NamedTuple):
    """A line of the table; `queue` is an ARN, empty for requests that are about no queue's
    messages."""

    day: str
    account: str
    queue: str
    requests: int
    billed_requests: int
    bytes_in: int
    bytes_out: int


class GatewayRow(NamedTuple):
    """A row that a gateway handed over."""

    gateway: str
    """Its name and the id of its folder."""
    row: UsageRow


class ToHandOver(NamedTuple):
    """The rows of a gateway that hosts may not have."""

    gateway: str
    today: str
    rows: list[UsageRow]


class Usage:
    """Counts for the gateway. Belongs to the event loop's thread, `write` apart."""

    def __init__(
        self, file: Path, wall_s: Callable[[], float], days_kept: int, writer: Writer = ALONE
    ) -> None:
        """`days_kept`: days that stay in the file.

        The first `write` adds the journals that a crash left; of several writers of a folder each
        has its own.
        """
        self._writer = writer
        self._file = file
        self._wall_s = wall_s
        self._days_kept = days_kept
        self._journal: UsageJournal | None = None
        """Begins with the first request."""
        self._unjournaled: list[tuple[str, str, list[int]]] = []
        """Account, queue and counters that found no room in the journal, for example on a full
        disk."""
        self._log = structlog.get_logger("usage")

    def counters(self, account: str, queue_arn: str, kind: str) -> Counters:
        """New counters of a kind of requests, in the journal, or in memory if that has no room.

        They are added to in place, before each answer, until the next `take`.
        """
        try:
            if self._journal is None:
                self._journal = UsageJournal(self._file.parent, _day(self._wall_s()), self._writer)
            return self._journal.counters(account, queue_arn, kind)
        except OSError as error:
            if not self._unjournaled:
                self._log.error("usage_not_journaled", error=error.strerror)
            counters = [0, 0, 0, 0]
            self._unjournaled.append((account, queue_arn, counters))
            return counters

    def take(self) -> tuple[list[Path], list[UsageRow]]:
        """End the journal.

        Returns all ended journals, and the rows that are in none, for `write`.
        """
        day = _day(self._wall_s())
        if self._journal is not None:
            self._journal.set_day(day)
            self._journal.close()
        rows = [
            UsageRow(day, account, arn, *counted) for account, arn, counted in self._unjournaled
        ]
        self._journal, self._unjournaled = None, []
        return own_journals_in(self._file.parent, self._writer), rows

    def write(self, journals: list[Path], rows: list[UsageRow]) -> None:
        """Add them to the file, forget days that are over long enough, and remove the journals. For
        any thread.

        Raises sqlite3.Error, OSError, with nothing added.
        """
        oldest = datetime.fromtimestamp(self._wall_s(), UTC) - timedelta(days=self._days_kept)
        with closing(sqlite3.connect(self._file, isolation_level=None)) as database:
            database.executescript(_SCHEMA)
            database.execute("BEGIN IMMEDIATE")
            with database:
                added = _added(database)
                missing = [file for file in journals if file.name not in added]
                database.executemany(_ADD, rows + _rows_of(missing))
                for table in ("usage", "gateways"):
                    database.execute(
                        f"DELETE FROM {table} WHERE day < ?",
                        (oldest.date().isoformat(),),
                    )
                added -= {name for name in added if self._writer.has(name)}
                database.execute("DELETE FROM journals")
                database.executemany("INSERT INTO journals VALUES (?)", [(n,) for n in added])
                names = [(file.name,) for file in journals]
                database.executemany("INSERT INTO journals VALUES (?)", names)
        with suppress(OSError):
            for file in journals:
                file.unlink()
            sync_folder(self._file.parent)  # before the next call forgets their names

    # -- gateways, for any thread; each raises sqlite3.Error, OSError ------------------------------

    def may_have(self, row: UsageRow) -> bool:
        """True for a row that a gateway may have counted: of a day that is kept, or of tomorrow by
        a clock that is ahead."""
        today = datetime.fromtimestamp(self._wall_s(), UTC).date()
        try:
            day = date.fromisoformat(row.day)
        except ValueError:
            return False
        is_plain = day.isoformat() == row.day  # there are other ways to write it
        is_kept = -self._days_kept <= (day - today).days <= 1
        return is_plain and is_kept and all(0 <= each <= COUNTER_MAX for each in row[3:])

    def take_over(self, gateway: str, rows: list[UsageRow]) -> None:
        """Keep what a gateway counted."""
        with closing(self._open()) as database, database:
            database.executemany(_TAKE_OVER, [(gateway, *row) for row in rows])

    def to_hand_over(self, new_id: str) -> ToHandOver:
        """The rows of this gateway of days that hosts may not have whole. `new_id` is for a folder
        without an id."""
        with closing(self._open()) as database, database:
            found = database.execute("SELECT id, handed_over FROM folder").fetchone()
            if found is None:
                database.execute("INSERT INTO folder VALUES (?, '')", (new_id,))
            gateway, since = found or (new_id, "")
        today = _day(self._wall_s())
        return ToHandOver(gateway, today, read_usage(self._file, None, since))

    def handed_over(self, today: str) -> None:
        """Hosts have it all; the journal of a crash may be of the day before."""
        before = date.fromisoformat(today) - timedelta(days=1)
        with closing(self._open()) as database, database:
            database.execute("UPDATE folder SET handed_over = ?", (before.isoformat(),))

    def _open(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._file)
        try:
            database.executescript(_SCHEMA)
        except BaseException:
            database.close()
            raise
        return database


def read_gateways(file: Path, account: str | None, since: str | None) -> list[GatewayRow]:
    """The rows that gateways handed over to this host, of an account, or of all, from a day on.

    Raises sqlite3.Error, OSError.
    """
    if not file.exists():
        return []
    with closing(sqlite3.connect(f"file:{file}?mode=rw", uri=True)) as database:
        if not _has_table(database, "gateways"):
            return []
        found = database.execute(
            "SELECT * FROM gateways WHERE account = coalesce(?, account) AND day >= ?",
            (account, since or ""),
        )
        return [GatewayRow(gateway, UsageRow(*row)) for gateway, *row in found]


def read_usage(file: Path, account: str | None, since: str | None) -> list[UsageRow]:
    """The rows of an account, or of all, from a day on, oldest first, as of now.

    Raises sqlite3.Error, OSError.
    """
    journals: dict[str, list[UsageRow]] = {}
    for journal in journals_in(file.parent):
        with suppress(FileNotFoundError):  # the database, which is read next, has it by now
            journals[journal.name] = _rows_of([journal])
    stored: list[UsageRow] = []
    if file.exists():
        # Not mode=ro: the next process to open the file must roll back a write that was killed.
        with closing(sqlite3.connect(f"file:{file}?mode=rw", uri=True)) as database:
            database.execute("BEGIN")
            if _has_table(database, "usage"):
                stored = [UsageRow(*row) for row in database.execute("SELECT * FROM usage")]
            for name in _added(database):
                journals.pop(name, None)
    sums: dict[tuple[str, str, str], list[int]] = {}
    for day, who, queue, *counted in chain(stored, *journals.values()):
        if who == (account or who) and day >= (since or ""):
            before = sums.get((day, who, queue), [0, 0, 0, 0])
            sums[day, who, queue] = [a + b for a, b in zip(before, counted, strict=True)]
    return [UsageRow(*key, *counted) for key, counted in sorted(sums.items())]


def _added(database: sqlite3.Connection) -> set[str]:
    """The names of journals that the database has; it may be one of version 0.1, which knew
    none."""
    if not _has_table(database, "journals"):
        return set()
    return {name for (name,) in database.execute("SELECT name FROM journals")}


def _has_table(database: sqlite3.Connection, name: str) -> bool:
    """False, too, after a first write that was killed."""
    query = "SELECT 1 FROM sqlite_master WHERE name = ?"
    return bool(database.execute(query, (name,)).fetchall())


def _rows_of(journals: list[Path]) -> list[UsageRow]:
    return [
        UsageRow(day, *each) for day, counted in map(read_journal, journals) for each in counted
    ]


def _day(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).date().isoformat()
