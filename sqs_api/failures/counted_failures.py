"""Counted: the messages of one queue by their failures; exact, and bounded in memory.

    groups     up to GROUPS_MAX failures; the messages of all others are in `rest`
    chunks     18 bytes a message, in the order of sequences: its cell and its times
    cell       a number for a group and a source queue

A message that leaves is found by its sequence, so nothing needs to be read to count it no longer.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from sqs_api.failures.times import Times
from visibility.content.failures import Failure

GROUPS_MAX = 1_000
SOURCES_MAX = 50
OTHER_SOURCES = ""
"""The name of all sources beyond those, and of messages that were sent to the queue itself."""
_CHUNK = 2_048
"""Messages of a chunk; at twice as many it is halved."""
_SAMPLES = 8


class Dead(NamedTuple):
    """A message as it is counted."""

    sequence: int
    failure: Failure
    source: str
    """Name of the queue that it came from."""
    seen_s: int
    """When it came to the queue."""
    retained_s: int
    """The instant from which retention counts."""


class Group:
    """The messages of one failure, or of all beyond GROUPS_MAX."""

    __slots__ = ("cells", "failure", "messages", "retained", "samples", "seen", "sources")

    def __init__(self, failure: Failure | None) -> None:
        self.failure = failure
        self.messages = 0
        self.seen = Times()
        self.retained = Times()
        self.sources: dict[str, int] = {}
        self.samples: deque[int] = deque(maxlen=_SAMPLES)
        """Sequences of the latest messages; some may have left."""
        self.cells: dict[str, int] = {}
        """By source."""


class _Chunk:
    __slots__ = ("cells", "retained", "seen", "sequences")

    def __init__(self) -> None:
        self.sequences = array("Q")
        self.cells = array("H")
        self.seen = array("I")
        self.retained = array("I")

    @property
    def arrays(self) -> tuple[array[int], array[int], array[int], array[int]]:
        return self.sequences, self.cells, self.seen, self.retained

    def halved(self) -> _Chunk:
        """The later half, taken out."""
        later = _Chunk()
        for own, other in zip(self.arrays, later.arrays, strict=True):
            other.extend(own[_CHUNK:])
            del own[_CHUNK:]
        return later

    def join(self, later: _Chunk) -> None:
        for own, other in zip(self.arrays, later.arrays, strict=True):
            own.extend(other)


class Counted:
    """The messages of one queue."""

    def __init__(self) -> None:
        self.messages = 0
        self.groups: dict[str, Group] = {}
        """By the failure's id."""
        self.rest = Group(None)
        self._chunks: list[_Chunk] = []
        self._firsts: list[int] = []
        """The first sequence of each chunk, or one before it."""
        self._cells: list[tuple[str, Group, str]] = []
        self._free: list[int] = []
        self._sources: dict[str, int] = {}

    def __contains__(self, sequence: int) -> bool:
        return self._find(sequence) is not None

    @property
    def would_gain(self) -> bool:
        """True if a new count would tell failures apart that are in the rest: many of the groups
        are gone."""
        return self.rest.messages > 0 and len(self.groups) < GROUPS_MAX // 2

    def live_samples(self, group: Group) -> Iterator[int]:
        """Sequences of a few messages of a group, the latest first."""
        return (each for each in reversed(group.samples) if each in self)

    def add(self, dead: Dead) -> None:
        """Count a message, unless it is counted."""
        chunk, place = self._place(dead.sequence)
        if place < len(chunk.sequences) and chunk.sequences[place] == dead.sequence:
            return
        group, source = self._group(dead.failure), self._source(dead.source)
        values = (dead.sequence, self._cell(group, source), dead.seen_s, dead.retained_s)
        for column, value in zip(chunk.arrays, values, strict=True):
            column.insert(place, value)
        self.messages += 1
        group.messages += 1
        group.sources[source] = group.sources.get(source, 0) + 1
        group.seen.add(dead.seen_s)
        group.retained.add(dead.retained_s)
        group.samples.append(dead.sequence)
        if len(chunk.sequences) >= 2 * _CHUNK:
            later, at = chunk.halved(), self._chunks.index(chunk) + 1
            self._chunks.insert(at, later)
            self._firsts.insert(at, later.sequences[0])

    def remove(self, sequence: int) -> None:
        """Count a message no longer, if it is counted."""
        found = self._find(sequence)
        if found is None:
            return
        at, place = found
        chunk = self._chunks[at]
        cell = chunk.cells[place]
        _, group, source = self._cells[cell]
        group.seen.remove(chunk.seen[place])
        group.retained.remove(chunk.retained[place])
        for column in chunk.arrays:
            del column[place]
        self.messages -= 1
        group.messages -= 1
        self._leave_source(group, source, cell)
        self._shrink(at)

    # -- groups and cells --------------------------------------------------------------------------

    def _group(self, failure: Failure) -> Group:
        failure_id = failure.failure_id
        known = self.groups.get(failure_id)
        if known is not None:
            return known
        if len(self.groups) >= GROUPS_MAX or self.rest.messages:
            return self.rest  # it may have messages of this failure: a new group would lack them
        self.groups[failure_id] = Group(failure)
        return self.groups[failure_id]

    def _source(self, name: str) -> str:
        return name if name in self._sources or len(self._sources) < SOURCES_MAX else OTHER_SOURCES

    def _cell(self, group: Group, source: str) -> int:
        cell = group.cells.get(source)
        if cell is not None:
            return cell
        failure_id = group.failure.failure_id if group.failure else ""
        if self._free:
            cell = self._free.pop()
            self._cells[cell] = (failure_id, group, source)
        else:
            cell = len(self._cells)
            self._cells.append((failure_id, group, source))
        group.cells[source] = cell
        self._sources[source] = self._sources.get(source, 0) + 1
        return cell

    def _leave_source(self, group: Group, source: str, cell: int) -> None:
        left = group.sources[source] - 1
        if left:
            group.sources[source] = left
            return
        del group.sources[source], group.cells[source]
        self._free.append(cell)
        self._sources[source] -= 1
        if not self._sources[source]:
            del self._sources[source]
        if not group.messages and group.failure is not None:
            del self.groups[self._cells[cell][0]]

    # -- chunks ------------------------------------------------------------------------------------

    def _place(self, sequence: int) -> tuple[_Chunk, int]:
        """The chunk for a sequence, and its place there."""
        if not self._chunks:
            self._chunks.append(_Chunk())
            self._firsts.append(sequence)
        at = max(0, bisect_right(self._firsts, sequence) - 1)
        self._firsts[at] = min(self._firsts[at], sequence)
        chunk = self._chunks[at]
        return chunk, bisect_left(chunk.sequences, sequence)

    def _find(self, sequence: int) -> tuple[int, int] | None:
        at = bisect_right(self._firsts, sequence) - 1
        if at < 0:
            return None
        sequences = self._chunks[at].sequences
        place = bisect_left(sequences, sequence)
        is_there = place < len(sequences) and sequences[place] == sequence
        return (at, place) if is_there else None

    def _shrink(self, at: int) -> None:
        """Drop an empty chunk; join two small neighbours."""
        chunk = self._chunks[at]
        if not chunk.sequences:
            del self._chunks[at], self._firsts[at]
        elif at + 1 < len(self._chunks):
            later = self._chunks[at + 1]
            if len(chunk.sequences) + len(later.sequences) <= _CHUNK // 2:
                chunk.join(later)
                del self._chunks[at + 1], self._firsts[at + 1]
