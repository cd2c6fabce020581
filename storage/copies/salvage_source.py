"""A shard whose files may be damaged, opened for reading in a folder of its own: nothing in the shard's folder changes.

The folder has links to the SST files and copies of all others. If copies beside the shard do not help, the log is read past
what is damaged in it, and at last RocksDB makes a new MANIFEST of all SST files it can read.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from rocksdict import DBRecoveryMode, Rdict

from storage.engines.live_files import SST, link_copies, note_of, read_note
from storage.engines.readable import is_damage
from storage.engines.restored_files import RestoredFiles
from storage.engines.rocks import rocks_options
from storage.engines.rocks_view import RocksView
from storage.engines.store import StoreFailed

_NOT_COPIED = ("LOCK", "LOG")
_LOST = "lost"
"""Folder into which RocksDB's repair moves what it cannot read."""


class SalvageSource:
    """The rows of one shard, and how far they can be trusted."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        """`scratch` must not exist; the caller removes it. Raises StoreFailed if nothing can be read, and OSError."""
        self._folder = folder.absolute()
        self._scratch = scratch
        self.warnings: list[str] = []
        """Files that were replaced or left out, and what that may mean."""
        self.is_repaired = False
        """Whether RocksDB made a new list of the files: scans are right then, and gets may find older rows."""
        self.rows = self._opened()

    def close(self) -> None:
        """Let go of the files."""
        self.rows.close()

    def _opened(self) -> RocksView:
        failures = []
        for attempt in (self._open, self._open_past_damage_of_log, self._open_repaired):
            try:
                return attempt()
            except StoreFailed as error:
                if not is_damage(error):
                    raise
                failures.append(error)
        raise StoreFailed(self._named(failures[0])) from failures[0]

    def _open(self) -> RocksView:
        folder = self._copied("noted")
        if note_of(self._folder).exists():
            link_copies(self._folder, folder)
        restored = RestoredFiles(folder).restore_manifest(if_damaged=True)
        rows = RocksView(folder)
        self.warnings += [
            f"{name} is damaged; its copy was used" for name in [*restored, *rows.restored]
        ]
        return rows

    def _open_past_damage_of_log(self) -> RocksView:
        folder = self._copied("log")
        rows = RocksView(folder, DBRecoveryMode.skip_any_corrupted_record())
        self.warnings.append(
            "a part of the log cannot be read: messages that were sent in it are missing, "
            "those that were deleted in it are there again"
        )
        return rows

    def _open_repaired(self) -> RocksView:
        """Rows of obsolete files come back, which only a note of the live ones could prevent."""
        folder = self._copied("repaired")
        note = read_note(self._folder)
        if note is not None:
            live = {file.name for file in note.files}
            for name in _sst_names(folder) - live:
                (folder / name).unlink()
        self._repair(folder)
        self.is_repaired = True
        lost = sorted(_sst_names(folder / _LOST))
        self.warnings += [f"{name} cannot be read: all its rows are missing" for name in lost]
        self.warnings.append(
            "the list of files was made anew from the files that can be read: "
            "messages that were deleted may be there again"
        )
        return RocksView(folder)

    def _repair(self, folder: Path) -> None:
        try:
            Rdict.repair(str(folder), rocks_options())
        except Exception as error:  # bare, with a text
            raise StoreFailed(f"Corruption: {folder} cannot be repaired: {error}") from error

    def _copied(self, name: str) -> Path:
        """A folder below the scratch folder with the files of the shard."""
        copy = self._scratch / name / self._folder.name
        copy.mkdir(parents=True)
        for file in sorted(os.listdir(self._folder)):
            if file.endswith(SST):
                (copy / file).symlink_to(self._folder / file)
            elif not file.startswith(_NOT_COPIED) and (self._folder / file).is_file():
                shutil.copyfile(self._folder / file, copy / file)
        return copy

    def _named(self, error: Exception) -> str:
        return str(error).replace(str(self._scratch / "noted"), str(self._folder.parent))


def _sst_names(folder: Path) -> set[str]:
    if not folder.is_dir():
        return set()
    return {name for name in os.listdir(folder) if name.endswith(SST)}
