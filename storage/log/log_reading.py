"""Reading a log without changing it, for a start, verify, backups, a restore and a salvage.

The log ends where length, checksum, term, index or the previous checksum do not fit. Reading goes
on behind that place: if an intact record or header behind it, or the note of answers, says that the
missing Entries were synced, they are damage and not an end. `scan.py` finds out what there is; this
module decides what it means.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from storage.log.answered import Answered
from storage.log.disk import Disk
from storage.log.entry import BEGINNING, Entry, Position, read_entry
from storage.log.header import Header
from storage.log.identity import Identity, read_identity
from storage.log.scan import Found, Gap, Heads, Run, Scan, find_segments, ranges, read_segment


class LogMismatch(Exception):
    """Log and rows do not belong together: one of them is another's or an older copy."""


class Lost(NamedTuple):
    """Entries that were synced and cannot be read."""

    first: int
    last: int
    queue_ids: frozenset[int]
    """Queues that they touched, as far as heads can be read."""
    reason: str
    headless: int = 0
    """The number of those whose heads cannot be read either."""


@dataclass(slots=True)
class Reading:
    """The state of a log, and its Entries behind the rows."""

    disk: Disk
    folder: Path
    identity: Identity
    log_id: bytes
    """Empty if there is no log."""
    applied: Position
    """The last Entry whose changes the rows have durably."""
    end: Position
    """The last Entry; after losses, a place above everything found, to be noted as applied."""
    proven: int
    """The highest index known to have been synced; the rest may be in the page cache only."""
    highest_term: int
    lost: list[Lost]
    warnings: list[str]
    """Sentences about what is damaged without loss."""
    ended_because: str
    committed: int = 0
    """The highest commit index that a replica's Entries carry, up to the end."""
    segments: list[Found] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)

    def runs_above(self, index: int) -> list[Run]:
        """The runs with Entries above this index."""
        return [run for run in self.runs if run.last.index > index]

    def entries(self) -> Iterator[Entry]:
        """The Entries to apply, in order, also those behind a loss. Raises OSError.

        Holds one segment in memory.
        """
        return self._entries_above(self.applied.index)

    def tail(self, applied: Position) -> Iterator[Entry]:
        """Those that are neither in the rows nor known to be synced."""
        return self._entries_above(max(applied.index, self.proven))

    def position_at(self, index: int) -> Position:
        """The position of the applied Entry or a later one. Raises OSError."""
        if index == self.applied.index:
            return self.applied
        entry = next(self._entries_above(index - 1))
        assert entry.index == index
        return entry.position

    def _entries_above(self, index: int) -> Iterator[Entry]:
        seed = crc32(self.log_id)
        for run in self.runs_above(index):
            data = read_segment(self.disk, self.folder, run.segment.name)
            offset = run.begin
            while offset < run.end:
                entry = read_entry(data, offset, seed)
                if not isinstance(entry, Entry):
                    raise OSError(f"{run.segment.name} changed while it was read: {entry.reason}")
                offset += entry.size
                if entry.index > index:
                    yield entry


def read_log(
    disk: Disk, folder: Path, applied: Position, answered: Answered | None = None
) -> Reading:
    """Find out what the log holds above `applied`; blocks, and writes nothing.

    `applied` is what the rows have durably. `answered` is the last Entry that an answer told of;
    None if that is not known, or if answers do not wait for syncs. Raises OSError, and LogMismatch
    if the log's Entry at the applied index is another one.
    """
    identity = read_identity(disk, folder)
    segments, warnings = find_segments(disk, folder)
    if identity.slots.damaged:
        warnings.append(f"{identity.slots.damaged} of 2 slots of the log's identity are damaged")
    log_id = identity.log_id or _id_of(segments)
    if answered is not None and log_id and answered.log_id != log_id:
        warnings.append("the note of answers belongs to another log")
        answered = None
    told = answered.position if answered is not None else BEGINNING
    scan = Scan(disk, folder, log_id, segments, applied, told.index)
    scan.scan()
    if scan.mismatch:
        raise LogMismatch(f"{folder}: {scan.mismatch}")
    reading = Reading(
        disk,
        folder,
        identity,
        log_id,
        applied,
        applied,
        max(scan.proven, told.index),
        max(scan.highest_term, identity.term, applied.term),
        [],
        warnings,
        scan.ended_because,
        segments=segments,
    )
    _judge(reading, scan, told)
    reading.committed = min(scan.committed, reading.end.index)
    return reading


