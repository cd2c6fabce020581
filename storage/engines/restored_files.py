"""Replaces damaged files of a closed database by their copies. See `live_files.py`.

    DATA/shard-0.damaged/    replaced files, SST files unknown to the restored MANIFEST, and those
                             that `damaged_files.py` takes out

Nothing is removed: a data block of a replaced file may be the only trace of a message.
"""

from __future__ import annotations

import os
from pathlib import Path
from zlib import crc32

from storage.engines.live_files import (
    CURRENT,
    SST,
    TAIL,
    LiveFile,
    copies_of,
    current_manifest,
    read_note,
    write_durably,
)
from storage.files.folder import sync_folder

_FOLDER_MODE = 0o700


class RestoredFiles:
    """The files of one closed database and their note. Each method returns the names of replaced
    files."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError."""
        self._folder = folder
        self._copies = copies_of(folder)
        self._note = read_note(folder) if self._copies.is_dir() else None

    def restore_manifest(self, *, if_damaged: bool) -> list[str]:
        """Return to the note's MANIFEST; with `if_damaged`, cheap enough for each open, only if
        needed.

        It is needed if the MANIFEST or CURRENT is damaged. Raises OSError.
        """
        note = self._note
        if note is None:
            return []
        done = []
        manifest = self._current()
        if manifest is None:
            self._replace(CURRENT, f"{note.manifest}\n".encode())
            manifest = note.manifest
            done.append(CURRENT)
        # A MANIFEST of another name was made by an open since the note, which knows nothing of it.
        is_damaged = (
            manifest == note.manifest and self._noted_manifest(self._folder / manifest) is None
        )
        copy = self._noted_manifest(self._copies / note.manifest)
        if copy is None or (if_damaged and not is_damaged):
            return done
        self._set_aside_others()  # first: after a crash in between, RocksDB would remove them
        self._replace(note.manifest, copy)
        if manifest != note.manifest:
            self._replace(CURRENT, f"{note.manifest}\n".encode())
        return [*done, note.manifest]

    def _current(self) -> str | None:
        """The MANIFEST in use; None if CURRENT is damaged, or names a missing one."""
        try:
            name = current_manifest(self._folder)
        except (FileNotFoundError, ValueError):
            return None
        assert self._note is not None
        return name if name == self._note.manifest or (self._folder / name).exists() else None

    def _noted_manifest(self, file: Path) -> bytes | None:
        """The beginning of the MANIFEST according to the note; None if this file differs."""
        assert self._note is not None
        try:
            with file.open("rb") as stream:
                content = stream.read(self._note.length)
        except FileNotFoundError:
            return None
        is_whole = (len(content), crc32(content)) == (self._note.length, self._note.crc32)
        return content if is_whole else None

    def _set_aside_others(self) -> None:
        """Set aside SST files that the MANIFEST does not name: RocksDB would remove them."""
        if not self._folder.is_dir():
            return
        for name in _sst_names(self._folder) - _sst_names(self._copies):
            self._set_aside(name)

    def restore_tables(self) -> list[str]:
        """Restore missing SST files, and damaged tails of others. Raises OSError.

        Reads all tails. A truncated file gets zeros in place of its data blocks.
        """
        if self._note is None:
            return []
        done = []
        # Includes files without a description in the note: the MANIFEST was copied just before they
        # appeared.
        for name in sorted(_sst_names(self._copies) - _sst_names(self._folder)):
            os.link(self._copies / name, self._folder / name)
            done.append(name)
        return done + [file.name for file in self._note.files if self._restore_tail(file)]

    def _restore_tail(self, file: LiveFile) -> bool:
        path = self._folder / file.name
        if not file.tail_at or not path.exists() or _has_noted_tail(path, file):
            return False
        try:
            tail = (self._copies / (file.name + TAIL)).read_bytes()
        except FileNotFoundError:
            return False
        if crc32(tail) != file.tail_crc32:
            return False
        content = path.read_bytes()[: file.tail_at]
        self._replace(file.name, content.ljust(file.tail_at, b"\0") + tail)
        return True

    def _replace(self, name: str, content: bytes) -> None:
        self._folder.mkdir(mode=_FOLDER_MODE, exist_ok=True)
        draft = self._folder / (name + ".restored")
        write_durably(draft, content)
        self._set_aside(name)
        draft.rename(self._folder / name)
        sync_folder(self._folder)

    def _set_aside(self, name: str) -> None:
        """Move a file to the folder of damaged ones."""
        if (self._folder / name).exists():
            target = place_aside(self._folder, name)
            (self._folder / name).rename(target)
            sync_folder(target.parent)


def place_aside(folder: Path, name: str) -> Path:
    """A free name for a damaged file of this database, beside it. Raises OSError."""
    aside = folder.with_name(folder.name + ".damaged")
    aside.mkdir(mode=_FOLDER_MODE, exist_ok=True)
    target, number = aside / name, 1
    while target.exists():
        number += 1
        target = aside / f"{name}.{number}"
    return target


def _sst_names(folder: Path) -> set[str]:
    return {name for name in os.listdir(folder) if name.endswith(SST)}


def _has_noted_tail(path: Path, file: LiveFile) -> bool:
    with path.open("rb") as stream:
        stream.seek(file.tail_at)
        tail = stream.read()
    return (file.tail_at + len(tail), crc32(tail)) == (file.size, file.tail_crc32)
