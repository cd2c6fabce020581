"""How far answers have gone out, noted beside a shard's database, so that one which comes back shorter is noticed.

    DATA/shard-0.answered    20 digits, a blank, 8 hex digits of CRC-32, a line feed

The number is RocksDB's own, of the last change that was as durable as configured before an answer told of it. It is written
in place ten times a second at most and never synced, so it may lag behind, and is never ahead of what was answered.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from zlib import crc32

_LINE = re.compile(rb"([0-9]{20}) ([0-9a-f]{8})\n")


class AnsweredMark:
    """The note of one shard."""

    def __init__(self, shard_folder: Path) -> None:
        """Open or create the file. Raises OSError."""
        self.file = _file_of(shard_folder)
        self._descriptor = os.open(self.file, os.O_RDWR | os.O_CREAT, 0o600)

    def read(self) -> int | None:
        """The number; None if none was noted. Raises ValueError if it is damaged."""
        return _number_in(os.pread(self._descriptor, 64, 0), self.file)

    def write(self, number: int) -> None:
        """Note it. Raises OSError."""
        digits = b"%020d" % number
        os.pwrite(self._descriptor, b"%b %08x\n" % (digits, crc32(digits)), 0)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def answered_of(shard_folder: Path) -> int:
    """What is noted beside a shard, without touching it; 0 if nothing is. Raises OSError, ValueError if it is damaged."""
    file = _file_of(shard_folder)
    return _number_in(file.read_bytes(), file) or 0 if file.exists() else 0


def _file_of(shard_folder: Path) -> Path:
    return shard_folder.with_name(shard_folder.name + ".answered")


def _number_in(line: bytes, file: Path) -> int | None:
    if not line:
        return None
    found = _LINE.fullmatch(line)
    if found is None or int(found[2], 16) != crc32(found[1]):
        raise ValueError(f"{file} is damaged")
    return int(found[1])
