"""Opening a database whose files may be damaged: with copies in their place as far as there are any."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from rocksdict import Options

from storage.engines.restored_files import RestoredFiles
from storage.engines.store import StoreFailed

_DAMAGE = ("Corruption: ", "No such file or directory")
"""Parts of RocksDB's texts that mean damaged or missing files: not a lock, not a full disk."""


_T = TypeVar("_T")


def open_readable(folder: Path, open_rows: Callable[[], _T]) -> tuple[_T, list[str]]:
    """Open a database; a damaged file that keeps it from opening is replaced by its copy, and set aside.

    Returns what `open_rows` does, and the names of the files that were replaced. With the MANIFEST of the note it is the
    database as of the note: the log has what came later. What remains damaged are data blocks, which reads and scans
    name. Raises StoreFailed.
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
    except Exception as error:  # bare, with a text that may have several lines
        raise StoreFailed(f"cannot open {folder}: {' '.join(str(error).split())}") from error


def is_damage(error: Exception) -> bool:
    """True for an error of RocksDB that means damaged or missing files."""
    return any(text in str(error) for text in _DAMAGE)


def ways_out(folder: Path) -> str:
    """The end of a refusal because of damage: what an operator can do about it."""
    return (
        f"Copy all that can be read to a new folder with `holdfast salvage {folder.parent} --data NEW`, "
        "or restore a backup"
    )


def tolerant(options: Options) -> Options:
    """Go on where a compaction meets a damaged block: else RocksDB refuses every write from then on.

    It tries again each second at little cost. A failed flush is tried again too, instead of failing.
    """
    options.set_paranoid_checks(False)
    return options


def has_unreadable_blocks(folder: Path) -> bool:
    """True if blocks of this database are known to be damaged: then it is opened tolerant."""
    return _mark_of(folder).exists()


def note_unreadable_blocks(folder: Path) -> None:
    """Remember it, where that can be written."""
    with suppress(OSError):
        _mark_of(folder).touch(mode=0o600)


def _mark_of(folder: Path) -> Path:
    return folder.with_name(folder.name + ".unreadable")
