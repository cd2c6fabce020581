"""Checkpoints of a shard's rows for other hosts: made here, and checked there.

`CheckpointFiles` is the access to their files; tests and the simulator replace it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Protocol
from zlib import crc32

from typing_extensions import override

from storage.copies.scrub import InThread, Pace, RowFiles, read_rows
from storage.engines.file_rows import FileRows
from storage.engines.store import RowStore
from storage.files.copying import FILE_MODE, FOLDER_MODE, sync_file
from storage.files.folder import sync_folder
from storage.log.entry import Position


def make_checkpoint(
    rows: RowStore, folder: Path, read_rows: Callable[[Path], RowFiles] = FileRows
) -> Position:
    """Make `folder` a checkpoint of the rows; returns the last Entry in it.

    For any thread. The first flush may take seconds; after the second little is left to write while
    the checkpoint holds the interpreter lock. Raises StoreFailed, DamagedRecord.
    """
    rows.flush()
    rows.flush()
    rows.checkpoint(folder)
    # Entries were applied meanwhile, so the checkpoint itself must tell.
    with closing(read_rows(folder)) as made:
        return made.applied()


async def check_rows_of(
    folder: Path,
    pace: Pace,
    in_thread: InThread,
    open_rows: Callable[[Path], RowFiles] = FileRows,
) -> Position:
    """Read all rows of a fetched checkpoint; returns the last Entry in it.

    The checksums of whole files are no proof: the host that gave them may have read damaged ones.
    Raises StoreFailed, DamagedRecord.
    """
    return await read_rows(partial(open_rows, folder), pace, in_thread)


_PIECE_BYTES = 1 << 20


class CheckpointFiles(Protocol):
    """All calls block, and raise OSError."""

    def names(self, folder: Path) -> list[str]:
        """The names in a folder, in order; none if it does not exist."""

    def size(self, file: Path) -> int:
        """Bytes of a file."""

    def read(self, file: Path, offset: int, size: int) -> bytes:
        """Up to `size` bytes; fewer at the end of the file."""

    def checksum(self, file: Path) -> int:
        """CRC-32 of the whole file."""

    def forget(self, file: Path) -> None:
        """Drop a synced file from the page cache: the next reads are of the disk."""

    def write(self, file: Path, data: bytes, offset: int) -> None:
        """Write all of the data, into a new file if there is none; not synced."""

    def sync(self, file: Path) -> None:
        """Make a file's bytes durable."""

    def make_folder(self, folder: Path) -> None:
        """Make a folder that must not exist."""

    def sync_folder(self, folder: Path) -> None:
        """Make the names in a folder durable."""

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file or a folder."""

    def remove(self, path: Path) -> None:
        """Remove a file, or a folder with all that is in it, if it exists."""

    def free(self, folder: Path) -> int:
        """Bytes that are free on the disk of a folder."""


class SystemFiles(CheckpointFiles):
    """The operating system's files."""

    @override
    def names(self, folder: Path) -> list[str]:
        return sorted(os.listdir(folder)) if folder.is_dir() else []

    @override
    def size(self, file: Path) -> int:
        return file.stat().st_size

    @override
    def read(self, file: Path, offset: int, size: int) -> bytes:
        with file.open("rb", buffering=0) as stream:
            return os.pread(stream.fileno(), size, offset)

    @override
    def checksum(self, file: Path) -> int:
        checksum = 0
        with file.open("rb", buffering=0) as stream:
            while piece := stream.read(_PIECE_BYTES):
                checksum = crc32(piece, checksum)
        return checksum

    @override
    def forget(self, file: Path) -> None:
        with file.open("rb", buffering=0) as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    @override
    def write(self, file: Path, data: bytes, offset: int) -> None:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        with os.fdopen(descriptor, "wb") as stream:
            stream.seek(offset)
            stream.write(data)

    @override
    def sync(self, file: Path) -> None:
        sync_file(file)

    @override
    def make_folder(self, folder: Path) -> None:
        folder.mkdir(mode=FOLDER_MODE)

    @override
    def sync_folder(self, folder: Path) -> None:
        sync_folder(folder)

    @override
    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    @override
    def remove(self, path: Path) -> None:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    @override
    def free(self, folder: Path) -> int:
        return shutil.disk_usage(folder).free
