"""ReplicaLog: a log whose Entries come from leaders, as the same bytes on every host.

It knows the position of each Entry it holds, so that logs can be compared and Entries shipped. To
forget Entries at the end it is closed and opened anew (`open_replica_log` with `keep`): the fresh
segment's header ends the older ones there, durably, and files that held Entries which no longer
count are overwritten before they are reused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Unpack

from typing_extensions import override

from storage.log.entry import (
    BEGINNING,
    QUEUE_IDS_MAX,
    Entry,
    Misfit,
    NewerFormat,
    Position,
    encode_entry,
    read_entry,
)
from storage.log.entry_places import EntryPlaces, Place
from storage.log.log import EntryTooLarge, Log, Opened

RECENT_BYTES = 32 << 20
"""Entries kept in memory to be shipped: as much as may be under way."""

Got = Callable[[list[bytes]], None]


class NotNext(ValueError):
    """The record is not the Entry that follows the log's last one."""


class Diverged(NamedTuple):
    """Entries behind this index are to be forgotten first."""

    behind: int


class ReplicaLog(Log):
    """See `Log`; `open_replica_log` makes it."""

    def __init__(self, applied: Position, **opened: Unpack[Opened]) -> None:
        """Reads the segments; blocks. Raises OSError."""
        super().__init__(**opened)
        self._places = EntryPlaces()
        self._recent: dict[int, bytes] = {}
        self._recent_bytes = 0
        for segment in self._segments:
            last = self.last_index if segment is self._current else segment.last
            self._places.read(self._disk, segment, last, self._seed)
        self.start = self._first_known(applied)
        """The Entry behind which the log can be shipped; earlier ones are only in the rows."""

    def _first_known(self, applied: Position) -> Position:
        first = self._places.first
        if first == 1:
            return BEGINNING
        return applied if applied.index == first - 1 else self._places.position(first)

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
        size = len(record)
        self._places.add(self._current, self._offset - size, size, term, checksum)
        self._recent[self.last_index] = record
        self._recent_bytes += size
        while self._recent_bytes > RECENT_BYTES:
            self._recent_bytes -= len(self._recent.pop(next(iter(self._recent))))

    @override
    def release(self, index: int) -> None:
        before = self._segments
        super().release(index)
        for segment in before:
            if segment not in self._segments:
                last = self._places.remove(segment)
                if last is not None and last.index > self.start.index:
                    self.start = last

    # -- reading -----------------------------------------------------------------------------------

    def position_at(self, index: int) -> Position | None:
        """The position of an Entry, None if it is only in the rows or not there yet."""
        if index == self.start.index:
            return self.start
        if index == self.last_index:
            return self.last
        return self._places.position(index) if self.start.index < index < self.last_index else None

    def holds(self, index: int) -> bool:
        """True if this Entry can be shipped."""
        return self.start.index < index <= self.last_index

    def bytes_above(self, index: int) -> int:
        """Bytes of the Entries above an index, as far as the log reaches back."""
        return self._places.bytes_above(index)

    def index_before(self, size: int) -> int:
        """An index above which at least so many bytes of Entries lie, 0 if there are fewer."""
        return self._places.index_before(size)

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
        wanted: list[tuple[Place, Position]] = []
        while self.holds(index := first + len(wanted)):
            place = self._places.place(index)
            bytes_max -= place.size
            if wanted and bytes_max < 0:
                break
            wanted.append((place, self._places.position(index)))
        records: list[bytes] = []
        self._disk.prepare(partial(self._read_all, wanted, records), lambda error: got(records))

    def read_now(self, index: int) -> Entry:
        """An Entry; blocks unless it is in memory (`recent`). Raises OSError."""
        records = self.recent(index, 0)
        if not records:
            if not self.holds(index):
                raise OSError(f"the log does not hold Entry {index}")
            place = self._places.place(index)
            records.append(self._disk.pread(place.handle, place.size, place.offset))
        entry = read_entry(records[0], 0, self._seed)
        if isinstance(entry, Misfit):
            raise OSError(f"Entry {index} cannot be read: {entry.reason}")
        return entry

    def _read_all(self, wanted: list[tuple[Place, Position]], records: list[bytes]) -> None:
        """For any thread: a segment may be reused meanwhile, so what is read is checked."""
        for (handle, offset, size), position in wanted:
            record = self._disk.pread(handle, size, offset)
            entry = read_entry(record, 0, self._seed)
            if isinstance(entry, Misfit) or entry.position != position:
                return
            records.append(record)
