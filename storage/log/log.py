"""Log: appends Entries to the current segment and makes them durable; ReplicaLog: the same of a
shard that several hosts have.

A log that failed stays failed (rule 9): its owner closes it, reads the folder again and opens a new
one (`log_opening.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from typing_extensions import override

from storage.log.disk import Disk
from storage.log.entry import (
    BEGINNING,
    ENTRY_BYTES_MAX,
    NEWEST_FORMAT,
    Entry,
    EntryTooLarge,
    Misfit,
    NewerFormat,
    Position,
    encode_entry,
    read_entry,
)
from storage.log.header import HEADER_BYTES, Header
from storage.log.log_entries import Got, LogEntries
from storage.log.log_segments import Segment, SegmentsInUse, Spares, write_header


class LogFailed(Exception):
    """The disk refused a write or a sync, or the log is closed: unsynced Entries may be lost."""


class LogFull(Exception):
    """There is no room for another segment. Nothing was written; try again once there is."""


class NotNext(ValueError):
    """The record is not the Entry that follows the log's last one."""


class Diverged(NamedTuple):
    """Entries behind this index are to be forgotten first."""

    behind: int


class Opened(NamedTuple):
    """The parts of a log that an opening found or made."""

    disk: Disk
    folder: Path
    log_id: bytes
    term: int
    end: Position
    segments: list[Segment]
    """They hold what the rows lack, durably; the last one is written next, at `offset`."""
    offset: int
    spares: Spares
    copied: int
    """The `copied` of the headers of segments to come."""


class Log:
    """The log of one shard, open for writing; `open_log` makes it."""

    def __init__(self, opened: Opened) -> None:
        disk, end = opened.disk, opened.end
        self.folder = opened.folder
        self.log_id = opened.log_id
        self.term = opened.term
        """The term of every Entry appended here; no other opening of the log has it."""
        self.last_term = end.term
        self.last_index = end.index
        self.last_checksum = end.checksum
        self.synced_index = end.index
        """Up to here the log is durable."""
        self.failure: LogFailed | None = None
        self._copied = opened.copied
        self._disk = disk
        self._pwrite = disk.pwrite
        self._seed = crc32(opened.log_id)
        self.spares = opened.spares
        segment_bytes = self.spares.segment_bytes
        self._record_bytes_max = min(ENTRY_BYTES_MAX, segment_bytes - HEADER_BYTES)
        self._segments = SegmentsInUse(opened.segments, self.spares)
        self._current = opened.segments[-1]
        """The last segment, which is written."""
        self._handle = self._current.handle
        self._offset = opened.offset
        """Invariant: a multiple of 8; nothing of this log lies behind it."""
        self._syncs = 0
        """Under way in the sync lane."""
        self._on_closed: Callable[[], None] | None = None

    # -- writing -----------------------------------------------------------------------------------

    def append(self, body: bytes, queue_ids: Sequence[int] = ()) -> int:
        """Write an Entry, not yet durable; returns its index.

        Blocks only if no spare segment is ready. Raises EntryTooLarge, LogFull, and LogFailed,
        after which nothing works.
        """
        self._append(body, queue_ids, self.term, self.synced_index, NEWEST_FORMAT)
        return self.last_index

    def _append(
        self, body: bytes, queue_ids: Sequence[int], term: int, synced: int, written_as: int
    ) -> bytes:
        record, checksum = encode_entry(
            body,
            queue_ids,
            self._seed,
            term=term,
            index=self.last_index + 1,
            previous=self.last_checksum,
            synced=synced,
            written_as=written_as,
        )
        self._write(record, term, checksum)
        return record

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
        handles = self._segments.unsynced_handles()
        self._syncs += 1
        self._disk.run(partial(self._sync_all, handles), partial(self._synced, reached, done))
        self.spares.want()

    def release(self, index: int) -> None:
        """The rows hold everything up to `index` durably: reuse segments without later Entries."""
        self._segments.release(index)

    def _change_segment(self) -> None:
        """Go over to the next segment. The next sync that counts syncs the old one first."""
        try:
            segment = self._segments.begin_next(self.last_index, self._offset - HEADER_BYTES)
        except OSError as error:
            raise LogFull(f"cannot make another segment of the log: {error.strerror}") from error
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
            self._segments.synced(reached)
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
        return self._segments.older_bytes + self._offset - HEADER_BYTES

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
        self._segments.close()
        self.spares.close(closed)


