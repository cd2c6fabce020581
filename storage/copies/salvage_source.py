"""A damaged shard opened for reading, with its log's Entries above the rows; its folder is
unchanged.

Where copies beside the shard do not help, RocksDB makes a new list of all readable SST files in a
separate folder. They are then all in one level, so they are compacted: before that, a get may find
an older row than a scan.
"""

from __future__ import annotations

import os
from pathlib import Path

from rocksdict import Rdict

from storage.engines.kept_files import KEPT, SST, read_note
from storage.engines.readable import is_damage
from storage.engines.rocks import rocks_options
from storage.engines.rocks_view import RocksView
from storage.engines.store import StoreFailed
from storage.engines.store_options import log_folder
from storage.files.copying import copy_file

_NOT_COPIED = ("LOCK", "LOG")
_LOST = "lost"
"""Folder into which RocksDB's repair moves unreadable files."""


class SalvageSource:
    """The rows of one shard, with warnings about their reliability."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        """`scratch` must not exist; the caller removes it.

        Raises StoreFailed if nothing can be read, and OSError.
        """
        self._folder = folder.absolute()
        self._scratch = scratch
        self.warnings: list[str] = []
        """Replaced and omitted files, lost Entries, and the possible consequences."""
        try:
            self.rows = RocksView(self._folder)
        except StoreFailed as error:
            if not is_damage(error):
                raise
            self.rows = self._repaired()
        self.warnings += [f"{name} is damaged; its copy was used" for name in self.rows.restored]
        self.warnings += [*self.rows.log_findings()]

    def close(self) -> None:
        """Close the files."""
        self.rows.close()

    def _repaired(self) -> RocksView:
        """Without a note of the live files, rows of obsolete files come back."""
        folder = self._scratch / self._folder.name
        folder.mkdir(parents=True)
        is_noted = read_note(self._folder) is not None
        for name in sorted(os.listdir(self._folder)):
            if name.endswith(SST):
                if not is_noted or (self._folder / KEPT / name).exists():
                    (folder / name).symlink_to(self._folder / name)
            elif not name.startswith(_NOT_COPIED) and (self._folder / name).is_file():
                copy_file(self._folder / name, folder / name)
        if log_folder(self._folder).is_dir():
            log_folder(folder).symlink_to(log_folder(self._folder))
        self._repair(folder)
        return RocksView(folder)

    def _repair(self, folder: Path) -> None:
        try:
            Rdict.repair(str(folder), rocks_options())
            rows = Rdict(str(folder), rocks_options())
            rows.compact_range(None, None)
            rows.close()
        except Exception as error:  # a bare exception with a text
            raise StoreFailed(f"{self._folder} cannot be repaired: {error}") from error
        lost = folder / _LOST
        names = sorted(os.listdir(lost)) if lost.is_dir() else []
        self.warnings += [
            f"{name} cannot be read: all its rows are missing"
            for name in names
            if name.endswith(SST)
        ]
        self.warnings.append(
            "the list of files was made anew from the files that can be read: "
            "messages that were deleted may be there again"
        )
