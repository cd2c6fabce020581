"""EntryPlaces: where each Entry of a log lies in its segments, with its term and checksum."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from storage.log.disk import Disk
from storage.log.entry import ALIGNMENT, Entry, Misfit, Position, next_magic, read_entry
from storage.log.header import HEADER_BYTES
from storage.log.log_segments import Segment
from storage.log.scan import read_piece


class Place(NamedTuple):
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


class EntryPlaces:
    """Those of the segments in use, in the order of their Entries."""

    def __init__(self) -> None:
        self._segments: dict[Segment, _InSegment] = {}

    def read(self, disk: Disk, segment: Segment, last: int, seed: int) -> None:
        """Find the Entries up to `last` in one more segment; blocks. Raises OSError."""
        self._segments[segment] = _InSegment(segment.first)
        data = read_piece(disk, segment.handle, segment.size, 0)
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

    def place(self, index: int) -> Place:
        """The place of an Entry that is there."""
        segment, places = self._find(index)
        at = index - places.first
        return Place(segment.handle, places.offsets[at], places.sizes[at])

    def _find(self, index: int) -> tuple[Segment, _InSegment]:
        for segment, places in reversed(self._segments.items()):
            if places.first <= index:
                return segment, places
        raise AssertionError(f"Entry {index} is not held")

    def bytes_above(self, index: int) -> int:
        """Bytes of the Entries above an index, as far as the log reaches back."""
        total = 0
        for places in self._segments.values():
            total += sum(places.sizes[max(0, index + 1 - places.first) :])
        return total

    def index_before(self, size: int) -> int:
        """An index above which at least so many bytes of Entries lie, 0 if there are fewer."""
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
