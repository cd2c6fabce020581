"""A file system in a file, whose power can be cut: unsynced data is lost, as on a real machine.

The file-system shutdown of ext4 and xfs stops all writing at once; unwritten data is gone after the
next mount, which replays the journal. Torn sectors are not modelled, and data that the kernel
happened to write back before survives. Needs root, loop devices and mkfs; `why_not` names a missing
one.
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FILE_SYSTEMS = {
    "ext4": ["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
    "xfs": ["mkfs.xfs", "-q", "-f"],
}
"""The command that makes each, with options that leave no work for later."""

_IMAGE_BYTES = 640 << 20  # sparse; xfs wants 300 MiB at least
_SHUTDOWN = 0x8004587D  # _IOR('X', 125, __u32), the same for both
_LOG_FLUSH, _NO_LOG_FLUSH = 1, 2
_UNMOUNT_TRIES = 50


def why_not(file_system: str) -> str | None:
    """The reason why this machine cannot have such a disk; None if it can."""
    if os.geteuid() != 0:
        return "mounting a loop device needs root"
    program = FILE_SYSTEMS[file_system][0]
    if shutil.which(program, path=_PATH) is None:
        return f"{program} is not installed"
    if not Path("/dev/loop-control").exists():
        return "there are no loop devices"
    return None


_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def _run(*words: str) -> None:
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env={**os.environ, "PATH": _PATH}
    )
    if done.returncode != 0:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")


@contextmanager
def undisturbed() -> Iterator[None]:
    """Delay a second Ctrl-C until the cleaning up is done."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)


class LoopDisk:
    """A mounted file system in `folder`; as a context manager it removes its mount and loop
    device."""

    def __init__(self, folder: Path, file_system: str, *, image_bytes: int = _IMAGE_BYTES) -> None:
        self.mounted_at = folder / "disk"
        self._image = folder / "disk.image"
        self._file_system = file_system
        self._image_bytes = image_bytes

    def __enter__(self) -> LoopDisk:
        self.mounted_at.mkdir(parents=True)
        with self._image.open("wb") as image:
            image.truncate(self._image_bytes)
        _run(*FILE_SYSTEMS[self._file_system], str(self._image))
        self.mount()
        return self

    def __exit__(self, *exception: object) -> None:
        with undisturbed():
            if self.mounted_at.is_mount():
                self.unmount()
            self._image.unlink(missing_ok=True)

    def mount(self) -> None:
        """Mount it; the loop device goes away with the mount."""
        kind = self._file_system
        _run("mount", "-t", kind, "-o", "loop", str(self._image), str(self.mounted_at))

    def unmount(self) -> None:
        """Unmount it. Processes that had files open must have ended."""
        for _ in range(_UNMOUNT_TRIES):
            try:
                _run("umount", str(self.mounted_at))
            except OSError:
                time.sleep(0.1)  # the kernel is still closing files of a killed process
            else:
                return
        _run("umount", "--lazy", str(self.mounted_at))

    def cut_power(self, chance: random.Random) -> None:
        """Stop all writing now. At random, the journal's end is written or not; unsynced data never
        is."""
        flags = chance.choice((_LOG_FLUSH, _NO_LOG_FLUSH))
        descriptor = os.open(self.mounted_at, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, flags.to_bytes(4, "little"))
        finally:
            os.close(descriptor)
