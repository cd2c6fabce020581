"""Putting copies in the place of damaged files of a closed database. See `live_files.py`.

    DATA/shard-0.damaged/    files that were replaced, and SST files that the restored MANIFEST does not know

Nothing is removed: a data block of a file that was replaced may be all that is left of a message.
"""

from __future__ import annotations

import os
from pathlib import Path
from zlib import crc32

from storage.engines.folder import sync_folder
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

_FOLDER_MODE = 0o700


class RestoredFiles:
    """The files of one closed database and the note of them. Each method names the files that it replaced."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError."""
        self._folder = folder
        self._copies = copies_of(folder)
        self._note = read_note(folder) if self._copies.is_dir() else None

    def restore_manifest(self, *, if_damaged: bool) -> list[str]:
        """Go back to the MANIFEST of the note; or, cheap enough for each open, only where it or CURRENT is damaged.

        Raises OSError.
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
        # One with another name was made by an open since the note: nothing is known of it.
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
        """The MANIFEST in use; None if CURRENT is damaged, or names one that is not there."""
        try:
            name = current_manifest(self._folder)
        except (FileNotFoundError, ValueError):
            return None
        assert self._note is not None
        return name if name == self._note.manifest or (self._folder / name).exists() else None

    def _noted_manifest(self, file: Path) -> bytes | None:
        """What the note says the MANIFEST begins with; None if this file does not."""
        assert self._note is not None
        try:
            with file.open("rb") as stream:
                content = stream.read(self._note.length)
        except FileNotFoundError:
            return None
        is_whole = (len(content), crc32(content)) == (self._note.length, self._note.crc32)
        return content if is_whole else None

    def _set_aside_others(self) -> None:
        """RocksDB would remove SST files that its MANIFEST does not name."""
        if not self._folder.is_dir():
            return
        for name in _sst_names(self._folder) - _sst_names(self._copies):
            self._set_aside(name)

    def restore_tables(self) -> list[str]:
        """Bring back SST files that are missing, and the tails of those that are damaged there. Raises OSError.

        Reads all tails. A file that was cut short gets zeros where its data blocks were.
        """
        if self._note is None:
            return []
        done = []
        # Also those that no note describes: the MANIFEST was copied just before they became visible.
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
        """Move a file to the folder of damaged ones, under a name that is free there."""
        aside = self._folder.with_name(self._folder.name + ".damaged")
        aside.mkdir(mode=_FOLDER_MODE, exist_ok=True)
        target, number = aside / name, 1
        while target.exists():
            number += 1
            target = aside / f"{name}.{number}"
        if (self._folder / name).exists():
            (self._folder / name).rename(target)
            sync_folder(aside)


def _sst_names(folder: Path) -> set[str]:
    return {name for name in os.listdir(folder) if name.endswith(SST)}


def _has_noted_tail(path: Path, file: LiveFile) -> bool:
    with path.open("rb") as stream:
        stream.seek(file.tail_at)
        tail = stream.read()
    return (file.tail_at + len(tail), crc32(tail)) == (file.size, file.tail_crc32)
