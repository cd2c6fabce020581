"""Opens a database whose files may be damaged, with copies in their place if there are any."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rocksdict import Options

from storage.engines.restored_files import RestoredFiles
from storage.engines.store import StoreFailed
from storage.files.refusing_disk import disk_refusal

_DAMAGE = ("Corruption: ", "No such file or directory")
"""Parts of RocksDB's messages that mean damaged or missing files: not a lock, not a full disk."""


_T = TypeVar("_T")


def open_readable(folder: Path, open_rows: Callable[[], _T]) -> tuple[_T, list[str]]:
    """Open a database; a damaged file that prevents it is replaced by its copy and set aside.

    Returns the result of `open_rows`, and the names of the replaced files. With the note's MANIFEST
    it is the database as of the note: the log has all later changes. Only data blocks then remain
    damaged, and reads and scans name them. Raises StoreFailed.
    """
    try:
        files = RestoredFiles(folder)
        restored = files.restore_manifest(if_damaged=True)
        steps = [
            files.restore_tables,
            lambda: files.restore_manifest(if_damaged=False),
            files.restore_tables,
        ]
        while True:
            try:
                return _opened(folder, open_rows), restored
            except StoreFailed as error:
                done: list[str] = []
                while steps and not done and is_damage(error):
                    done = steps.pop(0)()
                if not done:
                    raise
                restored += done
    except OSError as error:
        raise StoreFailed(f"cannot restore files of {folder}: {error}") from error


def _opened(folder: Path, open_rows: Callable[[], _T]) -> _T:
    try:
        return open_rows()
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
        "NEW`, "
        "or restore a backup"
    )


def tolerant(options: Options) -> Options:
    """Continue if a compaction meets a damaged block; otherwise RocksDB refuses every later write.

    It retries each second at little cost. A failed flush is retried too, instead of failing.
    """
    options.set_paranoid_checks(False)
    return options
