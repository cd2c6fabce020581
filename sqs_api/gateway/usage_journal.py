"""UsageJournal: counters of answered requests in a mapped file, which outlive this process however
it ends.

    chunks of 64 KiB
      first        day the counters belong to, 10 bytes of text, padded to 64
      each         records: 4 counters of 8 bytes, length of the key in 8 bytes, the key,
                   padded to 8

A key is `account queue-arn kind`, with an empty ARN where there is no queue; version 0.1 wrote no
kind. Records may share account and queue, and are added up.

A store into a mapped file costs no system call, and `kill -9` cannot take it back: the page is the
system's. When it reaches the disk is up to the system, so a power failure may lose a journal. A
chunk is written with zeros before it is mapped: a mapped file with holes would end the process by
SIGBUS once the disk is full.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_PREFIX, _SUFFIX = "usage-", ".journal"
_NUMBERED = re.compile(rf"{_PREFIX}w([0-9]+)\.")
_CHUNK = 64 * 1024
_HEADER = 64
_DAY = 10
COUNTER_MAX = (1 << 63) - 1
"""More fits no database, and is damage."""
_RECORD = struct.Struct("=4QQ")


class Counted(NamedTuple):
    """One record; `queue` is an ARN, or empty."""

    account: str
    queue: str
    requests: int
    billed_requests: int
    bytes_in: int
    bytes_out: int


class Writer(NamedTuple):
    """One of the processes that write journals into a folder, which are numbered from 0."""

    number: int
    total: int

    @property
    def prefix(self) -> str:
        """The beginning of its journals' names."""
        return f"{_PREFIX}w{self.number}." if self.number else _PREFIX

    def has(self, name: str) -> bool:
        """True for its own journals; the first one takes those of writers that are no more."""
        found = _NUMBERED.match(name)
        number = int(found[1]) if found else 0
        return (number if number < self.total else 0) == self.number


ALONE = Writer(0, 1)


class UsageJournal:
    """A journal of this process."""

    def __init__(self, folder: Path, day: str, writer: Writer) -> None:
        """Make a file of a name that no journal had. Raises OSError."""
        self._file, name = tempfile.mkstemp(_SUFFIX, writer.prefix, folder)
        self._size = 0
        try:
            self._first = self._chunk = self._add_chunk()
        except BaseException:
            self.close()
            os.unlink(name)
            raise
        self._at = _HEADER
        self.set_day(day)

    def set_day(self, day: str) -> None:
        """Set the day that the counters belong to, such as "2026-11-22"."""
        self._first[: len(day)] = day.encode()

    def counters(self, account: str, queue: str, kind: str) -> memoryview[int]:
        """New counters, to be added to in place: requests, billed requests, bytes in, bytes out.

        Raises OSError.
        """
        key = f"{account} {queue} {kind}".encode()
        size = _RECORD.size + -(-len(key) // 8) * 8
        if self._at + size > _CHUNK:
            self._chunk, self._at = self._add_chunk(), 0
        at, self._at = self._at, self._at + size
        self._chunk[at + _RECORD.size : at + _RECORD.size + len(key)] = key
        words = memoryview(self._chunk).cast("Q")[at // 8 : at // 8 + 5]
        words[4] = len(key)  # last: without it there is no record
        return words

    def _add_chunk(self) -> mmap.mmap:
        if os.pwrite(self._file, bytes(_CHUNK), self._size) < _CHUNK:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        chunk = mmap.mmap(self._file, _CHUNK, offset=self._size)
        self._size += _CHUNK
        return chunk

    def close(self) -> None:
        """Begin no more records; counters that were handed out can still be added to."""
        os.close(self._file)


def read_journal(file: Path) -> tuple[str, list[Counted]]:
    """The day and the records of a journal, of this process or another. Raises OSError.

    After a power failure, parts of it may be zeros: records end there, and a journal without a day
    has none.
    """
    content = file.read_bytes()
    day = content[:_DAY].strip(b"\0").decode("ascii", errors="replace")
    chunks = [content[start : start + _CHUNK] for start in range(0, len(content), _CHUNK)]
    starts = [_HEADER, *[0] * len(chunks)]
    found = [
        each for chunk, at in zip(chunks, starts, strict=False) for each in _records(chunk, at)
    ]
    return day, found if len(day) == _DAY else []


def _records(chunk: bytes, at: int) -> Iterator[Counted]:
    while at + _RECORD.size <= len(chunk):
        *numbers, length = _RECORD.unpack_from(chunk, at)
        key = chunk[at + _RECORD.size : at + _RECORD.size + length]
        account, separator, rest = key.decode("ascii", errors="replace").partition(" ")
        if not separator or max(numbers) > COUNTER_MAX:
            return
        yield Counted(account, rest.partition(" ")[0], *numbers)
        at += _RECORD.size + -(-length // 8) * 8


def journals_in(folder: Path) -> list[Path]:
    """The journals in a folder."""
    return sorted(folder.glob(f"{_PREFIX}*{_SUFFIX}"))


def own_journals_in(folder: Path, writer: Writer) -> list[Path]:
    """Those of them that are a writer's."""
    return [file for file in journals_in(folder) if writer.has(file.name)]
