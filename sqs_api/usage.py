"""Usage: how much each account did with each queue, by day (UTC).

The gateway adds to numbers in memory; once a minute, and at a stop, they are added to `usage.sqlite`, in a thread. A crash
costs the last minute. A request counts as AWS bills it: once for each 64 KiB of payload it carries, at least once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from visibility.model import QueueDefinition

FILE_NAME = "usage.sqlite"
_CHUNK_BYTES = 64 * 1024
_KEYS_MAX = 50_000
_SCHEMA = """
CREATE TABLE IF NOT EXISTS usage (
    day TEXT NOT NULL, account TEXT NOT NULL, queue TEXT NOT NULL, requests INTEGER NOT NULL,
    billed_requests INTEGER NOT NULL, bytes_in INTEGER NOT NULL, bytes_out INTEGER NOT NULL,
    PRIMARY KEY (day, account, queue))
"""
_ADD = """
INSERT INTO usage VALUES (?,?,?,?,?,?,?) ON CONFLICT (day, account, queue) DO UPDATE SET
    requests = requests + excluded.requests, billed_requests = billed_requests + excluded.billed_requests,
    bytes_in = bytes_in + excluded.bytes_in, bytes_out = bytes_out + excluded.bytes_out
"""


class UsageRow(NamedTuple):
    """A line of the table; `queue` is an ARN, empty for requests that are about no queue's messages."""

    day: str
    account: str
    queue: str
    requests: int
    billed_requests: int
    bytes_in: int
    bytes_out: int


class Usage:
    """Counts for the gateway. Belongs to the event loop's thread, `write` apart."""

    def __init__(self, file: Path, wall_s: Callable[[], float], days_kept: int) -> None:
        """`days_kept`: how long days are kept in the file."""
        self._file = file
        self._wall_s = wall_s
        self._days_kept = days_kept
        self._counts: dict[tuple[str, int], list[int]] = {}
        self._arns: dict[int, str] = {0: ""}

    def count(
        self, account: str, queue: QueueDefinition | None, bytes_in: int, bytes_out: int
    ) -> None:
        """A request was answered; `queue` is None for one that is not about the messages of a queue."""
        queue_id = 0 if queue is None else queue.queue_id
        counts = self._counts.get((account, queue_id))
        if counts is None:
            if len(self._counts) >= _KEYS_MAX or queue is None:
                queue_id = 0  # more queues than a minute should name
            else:
                self._arns[queue_id] = queue.arn
            counts = self._counts.setdefault((account, queue_id), [0, 0, 0, 0])
        counts[0] += 1
        payload = bytes_in if bytes_in > bytes_out else bytes_out
        counts[1] += 1 if payload <= _CHUNK_BYTES else -(-payload // _CHUNK_BYTES)
        counts[2] += bytes_in
        counts[3] += bytes_out

    def take(self) -> list[UsageRow]:
        """What was counted since the last call, for `write`."""
        counts, self._counts = self._counts, {}
        arns, self._arns = self._arns, {0: ""}
        day = _day(self._wall_s())
        return [
            UsageRow(day, account, arns[queue_id], *numbers)
            for (account, queue_id), numbers in counts.items()
        ]

    def write(self, rows: list[UsageRow]) -> None:
        """Add them to the file and forget days that are over long enough. For any thread. Raises sqlite3.Error."""
        oldest = datetime.fromtimestamp(self._wall_s(), UTC) - timedelta(days=self._days_kept)
        with closing(sqlite3.connect(self._file, isolation_level=None)) as database:
            database.execute(_SCHEMA)
            database.execute("BEGIN IMMEDIATE")
            with database:
                database.executemany(_ADD, rows)
                database.execute("DELETE FROM usage WHERE day < ?", (oldest.date().isoformat(),))


def read_usage(file: Path, account: str | None, since: str | None) -> list[UsageRow]:
    """The rows of an account, or of all, from a day on, oldest first. Raises sqlite3.Error."""
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
        rows = database.execute(
            "SELECT * FROM usage WHERE (? IS NULL OR account = ?) AND (? IS NULL OR day >= ?) "
            "ORDER BY day, account, queue",
            (account, account, since, since),
        ).fetchall()
    return [UsageRow(*row) for row in rows]


def _day(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).date().isoformat()
