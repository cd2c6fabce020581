"""Segments: the files of a log, written with zeros before use and reused in place (rule 4).

A file is prepared by writing zeros over all of it and syncing that, or, if it held Entries before,
by reading it, so that its pages are in memory. An append then changes neither the file's size nor
its blocks, and never reads the disk. A file that cannot be read is written with zeros, and one that
cannot be written either is given up.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from storage.log.disk import NO_ROOM, Disk
from storage.log.header import Header, encode_header

SEGMENT_BYTES = 16 << 20
_SPARES = 1
"""Segments that are kept ready beside the one that is written."""
_RETRY_S = 1.0
_FAILURES_MAX = 2
"""Failures in a row after which a file is given up."""
_NOT_OPEN = -1
_PIECE_BYTES = 1 << 20
_NAME = re.compile(r"segment-([0-9]{8})")


@dataclass(slots=True, eq=False)
class Segment:
    """One open file."""

    name: str
    handle: int
    size: int
    """Invariant: at least HEADER_BYTES, and all of it is on the disk once it is prepared."""
    is_written: bool = False
    """True if it held Entries: then it need not be written with zeros."""
    first: int = 0
    last: int = 0
    """Indexes of the Entries that count; the last is set when the next segment begins."""
    used: int = 0
    """Bytes of those Entries."""
    has_remains: bool = False
    """True if it may hold Entries that never counted: they are overwritten before it is reused."""
    failures: int = 0
    """Failures in a row to read or to write a whole file, other than for lack of room."""


def segment_number(name: str) -> int | None:
    """The number in a segment's file name; None for other files."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else None


def write_header(disk: Disk, segment: Segment, header: Header) -> None:
    """Begin the segment anew. Not synced. Raises OSError."""
    disk.pwrite(segment.handle, encode_header(header), 0)


