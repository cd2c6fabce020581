"""Disk: the log's interface to files and threads, so that the simulator can replace both.

Calls block and raise OSError. On the event loop the log only calls `pwrite`; everything else runs
in one of two lanes: `run` for syncs, `prepare` for new segments, whose 16 MiB of zeros must not
delay a sync.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

from typing_extensions import override

from storage.files.folder import sync_folder

Work = Callable[[], object]
Done = Callable[[Exception | None], None]
"""Called on the event loop with the error that the work raised."""

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ZEROS = bytes(1 << 20)


def open_small(disk: Disk, file: Path, size: int) -> tuple[int, bytes]:
    """Open or create a small file, whose name is durable then: its handle and up to `size` bytes.

    Raises OSError, with nothing left open.
    """
    handle = disk.open(file, create=True)
    try:
        data = disk.pread(handle, size, 0)
        disk.sync_folder(file.parent)
    except BaseException:
        disk.close(handle)
        raise
    return handle, data


class Disk(Protocol):
    """Files of a log and the threads that work on them."""

    def make_folder(self, folder: Path) -> None:
        """Make the folder if it does not exist, durably. The folder above it must exist."""

    def list(self, folder: Path) -> list[str]:
        """The names in a folder, in order; none if it does not exist."""

    def open(self, file: Path, *, create: bool = False) -> int:
        """A handle for reading and writing; `create` makes an empty file if there is none."""

    def open_to_read(self, file: Path) -> int:
        """A handle for reading."""

    def size(self, handle: int) -> int:
        """Bytes of the file."""

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        """Up to `size` bytes; fewer at the end of the file."""

    def pwrite(self, handle: int, data: bytes, offset: int) -> None:
        """Write all of the data into the page cache. Raises OSError, even after a part."""

    def write_zeros(self, handle: int, size: int, offset: int) -> None:
        """Write zeros in large pieces; none if the disk can tell that there is no room for all.
        Raises OSError, even after a part."""

    def fdatasync(self, handle: int) -> None:
        """Make written data and the file's size durable."""

    def sync_folder(self, folder: Path) -> None:
        """Make the names in the folder durable."""

    def unlink(self, file: Path) -> None:
        """Remove a file."""

    def rename_folder(self, folder: Path, to: Path) -> None:
        """Give a folder another name beside it, durably. `to` must not exist, or be empty."""

    def close(self, handle: int) -> None:
        """Close a handle."""

    def run(self, work: Work, done: Done) -> None:
        """Do the work in the sync lane, in order, then call `done` on the running event loop."""

    def prepare(self, work: Work, done: Done) -> None:
        """The same in the lane for preparing segments."""

    def stop(self) -> None:
        """End the threads after their queued work. Does not wait for that."""


class SystemDisk(Disk):
    """The operating system's files, and a thread for each lane that is used."""

    def __init__(self) -> None:
        self._syncs = _Lane("sync")
        self._preparations = _Lane("prepare")

    @override
    def make_folder(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)

    @override
    def list(self, folder: Path) -> list[str]:
        return sorted(os.listdir(folder)) if folder.is_dir() else []

    @override
    def open(self, file: Path, *, create: bool = False) -> int:
        return os.open(file, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)

    @override
    def open_to_read(self, file: Path) -> int:
        return os.open(file, os.O_RDONLY | os.O_CLOEXEC)

    @override
    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    @override
    def pread(self, handle: int, size: int, offset: int) -> bytes:
        return os.pread(handle, size, offset)

    @override
    def pwrite(self, handle: int, data: bytes, offset: int) -> None:
        if os.pwrite(handle, data, offset) != len(data):
            raise OSError(errno.ENOSPC, "the disk took a part of the data only")

    @override
    def write_zeros(self, handle: int, size: int, offset: int) -> None:
        try:
            os.posix_fallocate(handle, offset, size)
        except OSError as error:
            if error.errno in NO_ROOM:  # others: this file system cannot tell
                raise
        for at in range(0, size, len(_ZEROS)):
            self.pwrite(handle, _ZEROS[: size - at], offset + at)

    @override
    def fdatasync(self, handle: int) -> None:
        os.fdatasync(handle)

    @override
    def sync_folder(self, folder: Path) -> None:
        sync_folder(folder)

    @override
    def unlink(self, file: Path) -> None:
        file.unlink()

    @override
    def rename_folder(self, folder: Path, to: Path) -> None:
        folder.rename(to)
        sync_folder(folder.parent)

    @override
    def close(self, handle: int) -> None:
        os.close(handle)

    @override
    def run(self, work: Work, done: Done) -> None:
        self._syncs.put(work, done)

    @override
    def prepare(self, work: Work, done: Done) -> None:
        self._preparations.put(work, done)

    @override
    def stop(self) -> None:
        """End the threads after their queued work, which must be the last; does not wait."""
        self._syncs.stop()
        self._preparations.stop()


class _Lane:
    """A daemon thread that runs one job after the other; started on first use."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: SimpleQueue[tuple[Work, Done, asyncio.AbstractEventLoop] | None] = (
            SimpleQueue()
        )
        self._thread: threading.Thread | None = None

    def put(self, work: Work, done: Done) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self._waiting.put((work, done, asyncio.get_running_loop()))

    def stop(self) -> None:
        if self._thread is not None:
            self._waiting.put(None)
            self._thread = None

    def _work(self) -> None:
        while (given := self._waiting.get()) is not None:
            work, done, loop = given
            failure: Exception | None = None
            try:
                work()
            except Exception as error:  # of any kind: the loop decides on its meaning
                failure = error
            try:
                loop.call_soon_threadsafe(done, failure)
            except RuntimeError:  # the loop is closed: there is nobody to tell
                continue
