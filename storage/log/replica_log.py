"""ReplicaLog: a log whose Entries come from leaders, as the same bytes on every host.

It knows the position of each Entry it holds, so that logs can be compared and Entries shipped. To
forget Entries at the end it is closed and opened anew (`open_replica_log` with `keep`): the fresh
segment's header ends the older ones there, durably, and files that held Entries which no longer
count are overwritten before they are reused.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Unpack

from typing_extensions import override

from storage.log.entry import (
    ALIGNMENT,
    BEGINNING,
    QUEUE_IDS_MAX,
    Entry,
    Misfit,
    NewerFormat,
    Position,
    encode_entry,
    next_magic,
    read_entry,
)
from storage.log.header import HEADER_BYTES
from storage.log.log import EntryTooLarge, Log, Opened
from storage.log.log_segments import Segment
from storage.log.scan import read_piece

RECENT_BYTES = 32 << 20
"""Entries kept in memory to be shipped: as much as may be under way."""

_AHEAD_BYTES = 1 << 20
"""Records of one read, unless a single one is longer."""

Got = Callable[[list[bytes]], None]


class NotNext(ValueError):
    """The record is not the Entry that follows the log's last one."""


class Diverged(NamedTuple):
    """Entries behind this index are to be forgotten first."""

    behind: int


class _Place(NamedTuple):
    handle: int
    offset: int
    size: int


