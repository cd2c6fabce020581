"""LogEntries: where each Entry of a log lies in its segments, with its term and checksum, and the
latest records in memory."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from storage.log.disk import Disk
from storage.log.entry import ALIGNMENT, Entry, Misfit, Position, next_magic, read_entry
from storage.log.header import HEADER_BYTES
from storage.log.log_segments import Segment
from storage.log.scan import read_piece

RECENT_BYTES = 32 << 20
"""Entries kept in memory to be shipped: as much as may be under way."""

Got = Callable[[list[bytes]], None]


class _Place(NamedTuple):
    """A record in a file."""

    handle: int
    offset: int
    size: int


class _InSegment:
    """Places of the Entries in one segment, without gaps."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.offsets = array("Q")
        self.sizes = array("Q")
        self.terms = array("Q")
        self.checksums = array("Q")

    def position(self, at: int) -> Position:
        return Position(self.terms[at], self.first + at, self.checksums[at])


class LogEntries:
    """Those of the segments in use, in their order."""

    def __init__(self, disk: Disk, seed: int) -> None:
        self._disk = disk
        self._seed = seed
        self._segments: dict[Segment, _InSegment] = {}
        self._recent: dict[int, bytes] = {}
        self._recent_bytes = 0

    def find(self, segment: Segment, last: int) -> None:
        """Find the Entries up to `last` in one more segment; blocks. Raises OSError."""
        seed, self._segments[segment] = self._seed, _InSegment(segment.first)
        data = read_piece(self._disk, segment.handle, segment.size, 0)
        offset, index = HEADER_BYTES, segment.first
        while index <= last:
            entry = read_entry(data, offset, seed)
            if isinstance(entry, Misfit) or entry.index != index:
                # The rows have what is damaged here, or the log would not have been opened.
                entry, offset = _next_entry(segment, data, offset, index, seed)
                self._segments[segment] = _InSegment(min(entry.index, last + 1))
                if entry.index > last:
                    return  # a remainder of what was forgotten
            self.add(segment, offset, entry.size, entry.term, entry.checksum)
            offset += entry.size
            index = entry.index + 1

    def add(self, segment: Segment, offset: int, size: int, term: int, checksum: int) -> None:
        """Note the next Entry, in the last segment."""
        places = self._segments.get(segment)
        if places is None:
            places = self._segments[segment] = _InSegment(segment.first)
        places.offsets.append(offset)
        places.sizes.append(size)
        places.terms.append(term)
        places.checksums.append(checksum)

    def keep(self, index: int, record: bytes) -> None:
        """Keep the record of the next Entry in memory, and the latest before it, up to a size."""
        self._recent[index] = record
        self._recent_bytes += len(record)
        while self._recent_bytes > RECENT_BYTES:
            self._recent_bytes -= len(self._recent.pop(next(iter(self._recent))))

    def remove(self, segment: Segment) -> Position | None:
        """Forget a segment; returns its last Entry, None if it has none that counts."""
        places = self._segments.pop(segment)
        return places.position(len(places.offsets) - 1) if places.offsets else None

    @property
    def first(self) -> int:
        """The index of the first Entry, or of the one that will be the first."""
        return next(iter(self._segments.values())).first

    def position(self, index: int) -> Position:
        """The position of an Entry that is there."""
        _, places = self._find(index)
        return places.position(index - places.first)

    def _place(self, index: int) -> _Place:
        segment, places = self._find(index)
        at = index - places.first
        return _Place(segment.handle, places.offsets[at], places.sizes[at])

    def _find(self, index: int) -> tuple[Segment, _InSegment]:
        for segment, places in reversed(self._segments.items()):
            if places.first <= index:
                return segment, places
        raise AssertionError(f"Entry {index} is not held")

    def recent(self, first: int, bytes_max: int) -> list[bytes]:
        """Records from `first` on that are in memory: at least one, if it is, then up to a size."""
        records: list[bytes] = []
        while (record := self._recent.get(first + len(records))) is not None:
            bytes_max -= len(record)
            if records and bytes_max < 0:
                break
            records.append(record)
        return records

    def read(self, wanted: range, bytes_max: int, got: Got) -> None:
        """Read Entries in a thread, some up to a size, then call `got` with their records; `wanted`
        are indexes of Entries that are there."""
        places: list[tuple[_Place, Position]] = []
        for index in wanted:
            place = self._place(index)
            bytes_max -= place.size
            if places and bytes_max < 0:
                break
            places.append((place, self.position(index)))
        records: list[bytes] = []
        self._disk.prepare(partial(self._read_all, places, records), lambda error: got(records))

    def _read_all(self, places: list[tuple[_Place, Position]], records: list[bytes]) -> None:
        """For any thread: a segment may be reused meanwhile, so what is read is checked."""
        for (handle, offset, size), position in places:
            record = self._disk.pread(handle, size, offset)
            entry = read_entry(record, 0, self._seed)
            if isinstance(entry, Misfit) or entry.position != position:
                return
            records.append(record)

    def read_now(self, index: int) -> Entry:
        """An Entry that is there; blocks unless it is in memory. Raises OSError."""
        handle, offset, size = self._place(index)
        record = self._recent.get(index) or self._disk.pread(handle, size, offset)
        entry = read_entry(record, 0, self._seed)
        if isinstance(entry, Misfit):
            raise OSError(f"Entry {index} cannot be read: {entry.reason}")
        return entry

    def bytes_above(self, index: int) -> int:
        """Bytes of the Entries above an index, as far as the log reaches back."""
        total = 0
        for places in self._segments.values():
            total += sum(places.sizes[max(0, index + 1 - places.first) :])
        return total

    def index_before(self, size: int) -> int:
        """An index above which there are `size` bytes of Entries or more, 0 if there are fewer."""
        for places in reversed(self._segments.values()):
            size -= sum(places.sizes)
            if size <= 0:
                return places.first - 1
        return 0


def _next_entry(
    segment: Segment, data: bytes, offset: int, index: int, seed: int
) -> tuple[Entry, int]:
    while (offset := next_magic(data, offset)) >= 0:
        entry = read_entry(data, offset, seed)
        if isinstance(entry, Entry) and entry.index > index:
            return entry, offset
        offset += ALIGNMENT
    raise OSError(f"{segment.name} lacks Entry {index}")
