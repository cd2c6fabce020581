"""Log: appends Entries to the current segment and makes them durable.

It belongs to the event loop's thread.

A log that failed stays failed (rule 9): its owner closes it, reads the folder again and opens a new
one (`log_opening.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypedDict
from zlib import crc32

from storage.log.disk import Disk
from storage.log.entry import ENTRY_BYTES_MAX, QUEUE_IDS_MAX, Position, encode_entry
from storage.log.header import HEADER_BYTES, Header
from storage.log.log_segments import Segment, Spares, write_header


class LogFailed(Exception):
    """The disk refused a write or a sync, or the log is closed: what is not synced is unknown."""


class LogFull(Exception):
    """There is no room for another segment. Nothing was written; try again once there is."""


class EntryTooLarge(ValueError):
    """The record is over the limit of an Entry, or larger than a segment."""


class Opened(TypedDict):
    """The parts of a Log, see there."""

    disk: Disk
    folder: Path
    log_id: bytes
    term: int
    end: Position
    segments: list[Segment]
    offset: int
    spares: Spares
    copied: int


class Log:
    """The log of one shard, open for writing; `open_log` makes it."""

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        log_id: bytes,
        term: int,
        *,
        end: Position,
        segments: list[Segment],
        offset: int,
        spares: Spares,
        copied: int,
    ) -> None:
        """`segments` hold what the rows lack, durably; the last one is written next, at `offset`.

        `copied` is for the headers of the segments to come.
        """
        self.folder = folder
        self.log_id = log_id
        self.term = term
        """The term of every Entry appended here; no other opening of the log has it."""
        self.last_term = end.term
        self.last_index = end.index
        self.last_checksum = end.checksum
        self.synced_index = end.index
        """Up to here the log is durable."""
        self.failure: LogFailed | None = None
        self._copied = copied
        self._disk = disk
        self._pwrite = disk.pwrite
        self._seed = crc32(log_id)
        self._spares = spares
        self._record_bytes_max = min(ENTRY_BYTES_MAX, spares.segment_bytes - HEADER_BYTES)
        self._segments = segments
        """Those with Entries that are not released, the current one last."""
        self._current = segments[-1]
        self._handle = self._current.handle
        self._offset = offset
        """Invariant: a multiple of 8; nothing of this log lies behind it."""
        self._unsynced = [self._current]
        """Segments that may hold what is not synced, in order; always the current one."""
        self._older_bytes = sum(segment.used for segment in segments[:-1])
        """Bytes of Entries in segments before the current one."""
        self._syncs = 0
        """Under way in the sync lane."""
        self._on_closed: Callable[[], None] | None = None

    # -- writing -----------------------------------------------------------------------------------

    def append(self, body: bytes, queue_ids: Sequence[int] = ()) -> int:
        """Write an Entry, not yet durable; returns its index.

        Blocks only if no spare segment is ready. Raises EntryTooLarge, LogFull, and LogFailed,
        after which nothing works.
        """
        if len(queue_ids) > QUEUE_IDS_MAX:
            raise EntryTooLarge(f"{len(queue_ids)} queues in one Entry")
        record, checksum = encode_entry(
            body,
            queue_ids,
            self._seed,
            term=self.term,
            index=self.last_index + 1,
            previous=self.last_checksum,
            synced=self.synced_index,
        )
        self._write(record, self.term, checksum)
        return self.last_index

    def _write(self, record: bytes, term: int, checksum: int) -> None:
        """Write the record of the next Entry."""
        if self.failure is not None:
            raise self.failure
        if len(record) > self._record_bytes_max:
            raise EntryTooLarge(f"an Entry of {len(record)} bytes")
        end = self._offset + len(record)
        if end > self._current.size:
            self._change_segment()
            end = self._offset + len(record)
        try:
            self._pwrite(self._handle, record, self._offset)
        except OSError as error:
            raise self._fail("cannot append to the log", error) from error
        self._offset = end
        self.last_term = term
        self.last_index += 1
        self.last_checksum = checksum

    def sync(self, done: Callable[[LogFailed | None], None]) -> None:
        """Make durable all that was appended so far; then call `done`, on the loop, in order."""
        reached = self.last_index
        handles = [segment.handle for segment in self._unsynced]
        self._syncs += 1
        self._disk.run(partial(self._sync_all, handles), partial(self._synced, reached, done))
        self._spares.want()

    def release(self, index: int) -> None:
        """The rows hold everything up to `index` durably: reuse segments without later Entries."""
        kept = []
        for segment in self._segments:
            if segment is self._current or segment.last > index:
                kept.append(segment)
                continue
            if segment in self._unsynced:
                self._unsynced.remove(segment)
            self._older_bytes -= segment.used
            self._spares.release(segment)
        self._segments = kept
        self._spares.want()

    def _change_segment(self) -> None:
        """Go over to the next segment. The next sync that counts syncs the old one first."""
        try:
            segment = self._spares.take()
        except OSError as error:
            raise LogFull(f"cannot make another segment of the log: {error.strerror}") from error
        old = self._current
        old.last = self.last_index
        old.used = self._offset - HEADER_BYTES
        self._older_bytes += old.used
        segment.first = self.last_index + 1
        self._segments.append(segment)
        self._unsynced.append(segment)
        self._current, self._handle, self._offset = segment, segment.handle, HEADER_BYTES
        header = Header(
            self.log_id,
            self.term,
            segment.first,
            self.last_checksum,
            self.synced_index,
            self._copied,
            segment.size,
        )
        try:
            write_header(self._disk, segment, header)
        except OSError as error:
            raise self._fail("cannot begin a segment of the log", error) from error
        self.sync(_ignore)  # so that the old one is synced even if the owner never asks for that

    def _sync_all(self, handles: list[int]) -> None:
        """In the sync lane, older segments first."""
        for handle in handles:
            self._disk.fdatasync(handle)

    def _synced(
        self, reached: int, done: Callable[[LogFailed | None], None], error: Exception | None
    ) -> None:
        self._syncs -= 1
        if error is not None:
            self._fail("cannot sync the log", error)
        if self.failure is None:
            self.synced_index = max(self.synced_index, reached)
            while self._unsynced[0] is not self._current and self._unsynced[0].last <= reached:
                del self._unsynced[0]
        done(self.failure)
        self._close_if_idle()

    def _fail(self, text: str, error: Exception) -> LogFailed:
        if self.failure is None:
            self.failure = LogFailed(f"{text}: {error}")
        return self.failure

    # -- reading -----------------------------------------------------------------------------------

    @property
    def last(self) -> Position:
        """The Entry appended last, or the last one before this opening."""
        return Position(self.last_term, self.last_index, self.last_checksum)

    @property
    def live_bytes(self) -> int:
        """Bytes of Entries in segments that are not released. The current one counts as a whole."""
        return self._older_bytes + self._offset - HEADER_BYTES

    @property
    def spare_bytes(self) -> int:
        """Bytes of segments that hold nothing: disk space which is the log's already."""
        return self._spares.spare_bytes

    def give_back(self) -> None:
        """Remove the segments that hold nothing, apart from a spare: the disk is short."""
        self._spares.give_back()

    @property
    def can_grow(self) -> bool:
        """False while there is no spare segment and none can be made: refuse sends.

        It is tried again each second.
        """
        return self._spares.can_grow

    # -- the end -----------------------------------------------------------------------------------

    def close(self, closed: Callable[[], None]) -> None:
        """Let go of the files once both lanes are done with them; then, perhaps at once, `closed`.

        Nothing is synced by it. The folder must not be opened again before that.
        """
        if self.failure is None:
            self.failure = LogFailed("the log is closed")
        self._on_closed = closed
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._on_closed is None or self._syncs:
            return
        closed, self._on_closed = self._on_closed, None
        for segment in self._segments:
            with suppress(OSError):  # a failed disk lets go of the file all the same
                self._disk.close(segment.handle)
        self._spares.close(closed)


def _ignore(failure: LogFailed | None) -> None:
    """A failure shows at the next append."""
