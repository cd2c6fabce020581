"""Scanning segments for Entries of this log, up to where they do not fit (rule 2), and for indexes
that are missing between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from storage.log.disk import Disk
from storage.log.entry import ALIGNMENT, Entry, Misfit, Position, next_magic, read_entry
from storage.log.header import HEADER_BYTES, Header, is_blank, read_header
from storage.log.log_segments import segment_number

_PAGE_BYTES = 4096
_UNLIMITED = 1 << 64


Heads = Mapping[int, tuple[int, ...]]
"""The queues of Entries whose heads can be read although their records cannot, by index."""


class Found(NamedTuple):
    """A segment's file as it was found."""

    name: str
    size: int
    header: Header | None
    """None if the file holds nothing yet, or both copies are damaged."""
    is_blank: bool

    @property
    def is_short(self) -> bool:
        """True if the end of the file is missing."""
        return self.header is not None and self.size < self.header.segment_bytes


class Run(NamedTuple):
    """Entries of one segment that follow each other."""

    segment: Found
    begin: int
    end: int
    """Offsets of the first record and behind the last one."""
    last: Position


class Gap(NamedTuple):
    """Indexes that should be there, because later ones are, or because the segment is short."""

    first: int
    last: int
    heads: Heads
    reason: str
    is_short: bool


@dataclass(slots=True)
class _Break:
    """The place where reading a segment stopped."""

    reason: str = "there are no more segments"
    heads: Heads = field(default_factory=dict)
    is_short: bool = False


def find_segments(disk: Disk, folder: Path) -> tuple[list[Found], list[str]]:
    """All segments, and a sentence for each whose header cannot be read. Raises OSError."""
    segments, warnings = [], []
    for name in disk.list(folder):
        if segment_number(name) is None:
            continue
        handle = disk.open_to_read(folder / name)
        try:
            size = disk.size(handle)
            start = read_piece(disk, handle, HEADER_BYTES, 0)
        finally:
            disk.close(handle)
        found = Found(name, size, read_header(start), is_blank(start))
        segments.append(found)
        if found.header is None and not found.is_blank:
            warnings.append(f"the header of {name} is damaged")
    return segments, warnings


def read_segment(disk: Disk, folder: Path, name: str) -> bytes:
    """A whole file, with zeros where the disk gives an error. Raises OSError on opening it."""
    handle = disk.open_to_read(folder / name)
    try:
        return read_piece(disk, handle, disk.size(handle), 0)
    finally:
        disk.close(handle)


def read_piece(disk: Disk, handle: int, size: int, offset: int) -> bytes:
    """A part of an open file, with zeros for pages for which the disk gives an error."""
    try:
        return disk.pread(handle, size, offset)
    except OSError:
        if size <= _PAGE_BYTES:
            return bytes(size)
    pages = range(offset, offset + size, _PAGE_BYTES)
    end = offset + size
    return b"".join(read_piece(disk, handle, min(_PAGE_BYTES, end - page), page) for page in pages)