class Spares:
    """Prepares segments in their lane, and takes back those that are no longer needed."""

    def __init__(self, disk: Disk, folder: Path, segment_bytes: int, free: list[Segment]) -> None:
        """`free` are open files of the folder that nothing needs."""
        self._disk = disk
        self._folder = folder
        self.segment_bytes = segment_bytes
        self._free = free
        self._ready: list[Segment] = []
        self._given_up: list[Segment] = []
        """Open, although their names are gone, so that no other file gets their blocks so far."""
        self._logger = structlog.get_logger("store")
        numbers = (segment_number(name) for name in disk.list(folder))
        self._next_number = max((number for number in numbers if number is not None), default=0) + 1
        self._retry: asyncio.TimerHandle | None = None
        self._on_idle: Callable[[], None] | None = None
        self.is_preparing = False
        self.has_failed = False
        """True from a failure to make a segment to the next success."""

    @property
    def can_grow(self) -> bool:
        """False while there is no spare and none can be made: refuse sends. It is tried again each
        second."""
        return bool(self._ready) or not self.has_failed

    @property
    def spare_bytes(self) -> int:
        """Bytes of the files that hold nothing: disk space which is the log's already."""
        return sum(segment.size for segment in self._ready + self._free)

    def take(self) -> Segment:
        """A segment that is ready; blocks to make one if there is none. Raises OSError."""
        return self._ready.pop(0) if self._ready else self._make_now()

    def release(self, segment: Segment) -> None:
        """Keep the segment for reuse: its Entries are no longer needed."""
        segment.is_written = True
        segment.first = segment.last = segment.used = 0
        self._free.append(segment)

    def fill(self) -> None:
        """Have spares ready; blocks. A failure only shows in `can_grow`."""
        try:
            while len(self._ready) < _SPARES:
                self._ready.append(self._make_now())
        except OSError:
            self.has_failed = True

    def want(self) -> None:
        """Prepare a spare, unless there is one, or one is under way, or a retry is due soon."""
        if len(self._ready) >= _SPARES or self.is_preparing or self._retry or self._on_idle:
            return
        self.is_preparing = True
        segment = self._choose()
        self._disk.prepare(partial(self._make, segment), partial(self._made, segment))

    def give_back(self) -> None:
        """Remove the files that nothing needs, apart from a spare: the disk is short."""
        kept = 0 if self._ready or self.is_preparing else _SPARES
        while len(self._free) > kept:
            self._remove(self._free.pop())

    def close(self, on_idle: Callable[[], None]) -> None:
        """Close the files once nothing works on them, then call `on_idle`, perhaps at once."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        self._on_idle = on_idle
        if not self.is_preparing:
            self._close()

    def let_go(self, segments: list[Segment]) -> None:
        """Close the files of these segments."""
        for segment in segments:
            if segment.handle != _NOT_OPEN:
                with suppress(OSError):  # a failed disk lets go of the file all the same
                    self._disk.close(segment.handle)

    def _close(self) -> None:
        assert self._on_idle is not None
        self.let_go(self._ready + self._free + self._given_up)
        self._ready, self._free, self._given_up = [], [], []
        self._on_idle()

    def _made(self, segment: Segment, error: Exception | None) -> None:
        self.is_preparing = False
        if error is None:
            self._ready.append(segment)
        is_given_up = error is not None and self._take_back(segment)
        self.has_failed = error is not None and not is_given_up
        if self._on_idle is not None:
            self._close()
        elif is_given_up:
            self.want()
        elif error is not None:
            self._retry = asyncio.get_running_loop().call_later(_RETRY_S, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self.want()

    def _choose(self) -> Segment:
        """A file that nothing needs, or the name for a new one."""
        if self._free:
            return self._free.pop()
        name = f"segment-{self._next_number:08d}"
        self._next_number += 1
        return Segment(name, _NOT_OPEN, 0)

    def _take_back(self, segment: Segment) -> bool:
        """Keep a file that could not be prepared, or give it up: then True, and another can be
        tried at once. A new one without room is removed, which frees its space."""
        if segment.size < self.segment_bytes:
            self._remove(segment)
            return False
        if segment.failures < _FAILURES_MAX:
            self._free.append(segment)
            return False
        self._given_up.append(segment)
        self._logger.warning("log_file_given_up", file=str(self._folder / segment.name))
        return True

    def _remove(self, segment: Segment) -> None:
        if segment.handle == _NOT_OPEN:
            return
        with suppress(OSError):  # it is tried again when the log is opened
            self._disk.unlink(self._folder / segment.name)
        with suppress(OSError):  # a failed disk lets go of the file all the same
            self._disk.close(segment.handle)

    def _make_now(self) -> Segment:
        while True:
            segment = self._choose()
            try:
                self._make(segment)
            except OSError:
                if not self._take_back(segment):
                    raise
            else:
                return segment

    def _make(self, segment: Segment) -> None:
        """For any thread: nothing else uses the segment meanwhile."""
        if segment.handle == _NOT_OPEN:
            segment.handle = self._disk.open(self._folder / segment.name, create=True)
        is_whole = segment.size >= self.segment_bytes
        if is_whole and segment.is_written and not segment.has_remains and self._is_read(segment):
            return
        try:
            self._write_zeros(segment)
        except OSError as error:
            if is_whole and error.errno not in NO_ROOM:
                self._count_failure(segment)
            raise

    def _is_read(self, segment: Segment) -> bool:
        """False if the disk cannot read a part: zeros, once written, have it use other sectors."""
        try:
            for at in range(0, segment.size, _PIECE_BYTES):
                self._disk.pread(segment.handle, _PIECE_BYTES, at)
        except OSError:
            segment.failures += 1
            return False
        return True

    def _count_failure(self, segment: Segment) -> None:
        segment.failures += 1
        if segment.failures >= _FAILURES_MAX:
            with suppress(OSError):
                self._disk.unlink(self._folder / segment.name)

    def _write_zeros(self, segment: Segment) -> None:
        """The whole file, its size, and its name in the folder are durable afterwards."""
        segment.is_written = False  # a failure leaves it by halves
        size = max(segment.size, self.segment_bytes)
        self._disk.write_zeros(segment.handle, size, 0)
        self._disk.fdatasync(segment.handle)
        self._disk.sync_folder(self._folder)
        segment.size = size
        segment.has_remains = False
        segment.failures = 0


class SegmentsInUse:
    """Those with Entries that are not released, in order; the last one is written."""

    def __init__(self, segments: list[Segment], spares: Spares) -> None:
        self.all = segments
        self._spares = spares
        self._unsynced = [segments[-1]]
        """Those that may hold what is not synced, in order; always the last one."""
        self.older_bytes = sum(segment.used for segment in segments[:-1])
        """Bytes of Entries in segments before the last one."""

    def begin_next(self, last: int, used: int) -> Segment:
        """Go over to the next segment; the present one ends with the Entry `last`, and has `used`
        bytes of Entries. Raises OSError."""
        segment, ended = self._spares.take(), self.all[-1]
        ended.last, ended.used = last, used
        self.older_bytes += used
        segment.first = last + 1
        self.all.append(segment)
        self._unsynced.append(segment)
        return segment

    def unsynced_handles(self) -> list[int]:
        """The files to sync, older ones first."""
        return [segment.handle for segment in self._unsynced]

    def synced(self, reached: int) -> None:
        """The Entries up to this one are durable."""
        while len(self._unsynced) > 1 and self._unsynced[0].last <= reached:
            del self._unsynced[0]

    def release(self, index: int) -> list[Segment]:
        """Reuse those without Entries above `index`, and return them."""
        released = [segment for segment in self.all[:-1] if segment.last <= index]
        for segment in released:
            self.all.remove(segment)
            if segment in self._unsynced:
                self._unsynced.remove(segment)
            self.older_bytes -= segment.used
            self._spares.release(segment)
        self._spares.want()
        return released

    def close(self) -> None:
        """Let go of the files."""
        self._spares.let_go(self.all)
