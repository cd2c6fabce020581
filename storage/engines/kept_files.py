"""Second names and copies of a database's files, against damage outside of its data blocks.

    DATA/shard-0/kept/note          the MANIFEST; a CRC-32 in hexadecimal digits precedes it
    DATA/shard-0/kept/000012.sst    a hard link to each SST file
    DATA/shard-0/kept/000012.tail   a copy of its tail: index, filter, properties, footer (1 %)

SST files never change, so these are the database as of the note, and the log has all that followed.
So obsolete files are not opened again (rule 21). A hard link keeps a file even when a compaction
makes it obsolete, until the next note. `note` is called after each flush before any segment of the
log is released, after an open, and whenever `is_outdated` says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from zlib import crc32

import msgspec
from rocksdict import Rdict

from storage.engines.sst_file import tail_begin
from storage.files.copying import FOLDER_MODE, replace_file, write_file
from storage.files.folder import sync_folder
from storage.log.entry import BEGINNING, Position

_TRIES = 5
_VERSION = "rocksdb.current-super-version-number"
KEPT = "kept"
_NOTE = "note"
CURRENT = "CURRENT"
SST = ".sst"
_TAIL = ".tail"
OF_ONE_OPENING = ("LOCK", "LOG")
"""Prefixes of the files that each opening of a database makes for itself; copies need none."""


class Note(msgspec.Struct, frozen=True):
    """A database at one instant."""

    manifest: str
    """The name of its MANIFEST."""
    content: bytes
    """Its bytes."""
    applied: Position = BEGINNING
    """An Entry up to which these rows hold the log, for a start that cannot read the row of the
    applied one."""
    tails: dict[str, tuple[int, int]] = {}
    """Offset and CRC-32 of the copied tails, by SST file."""


class KeptFiles:
    """Keeps the files of one open database. All methods belong to one thread, not the loop's."""

    def __init__(self, folder: Path) -> None:
        """Continue from the existing note."""
        self._folder = folder
        self._kept = folder / KEPT
        self._noted = read_note(folder)

    @property
    def applied(self) -> Position:
        """An Entry up to which the noted files hold the log."""
        return self._noted.applied if self._noted is not None else BEGINNING

    def is_outdated(self) -> bool:
        """True if files were added or removed since the note. Two system calls, cheap enough for
        each second."""
        try:
            manifest = _current_manifest(self._folder)
            size = (self._folder / manifest).stat().st_size
        except (OSError, ValueError):
            return True
        noted = self._noted
        return noted is None or (manifest, size) != (noted.manifest, len(noted.content))

    def note(self, rows: Rdict, applied: Position | None = None) -> bool:
        """Note the files durably, and the last Entry that they hold if it changed; False if they
        changed during every attempt.

        Raises OSError, ValueError.
        """
        self._kept.mkdir(mode=FOLDER_MODE, exist_ok=True)
        for _ in range(_TRIES):
            before = rows.property_int_value(_VERSION)
            names = self._link()
            manifest = _current_manifest(self._folder)
            content = self._sound(manifest, (self._folder / manifest).read_bytes())
            names |= self._link()
            # No version was installed meanwhile, so no file named in the MANIFEST was removed in
            # between.
            if rows.property_int_value(_VERSION) == before:
                break
        else:
            return False
        tails = {name: tail for name in names if (tail := self._copy_tail(name))}
        sync_folder(self._kept)
        self._noted = Note(manifest, content, applied or self.applied, tails)
        encoded = msgspec.msgpack.encode(self._noted)
        replace_file(note_of(self._folder), b"%08x" % crc32(encoded) + encoded)
        sync_folder(self._kept)
        self._drop_others(names)
        return True

    def _sound(self, manifest: str, content: bytes) -> bytes:
        """A MANIFEST with the bytes that were noted, since it only grows: its file may have been
        damaged meanwhile. Raises ValueError if it became shorter."""
        if self._noted is None or self._noted.manifest != manifest:
            return content
        noted = self._noted.content
        if len(content) < len(noted):
            raise ValueError(f"{self._folder / manifest} is shorter than it was")
        return noted + content[len(noted) :]

    def _link(self) -> set[str]:
        """Make hard links to all SST files; returns their names."""
        linked = set()
        for name in _sst_names(self._folder):
            with suppress(FileNotFoundError):  # removed meanwhile
                with suppress(FileExistsError):
                    os.link(self._folder / name, self._kept / name)
                linked.add(name)
        return linked

    def _copy_tail(self, name: str) -> tuple[int, int] | None:
        """Offset and checksum of a file's copied tail; None if it has none: the file is damaged
        already, or of another version."""
        copy = _tail_of(self._kept / name)
        if self._noted is not None and name in self._noted.tails and copy.exists():
            return self._noted.tails[name]
        try:
            at = tail_begin(self._kept / name)
        except ValueError:
            return None
        tail = _read_from(self._kept / name, at)
        copy.unlink(missing_ok=True)
        write_file(copy, tail)
        return at, crc32(tail)

    def _drop_others(self, names: set[str]) -> None:
        kept = {_NOTE, *names, *(_tail_of(Path(name)).name for name in names)}
        for name in set(os.listdir(self._kept)) - kept:
            (self._kept / name).unlink()


