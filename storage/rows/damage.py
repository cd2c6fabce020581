"""Walks over all rows of a shard, past unreadable ones, and checks each row alone.

`consistency.py` checks that rows agree with each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from visibility.contract.move_task import MoveTask
from visibility.contract.stored_message import Hold, Lease, StoredMessage
from visibility.rows.overlay import RowReader
from visibility.rows.row_codec import DamagedRecord, decode_row
from visibility.rows.row_keys import (
    ALIAS,
    ANSWERS,
    APPLIED,
    ARCHIVE,
    ARCHIVED,
    ARRIVAL,
    ARRIVALS_FLOOR,
    BATCH,
    BLOCKED,
    CLOCK,
    DELAYED,
    DEPARTURE,
    GROUP,
    GROUP_LINE,
    HEAD,
    HOLD,
    LEASE,
    MESSAGE,
    MOVE_TASK,
    OUTBOX,
    PART,
    QUARANTINED,
    QUEUE,
    REMEMBERED,
    SPAN,
    number_of,
    queue_of,
)
from visibility.rows.row_values import (
    REMEMBER_BUCKET_MS,
    AppliedRow,
    ArchivedMessage,
    ArchiveRow,
    Departure,
    GroupRow,
    OutboxRow,
    PartRow,
    Quarantined,
    QueueRow,
    Remembered,
    SealedBatch,
)
from visibility.state.short_answers import AnswersRow

GROUP_BYTES = 16
_KEY_BYTES_MAX = 33
_NUMBERED_BYTES = 17
FIRST = b""
END = b"\xff" * _KEY_BYTES_MAX


class Table(NamedTuple):
    """The format of a table's rows."""

    name: str
    key_bytes: int
    kind: type | None
    """Type of the decoded value; None if it has none, or is the digest of a group."""
    may_be_empty: bool = False


TABLES = {
    QUEUE: Table("queue", 9, QueueRow),
    MESSAGE: Table("message", 17, StoredMessage),
    CLOCK: Table("clock", 25, None, may_be_empty=True),
    DELAYED: Table("delayed", 25, StoredMessage),
    GROUP: Table("group", 25, GroupRow),
    GROUP_LINE: Table("group line", 33, Lease, may_be_empty=True),
    HEAD: Table("head", 17, None),
    LEASE: Table("lease", 17, Lease),
    ALIAS: Table("alias", 17, int),
    HOLD: Table("holds", 17, Hold),
    REMEMBERED: Table("remembered", 33, Remembered),
    MOVE_TASK: Table("move task", 17, MoveTask),
    SPAN: Table("span", 17, int),
    QUARANTINED: Table("quarantined", 17, Quarantined),
    BLOCKED: Table("blocked group", 25, int),
    ARCHIVED: Table("archived", 17, ArchivedMessage),
    BATCH: Table("batch", 17, SealedBatch),
    ARCHIVE: Table("archive", 17, ArchiveRow),
    APPLIED: Table("applied", 17, AppliedRow),
    ANSWERS: Table("answers", 25, AnswersRow),
    DEPARTURE: Table("departure", 17, Departure),
    OUTBOX: Table("outbox", 17, OutboxRow),
    ARRIVAL: Table("arrival", 33, str),
    ARRIVALS_FLOOR: Table("arrivals floor", 25, int),
    PART: Table("part", 17, PartRow),
}


class Finding(NamedTuple):
    """A row that is wrong or missing."""

    key: bytes
    what: str
    until: bytes = b""
    """End of the unreadable rows; empty for a finding on a single row."""

    @property
    def queue_id(self) -> int | None:
        """The queue of the finding, None for a key that names no queue."""
        return queue_of(self.key) if len(self.key) >= 8 else None

    @property
    def table(self) -> str:
        """The table's name."""
        table = TABLES.get(self.key[8:9])
        return table.name if table else "-"


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
    return number + (len(key) > _NUMBERED_BYTES)


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
    if table is None or len(key) != table.key_bytes:
        raise DamagedRecord(key, "no table has such a key")
    if not value and table.may_be_empty:
        return None
    if table.kind is None:
        if len(value) != (0 if table.may_be_empty else GROUP_BYTES):
            raise DamagedRecord(key, f"its value has {len(value)} bytes")
        return value or None
    row: object = decode_row(table.kind, key, value)
    _check_names(key, row)
    return row


def _check_names(key: bytes, row: object) -> None:
    """Check that a row that names itself agrees with its key."""
    if isinstance(row, Lease | Hold):
        is_own = row.sequence == int.from_bytes(key[-8:])
    elif isinstance(row, MoveTask | SealedBatch):
        is_own = row.number == number_of(key)
    elif isinstance(row, Remembered):
        is_own = row.at_ms // REMEMBER_BUCKET_MS * REMEMBER_BUCKET_MS == number_of(key)
    else:
        return
    if not is_own:
        raise DamagedRecord(key, "it is the value of another key")


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
