"""Opens a database whose files may be damaged, with kept ones in their place if there are any."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from storage.engines.fresh_rows import drop_fresh, fresh_of, switch
from storage.engines.kept_files import names_older_files, put_together
from storage.engines.store import StoreFailed
from storage.files.refusing_disk import disk_refusal

_DAMAGE = ("Corruption: ", "No such file or directory")
"""Parts of RocksDB's messages that mean damaged or missing files: not a lock, not a full disk."""
_T = TypeVar("_T")


def open_readable(
    folder: Path,
    open_rows: Callable[[Path], _T],
    put_kept: Callable[[], tuple[Path, list[str]]],
) -> tuple[_T, list[str]]:
    """Open a database, or the one of its kept files if damage prevents that.

    `put_kept` makes that one, and returns its folder and the names of damaged files, none if it
    would be the same. Returns the result of `open_rows`, and these names. The kept database is the
    one as of the note: the log has all later changes. Only data blocks then remain damaged, and
    reads and scans name them. Raises StoreFailed.
    """
    try:
        if not names_older_files(folder):
            try:
                return _opened(folder, open_rows), []
            except StoreFailed as error:
                if not is_damage(error):
                    raise
                kept, damaged = put_kept()
                if not damaged:
                    raise
        else:
            kept, damaged = put_kept()
        return _opened(kept, open_rows), damaged
    except OSError as error:
        raise StoreFailed(f"cannot restore files of {folder}: {error}") from error


def put_in_place(folder: Path) -> tuple[Path, list[str]]:
    """Have the kept files take the place of a closed database. Raises OSError."""
    drop_fresh(folder)
    damaged = put_together(folder, fresh_of(folder), os.link)
    if damaged:
        switch(folder)
    else:
        drop_fresh(folder)
    return folder, damaged


def _opened(folder: Path, open_rows: Callable[[Path], _T]) -> _T:
    try:
        return open_rows(folder)
    except StoreFailed:
        raise
    except Exception as error:  # a bare exception with a text that may have several lines
        raise StoreFailed(f"cannot open {folder}: {' '.join(str(error).split())}") from error


def is_damage(error: Exception) -> bool:
    """True for an error of RocksDB that means damaged or missing files."""
    return any(text in str(error) for text in _DAMAGE) and disk_refusal(error) is None


def ways_out(folder: Path) -> str:
    """The end of a refusal because of damage: the operator's options."""
    return (
        f"Copy all that can be read to a new folder with `holdfast salvage {folder.parent} --data "
        "NEW`, or restore a backup"
    )