def note_of(folder: Path) -> Path:
    """The file of a database's note."""
    return folder / KEPT / _NOTE


def read_note(folder: Path) -> Note | None:
    """The note; None if there is none, or it is damaged and so useless: then a new one is made.

    Raises OSError.
    """
    try:
        content = note_of(folder).read_bytes()
        if content[:8] != b"%08x" % crc32(content[8:]):
            return None
        return msgspec.msgpack.decode(content[8:], type=Note)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


# -- damage ----------------------------------------------------------------------------------------


def names_older_files(folder: Path) -> bool:
    """True if the MANIFEST lacks something that was noted, or cannot be read.

    RocksDB may take a damaged one for an older state, and remove newer files. Raises OSError.
    """
    note = read_note(folder)
    if note is None:
        return False
    try:
        current = _current_manifest(folder)
        content = (folder / current).read_bytes()
    except (FileNotFoundError, ValueError):
        return True
    # One of another name was made by an open since the note, which knows nothing of it.
    return current == note.manifest and not content.startswith(note.content)


def put_together(folder: Path, target: Path, link: Callable[[Path, Path], object]) -> list[str]:
    """Make `target` a database of the kept files, with damaged tails replaced; returns the names
    of those that differ from the files in `folder`, none without a note.

    A file that was cut short gets zeros for the blocks it lost: then RocksDB names just those rows.
    Raises OSError.
    """
    note, kept = read_note(folder), folder / KEPT
    if note is None:
        return []
    target.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    current = f"{note.manifest}\n".encode()
    write_file(target / CURRENT, current)
    write_file(target / note.manifest, note.content)
    damaged = [] if _begins_with(folder / CURRENT, current) else [CURRENT]
    if not _begins_with(folder / note.manifest, note.content):
        damaged.append(note.manifest)
    for name in _sst_names(kept):
        at, checksum = note.tails.get(name, (0, 0))
        file, copy = kept / name, _tail_of(kept / name)
        if not _has_tail(folder / name, at, checksum):
            damaged.append(name)
        if _has_tail(file, at, checksum) or not _has_tail(copy, 0, checksum):
            link(file.absolute(), target / name)
        else:
            blocks = file.read_bytes()[:at].ljust(at, b"\0")
            write_file(target / name, blocks + copy.read_bytes())
    return sorted(damaged)


def _has_tail(file: Path, at: int, checksum: int) -> bool:
    """True if this is the end of a file; a checksum of 0 is none, for a file without a copy."""
    return file.exists() and (not checksum or crc32(_read_from(file, at)) == checksum)


def _begins_with(file: Path, content: bytes) -> bool:
    return file.exists() and file.read_bytes().startswith(content)


def _current_manifest(folder: Path) -> str:
    """The MANIFEST's name in CURRENT. Raises OSError, ValueError."""
    text = (folder / CURRENT).read_bytes()
    name = text[:-1].decode("ascii", "replace")
    if text[-1:] != b"\n" or not name.startswith("MANIFEST-") or not name[9:].isdigit():
        raise ValueError(f"{folder / CURRENT} is damaged")
    return name


def _sst_names(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.endswith(SST)]


def _tail_of(file: Path) -> Path:
    return file.with_suffix(_TAIL)


def _read_from(file: Path, at: int) -> bytes:
    with file.open("rb") as stream:
        stream.seek(at)
        return stream.read()
