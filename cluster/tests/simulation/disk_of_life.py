"""The disk as one life of the worker sees it: with the end of that life it is out of reach."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from storage.log.disk import Done, Work
from storage.tests.simulated_disk import PowerCut, SimulatedDisk


class WatchedDisk(SimulatedDisk):
    """Says when its power is cut."""

    on_cut: Callable[[], None]

    def _change(self) -> None:
        try:
            super()._change()
        except PowerCut:
            self.on_cut()
            raise


class LifeDisk:
    """Implements `storage.log.disk.Disk` until `is_over`."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk
        self.is_over = False

    def _check(self) -> SimulatedDisk:
        if self.is_over:
            raise PowerCut
        return self._disk

    def make_folder(self, folder: Path) -> None:
        """See Disk."""
        self._check().make_folder(folder)

    def list(self, folder: Path) -> list[str]:
        """See Disk."""
        return self._check().list(folder)

    def open(self, file: Path, *, create: bool = False) -> int:
        """See Disk."""
        return self._check().open(file, create=create)

    def open_to_read(self, file: Path) -> int:
        """See Disk."""
        return self._check().open_to_read(file)

    def size(self, handle: int) -> int:
        """See Disk."""
        return self._check().size(handle)

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        """See Disk."""
        return self._check().pread(handle, size, offset)

    def pwrite(self, handle: int, data: bytes, offset: int) -> None:
        """See Disk."""
        self._check().pwrite(handle, data, offset)

    def write_zeros(self, handle: int, size: int, offset: int) -> None:
        """See Disk."""
        self._check().write_zeros(handle, size, offset)

    def fdatasync(self, handle: int) -> None:
        """See Disk."""
        self._check().fdatasync(handle)

    def sync_folder(self, folder: Path) -> None:
        """See Disk."""
        self._check().sync_folder(folder)

    def unlink(self, file: Path) -> None:
        """See Disk."""
        self._check().unlink(file)

    def rename_folder(self, folder: Path, to: Path) -> None:
        """See Disk."""
        self._check().rename_folder(folder, to)

    def close(self, handle: int) -> None:
        """See Disk."""
        self._check().close(handle)

    def run(self, work: Work, done: Done) -> None:
        """See Disk."""
        if not self.is_over:
            self._disk.run(work, done)

    def prepare(self, work: Work, done: Done) -> None:
        """See Disk."""
        if not self.is_over:
            self._disk.prepare(work, done)

    def stop(self) -> None:
        """See Disk."""
