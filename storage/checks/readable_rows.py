"""The rows of a shard that are readable and sound; others are skipped and listed once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from typing import NamedTuple, TypeVar, cast

from storage.rows.damage import END, FIRST, UnreadableRows, check_row, walk_rows
from visibility.rows.overlay import RowReader
from visibility.rows.row_codec import DamagedRecord
from visibility.rows.row_keys import DEPARTURE, queue_of, row_key, table_range
from visibility.rows.row_values import THE_SHARD, Departure
from visibility.rules.features import TABLES

_T = TypeVar("_T")
GUESSES = 100_000


class ReadableRows:
    """Rows of a view that may be damaged.

    A scan cannot pass the rows of a damaged block, nor those of other files between them. These are
    looked up one by one, by the names that can be made out in the block.
    """

    def __init__(self, rows: RowReader) -> None:
        self._rows = rows
        self.lost: defaultdict[bytes, set[bytes]] = defaultdict(set)
        """Names of rows that cannot be read, by the part of the key that names queue and table, of
        the tables that were read."""

    def table(self, queue_id: int, table: bytes, kind: type[_T]) -> Iterator[tuple[bytes, _T]]:
        """The sound rows of a table, decoded; rows without a value are None."""
        for key, value in self.stored(queue_id, table):
            with suppress(DamagedRecord):
                yield key, cast("_T", check_row(key, value))

    def stored(self, queue_id: int, table: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The readable rows of a table, sound or not."""
        for found in walk_rows(self._rows, *table_range(queue_id, table)):
            if isinstance(found, UnreadableRows):
                yield from self._looked_up(found)
            else:
                yield found

    @cached_property
    def departures(self) -> dict[int, list[Departure]]:
        """The messages in the outbox by the queue that they left. An outbox is bounded."""
        found: defaultdict[int, list[Departure]] = defaultdict(list)
        for _, departure in self.table(THE_SHARD, DEPARTURE, Departure):
            found[departure.queue_id].append(departure)
        return dict(found)

    def departed(self, queue_id: int) -> int:
        """The number of those that left this queue."""
        return len(self.departures.get(queue_id, ()))

    def row(self, key: bytes, kind: type[_T]) -> _T | None:
        """One row; None if it is missing, damaged or without a value."""
        with suppress(DamagedRecord):
            value = self._rows.get(key)
            return None if value is None else cast("_T", check_row(key, value))
        return None

    def _looked_up(self, stretch: UnreadableRows) -> Iterator[tuple[bytes, bytes]]:
        """Rows in a stretch that a scan cannot pass."""
        behind = stretch.key
        for key in self._names(stretch):
            if key < behind:  # a damaged name, or one that was looked up
                continue
            try:
                value = self._rows.get(key)
            except DamagedRecord:
                self.lost[key[:9]].add(key)
            else:
                if value is not None:
                    behind = key + b"\0"
                    yield key, value

    def _names(self, stretch: UnreadableRows) -> Iterator[bytes]:
        try:
            yield from self._rows.names(stretch.key, stretch.until)
        except DamagedRecord:  # nothing can be made out
            yield from self._guessed(stretch)

    def _guessed(self, stretch: UnreadableRows) -> Iterator[bytes]:
        """The keys that rows of a numbered table may have: filters exclude those that are not in
        the damaged file."""
        queue_id, table = queue_of(stretch.key), TABLES.get(stretch.key[8:9])
        if table is None or table.next_number is None:
            return
        first = int.from_bytes(stretch.key[9:17].ljust(8, b"\0"))
        if stretch.until.startswith(stretch.key[:9]):
            end = int.from_bytes(stretch.until[9:17].ljust(8, b"\0")) + 1
        else:
            end = table.next_number(self, queue_id) or first + GUESSES
        for number in range(first, min(end, first + GUESSES)):
            key = row_key(queue_id, table.prefix, number)
            if stretch.key <= key < stretch.until:
                yield key


class Damage(NamedTuple):
    """Unreadable rows from `key` to before `until`, or one damaged row."""

    key: bytes
    until: bytes
    reason: str

    @property
    def is_one_row(self) -> bool:
        """True for a row with a readable key."""
        return self.until == self.key + b"\0"

    def touches(self, queue_id: int) -> bool:
        """True if rows of this queue may be among them."""
        return queue_of(self.key.ljust(8, b"\0")) <= queue_id and (
            self.until.ljust(9, b"\0") > queue_id.to_bytes(8) + b"\0"
        )


class Contents(NamedTuple):
    """A summary of a shard's content, without the rows."""

    queue_ids: list[int]
    damages: list[Damage]
    rows: int


def look_through(rows: RowReader, begin: bytes = FIRST, end: bytes = END) -> Contents:
    """Read everything from `begin` to before `end` once. O(rows)."""
    queue_ids: dict[int, None] = {}
    damages: list[Damage] = []
    count = 0
    for found in walk_rows(rows, begin, end):
        if isinstance(found, UnreadableRows):
            damages.append(Damage(found.key, found.until, found.reason))
            continue
        key, value = found
        try:
            check_row(key, value)
        except DamagedRecord as error:
            damages.append(Damage(key, key + b"\0", error.reason))
        else:
            count += 1
        if len(key) >= 9:
            queue_ids[queue_of(key)] = None
    return Contents(list(queue_ids), damages, count)
