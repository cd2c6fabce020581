"""The rows of a shard that can be read and are sound; the others are passed by and listed once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar, cast

from storage.checks.damage import Rows, UnreadableRows, check_row, walk_rows
from storage.rows.codec import DamagedRecord
from storage.rows.keys import queue_of, table_range

_T = TypeVar("_T")


class ReadableRows:
    """Rows of a view that may be damaged. Scans only: they alone are right in a repaired database."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def table(self, queue_id: int, table: bytes, kind: type[_T]) -> Iterator[tuple[bytes, _T]]:
        """The sound rows of a table, decoded; rows without a value are None."""
        for found in walk_rows(self._rows, *table_range(queue_id, table)):
            if not isinstance(found, UnreadableRows):
                try:
                    row = check_row(*found)
                except DamagedRecord:
                    continue
                yield found[0], cast("_T", row)

    def row(self, key: bytes, kind: type[_T]) -> _T | None:
        """One row; None if it is missing, damaged or without a value."""
        for found in walk_rows(self._rows, key, key + b"\0"):
            if not isinstance(found, UnreadableRows):
                try:
                    return cast("_T | None", check_row(*found))
                except DamagedRecord:
                    return None
        return None


class Damage(NamedTuple):
    """Rows from `key` to before `until` that cannot be read, or one that is not what was written."""

    key: bytes
    until: bytes
    reason: str

    @property
    def is_one_row(self) -> bool:
        """True for a row whose key can be read."""
        return self.until == self.key + b"\0"

    def touches(self, queue_id: int) -> bool:
        """True if rows of this queue may be among them."""
        return queue_of(self.key.ljust(8, b"\0")) <= queue_id and (
            self.until.ljust(9, b"\0") > queue_id.to_bytes(8) + b"\0"
        )


class Contents(NamedTuple):
    """What a shard holds, without the rows."""

    queue_ids: list[int]
    damages: list[Damage]
    rows: int


def look_through(rows: Rows) -> Contents:
    """Read everything once. O(rows)."""
    queue_ids: dict[int, None] = {}
    damages: list[Damage] = []
    count = 0
    for found in walk_rows(rows):
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
