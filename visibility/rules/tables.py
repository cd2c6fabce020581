"""Table: the rows of one kind in the store. Each stands with its feature, which alone knows them:
loading, verify, rebuild and salvage ask the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rows.overlay import RowReader
from visibility.rows.row_codec import DamagedRecord, decode_row, encode_row
from visibility.rows.row_keys import last_number_of, number_of, queue_of, table_range
from visibility.rows.row_values import THE_SHARD, QueueRow
from visibility.state.queue_state import QueueState
from visibility.state.rows import Rows
from visibility.state.shard_state import ShardState

NUMBER_KEY = 17
"""Length of a key with a number behind queue and table."""
PAIR_KEY = GROUP_KEY = 25
"""Length of a key with two numbers, or with a group, behind queue and table."""
GROUP_LINE_KEY = 33
"""Length of a key with a group and a number, or a number and a digest."""
GROUP_BYTES = 16

_R = TypeVar("_R")
_T = TypeVar("_T")


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


class SoundRows(Protocol):
    """The rows that are readable and sound, of a shard that may be damaged."""

    def table(self, queue_id: int, table: bytes, kind: type[_T]) -> Iterator[tuple[bytes, _T]]:
        """The sound rows of a table."""

    def row(self, key: bytes, kind: type[_T]) -> _T | None:
        """One row; None if it is missing, damaged or without a value."""


Put = Callable[[bytes, bytes], None]
"""Writes the value of a key."""


@dataclass(frozen=True)
class Table(Generic[_R]):
    """One table: the format of its rows, and what is done with those of a queue."""

    prefix: bytes
    """The byte that names it, between queue and rest of a key."""
    name: str
    key_bytes: int
    row: type[_R] | None
    """Type of the decoded value; None if it has none, or is the digest of a group."""
    may_be_empty: bool = False
    names_itself: Callable[[bytes, _R], bool] | None = None
    """False for the value of another key; None if values do not tell."""
    next_number: Callable[[SoundRows, int], int] | None = None
    """For keys that are predictable: the number behind those of a queue, 0 if it is unknown."""
    message: Callable[[_R], StoredMessage] | None = None
    """The message in a row."""
    load: Callable[[Rows, QueueState, list[Lease]], None] | None = None
    """Fills a queue's memory at a start, once its own row and its leases are known. Raises
    DamagedRecord."""
    check: Callable[[RowReader, int], Iterator[Finding]] | None = None
    """Rows of a queue that do not agree with others. Raises DamagedRecord."""
    salvage: Callable[[QueueRow, _R], QueueRow] | None = None
    """For rows that are copied as they are, if others of their queue are damaged: the queue's own
    row with one of them. None: they follow from messages and leases, or are left out."""

    def decode(self, key: bytes, value: bytes) -> _R | None:
        """A row; None if it has no value. Raises DamagedRecord."""
        if len(key) != self.key_bytes:
            raise DamagedRecord(key, "no table has such a key")
        if not value and self.may_be_empty:
            return None
        if self.row is None:
            if len(value) != (0 if self.may_be_empty else GROUP_BYTES):
                raise DamagedRecord(key, f"its value has {len(value)} bytes")
            return value or None  # type: ignore[return-value]
        row = decode_row(self.row, key, value)
        if self.names_itself is not None and not self.names_itself(key, row):
            raise DamagedRecord(key, "it is the value of another key")
        return row

    def read(self, rows: RowReader, queue_id: int) -> Iterator[tuple[bytes, _R]]:
        """The rows of a queue, which have values. Raises DamagedRecord."""
        assert self.row is not None
        for key, value in rows.scan(*table_range(queue_id, self.prefix)):
            yield key, decode_row(self.row, key, value)


Tables = tuple[Table[Any], ...]


def keep(own: QueueRow, row: object) -> QueueRow:
    """Salvages rows that the queue's own row does not depend on."""
    return own


def has_its_sequence(key: bytes, row: Any) -> bool:
    """True if the row names the sequence at the end of its key."""
    return bool(row.sequence == last_number_of(key))


def has_its_number(key: bytes, row: Any) -> bool:
    """True if the row names the number of its key."""
    return bool(row.number == number_of(key))


# -- of the shard ----------------------------------------------------------------------------------


class Kept(NamedTuple):
    """Numbers of salvaged messages that are in no queue."""

    messages: int = 0
    archived: int = 0
    """Those that wait for the archive."""


def keep_all(table: Table[Any]) -> Callable[[SoundRows, Put], Kept]:
    """Salvages a table of the shard whose rows depend on no others."""

    def salvage(rows: SoundRows, put: Put) -> Kept:
        assert table.row is not None
        for key, row in rows.table(THE_SHARD, table.prefix, table.row):
            put(key, encode_row(row))
        return Kept()

    return salvage


def no_findings(rows: RowReader) -> Iterator[Finding]:
    """Checks tables whose rows do not depend on each other."""
    return iter(())


class ShardTables(NamedTuple):
    """Tables of the shard, not of its queues, that only make sense together."""

    tables: Tables
    load: Callable[[ShardState, RowReader], None]
    """Fills memory at a start, once the queues are there. Raises DamagedRecord."""
    salvage: Callable[[SoundRows, Put], Kept]
    """Writes what is readable, so that it agrees. O(rows)."""
    check: Callable[[RowReader], Iterator[Finding]] = no_findings
    """Rows that do not agree. Raises DamagedRecord."""