class ReplicaLog(Log):
    """A log whose Entries come from leaders, as the same bytes on every host; `open_replica_log`
    makes it.

    It knows the position of each Entry it holds, so that logs can be compared and Entries shipped.
    To forget Entries at the end it is closed and opened anew (`open_replica_log` with `keep`): the
    fresh segment's header ends the older ones there, durably, and files that held Entries which no
    longer count are overwritten before they are reused.
    """

    def __init__(self, applied: Position, opened: Opened) -> None:
        """Reads the segments; blocks. Raises OSError."""
        super().__init__(opened)
        self.entries = LogEntries(self._disk, self._seed)
        for segment in self._segments.all:
            last = self.last_index if segment is self._current else segment.last
            self.entries.find(segment, last)
        first = self.entries.first
        if first == 1:
            self.start = BEGINNING
        else:
            self.start = applied if applied.index == first - 1 else self.entries.position(first)
        """The Entry behind which the log can be shipped; earlier ones are only in the rows."""

    # -- writing -----------------------------------------------------------------------------------

    def append_own(
        self, body: bytes, queue_ids: Sequence[int], *, term: int, committed: int, written_as: int
    ) -> bytes:
        """Write the leader's next Entry in a format, not yet durable; returns its record.

        Blocks only if no spare segment is ready. Raises as `append` does.
        """
        return self._append(body, queue_ids, term, committed, written_as)

    def append_record(self, record: bytes) -> Entry:
        """Write an Entry as a leader sent it. Raises NotNext, and as `append` does."""
        entry = self.decode(record)
        if (entry.index, entry.previous) != (self.last_index + 1, self.last_checksum):
            raise NotNext(f"Entry {entry.index} behind {self.last_index}")
        if entry.term < self.last_term:
            raise NotNext(f"term {entry.term} behind {self.last_term}")
        self._write(record, entry.term, entry.checksum)
        return entry

    def place(self, previous: Position, records: Sequence[bytes]) -> int | Diverged | None:
        """Write those Entries behind `previous` of another's log that this one lacks.

        Returns the index up to which this log is then the other's, None if it ends before
        `previous`. Raises NotNext, and as `append` does.
        """
        if previous.index > self.last_index:
            return None
        if previous.index >= self.start.index and self.position_at(previous.index) != previous:
            return Diverged(previous.index - 1)
        for record in records:
            entry = self.decode(record)
            if entry.index <= self.start.index:
                continue
            if entry.index > self.last_index:
                self.append_record(record)
            elif self.position_at(entry.index) != entry.position:
                return Diverged(entry.index - 1)
        return previous.index + len(records)

    def decode(self, record: bytes) -> Entry:
        """The Entry of a record that a peer sent. Raises NotNext if it is none of this log, or
        cannot be read by this version."""
        try:
            entry = read_entry(record, 0, self._seed)
        except NewerFormat as error:
            raise NotNext(str(error)) from error
        if isinstance(entry, Misfit):
            raise NotNext(entry.reason)
        return entry

    def _write(self, record: bytes, term: int, checksum: int) -> None:
        super()._write(record, term, checksum)
        size = len(record)
        self.entries.add(self._current, self._offset - size, size, term, checksum)
        self.entries.keep(self.last_index, record)

    @override
    def release(self, index: int) -> None:
        for segment in self._segments.release(index):
            last = self.entries.remove(segment)
            if last is not None and last.index > self.start.index:
                self.start = last

    # -- reading -----------------------------------------------------------------------------------

    def position_at(self, index: int) -> Position | None:
        """The position of an Entry, None if it is only in the rows or not there yet."""
        if index == self.start.index:
            return self.start
        if index == self.last_index:
            return self.last
        return self.entries.position(index) if self.start.index < index < self.last_index else None

    def holds(self, index: int) -> bool:
        """True if this Entry can be shipped."""
        return self.start.index < index <= self.last_index

    def read(self, first: int, bytes_max: int, got: Got) -> None:
        """The records from `first` on, read from the disk in the lane for preparing segments: at
        least one, then up to a size; none if they cannot be read."""
        wanted = range(first, self.last_index + 1 if self.holds(first) else first)
        self.entries.read(wanted, bytes_max, got)


def _ignore(failure: LogFailed | None) -> None:
    """A failure shows at the next append."""