class Scan:
    """One pass over the segments that may hold Entries above the applied index."""

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        log_id: bytes,
        segments: list[Found],
        applied: Position,
        answered_index: int = 0,
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._segments = segments
        self._log_id = log_id
        self._seed = crc32(log_id)
        self._applied = applied
        self._answered_index = answered_index
        self._at = applied
        """The Entry before the next one that is expected."""
        self._begun = False
        self.parts: list[Run | Gap] = []
        self.proven = 0
        self.committed = 0
        """The highest commit index that a replica's Entries carry."""
        self.highest_term = 0
        self.highest_index = 0
        self.answered_checksum: int | None = None
        """The checksum of the Entry at the index that was answered, if it was read."""
        self.mismatch = ""
        self._break = _Break()

    @property
    def ended_because(self) -> str:
        """The reason why reading stopped at last."""
        return self._break.reason

    @property
    def heads_at_end(self) -> Heads:
        """The heads behind the place where reading stopped at last."""
        return self._break.heads

    def scan(self) -> None:
        """Read; blocks. Raises OSError."""
        for found, header, limit in ranges(self._segments, self._log_id):
            self.proven = max(self.proven, min(header.synced, limit - 1))
            self.highest_term = max(self.highest_term, header.term)
            if max(header.first, self._applied.index + 1) < limit:
                self._join(header)
                self._scan_segment(found, header, limit)
        if self._break.is_short:
            self._add_gap(self._at.index + 1)

    def _join(self, header: Header) -> None:
        """Go over to the segment, whose first Entry should follow the last one that was read."""
        before = header.first - 1
        if not self._begun and before < self._applied.index:
            self._at = Position(0, before, header.previous)
        elif before > self._at.index:
            self._add_gap(before)
            self._at = Position(self._at.term, before, header.previous)
        self._begun = True
        if before == self._applied.index:
            self._check_applied(header.previous)

    def _scan_segment(self, found: Found, header: Header, limit: int) -> None:
        data = read_segment(self._disk, self._folder, found.name)
        self._break = _Break()
        offset = HEADER_BYTES
        while True:
            offset = self._scan_run(found, header, limit, data, offset)
            if self._at.index + 1 >= limit:
                return
            misfit = read_entry(data, offset, self._seed)
            reason = misfit.reason if isinstance(misfit, Misfit) else "another Entry was expected"
            place = f"{found.name} at {offset}: {reason}"
            self._break = _Break(place, is_short=found.is_short)
            next_offset = self._search(header, limit, data, offset)
            if next_offset < 0:
                return
            offset = next_offset
            behind = read_entry(data, offset, self._seed)
            assert isinstance(behind, Entry)
            self._add_gap(behind.index - 1)
            self._at = Position(self._at.term, behind.index - 1, behind.previous)
            if self._at.index == self._applied.index:
                self._check_applied(behind.previous)

    def _scan_run(self, found: Found, header: Header, limit: int, data: bytes, begin: int) -> int:
        """Read Entries that follow each other; returns the offset behind the last one."""
        offset = begin
        carried = 0
        at: Position | Entry = self._at
        while at.index + 1 < limit:
            entry = read_entry(data, offset, self._seed)
            if not isinstance(entry, Entry) or not self.follows(at, entry, header, offset):
                break
            offset += entry.size
            at = entry
            if entry.synced > carried:
                carried = entry.synced
            if entry.index == self._answered_index:
                self.answered_checksum = entry.checksum
            if entry.index == self._applied.index:
                self._check_applied(entry.checksum)
        if isinstance(at, Entry):
            self._at = at.position
            self.parts.append(Run(found, begin, offset, self._at))
            self.highest_term = max(self.highest_term, at.term)
            self.highest_index = max(self.highest_index, at.index)
        if header.is_replica:  # what the leader knew says nothing of this disk
            self.committed = max(self.committed, carried)
        else:
            self.proven = max(self.proven, carried)
        return offset

    def follows(self, at: Position | Entry, entry: Entry, header: Header, offset: int) -> bool:
        """True if this Entry was written behind the one before it."""
        return (
            entry.index == at.index + 1
            and entry.previous == at.checksum
            and entry.term >= at.term
            and self.term_fits(entry.term, header, offset)
        )

    def term_fits(self, term: int, header: Header, offset: int) -> bool:
        """True if the segment's writer may have written it: earlier uses left lower terms.

        A replica's segments have no remains of earlier uses that could be mistaken for an Entry.
        """
        if header.is_replica:
            return True
        return term <= header.term if offset < header.copied else term == header.term

    def _search(self, header: Header, limit: int, data: bytes, offset: int) -> int:
        """The offset of the next Entry behind a bad place, -1 if there is none.

        Notes the heads of those between.
        """
        lost: dict[int, tuple[int, ...]] = {}
        while (offset := next_magic(data, offset)) >= 0:
            found = read_entry(data, offset, self._seed)
            head = found.head if isinstance(found, Misfit) else found
            step = ALIGNMENT
            if head is not None:
                is_ours = self._at.index < head.index < limit
                is_ours = is_ours and self.term_fits(head.term, header, offset)
                if is_ours and isinstance(found, Entry) and head.index > self._at.index + 1:
                    break
                if is_ours:
                    lost[head.index] = head.queue_ids
                if is_ours or isinstance(found, Entry):
                    step = head.size
            offset += step
        self._break.heads = lost
        return offset

    def _add_gap(self, last: int) -> None:
        """Note that the indexes up to `last` are missing, apart from those that the rows have."""
        first = max(self._at.index, self._applied.index) + 1
        if first <= last:
            stop = self._break
            self.parts.append(Gap(first, last, stop.heads, stop.reason, stop.is_short))
            self._break = _Break()

    def _check_applied(self, checksum: int) -> None:
        if checksum != self._applied.checksum:
            self.mismatch = f"the rows have another Entry {self._applied.index} than the log"


def ranges(segments: list[Found], log_id: bytes) -> list[tuple[Found, Header, int]]:
    """The segments of this log in order, each with the index from which on newer ones count."""
    ours = [(found, found.header) for found in segments if found.header is not None]
    ours = [(found, header) for found, header in ours if header.log_id == log_id]
    ours.sort(key=lambda each: (each[1].term, each[1].first))
    limit = _UNLIMITED
    ordered = []
    for found, header in reversed(ours):
        ordered.append((found, header, limit))
        limit = min(limit, header.first)
    return ordered[::-1]
