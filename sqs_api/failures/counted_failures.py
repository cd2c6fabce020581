"""Counted: the messages of one queue by their failures; exact, and bounded in memory.

    groups     up to GROUPS_MAX failures; the messages of all others are in `rest`
    spans      12 bytes a message or less, by sequence: its cell and its times
    cell       a number for a group and a source queue

A message that leaves is found by its sequence, so nothing needs to be read to count it no longer.
A span can be taken from here as a note, and counted again from it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from sqs_api.failures.span_messages import Known, Packed, SpanMessages
from sqs_api.failures.times import NotedTimes, Times
from visibility.content.failures import Failure
from visibility.rows.row_keys import SPAN_BITS

GROUPS_MAX = 1_000
SOURCES_MAX = 50
OTHER_SOURCES = ""
"""The name of all sources beyond those, and of messages that were sent to the queue itself."""
_SPAN_WEIGHT = 40
"""Messages that take as much memory as a span beside its messages."""
OFFSET = (1 << SPAN_BITS) - 1
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


class NotedCell(msgspec.Struct, frozen=True, array_like=True):
    """The messages of a span that have one failure and one source; `signs` is None for failures
    beyond GROUPS_MAX."""

    signs: tuple[tuple[str, str], ...] | None
    source: str
    seen: NotedTimes
    retained: NotedTimes
    messages: int
    samples: list[int]
    """Offsets of the latest ones."""


class SpanNote(msgspec.Struct, frozen=True, array_like=True):
    """The messages of a span, but for their sequences. `retention_ms` is the queue's if times
    depend on it: of messages with a time to live; else 0."""

    cells: list[NotedCell]
    columns: bytes
    retention_ms: int = 0


class Counted:
    """The messages of one queue."""

    def __init__(self) -> None:
        self.messages = 0
        self.groups: dict[str, Group] = {}
        """By the failure's id."""
        self.rest = Group(None)
        self._spans: dict[int, SpanMessages] = {}
        """No empty ones."""
        self._cells: list[tuple[str, Group, str]] = []
        self._free: list[int] = []
        self._sources: dict[str, int] = {}

    def __contains__(self, sequence: int) -> bool:
        span = self._spans.get(sequence >> SPAN_BITS)
        return span is not None and sequence & OFFSET in span

    @property
    def weight(self) -> int:
        """Its memory in messages of 12 bytes."""
        return self.messages + _SPAN_WEIGHT * len(self._spans)

    def last_of(self, span: int) -> int:
        """The highest sequence of a message in a span, 0 if there is none."""
        found = self._spans.get(span)
        return (span << SPAN_BITS) + found.last if found is not None else 0

    @property
    def would_gain(self) -> bool:
        """True if a new count would tell failures apart that are in the rest: many of the groups
        are gone."""
        return self.rest.messages > 0 and len(self.groups) < GROUPS_MAX // 2

    def live_samples(self, group: Group) -> Iterator[int]:
        """Sequences of a few messages of a group, the latest first."""
        return (each for each in reversed(group.samples) if each in self)

    def add(self, dead: Dead) -> bool:
        """Count a message; False if it is counted."""
        if dead.sequence in self:
            return False
        group, source = self._group(dead.failure), self._source(dead.source)
        known = Known(self._cell(group, source), dead.seen_s, dead.retained_s)
        span = self._spans.get(dead.sequence >> SPAN_BITS)
        if span is None:
            span = self._spans[dead.sequence >> SPAN_BITS] = SpanMessages()
        span.add(dead.sequence & OFFSET, known)
        self.messages += 1
        group.messages += 1
        group.sources[source] = group.sources.get(source, 0) + 1
        group.seen.add(dead.seen_s)
        group.retained.add(dead.retained_s)
        group.samples.append(dead.sequence)
        return True

    def remove(self, sequence: int) -> bool:
        """Count a message no longer; False if it is not counted."""
        span = self._spans.get(sequence >> SPAN_BITS)
        known = span.remove(sequence & OFFSET) if span is not None else None
        if span is None or known is None:
            return False
        if not span:
            del self._spans[sequence >> SPAN_BITS]
        _, group, source = self._cells[known.cell]
        group.seen.remove(known.seen_s)
        group.retained.remove(known.retained_s)
        self.messages -= 1
        group.messages -= 1
        self._leave_source(group, source, known.cell)
        return True

    # -- notes -------------------------------------------------------------------------------------

    def note(self, number: int) -> tuple[bytes, SpanNote] | None:
        """The sequences and the messages of a span; None if it has none."""
        span = self._spans.get(number)
        if span is None:
            return None
        offsets, cells, seen, retained = span.read()
        samples: dict[int, deque[int]] = {}
        for offset, cell in zip(offsets, cells, strict=True):
            samples.setdefault(cell, deque(maxlen=_SAMPLES)).append(offset)
        by_cell: dict[int, tuple[dict[int, int], dict[int, int]]] = {}
        for at, times in enumerate((seen, retained)):
            for (cell, at_s), messages in Counter(zip(cells, times, strict=True)).items():
                by_cell.setdefault(cell, ({}, {}))[at][at_s] = messages
        packed = span.pack()
        noted = []
        for cell in packed.cells:
            _, group, source = self._cells[cell]
            signs = group.failure.signs if group.failure is not None else None
            each_seen, each_retained = map(NotedTimes.of, by_cell[cell])
            messages = sum(by_cell[cell][0].values())
            latest = list(samples[cell])
            noted.append(NotedCell(signs, source, each_seen, each_retained, messages, latest))
        return packed.sequences, SpanNote(noted, packed.columns)

    def load(self, number: int, sequences: bytes, note: SpanNote) -> bool:
        """Count the messages of a note, before any other message is counted. False if it is too
        much for the bounds, so that all must be counted anew."""
        cells, begin = [], number << SPAN_BITS
        for noted in note.cells:
            group = self.rest
            if noted.signs is not None:
                failure = Failure(noted.signs)
                known = self.groups.get(failure.failure_id)
                if known is None and len(self.groups) >= GROUPS_MAX:
                    return False
                group = known or self.groups.setdefault(failure.failure_id, Group(failure))
            source = self._source(noted.source)
            cells.append(self._cell(group, source))
            group.messages += noted.messages
            group.sources[source] = group.sources.get(source, 0) + noted.messages
            group.seen.add_noted(noted.seen)
            group.retained.add_noted(noted.retained)
            self.messages += noted.messages
            group.samples.extend(begin + offset for offset in noted.samples)
        self._spans[number] = SpanMessages(Packed(sequences, cells, note.columns))
        return True

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