def with_older_entries(reading: Reading) -> Reading:
    """The same with Entries that the rows have too, as far back as they are whole; blocks.

    A replica keeps them for peers that lag behind. Raises OSError.
    """
    applied = reading.applied
    headers = [header for _, header, _ in ranges(reading.segments, reading.log_id)]
    firsts = {header.first: header for header in headers if header.first <= applied.index}
    if reading.lost or not firsts:
        return reading
    begin = _before(firsts[min(firsts)])
    scan = Scan(reading.disk, reading.folder, reading.log_id, reading.segments, begin)
    scan.scan()
    gaps = [part.last for part in scan.parts if isinstance(part, Gap)]
    whole = [first for first in firsts if first > max(gaps, default=0)]
    if not whole:
        return reading
    begin = _before(firsts[min(whole)])
    older = replace(reading, applied=begin, runs=_runs_above(scan, begin.index))
    try:
        fits = older.position_at(applied.index) == applied
        fits = fits and older.position_at(reading.end.index) == reading.end
    except (OSError, StopIteration):
        return reading
    return older if fits else reading


def _before(header: Header) -> Position:
    """The Entry before a segment, as far as the segment knows it."""
    return Position(0, header.first - 1, header.previous)


def _runs_above(scan: Scan, index: int) -> list[Run]:
    return [part for part in scan.parts if isinstance(part, Run) and part.last.index > index]


def without_entries(disk: Disk, folder: Path, applied: Position) -> Reading:
    """The same folder as if the rows had all that its log holds: they came from a checkpoint.

    Raises OSError.
    """
    identity = read_identity(disk, folder)
    segments, warnings = find_segments(disk, folder)
    terms = [found.header.term for found in segments if found.header is not None]
    return Reading(
        disk,
        folder,
        identity,
        identity.log_id or _id_of(segments),
        applied,
        applied,
        applied.index,
        max(identity.term, *terms, 0),
        [],
        warnings,
        "a checkpoint replaced it",
        segments=segments,
    )


def _id_of(segments: list[Found]) -> bytes:
    """The id in the newest header, if the identity cannot be read."""
    headers = [found.header for found in segments if found.header is not None]
    newest = max(headers, key=lambda header: (header.term, header.first), default=None)
    return newest.log_id if newest else b""


def _judge(reading: Reading, scan: Scan, told: Position) -> None:
    """Decide which gaps are losses and where the log ends."""
    highest = reading.applied
    for part in scan.parts:
        if isinstance(part, Run):
            reading.runs.append(part)
            highest = part.last if part.last.index > highest.index else highest
            continue
        proven = part.last if part.is_short else min(part.last, reading.proven)
        if proven >= part.first:
            reading.lost.append(_lost(part.first, proven, part.heads, part.reason))
        if proven < part.last:
            reading.ended_because = part.reason
            break
    known = max(highest.index, reading.lost[-1].last if reading.lost else 0)
    if known < reading.proven:
        heads = scan.heads_at_end
        reading.lost.append(_lost(known + 1, reading.proven, heads, reading.ended_because))
    if scan.answered_checksum not in (None, told.checksum):
        reason = "it is not the Entry that an answer told of"
        reading.lost.append(_lost(told.index, told.index, {}, reason))
    if reading.lost:
        above = max(highest.index, scan.highest_index, reading.proven, reading.lost[-1].last)
        highest = Position(reading.highest_term, above, highest.checksum)
    reading.end = highest


def _lost(first: int, last: int, heads: Heads, reason: str) -> Lost:
    known = [heads[index] for index in range(first, last + 1) if index in heads]
    return Lost(first, last, frozenset().union(*known), reason, last - first + 1 - len(known))
