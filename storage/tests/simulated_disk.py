"""SimulatedDisk: the log's files in memory, with the effects of power failures and failed syncs.

A file has a durable content and a visible one. Each written and unsynced sector of 512 bytes may or
may not survive a power failure; names in an unsynced folder may be missing. After a failed sync,
its sectors count as clean: later syncs "succeed" without them, as on Linux. Work in lanes takes
virtual time on the running loop. The log itself is the real one (rule 34).
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from random import Random

from storage.log.disk import Done, Work

SECTOR = 512
PAGE_BYTES = 4096


class PowerCut(Exception):
    """The machine lost its power during this call; call `crash`."""


class SimulatedFile:
    """One file."""

    def __init__(self) -> None:
        self.durable = bytearray()
        self.content = bytearray()
        """The content that reads see."""
        self.dirty: set[int] = set()
        """Sectors that the next sync writes."""
        self.dropped: set[int] = set()
        """Sectors that a failed sync gave up: durable by chance only."""
        self.unreadable_pages: set[int] = set()
        """Pages for which the disk gives an error, until they are written."""
        self.refuses_writes = False
        """True: it has sectors that the disk cannot write."""

    def write(self, data: bytes, offset: int) -> None:
        end = offset + len(data)
        self.unreadable_pages.difference_update(
            range(offset // PAGE_BYTES, (end - 1) // PAGE_BYTES + 1)
        )
        if end > len(self.content):
            self.content.extend(bytes(end - len(self.content)))
        self.content[offset:end] = data
        written = range(offset // SECTOR, (end + SECTOR - 1) // SECTOR)
        self.dirty.update(written)
        self.dropped.difference_update(written)

    def write_back(self, sector: int) -> None:
        """Make one sector durable."""
        begin, end = sector * SECTOR, min((sector + 1) * SECTOR, len(self.content))
        if end > len(self.durable):
            self.durable.extend(bytes(end - len(self.durable)))
        self.durable[begin:end] = self.content[begin:end]

    def sync(self) -> None:
        for sector in self.dirty:
            self.write_back(sector)
        self.dirty.clear()

    def fail_sync(self, random: Random) -> None:
        """Some sectors were written, the others never will be."""
        for sector in sorted(self.dirty):
            if random.random() < 0.3:
                self.write_back(sector)
            else:
                self.dropped.add(sector)
        self.dirty.clear()

    def lose_power(self, random: Random) -> None:
        chance = random.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        for sector in sorted(self.dirty | self.dropped):
            if random.random() < chance:
                self.write_back(sector)
        self.content = bytearray(self.durable)
        self.dirty.clear()
        self.dropped.clear()


class SimulatedDisk:
    """Implements `storage.log.disk.Disk`; everything that happens by chance comes from `random`."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._files: dict[Path, SimulatedFile] = {}
        self._durable_names: dict[Path, SimulatedFile] = {}
        self._handles: dict[int, SimulatedFile] = {}
        self._next_handle = 3
        self._life = 0
        self._busy_until = [0.0, 0.0]
        self.sync_s = (0.0001, 0.002)
        """Least and greatest duration of work in a lane."""
        self.failing_syncs = 0
        """Number of next syncs that fail."""
        self.short_writes = 0
        """Number of next writes that stop half way."""
        self.is_full = False
        """True: no file can grow or be made."""
        self.calls_until_cut: int | None = None
        """After this many calls that change something the power is cut."""
        self.is_off = False

    # -- faults ------------------------------------------------------------------------------------

    def kill(self) -> None:
        """End the process: handles and lanes are gone, the page cache stays."""
        self._life += 1
        self._handles.clear()
        self._busy_until = [0.0, 0.0]
        self.is_off = False
        self.calls_until_cut = None

    def stop(self) -> None:
        """See Disk. Lanes have no threads here."""

    def crash(self) -> None:
        """Cut the power: unsynced data survives at random."""
        self.kill()
        for file, content in list(self._files.items()):
            if self._durable_names.get(file) is not content and self._random.random() < 0.5:
                del self._files[file]
        for file, content in self._durable_names.items():
            if file not in self._files and self._random.random() < 0.5:
                self._files[file] = content
        for content in self._files.values():
            content.lose_power(self._random)
        self._durable_names = dict(self._files)

    def forget_unsynced(self) -> None:
        """Let nothing that was not synced survive the next power failure."""
        for file in self._files.values():
            file.content = bytearray(file.durable)
            file.dirty.clear()
            file.dropped.clear()

    def copied(self) -> dict[Path, SimulatedFile]:
        """A copy of all files, as a backup of the volume has it."""
        return {path: deepcopy(file) for path, file in self._files.items()}

    def put_back(self, copy: Mapping[Path, SimulatedFile]) -> None:
        """Replace all files by those of a copy, while no process runs."""
        assert not self._handles
        self._files = {path: deepcopy(file) for path, file in copy.items()}
        self._durable_names = dict(self._files)

    def file(self, path: Path) -> SimulatedFile:
        """A file, to look into or to damage."""
        return self._files[path]

    def flip(self, path: Path, offset: int, bit: int = 0) -> None:
        """Flip a bit, on the disk and in memory."""
        file = self._files[path]
        for content in (file.durable, file.content):
            if offset < len(content):
                content[offset] ^= 1 << bit

    def flip_in(self, folder: Path, content: bytes, within: int = 0) -> None:
        """Flip a bit of this content in the newest file of a folder that has it."""
        for name in self.list(folder)[::-1]:
            at = self.file(folder / name).content.find(content)
            if at >= 0:
                self.flip(folder / name, at + within)
                return
        raise AssertionError(content)

    def truncate(self, path: Path, size: int) -> None:
        """Cut a file off."""
        file = self._files[path]
        del file.durable[size:], file.content[size:]

    def _change(self) -> None:
        if self.calls_until_cut is not None:
            self.calls_until_cut -= 1
            self.is_off = self.is_off or self.calls_until_cut < 0
        if self.is_off:
            raise PowerCut

    def _of(self, handle: int) -> SimulatedFile:
        if self.is_off:
            raise PowerCut
        if handle not in self._handles:
            raise OSError(errno.EBADF, "bad handle")
        return self._handles[handle]

    # -- Disk --------------------------------------------------------------------------------------

    def make_folder(self, folder: Path) -> None:
        self._change()

    def list(self, folder: Path) -> list[str]:
        return sorted(file.name for file in _within(folder, self._files))

    def open(self, file: Path, *, create: bool = False) -> int:
        if file not in self._files:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file")
            self._change()
            if self.is_full:
                raise OSError(errno.ENOSPC, "No space left on device")
            self._files[file] = SimulatedFile()
        self._next_handle += 1
        self._handles[self._next_handle] = self._files[file]
        return self._next_handle

    def open_to_read(self, file: Path) -> int:
        return self.open(file)

    def size(self, handle: int) -> int:
        return len(self._of(handle).content)

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        file = self._of(handle)
        if any(
            offset < (page + 1) * PAGE_BYTES and page * PAGE_BYTES < offset + size
            for page in file.unreadable_pages
        ):
            raise OSError(errno.EIO, "Input/output error")
        return bytes(file.content[offset : offset + size])

    def pwrite(self, handle: int, data: bytes, offset: int) -> None:
        self._change()
        file = self._of(handle)
        if self.is_full and offset + len(data) > len(file.content):
            raise OSError(errno.ENOSPC, "No space left on device")
        if file.refuses_writes:
            raise OSError(errno.EIO, "Input/output error")
        if self.short_writes:
            self.short_writes -= 1
            file.write(data[: len(data) // 2], offset)
            raise OSError(errno.EIO, "the disk took a part of the data only")
        file.write(data, offset)
        if self._random.random() < 0.1:  # the kernel writes some of it when it likes
            for sector in self._random.sample(sorted(file.dirty), min(2, len(file.dirty))):
                file.write_back(sector)

    def write_zeros(self, handle: int, size: int, offset: int) -> None:
        self.pwrite(handle, bytes(size), offset)

    def fdatasync(self, handle: int) -> None:
        self._change()
        file = self._of(handle)
        if self.failing_syncs:
            self.failing_syncs -= 1
            file.fail_sync(self._random)
            raise OSError(errno.EIO, "Input/output error")
        file.sync()

    def sync_folder(self, folder: Path) -> None:
        self._change()
        for file in _within(folder, self._durable_names):
            del self._durable_names[file]
        for file in _within(folder, self._files):
            self._durable_names[file] = self._files[file]

    def unlink(self, file: Path) -> None:
        self._change()
        del self._files[file]

    def rename_folder(self, folder: Path, to: Path) -> None:
        self._change()
        for files in (self._files, self._durable_names):
            for file in _within(folder, files):
                files[to / file.name] = files.pop(file)

    def close(self, handle: int) -> None:
        self._of(handle)
        del self._handles[handle]

    @property
    def open_handles(self) -> int:
        """To find handles that nothing closed."""
        return len(self._handles)

    def run(self, work: Work, done: Done) -> None:
        self._put(0, work, done)

    def prepare(self, work: Work, done: Done) -> None:
        self._put(1, work, done)

    def _put(self, lane: int, work: Work, done: Done) -> None:
        """Run the work at some instant in between; call `done` at the end."""
        loop = asyncio.get_running_loop()
        begin = max(loop.time(), self._busy_until[lane])
        end = self._busy_until[lane] = begin + self._random.uniform(*self.sync_s)
        loop.call_at(self._random.uniform(begin, end), self._work, self._life, work, done, end)

    def _work(self, life: int, work: Work, done: Done, end: float) -> None:
        failure: Exception | None = None
        if life != self._life or self.is_off:
            return
        try:
            work()
        except PowerCut:
            return
        except Exception as error:
            failure = error
        asyncio.get_running_loop().call_at(end, self._done, life, done, failure)

    def _done(self, life: int, done: Done, failure: Exception | None) -> None:
        if life == self._life and not self.is_off:
            done(failure)


def _within(folder: Path, files: Iterable[Path]) -> list[Path]:
    """The files of a folder."""
    name = str(folder)
    return [file for file in files if str(file).rpartition("/")[0] == name]
