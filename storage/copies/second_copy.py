"""SQLite files that are small and irreplaceable: each has a second copy, up to date (rule 37).

    NAME.sqlite           the database
    NAME.sqlite.copy      its second copy (`checked_database.py`), written by the same transactions

Every transaction writes both and returns when both are on disk. SQLite commits them one after the
other, the database first, so a crash may leave the copy a transaction behind, which was not
answered; so may a disk that is just full, and then the copy is mended before the next transaction
(`mend_attached_copy`). Opening compares them. The first one that is sound and not behind the other
is used, and the other is rewritten from it.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from storage.copies.checked_database import (
    DatabaseDamaged,
    State,
    attach_copy,
    check_copy,
    check_database,
    fill_copy,
    fill_from_copy,
    has_checksum,
    noted_state,
    one_moment,
    renew_checksum,
)
from storage.files.copying import copy_database
from storage.files.folder import sync_folder
from storage.files.refusing_disk import disk_refusal, naming_disk

_log = logging.getLogger("holdfast.files")
_NONE = "there is none"
_WRITABLE = (b"\1\1", b"\2\2")
"""Versions that the header of a database gives for writing and reading, without and with a log
beside it."""


class Found(NamedTuple):
    """Result of checking a file."""

    state: State | None = None
    """None if it is missing or damaged, and for a database of version 0.1."""
    reason: str = ""
    """The reason why it cannot be used; empty if it can."""


def copy_of(file: Path) -> Path:
    """The file of a database's second copy."""
    return file.with_name(f"{file.name}.copy")


def first_of(copy: Path) -> Path:
    """The database of which this is the second copy."""
    return copy.with_name(copy.name.removesuffix(".copy"))


def is_there(file: Path) -> bool:
    """True if the database or its second copy exists."""
    return file.exists() or copy_of(file).exists()


def open_with_copy(file: Path, prepare: Callable[[sqlite3.Connection], None]) -> sqlite3.Connection:
    """Open or create a database and its second copy, in autocommit mode, usable from any thread.

    `prepare` makes the tables, within a transaction. `:memory:` has no copy. Raises sqlite3.Error,
    also if both are damaged, with nothing left open.
    """
    is_file = str(file) != ":memory:"
    with naming_disk(file.parent):
        if is_file:
            repair(file)
        database = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            database.execute("BEGIN IMMEDIATE")
            with database:
                prepare(database)
                if is_file:
                    _bring_up_to_date(database, file)
            if is_file:
                attach_copy(database, copy_of(file))
        except BaseException:
            database.close()
            raise
    return database


def repair(file: Path) -> None:
    """Rewrite a database from its second copy if it is damaged, missing or behind. Raises
    sqlite3.Error."""
    # The copy first: if another process writes meanwhile, the database is never behind.
    copy = look(copy_of(file), check_copy)
    first = look(file, check_database)
    if first.reason == copy.reason == _NONE:
        return
    if copy.state is None:
        if first.reason:
            raise sqlite3.DatabaseError(_both_damaged(file, first, copy))
        if first.state is None and copy.reason != _NONE:
            reason = f"it has no checksum, and {copy_of(file).name} is damaged: {copy.reason}"
            raise sqlite3.DatabaseError(f"{reason}. {_WAY_OUT}")
        return
    if first.state is None or first.state.changes < copy.state.changes:
        reason = first.reason or (
            "it is older than its second copy" if first.state else "it has no checksum"
        )
        restore_from_copy(file)
        _note("second_copy_used", file, copy_of(file).name, reason)


_WAY_OUT = "Restore a backup with holdfast restore"


def _both_damaged(file: Path, first: Found, copy: Found) -> str:
    second = f"it has no second copy {copy_of(file).name}"
    if copy.reason != _NONE:
        second = f"its second copy {copy_of(file).name} is damaged too ({copy.reason})"
    return f"it is damaged ({first.reason}), and {second}. {_WAY_OUT}"


