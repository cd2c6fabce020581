"""Tells a disk that takes no writes from damage: it is full, over a quota, without free inodes, or
read-only.

The meaning of such an error is decided here only. SQLite does not say why it cannot write, so
`naming_disk` asks the disk; of RocksDB and of another service there is only a text.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

_FULL, _READ_ONLY = "no space on {}", "{} is read-only"
_REASONS = {errno.ENOSPC: _FULL, errno.EDQUOT: _FULL, errno.EROFS: _READ_ONLY}
_TEXTS = {os.strerror(number): reason for number, reason in _REASONS.items()}
_TEXTS |= {"no space": _FULL, "database or disk is full": _FULL}
_NOT_DAMAGE = (
    *("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PERM"),
    *("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY"),
)
_PERHAPS_DAMAGE = ("SQLITE_IOERR_READ", "SQLITE_IOERR_SHORT_READ", "SQLITE_IOERR_CORRUPTFS")
_PROBE_FILES, _PROBE = 4, bytes(1 << 16)
"""As many files as SQLite makes beside a database and its second copy, and more than it writes."""


def disk_refusal(error: BaseException) -> str | None:
    """The reason in a few words if the error, or one that caused it, is of a disk that takes no
    writes; None for any other error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in _REASONS:
            return _named(_REASONS[cause.errno], cause.filename)
        if reason := _reason_in(str(cause)):
            return _named(reason, None)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return None


def tells_of_refusal(text: str) -> bool:
    """True for the text of such an error."""
    return _reason_in(text) is not None


def _reason_in(text: str) -> str | None:
    return next((reason for part, reason in _TEXTS.items() if part in text), None)


def _named(reason: str, file: str | None) -> str:
    if file is None:
        return reason.format("the disk")
    try:
        there = os.statvfs(file if os.path.exists(file) else os.path.dirname(file))
    except OSError:
        return reason.format(file)
    has_inodes = there.f_favail > 0 or there.f_files == 0
    return reason.format(file) + ("" if has_inodes or reason is not _FULL else " (no free inodes)")


def is_no_damage(error: Exception) -> bool:
    """True for an error of SQLite that says nothing of the database's content: it is locked, or
    cannot be opened or written now."""
    name = getattr(error, "sqlite_errorname", "")
    return name.startswith(_NOT_DAMAGE) and not name.startswith(_PERHAPS_DAMAGE)


@contextmanager
def naming_disk(folder: Path) -> Iterator[None]:
    """Have errors of SQLite say so where the folder's disk takes no writes."""
    try:
        yield
    except sqlite3.Error as error:
        refused = _refused_now(folder) if is_no_damage(error) else None
        if refused is None:
            raise
        raise sqlite3.OperationalError(disk_refusal(refused)) from refused


def _refused_now(folder: Path) -> OSError | None:
    """The error of writing files without names there; None if that works, or is not allowed."""
    try:
        with ExitStack() as opened:
            for _ in range(_PROBE_FILES):
                probe = opened.enter_context(tempfile.TemporaryFile(dir=folder))
                probe.write(_PROBE)
                probe.flush()
                os.fsync(probe.fileno())
    except OSError as error:
        error.filename = str(folder)
        return error if error.errno in _REASONS else None
    return None
