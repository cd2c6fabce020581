"""MinuteStore: the minutes of all queues of one process, in a SQLite file of the data folder.

    minutes  the hour under way: for each minute and part of the queues one row
    hours    hours that are over: one row a queue, in the order of time
    names    numbers of the queues, which stand for account, region and name

A minute costs a row for 64 queues; an hour that is over is folded into rows by queue, of which a
chart of two weeks reads 336. The file has a bound: above it, hours older than two days, then those
older than six hours, get a point for ten minutes; then the oldest go. Nothing is synced: a power
failure may lose the latest minutes. A file that is damaged is removed, and history begins anew.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path

import msgspec
import structlog

from cluster.catalog.catalog_records import QueueName
from sqs_api.cloudwatch.stored_hours import (
    MINUTES,
    HourDamaged,
    Minutes,
    Values,
    add,
    decode_hour,
    encode_hour,
    thinned,
)
from storage.files.refusing_disk import is_no_damage

HOURS_STORED = 14 * 24
QUEUES_MAX = 20_000
"""Queues with a stored history, of one process: a name takes about 300 bytes of memory."""
RUNNING: QueueName = ("", "", "")
"""Not a queue: it has the minutes in which the process ran."""
THIN_STEP = 10
_MINUTELY_HOURS = (48, 6)
"""The latest hours, which are not thinned: at first, and if that does not suffice."""
_PART = 64
"""Queues of one row of `minutes`."""
_THINNED_AT_ONCE = 500
_PAGE_BYTES = 4096
_SCHEMA = """
CREATE TABLE IF NOT EXISTS names (
    queue INTEGER PRIMARY KEY, account TEXT NOT NULL, region TEXT NOT NULL, name TEXT NOT NULL,
    last_hour INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS minutes (
    hour INTEGER NOT NULL, part INTEGER NOT NULL, minute INTEGER NOT NULL, data BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS minutes_by_part ON minutes (hour, part);
CREATE TABLE IF NOT EXISTS hours (place INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS thinned (one INTEGER PRIMARY KEY, place INTEGER NOT NULL);
"""
_QUEUE_BITS = 32
UNREADABLE = (sqlite3.Error, TypeError, ValueError, OverflowError)
"""Errors of reading a damaged file: a flipped bit may give a value of a wrong type, or a text that
is none."""
_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(dict[int, dict[int, int]]).decode


def _place(hour: int, queue: int = 0) -> int:
    """The key of a queue's hour: rows are in the order of time."""
    return hour << _QUEUE_BITS | queue


class MinuteStore:
    """For any thread, by one at a time. All but `open` raise sqlite3.Error."""

    def __init__(self, file: Path, bytes_max: int) -> None:
        """`bytes_max`: size from which the oldest hours are thinned, then removed."""
        self._file = file
        self._pages_max = max(64, bytes_max // _PAGE_BYTES)
        self._database: sqlite3.Connection | None = None
        self._queues: dict[QueueName, int] = {}
        self._log = structlog.get_logger("history")

    def open(self) -> None:
        """Open or make the file; one that is damaged is made anew. Raises sqlite3.Error."""
        try:
            self._database = self._opened()
        except UNREADABLE as error:
            if is_no_damage(error):
                raise
            self.begin_anew(error)

    def begin_anew(self, error: Exception) -> None:
        """Remove a damaged file and make a new one."""
        self._log.error("history_damaged", file=str(self._file), error=str(error))
        self.close()
        for ending in ("", "-wal", "-shm"):
            self._file.with_name(self._file.name + ending).unlink(missing_ok=True)
        self._database = self._opened()

    def _opened(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._file, isolation_level=None, check_same_thread=False)
        try:
            database.execute("PRAGMA locking_mode = EXCLUSIVE")  # no mapped file beside it
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = OFF")
            database.execute("PRAGMA journal_size_limit = 4194304")
            database.executescript(_SCHEMA)
            rows = database.execute("SELECT queue, account, region, name FROM names").fetchall()
            self._queues = {(account, place, name): queue for queue, account, place, name in rows}
        except BaseException:
            database.close()
            raise
        return database

    @property
    def is_open(self) -> bool:
        """True once the file is open."""
        return self._database is not None

    def close(self) -> None:
        """Close the file, if it is open."""
        if self._database is not None:
            with suppress(sqlite3.Error):
                self._database.close()
            self._database = None

    @property
    def _rows(self) -> sqlite3.Connection:
        assert self._database is not None
        return self._database

    # -- writing -----------------------------------------------------------------------------------

    def write(self, minute: int, values: Mapping[QueueName, Values]) -> None:
        """Add the values of a minute since 1970; it may have some. Those of queues beyond
        QUEUES_MAX are left out."""
        hour, within = divmod(minute, MINUTES)
        parts: dict[int, dict[int, Values]] = {}
        with self._rows as database:
            database.execute("BEGIN")
            for name in (RUNNING, *values):
                queue = self._queue(name, hour)
                if queue is not None:
                    parts.setdefault(queue // _PART, {})[queue] = values.get(name, {})
            rows = [
                (hour, part, within, zlib.compress(_encode(of_part), 1))
                for part, of_part in parts.items()
            ]
            database.executemany("INSERT INTO minutes VALUES (?, ?, ?, ?)", rows)

    def _queue(self, name: QueueName, hour: int) -> int | None:
        found = self._queues.get(name)
        if found is None and len(self._queues) < QUEUES_MAX:
            row = (*name, hour)
            made = self._rows.execute(
                "INSERT INTO names (account, region, name, last_hour) VALUES (?, ?, ?, ?)", row
            )
            found = self._queues[name] = int(made.lastrowid or 0)
        return found

    def tidy(self, minute: int) -> bool:
        """One step of what is to be done: fold a part of an hour that is over, thin, forget.
        Returns True while there is more."""
        hour = minute // MINUTES
        found = self._rows.execute(
            "SELECT hour, part FROM minutes WHERE hour < ? ORDER BY hour, part LIMIT 1", (hour,)
        ).fetchone()
        if found is not None:
            self._fold(*found)
            return True
        self._forget(hour - HOURS_STORED)
        if self.pages <= self._pages_max:
            return False
        return any(self._thin(hour - kept) for kept in _MINUTELY_HOURS) or self._drop_oldest(hour)

    def _fold(self, hour: int, part: int) -> None:
        by_queue: dict[int, Minutes] = {}
        for minute, of_queues in self._parts(hour, part):
            for queue, values in of_queues.items():
                add(by_queue.setdefault(queue, {}).setdefault(minute, {}), values)
        with self._rows as database:
            database.execute("BEGIN")
            for queue, minutes in by_queue.items():
                place = _place(hour, queue)
                for minute, values in self._hour(place).items():
                    add(minutes.setdefault(minute, {}), values)
                row = (place, encode_hour(minutes))
                database.execute("INSERT OR REPLACE INTO hours VALUES (?, ?)", row)
            database.executemany(
                "UPDATE names SET last_hour = ? WHERE queue = ?",
                [(hour, queue) for queue in by_queue],
            )
            database.execute("DELETE FROM minutes WHERE hour = ? AND part = ?", (hour, part))

    def _parts(self, hour: int, part: int) -> Iterator[tuple[int, dict[int, Values]]]:
        """The minutes of a part that are not folded, one that is damaged left out."""
        rows = self._rows.execute(
            "SELECT minute, data FROM minutes WHERE hour = ? AND part = ? ORDER BY rowid",
            (hour, part),
        )
        for minute, data in rows:
            with suppress(zlib.error, msgspec.MsgspecError):
                found = _decode(zlib.decompress(data))
                yield minute, {queue: dict(values) for queue, values in found.items()}

    def _hour(self, place: int) -> Minutes:
        find = "SELECT data FROM hours WHERE place = ?"
        row = self._rows.execute(find, (place,)).fetchone()
        with suppress(HourDamaged):
            return {} if row is None else decode_hour(row[0])
        return {}

    def _forget(self, before_hour: int) -> None:
        """Remove the hours before one, and the queues that had none since."""
        with self._rows as database:
            database.execute("BEGIN")
            database.execute("DELETE FROM hours WHERE place < ?", (_place(before_hour),))
            gone = database.execute(
                "DELETE FROM names WHERE last_hour < ? RETURNING account, region, name",
                (before_hour,),
            ).fetchall()
        for name in gone:
            self._queues.pop(name, None)

    def _thin(self, before_hour: int) -> bool:
        """Thin the next hours before one. Returns False if there are none left."""
        (last,) = self._rows.execute("SELECT place FROM thinned").fetchone() or (0,)
        rows = self._rows.execute(
            "SELECT place, data FROM hours WHERE place > ? AND place < ? ORDER BY place LIMIT ?",
            (last, _place(before_hour), _THINNED_AT_ONCE),
        ).fetchall()
        if not rows:
            return False
        with self._rows as database:
            database.execute("BEGIN")
            for place, data in rows:
                with suppress(HourDamaged):
                    change = (thinned(data, THIN_STEP), place)
                    database.execute("UPDATE hours SET data = ? WHERE place = ?", change)
            database.execute("INSERT OR REPLACE INTO thinned VALUES (1, ?)", rows[-1][:1])
        return True

    def _drop_oldest(self, hour: int) -> bool:
        """Remove the oldest hour, if another is left."""
        (place,) = self._rows.execute("SELECT min(place) FROM hours").fetchone()
        oldest = hour if place is None else place >> _QUEUE_BITS
        if oldest >= hour - 1:
            return False
        self._rows.execute("DELETE FROM hours WHERE place < ?", (_place(oldest + 1),))
        return True

    @property
    def pages(self) -> int:
        """Pages that are in use."""
        (pages,) = self._rows.execute("PRAGMA page_count").fetchone()
        (free,) = self._rows.execute("PRAGMA freelist_count").fetchone()
        return int(pages) - int(free)

    # -- reading -----------------------------------------------------------------------------------

    def read(self, names: Iterable[QueueName], begin: int, end: int) -> dict[QueueName, Minutes]:
        """By queue, the minutes from one since 1970 to before another; fastest for queues whose
        numbers are close, see `latest`."""
        by_part: dict[int, dict[int, Minutes]] = {}
        found: dict[QueueName, Minutes] = {}
        for name in names:
            queue, found[name] = self._queues.get(name), {}
            if queue is not None:
                by_part.setdefault(queue // _PART, {})[queue] = found[name]
        for hour in range(begin // MINUTES, -(-end // MINUTES)):
            for part, of_part in by_part.items():
                self._read_hour(hour, part, of_part)
        return {
            name: {minute: values for minute, values in each.items() if begin <= minute < end}
            for name, each in found.items()
        }

    def _read_hour(self, hour: int, part: int, found: dict[int, Minutes]) -> None:
        """Add an hour of these queues of a part."""
        for queue, minutes in found.items():
            for minute, values in self._hour(_place(hour, queue)).items():
                minutes[hour * MINUTES + minute] = values
        for minute, of_queues in self._parts(hour, part):
            for queue in found.keys() & of_queues.keys():
                at = found[queue].setdefault(hour * MINUTES + minute, {})
                add(at, of_queues[queue])

    def latest(self, since_hour: int, queues_max: int) -> list[QueueName]:
        """Queues with points since an hour, in the order of their numbers; those of the hour under
        way come first if there are more than `queues_max`."""
        in_minutes = {
            queue
            for hour, part in self._rows.execute("SELECT DISTINCT hour, part FROM minutes")
            for _, of_queues in self._parts(hour, part)
            for queue in of_queues
        }
        rows = self._rows.execute(
            "SELECT queue FROM names WHERE last_hour >= ? ORDER BY last_hour DESC", (since_hour,)
        )
        names = {queue: name for name, queue in self._queues.items() if name != RUNNING}
        known = dict.fromkeys(chain(in_minutes, (queue for (queue,) in rows)))
        chosen = islice((queue for queue in known if queue in names), queues_max)
        return [names[queue] for queue in sorted(chosen)]