def _connect(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(file, isolation_level=None)


def look(
    file: Path,
    check: Callable[[sqlite3.Connection], State | None],
    connect: Callable[[Path], sqlite3.Connection] = _connect,
) -> Found:
    """Check a file. Raises sqlite3.Error if that is impossible now."""
    if not file.exists() or not file.stat().st_size:
        return Found(reason=_NONE)
    with file.open("rb") as stream:
        header = stream.read(20)
    if header[18:] not in _WRITABLE:  # SQLite would read it, and refuse to write it
        return Found(reason="its header is damaged")
    with closing(connect(file)) as database:
        try:
            return Found(check(database))
        except DatabaseDamaged as error:
            return Found(reason=str(error))


def _bring_up_to_date(database: sqlite3.Connection, file: Path) -> None:
    """Make the checksum and the copy fit the database, whose write lock is held: no other process
    changes them."""
    now = renew_checksum(database)
    copy = look(copy_of(file), check_copy)
    if copy.state != now:
        if copy.reason not in ("", _NONE):
            _note("second_copy_damaged", copy_of(file), file.name, copy.reason)
        write_copy(database, file, now)


def write_copy(database: sqlite3.Connection, file: Path, state: State) -> None:
    """Rewrite the second copy; a crash leaves the old one or the new one. Raises sqlite3.Error,
    OSError."""
    _replace(copy_of(file), lambda copy: fill_copy(copy, database, state))


def restore_from_copy(file: Path, copy: Path | None = None) -> None:
    """Rewrite a database from its second copy, which is sound. A crash leaves the copy unchanged.

    Raises sqlite3.Error, OSError.
    """
    with closing(_connect(copy or copy_of(file))) as sound, one_moment(sound):
        _replace(file, lambda database: fill_from_copy(database, sound))


def _replace(file: Path, fill: Callable[[sqlite3.Connection], None]) -> None:
    """Make a database beside the file, on disk, then put it there."""
    draft = file.with_name(f"{file.name}.new")
    draft.unlink(missing_ok=True)
    draft.with_name(f"{draft.name}-journal").unlink(missing_ok=True)
    with (
        naming_disk(file.parent),
        closing(sqlite3.connect(draft, isolation_level=None)) as database,
    ):
        database.execute("PRAGMA synchronous = FULL")
        database.execute("BEGIN IMMEDIATE")
        with database:
            fill(database)
    draft.chmod(file.stat().st_mode if file.exists() else 0o600)
    for log in ("-wal", "-shm"):
        # They belong to the replaced file, and would be taken for the new one's.
        file.with_name(file.name + log).unlink(missing_ok=True)
    draft.replace(file)
    sync_folder(file.parent)


def copy_sound(file: Path, target: Path) -> None:
    """Copy a database at one instant, from its second copy if it is damaged. For `target` see
    `copy_database`.

    Raises sqlite3.Error, OSError.
    """
    try:
        copy_database(file, target)
        first = look(target, check_database)
    except sqlite3.DatabaseError as error:
        if disk_refusal(error):
            raise
        first = Found(reason=str(error))
    if first.state is not None:
        return
    copy = look(copy_of(file), check_copy)
    if copy.state is not None:
        restore_from_copy(target, copy_of(file))
        _note("second_copy_used", file, copy_of(file).name, first.reason)
    elif first.reason:
        raise sqlite3.DatabaseError(_both_damaged(file, first, copy))


def renew_copy(file: Path) -> None:
    """Write a second copy of a database that has a checksum. Raises sqlite3.Error, OSError."""
    with closing(_connect(file)) as database:
        if has_checksum(database):
            write_copy(database, file, noted_state(database))


def _note(event: str, file: Path, used: str, reason: str) -> None:
    """Write to the standard library's log: commands set up no other, and it goes to stderr."""
    _log.error("%s: %s was written anew from %s: %s", event, file, used, reason)
