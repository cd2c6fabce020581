"""Opening a SQLite file that commands and a running server share."""

from __future__ import annotations

import sqlite3
from pathlib import Path


def open_sqlite(file: Path, schema: str) -> sqlite3.Connection:
    """Open or create it, in autocommit mode, durable with each write, usable from any thread.

    Every page is checked, so that damage is found now and not in the middle of a request. Nothing is left open if that
    fails. Raises sqlite3.Error.
    """
    database = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    try:
        found = database.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise sqlite3.DatabaseError(f"it is damaged: {' '.join(found.split())}")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.executescript(schema)
    except BaseException:
        database.close()
        raise
    return database