class _Places:
    """Places of the Entries in one segment."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.offsets = array("Q")
        self.sizes = array("Q")
        self.terms = array("Q")
        self.checksums = array("Q")

    def add(self, offset: int, size: int, term: int, checksum: int) -> None:
        self.offsets.append(offset)
        self.sizes.append(size)
        self.terms.append(term)
        self.checksums.append(checksum)


class ReplicaLog(Log):
    """See `Log`; `open_replica_log` makes it."""

    def __init__(self, applied: Position, **opened: Unpack[Opened]) -> None:
        """Reads the segments; blocks. Raises OSError."""
        super().__init__(**opened)
        self._places: dict[Segment, _Places] = {}
        self._recent: dict[int, bytes] = {}
        self._recent_bytes = 0
        for segment in self._segments:
            self._find_places(segment)
        self.start = self._first_known(applied)
        """The Entry behind which the log can be shipped; earlier ones are only in the rows."""

    def _find_places(self, segment: Segment) -> None:
        places = self._places[segment] = _Places(segment.first)
        last = self.last_index if segment is self._current else segment.last
        data = read_piece(self._disk, segment.handle, segment.size, 0)
        offset, index = HEADER_BYTES, segment.first
        while index <= last:
            entry = read_entry(data, offset, self._seed)
            if isinstance(entry, Misfit) or entry.index != index:
                # The rows have what is damaged here, or the log would not have been opened.
                entry, offset = self._next_entry(segment, data, offset, index)
                places = self._places[segment] = _Places(min(entry.index, last + 1))
                if entry.index > last:
                    return  # a remainder of what was forgotten
            places.add(offset, entry.size, entry.term, entry.checksum)
            offset += entry.size
            index = entry.index + 1

    def _next_entry(
        self, segment: Segment, data: bytes, offset: int, index: int
    ) -> tuple[Entry, int]:
        while (offset := next_magic(data, offset)) >= 0:
            entry = read_entry(data, offset, self._seed)
            if isinstance(entry, Entry) and entry.index > index:
                return entry, offset
            offset += ALIGNMENT
        raise OSError(f"{segment.name} lacks Entry {index}")

    def _first_known(self, applied: Position) -> Position:
        first = self._places[self._segments[0]].first
        if first == 1:
            return BEGINNING
        return applied if applied.index == first - 1 else self._position(first)

    # -- writing -----------------------------------------------------------------------------------

    def append_own(
        self, body: bytes, queue_ids: Sequence[int], *, term: int, committed: int, written_as: int
    ) -> bytes:
        """Write the leader's next Entry in a format, not yet durable; returns its record.

        Blocks only if no spare segment is ready. Raises as `append` does.
        """
        if len(queue_ids) > QUEUE_IDS_MAX:
            raise EntryTooLarge(f"{len(queue_ids)} queues in one Entry")
        record, checksum = encode_entry(
            body,
            queue_ids,
            self._seed,
            term=term,
            index=self.last_index + 1,
            previous=self.last_checksum,
            synced=committed,
            written_as=written_as,
        )
        self._write(record, term, checksum)
        return record

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
        places = self._places.get(self._current)
        if places is None:
            places = self._places[self._current] = _Places(self._current.first)
        places.add(self._offset - len(record), len(record), term, checksum)
        self._recent[self.last_index] = record
        self._recent_bytes += len(record)
        while self._recent_bytes > RECENT_BYTES:
            self._recent_bytes -= len(self._recent.pop(next(iter(self._recent))))

    @override
    def release(self, index: int) -> None:
        before = self._segments
        super().release(index)
        for segment in before:
            if segment not in self._segments:
                places = self._places.pop(segment)
                last = places.first + len(places.offsets) - 1
                if last > self.start.index:
                    self.start = Position(places.terms[-1], last, places.checksums[-1])

    # -- reading -----------------------------------------------------------------------------------

    def position_at(self, index: int) -> Position | None:
        """The position of an Entry, None if it is only in the rows or not there yet."""
        if index == self.start.index:
            return self.start
        if index == self.last_index:
            return self.last
        return self._position(index) if self.start.index < index < self.last_index else None

    def holds(self, index: int) -> bool:
        """True if this Entry can be shipped."""
        return self.start.index < index <= self.last_index

    def _position(self, index: int) -> Position:
        _, places, at = self._find(index)
        return Position(places.terms[at], index, places.checksums[at])

    def _find(self, index: int) -> tuple[Segment, _Places, int]:
        for segment in reversed(self._segments):
            places = self._places.get(segment)
            if places is not None and places.first <= index:
                return segment, places, index - places.first
        raise AssertionError(f"Entry {index} is not held")

    def _place(self, index: int) -> _Place | None:
        if not self.holds(index):
            return None
        segment, places, at = self._find(index)
        return _Place(segment.handle, places.offsets[at], places.sizes[at])

    def bytes_above(self, index: int) -> int:
        """Bytes of the Entries above an index, as far as the log reaches back."""
        total = 0
        for places in self._places.values():
            total += sum(places.sizes[max(0, index + 1 - places.first) :])
        return total

    def index_before(self, size: int) -> int:
        """An index above which at least so many bytes of Entries lie, 0 if there are fewer."""
        for places in sorted(self._places.values(), key=lambda each: -each.first):
            size -= sum(places.sizes)
            if size <= 0:
                return places.first - 1
        return 0

    def recent(self, first: int, bytes_max: int) -> list[bytes]:
        """Records from `first` on that are in memory: at least one, if it is, then up to a size."""
        records: list[bytes] = []
        while (record := self._recent.get(first + len(records))) is not None:
            bytes_max -= len(record)
            if records and bytes_max < 0:
                break
            records.append(record)
        return records

    def read(self, first: int, bytes_max: int, got: Got) -> None:
        """The same from the disk, in the lane for preparing segments; none if they cannot be
        read."""
        wanted: list[tuple[_Place, Position]] = []
        while (place := self._place(first + len(wanted))) is not None:
            bytes_max -= place.size
            if wanted and bytes_max < 0:
                break
            position = self.position_at(first + len(wanted))
            assert position is not None
            wanted.append((place, position))
        records: list[bytes] = []
        self._disk.prepare(partial(self._read_all, wanted, records), lambda error: got(records))

    def read_now(self, index: int) -> Entry:
        """An Entry; blocks unless it is in memory (`recent`). Raises OSError."""
        records = self.recent(index, 0)
        if not records:
            place = self._place(index)
            if place is None:
                raise OSError(f"the log does not hold Entry {index}")
            records.append(self._disk.pread(place.handle, place.size, place.offset))
        entry = read_entry(records[0], 0, self._seed)
        if isinstance(entry, Misfit):
            raise OSError(f"Entry {index} cannot be read: {entry.reason}")
        return entry

    def _read_all(self, wanted: list[tuple[_Place, Position]], records: list[bytes]) -> None:
        """For any thread: a segment may be reused meanwhile, so what is read is checked."""
        for (handle, offset, size), position in wanted:
            record = self._disk.pread(handle, size, offset)
            entry = read_entry(record, 0, self._seed)
            if isinstance(entry, Misfit) or entry.position != position:
                return
            records.append(record)


class ReadAhead:
    """The Entries that a store applies, from memory or, some at a time, from the disk.

    A host that replays a long log reads it in the lane for preparing segments: the event loop goes
    on. Belongs to the event loop's thread.
    """

    def __init__(self, on_read: Callable[[], None]) -> None:
        """`on_read` is called when an Entry that was missing is there, or cannot be read."""
        self._on_read = on_read
        self._log: ReplicaLog | None = None
        """The log that was read; another one after a reopening."""
        self._first = 0
        """The index of the first record, or of the one that could not be read."""
        self._records: deque[bytes] = deque()
        self._is_reading = self._is_missing = False

    def entry(self, log: ReplicaLog, index: int) -> Entry | None:
        """An Entry; None while it is read from the disk. Raises OSError if that failed."""
        if log.recent(index, 0):
            return log.read_now(index)
        if self._is_reading:
            return None
        if self._log is log and self._first == index:
            if self._records:
                self._first += 1
                return log.decode(self._records.popleft())
            if self._is_missing:
                self._is_missing = False
                raise OSError("the log does not hold it")
        self._is_reading = True
        log.read(index, _AHEAD_BYTES, partial(self._got, log, index))
        return None

    def _got(self, log: ReplicaLog, first: int, records: list[bytes]) -> None:
        self._is_reading, self._is_missing = False, not records
        self._log, self._first, self._records = log, first, deque(records)
        self._on_read()
