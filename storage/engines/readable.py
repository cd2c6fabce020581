"""Opening a database whose files may be damaged: with copies in their place as far as there are any."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rocksdict import Options, Rdict

from storage.engines.restored_files import RestoredFiles

_DAMAGE = ("Corruption: ", "No such file or directory")
"""How RocksDB's texts begin, or what they have in them, when files are damaged or missing."""


class OpenedRows(NamedTuple):
    """A database that is open, and the files that were replaced for that."""

    rows: Rdict
    restored: list[str]


def open_readable(folder: Path, options: Callable[[], Options]) -> OpenedRows:
    """Open a database; a damaged file that keeps it from opening is replaced by its copy, and set aside.

    With the MANIFEST of the note it is the database as of the note: the log has what came later. What remains damaged are
    data blocks, which reads and scans name. Raises RocksDB's bare exceptions, and OSError.
    """
    files = RestoredFiles(folder)
    restored = files.restore_manifest(if_damaged=True)
    steps = [
        files.restore_tables,
        lambda: files.restore_manifest(if_damaged=False),
        files.restore_tables,
    ]
    while True:
        try:
            return OpenedRows(Rdict(str(folder), options()), restored)
        except Exception as error:
            if not is_damage(error):
                raise
            while steps:
                if done := steps.pop(0)():
                    restored += done
                    break
            else:
                raise


def is_damage(error: Exception) -> bool:
    """Whether it is an error of RocksDB that means damaged or missing files: not a lock, not a full disk."""
    return any(text in str(error) for text in _DAMAGE)


def tolerant(options: Options) -> Options:
    """Go on where a compaction meets a damaged block: else RocksDB refuses every write from then on.

    It tries again each second at little cost. A failed flush is tried again too, instead of failing.
    """
    options.set_paranoid_checks(False)
    return options
