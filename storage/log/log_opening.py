"""Opening a log for writing: a new term, a fresh segment, no trust in the page cache.

Entries above the highest index known to be synced are appended again to fresh segments, byte for
byte, and synced before the header is written that makes them count. So after a failed sync, a `kill
-9` or a power failure, the page cache's view of the old segments does not matter: see "Opening" in
`storage/reasons/2026-11-22-log.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from zlib import crc32

from storage.log.disk import Disk
from storage.log.entry import Entry, Position, encode_entry
from storage.log.header import ALL, HEADER_BYTES, Header
from storage.log.identity import TERM_JUMP, write_identity
from storage.log.log import Log, Opened, ReplicaLog
from storage.log.log_reading import Reading, with_older_entries
from storage.log.log_segments import Segment, Spares, write_header


def open_log(
    reading: Reading,
    applied: Position,
    *,
    new_log_id: Callable[[], bytes],
    segment_bytes: int,
) -> Log:
    """Open or create the log that was read; blocks. For any thread, while nothing uses the folder.

    `applied` is the rows' *durable* position. If Entries were lost, it must be `reading.end`: first
    apply the readable ones, note `reading.end` as applied, and flush. Raises OSError; then read
    again and retry. The log goes on above the larger of both ends, in a fresh segment (rule 10).
    """
    assert not reading.lost or applied.index >= reading.end.index
    end = reading.end if reading.end.index >= applied.index else applied
    log_id = reading.log_id or new_log_id()
    return Log(_open(reading, applied, end, log_id, segment_bytes, is_replica=False))


def open_replica_log(
    reading: Reading,
    applied: Position,
    *,
    log_id: bytes,
    keep: int | None = None,
    segment_bytes: int,
) -> ReplicaLog:
    """The same for a replica's log, without its Entries above `keep`; blocks.

    `keep` must lie before a loss. Raises OSError; then read again and try again.
    """
    end = reading.end if reading.end.index >= applied.index else applied
    if keep is not None and keep < end.index:
        end = reading.position_at(max(keep, applied.index))
    assert not reading.lost or end.index < reading.lost[0].first
    older = with_older_entries(reading)
    opened = _open(older, older.applied, end, log_id, segment_bytes, is_replica=True)
    try:
        return ReplicaLog(applied, opened)
    except BaseException:
        _close(reading.disk, opened.segments)
        opened.spares.close(_nothing)
        raise


def _open(
    reading: Reading,
    applied: Position,
    end: Position,
    log_id: bytes,
    segment_bytes: int,
    *,
    is_replica: bool,
) -> Opened:
    disk, folder = reading.disk, reading.folder
    disk.make_folder(folder)
    term = _take_term(reading, log_id)
    needed, free = _open_segments(reading, applied, is_replica=is_replica)
    spares = Spares(disk, folder, segment_bytes, free)
    copy = _Copy(reading, log_id, term, spares, is_replica=is_replica)
    try:
        copy.write(applied, end)
    except BaseException:
        _close(disk, needed + copy.segments)
        spares.close(_nothing)
        raise
    spares.fill()
    first = copy.segments[0].first
    for segment in [each for each in needed if each.first >= first]:
        needed.remove(segment)
        spares.release(segment)  # a newer segment has its Entries
    for segment in needed:
        segment.last = min(segment.last, first - 1)
    segments, copied = needed + copy.segments, ALL if is_replica else HEADER_BYTES
    return Opened(disk, folder, log_id, term, end, segments, copy.offset, spares, copied)


def _close(disk: Disk, segments: list[Segment]) -> None:
    for segment in segments:
        with suppress(OSError):  # a failed disk lets go of the file all the same
            disk.close(segment.handle)


def _nothing() -> None:
    """No callback: nothing else waits for the files."""


def _take_term(reading: Reading, log_id: bytes) -> int:
    """Raise the term, durably, above every one that was or may have been used (rule 3)."""
    slots = reading.identity.slots
    term = reading.highest_term + 1
    is_new = not any(found.header for found in reading.segments)
    if slots.damaged or (slots.payload is None and not is_new):
        term += TERM_JUMP
    write_identity(reading.disk, reading.folder, slots, log_id, term)
    return term


def _open_segments(
    reading: Reading, applied: Position, *, is_replica: bool
) -> tuple[list[Segment], list[Segment]]:
    """Open all files: first those with Entries that the rows lack, in order; second the others."""
    runs = {run.segment.name: run for run in reading.runs_above(applied.index)}
    needed, free = [], []
    for found, segment in zip(reading.segments, _open_files(reading), strict=True):
        segment.has_remains = is_replica and segment.is_written
        run = runs.get(found.name)
        if run is None or found.header is None:
            free.append(segment)
            continue
        segment.first, segment.last = found.header.first, run.last.index
        segment.used = run.end - HEADER_BYTES
        needed.append(segment)
    needed.sort(key=lambda segment: segment.first)
    return needed, free


def _open_files(reading: Reading) -> list[Segment]:
    """All segments, as they were found."""
    segments: list[Segment] = []
    try:
        for found in reading.segments:
            handle = reading.disk.open(reading.folder / found.name)
            segments.append(Segment(found.name, handle, found.size, is_written=not found.is_blank))
    except BaseException:
        _close(reading.disk, segments)
        raise
    return segments


class _Copy:
    """Fresh segments with the Entries that are not known to be synced."""

    def __init__(
        self, reading: Reading, log_id: bytes, term: int, spares: Spares, *, is_replica: bool
    ) -> None:
        self._reading = reading
        self._is_replica = is_replica
        self._disk = reading.disk
        self._log_id = log_id
        self._term = term
        self._spares = spares
        self._headers: list[Header] = []
        self.segments: list[Segment] = []
        self.offset = HEADER_BYTES
        """Offset of the next record in the last segment."""

    def write(self, applied: Position, end: Position) -> None:
        """Make the Entries up to `end` durable, then their headers, the last one first.

        A header overrides the older segments, so all that it promises must be durable before.
        Raises OSError.
        """
        for entry in self._reading.tail(applied):
            if entry.index > end.index:
                break
            if not self.segments or self.offset + entry.size > self.segments[-1].size:
                self._begin(entry.index, entry.previous)
            self._append(entry)
        if not self.segments:
            self._begin(end.index + 1, end.checksum)
        self._end()
        for segment in self.segments:
            self._disk.fdatasync(segment.handle)
        for segment, header in zip(self.segments[::-1], self._headers[::-1], strict=True):
            write_header(self._disk, segment, header)
            self._disk.fdatasync(segment.handle)

    def _begin(self, first: int, previous: int) -> None:
        self._end()
        segment = self._spares.take()
        segment.first = first
        self.segments.append(segment)
        synced = min(first - 1, self._reading.proven)
        header = Header(
            self._log_id, self._term, first, previous, synced, HEADER_BYTES, segment.size
        )
        self._headers.append(header)
        self.offset = HEADER_BYTES

    def _end(self) -> None:
        if self.segments:
            self.segments[-1].used = self.offset - HEADER_BYTES
            copied = ALL if self._is_replica else self.offset
            self._headers[-1] = self._headers[-1]._replace(copied=copied)

    def _append(self, entry: Entry) -> None:
        record, checksum = encode_entry(
            entry.body,
            entry.queue_ids,
            crc32(self._log_id),
            term=entry.term,
            index=entry.index,
            previous=entry.previous,
            synced=entry.synced,
            written_as=entry.format,
        )
        assert checksum == entry.checksum
        self._disk.pwrite(self.segments[-1].handle, record, self.offset)
        self.offset += len(record)
        self.segments[-1].last = entry.index
