"""The note of a shard's live database files, and copies against damage outside of data blocks.

    DATA/shard-0.files           the note: a CRC-32 in hexadecimal digits, a line feed, JSON
    DATA/shard-0.copies/         the MANIFEST as of the note; for each SST file a hard link and a
                                 copy of its tail

The MANIFEST as of the note with the SST files it names is the database as of the note. A hard link
keeps a file even when a compaction makes it obsolete; it costs no space until then, and the next
note drops it. `note` is called after each flush before any segment of the log is released, after an
open, and whenever `is_outdated` says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from zlib import crc32

import msgspec
from rocksdict import Rdict

from storage.engines.manifest_log import whole_records
from storage.engines.sst_file import tail_begin
from storage.files.folder import sync_folder
from storage.log.entry import BEGINNING, Position

_TRIES = 5
_FOLDER_MODE = 0o700
_VERSION = "rocksdb.current-super-version-number"
CURRENT = "CURRENT"
SST = ".sst"
TAIL = ".tail"
OF_ONE_OPENING = ("LOCK", "LOG")
"""Prefixes of the files that each opening of a database makes for itself; copies need none."""


class LiveFile(msgspec.Struct, frozen=True):
    """One SST file; keys are in hex, and `tail_at` is 0 if its tail could not be copied."""

    name: str
    size: int
    level: int
    first: str
    last: str
    entries: int
    deletions: int
    tail_at: int = 0
    tail_crc32: int = 0


class LiveNote(msgspec.Struct, frozen=True):
    """The files that made up the database, with the first `length` bytes of its MANIFEST."""

    manifest: str
    length: int
    crc32: int
    files: list[LiveFile]
    applied: Position = BEGINNING
    """An Entry up to which these rows hold the log, for a start that cannot read the row of the
    applied one."""


class LiveFiles:
    """Notes the live files of one open database. All methods belong to one thread, not the
    loop's."""

    def __init__(self, folder: Path) -> None:
        """Continue from the existing note."""
        self._folder = folder
        self._copies = copies_of(folder)
        self._noted = read_note(folder)

    @property
    def applied(self) -> Position:
        """See `LiveNote.applied`."""
        return self._noted.applied if self._noted is not None else BEGINNING

    def is_outdated(self) -> bool:
        """True if files were added or removed since the note. Two system calls, cheap enough for
        each second."""
        try:
            manifest = current_manifest(self._folder)
            size = (self._folder / manifest).stat().st_size
        except (OSError, ValueError):
            return True
        return self._noted is None or (manifest, size) != (self._noted.manifest, self._noted.length)

    def note(self, rows: Rdict, applied: Position | None = None) -> bool:
        """Note the live files durably, and the last Entry that they hold if it changed; False if
        the files changed during every attempt.

        Raises OSError, ValueError.
        """
        self._copies.mkdir(mode=_FOLDER_MODE, exist_ok=True)
        for _ in range(_TRIES):
            before = rows.property_int_value(_VERSION)
            present = self._link()
            manifest = self._copy_manifest()
            live = rows.live_files()
            present |= self._link()
            # No version was installed meanwhile, so no file named in the MANIFEST was removed in
            # between.
            if rows.property_int_value(_VERSION) == before:
                break
        else:
            return False
        tails = self._copy_tails(present)
        files = [_described(each, tails) for each in live]
        applied = applied or self.applied
        noted = msgspec.structs.replace(manifest, files=files, applied=applied)
        sync_folder(self._copies)
        write_note(self._folder, noted)
        self._noted = noted
        self._drop_others(present, noted.manifest)
        return True

    def _link(self) -> set[str]:
        """Make hard links to all SST files; returns their names."""
        linked = set()
        for name in _sst_names(self._folder):
            with suppress(FileNotFoundError):  # removed meanwhile
                self._link_one(name)
                linked.add(name)
        return linked

    def _link_one(self, name: str) -> None:
        file, link = self._folder / name, self._copies / name
        try:
            os.link(file, link)
        except FileExistsError:
            if link.samefile(file):
                return
            # A restored MANIFEST issues numbers again, and a restored file is a new one.
            (self._copies / (name + TAIL)).unlink(missing_ok=True)
            link.unlink()
            os.link(file, link)

    def _copy_manifest(self) -> LiveNote:
        """Update the copy: a MANIFEST only grows, so mostly a few hundred bytes are new."""
        name = current_manifest(self._folder)
        copied = self._noted if self._noted is not None and self._noted.manifest == name else None
        length, checksum = (copied.length, copied.crc32) if copied is not None else (0, 0)
        with (self._folder / name).open("rb") as stream:
            stream.seek(length)
            new = stream.read()
        new = new[: whole_records(new, length)]
        write_durably(self._copies / name, new, at=length)
        return LiveNote(name, length + len(new), crc32(new, checksum), [])

    def _copy_tails(self, names: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Copy the tails of files without a copied one: (offset, checksum) by name."""
        known = {file.name: file for file in self._noted.files} if self._noted else {}
        tails = {}
        for name in names:
            copy = self._copies / (name + TAIL)
            file = known.get(name)
            if file is not None and file.tail_at and copy.exists():
                tails[name] = (file.tail_at, file.tail_crc32)
                continue
            with suppress(ValueError):  # already damaged, or of another version
                at = tail_begin(self._copies / name)
                with (self._copies / name).open("rb") as stream:
                    stream.seek(at)
                    tail = stream.read()
                write_durably(copy, tail)
                tails[name] = (at, crc32(tail))
        return tails

    def _drop_others(self, names: set[str], manifest: str) -> None:
        kept = names | {name + TAIL for name in names} | {manifest}
        for name in os.listdir(self._copies):
            if name not in kept:
                (self._copies / name).unlink()


def _described(live: dict[str, object], tails: dict[str, tuple[int, int]]) -> LiveFile:
    name = str(live["name"]).lstrip("/")
    at, checksum = tails.get(name, (0, 0))
    first, last = (
        key.hex() if isinstance(key, bytes) else "" for key in (live["start_key"], live["end_key"])
    )
    size, level, entries, deletions = (
        int(str(live[field])) for field in ("size", "level", "num_entries", "num_deletions")
    )
    return LiveFile(name, size, level, first, last, entries, deletions, at, checksum)


def current_manifest(folder: Path) -> str:
    """The MANIFEST's name in CURRENT. Raises OSError, ValueError."""
    text = (folder / CURRENT).read_bytes()
    name = text[:-1].decode("ascii", "replace")
    if text[-1:] != b"\n" or not name.startswith("MANIFEST-") or not name[9:].isdigit():
        raise ValueError(f"{folder / CURRENT} is damaged")
    return name


def _sst_names(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.endswith(SST)]


# -- the note's file -------------------------------------------------------------------------------


def copies_of(folder: Path) -> Path:
    """The folder of the copies of a shard."""
    return folder.with_name(folder.name + ".copies")


def note_of(folder: Path) -> Path:
    """The file of the note of a shard."""
    return folder.with_name(folder.name + ".files")


def link_copies(folder: Path, links: Path) -> None:
    """Put links to the note and the copies of a shard beside and into `links`, a folder of links to
    its files."""
    copies = copies_of(folder).absolute()
    if not copies.is_dir():
        return
    copies_of(links).symlink_to(copies)
    note_of(links).symlink_to(note_of(folder).absolute())
    for name in set(_sst_names(copies)) - set(_sst_names(links)):
        (links / name).symlink_to(copies / name)


def read_note(folder: Path) -> LiveNote | None:
    """The note; None if there is none, or it is damaged and so useless: then a new one is made.

    Raises OSError.
    """
    try:
        checksum, _, text = note_of(folder).read_bytes().partition(b"\n")
        if checksum != b"%08x" % crc32(text):
            return None
        return msgspec.json.decode(text, type=LiveNote)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def write_note(folder: Path, note: LiveNote) -> None:
    """Replace the note atomically and durably. Raises OSError."""
    text = msgspec.json.encode(note)
    draft = folder.with_name(folder.name + ".files.new")
    write_durably(draft, b"%08x\n" % crc32(text) + text)
    draft.rename(note_of(folder))
    sync_folder(folder.parent)


def write_durably(file: Path, content: bytes, *, at: int = 0) -> None:
    """Write a file's content from offset `at` to its end; its folder is not synced. Raises
    OSError."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.truncate(at)
        stream.seek(at)
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
