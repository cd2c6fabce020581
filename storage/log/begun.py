"""The empty file beside a log's folder that tells that the log was begun.

Rows that never took an Entry look the same beside a log that was lost as a whole and beside one
that never was; what they lack would be lost silently.

    DATA/shard-0.log.begun
"""

from __future__ import annotations

from pathlib import Path

from storage.log.disk import Disk, open_small

_ENDING = ".begun"


def is_begun(disk: Disk, folder: Path) -> bool:
    """True if this log was begun. Raises OSError."""
    return folder.name + _ENDING in disk.list(folder.parent)


def note_begun(disk: Disk, folder: Path) -> None:
    """Note it, durably, once the log is there. Raises OSError."""
    if not is_begun(disk, folder):
        handle, _ = open_small(disk, folder.with_name(folder.name + _ENDING), 1)
        disk.close(handle)
