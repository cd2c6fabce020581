"""Durable copies of files: hashed while they are read, synced, and readable by their owner only."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from storage.files.folder import sync_folder
from storage.files.refusing_disk import naming_disk

_CHUNK_BYTES = 1 << 20
FOLDER_MODE = 0o700
FILE_MODE = 0o600


def keep_going() -> None:
    """The pause of a copy that is never stopped."""


def hash_file(file: Path, pause: Callable[[], None] = keep_going) -> tuple[int, str]:
    """(bytes, SHA-256 in hex). `pause` is called occasionally, and may raise to stop. Raises
    OSError."""
    digest = sha256()
    size = 0
    with file.open("rb") as stream:
        for chunk in _chunks(stream):
            pause()
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()


def copy_file(
    source: Path, target: Path, pause: Callable[[], None] = keep_going
) -> tuple[int, str]:
    """Copy into a new file and sync it. Returns the result of `hash_file` for the copied bytes.

    Raises OSError.
    """
    digest = sha256()
    size = 0
    with source.open("rb") as stream, _new_file(target) as copy:
        for chunk in _chunks(stream):
            pause()
            copy.write(chunk)
            digest.update(chunk)
            size += len(chunk)
        copy.flush()
        os.fsync(copy.fileno())
    return size, digest.hexdigest()


def write_file(target: Path, content: bytes) -> None:
    """Make a new file and sync it; the caller syncs its folder. Raises OSError."""
    with _new_file(target) as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def replace_file(file: Path, content: bytes) -> None:
    """Make or replace a file at once; the caller syncs its folder. Raises OSError."""
    draft = file.with_name(f"{file.name}.new")
    draft.unlink(missing_ok=True)
    write_file(draft, content)
    draft.replace(file)


def copy_database(source: Path, target: Path) -> None:
    """Copy a SQLite database at one instant, even during writes, into one new file without a log.

    Not synced. Raises sqlite3.Error and OSError.
    """
    _new_file(target).close()
    with (
        naming_disk(target.parent),
        closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=rw", uri=True)) as database,
        closing(sqlite3.connect(target)) as copy,
    ):
        copy.execute("PRAGMA synchronous = OFF")  # the caller syncs, when no one is waiting
        database.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")


def sync_file(file: Path) -> None:
    """Make a file's bytes durable. Raises OSError."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folders(top: Path) -> None:
    """Make the names of all files below `top`, and its own, durable. Raises OSError."""
    for folder, _, _ in os.walk(top):
        sync_folder(Path(folder))
    sync_folder(top.parent)


def file_mark(file: Path) -> tuple[int, int, int] | None:
    """Changes when a file is written or replaced; None for one that is not there."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def files_below(top: Path) -> list[str]:
    """All files, as paths relative to `top` with slashes, sorted."""
    return sorted(
        (Path(folder) / name).relative_to(top).as_posix()
        for folder, _, names in os.walk(top)
        for name in names
    )


def _new_file(file: Path) -> BinaryIO:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
    return os.fdopen(descriptor, "wb")


def _chunks(stream: BinaryIO) -> Iterator[memoryview]:
    buffer = bytearray(_CHUNK_BYTES)
    view = memoryview(buffer)
    while size := stream.readinto(buffer):  # type: ignore[attr-defined]
        yield view[:size]
