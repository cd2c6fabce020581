"""Walks over all rows of a shard, past unreadable ones, and checks each row alone.

`consistency.py` checks that rows agree with each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from visibility.rows.overlay import RowReader
from visibility.rows.row_codec import DamagedRecord
from visibility.rules.features import TABLES
from visibility.rules.tables import GROUP_LINE_KEY, NUMBER_KEY, Finding

_KEY_BYTES_MAX = GROUP_LINE_KEY
FIRST = b""
END = b"\xff" * _KEY_BYTES_MAX


class UnreadableRows(DamagedRecord):
    """Rows from `key` to before `until` that cannot be read."""

    def __init__(self, key: bytes, until: bytes, reason: str) -> None:
        super().__init__(key, reason)
        self.until = until


def gap_of(stretch: UnreadableRows) -> tuple[int, int]:
    """The sequences (first, until) that a stretch may cover; its keys are in one table of
    messages."""
    return number_from(stretch.key), number_from(stretch.until)


def number_from(key: bytes) -> int:
    """The lowest sequence whose key is not below `key`."""
    number = int.from_bytes(key[9:17].ljust(8, b"\0"))
    return number + (len(key) > NUMBER_KEY)


def walk_rows(
    rows: RowReader, begin: bytes = FIRST, end: bytes = END
) -> Iterator[tuple[bytes, bytes] | UnreadableRows]:
    """Every row from `begin` to before `end`, in order, and an UnreadableRows for each unreadable
    stretch."""
    at: bytes | None = begin
    while at is not None:
        behind = at
        try:
            for row in rows.scan(at, end):
                behind = row[0] + b"\0"
                yield row
        except DamagedRecord as error:
            at = _next_readable(rows, behind, end)
            until = at.rstrip(b"\0").hex() if at is not None else "the end"
            reason = f"rows from here to {until} cannot be read: {error.reason}"
            yield UnreadableRows(behind, end if at is None else at, reason)
        else:
            return


def _next_readable(rows: RowReader, begin: bytes, end: bytes) -> bytes | None:
    """A key from which rows can be read again, as close after the unreadable `begin` as can be
    found; None: none."""
    unreadable, limit = _as_number(begin), _as_number(end)
    step = 1
    while not _is_readable(rows, _as_key(readable := min(unreadable + step, limit)), end):
        if readable == limit:
            return None
        step *= 2
    unreadable += step // 2
    while readable - unreadable > 1:
        middle = (unreadable + readable) // 2
        if _is_readable(rows, _as_key(middle), end):
            readable = middle
        else:
            unreadable = middle
    return None if readable == limit else _as_key(readable)


def _is_readable(rows: RowReader, key: bytes, end: bytes) -> bool:
    try:
        next(rows.scan(key, end), None)
    except DamagedRecord:
        return False
    return True


def _as_number(key: bytes) -> int:
    return int.from_bytes(key[:_KEY_BYTES_MAX].ljust(_KEY_BYTES_MAX, b"\0"))


def _as_key(number: int) -> bytes:
    return number.to_bytes(_KEY_BYTES_MAX)


def check_row(key: bytes, value: bytes) -> object:
    """Decode a row; None if it has no value. Raises DamagedRecord."""
    table = TABLES.get(key[8:9])
    if table is None:
        raise DamagedRecord(key, "no table has such a key")
    return table.decode(key, value)


def table_name(key: bytes) -> str:
    """The name of the table that a key is of."""
    table = TABLES.get(key[8:9])
    return table.name if table is not None else "-"


class SoundRow(NamedTuple):
    """An undamaged row."""

    key: bytes
    says: object


def check_rows(rows: RowReader) -> Iterator[Finding | SoundRow]:
    """Check every row of the shard: yields it, or a finding if it is damaged."""
    for found in walk_rows(rows):
        if isinstance(found, UnreadableRows):
            yield Finding(found.key, found.reason, found.until)
            continue
        try:
            says = check_row(*found)
        except DamagedRecord as error:
            yield Finding(error.key, error.reason)
        else:
            yield SoundRow(found[0], says)
