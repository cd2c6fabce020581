"""A small file system in memory that can be filled up, made read-only, or left without inodes.

It needs root.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from compat_tests.faults.loop_disk import undisturbed

_LARGE, _SMALL = 1 << 26, 1 << 12
_INODES = 4000


def why_no_small_disk() -> str | None:
    """The reason why there can be no such disk here; None if there can."""
    return None if os.geteuid() == 0 else "mounting a tmpfs needs root"


class SmallDisk:
    """A mounted file system."""

    def __init__(self, mounted_at: Path) -> None:
        self.mounted_at = mounted_at
        self._ballast = mounted_at / "ballast"

    def fill_up(self) -> None:
        """Leave no byte. A program may go on in pages that its files have."""
        size, step = 0, _LARGE
        with self._ballast.open("wb") as stream:
            while step >= _SMALL:
                try:
                    os.posix_fallocate(stream.fileno(), size, step)
                    size += step
                except OSError:  # it is full
                    step //= 2

    def make_read_only(self) -> None:
        """Refuse every write. No file may be open for writing."""
        self._remount("ro")

    def use_up_inodes(self) -> None:
        """Leave no room for a file's name."""
        there = os.statvfs(self.mounted_at)
        self._remount(f"nr_inodes={there.f_files - there.f_ffree}")

    def free(self) -> None:
        """Take writes again."""
        self._remount(f"rw,nr_inodes={_INODES}")
        self._ballast.unlink(missing_ok=True)

    def _remount(self, options: str) -> None:
        _run("mount", "-o", f"remount,{options}", str(self.mounted_at))


@contextmanager
def small_disk(size: str) -> Iterator[tuple[Path, SmallDisk]]:
    """A folder elsewhere, and a disk of a size such as 96m that is mounted in it."""
    with TemporaryDirectory() as name:
        folder = Path(name, "disk")
        folder.mkdir()
        _run("mount", "-t", "tmpfs", "-o", f"size={size},nr_inodes={_INODES}", "tmpfs", str(folder))
        try:
            yield Path(name), SmallDisk(folder)
        finally:
            with undisturbed():
                _run("umount", "--lazy", str(folder))


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
