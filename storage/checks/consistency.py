"""Consistency of the rows: those that follow from others must be the ones that are stored.

Each row must already be sound (`verify.py`). Memory is bounded by leases, groups and spans, however
many messages wait: rows are looked up one by one, and superfluous ones are searched for only if a
table has more rows than it must.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from storage.checks.derived_queue import AS_STORED, Derived, DerivedQueue, references
from storage.checks.readable_rows import ReadableRows
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rows import row_keys
from visibility.rows.overlay import RowReader
from visibility.rows.row_codec import decode_row
from visibility.rows.row_values import NOWHERE, GroupRow, Quarantined, QueueRow
from visibility.rules.features import SHARD_TABLES, TABLES
from visibility.rules.tables import Finding
from visibility.state.queue_state import is_passed_by

_T = TypeVar("_T")
_OF_MESSAGES = (
    row_keys.CLOCK,
    row_keys.EXPIRY,
    row_keys.LEVEL_LINE,
    row_keys.ALIAS,
    row_keys.GROUP_LINE,
)
"""Tables with a row for each message that needs one."""
_OTHERS = (row_keys.LEASE, row_keys.GROUP, row_keys.HEAD, row_keys.SPAN)


def check_queue(rows: RowReader, queue_id: int) -> Iterator[Finding]:
    """Inconsistencies of a queue. O(rows of the queue). Raises DamagedRecord."""
    own = row_keys.queue_key(queue_id)
    value = rows.get(own)
    if value is None:
        yield Finding(own, "the queue has rows but none of its own")
        return
    yield from _QueueCheck(rows, queue_id, decode_row(QueueRow, own, value)).findings()
    for table in TABLES.values():
        if table.check is not None:
            yield from table.check(rows, queue_id)


def check_shard(rows: RowReader) -> Iterator[Finding]:
    """Inconsistencies of the rows that are of no queue. O(these rows). Raises DamagedRecord."""
    for each in SHARD_TABLES:
        yield from each.check(rows)


class _QueueCheck:
    def __init__(self, rows: RowReader, queue_id: int, own: QueueRow) -> None:
        self._rows = rows
        self._id = queue_id
        self._quarantined = {
            row.span: row for _, row in self._decoded(row_keys.QUARANTINED, Quarantined)
        }
        leases = [lease for _, lease in self._decoded(row_keys.LEASE, Lease)]
        self._leased = {lease.sequence for lease in leases}
        self._derived = DerivedQueue(
            queue_id,
            own,
            leases,
            groups={key[9:]: row for key, row in self._decoded(row_keys.GROUP, GroupRow)},
            blocked={
                key[9:]
                for table in (row_keys.BLOCKED, row_keys.LOCKED)
                for key, _ in self._table(table)
            },
            departures=ReadableRows(rows).departures.get(queue_id, ()),
            fifo=own.fifo,
        )
        self._found: Counter[bytes] = Counter()
        """Numbers of rows that are as they must be or differ, by table."""
        self._keys: set[bytes] = set()
        """The keys that must be there, in the other tables."""

    def findings(self) -> Iterator[Finding]:
        if self._quarantined:
            for key in self._of_quarantined():
                self._derived.pass_by(key)
        yield from self._compared(self._derived.of_messages(self._messages()))
        yield from self._compared(self._derived.of_queue(self._delayed()))
        for sequence in self._derived.lost:
            key = row_keys.row_key(self._id, row_keys.LEASE, sequence)
            self._keys.add(key)
            yield Finding(key, "its message is missing")
        for table in (*_OF_MESSAGES, *_OTHERS):
            yield from self._superfluous(table)

    # -- reading -----------------------------------------------------------------------------------

    def _table(self, table: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._rows.scan(*row_keys.table_range(self._id, table))

    def _decoded(self, table: bytes, kind: type[_T]) -> Iterator[tuple[bytes, _T]]:
        return ((key, decode_row(kind, key, value)) for key, value in self._table(table))

    def _messages(self) -> Iterator[tuple[int, StoredMessage]]:
        for key, value in self._table(row_keys.MESSAGE):
            sequence = row_keys.number_of(key)
            if not self._is_quarantined(sequence):
                yield sequence, decode_row(StoredMessage, key, value)

    def _delayed(self) -> Iterator[tuple[int, bytes, int]]:
        record = self._quarantined.get(NOWHERE)
        lost = record.delayed if record is not None else []
        for key, value in self._table(row_keys.DELAYED):
            if not row_keys.is_between(key, lost):
                message = decode_row(StoredMessage, key, value)
                yield row_keys.last_number_of(key), message.group, message.size

    def _is_quarantined(self, sequence: int) -> bool:
        """A message in flight may be damaged; it leaves later."""
        record = self._quarantined.get(sequence >> row_keys.SPAN_BITS)
        return (
            record is not None and sequence not in self._leased and is_passed_by(record, sequence)
        )

    def _of_quarantined(self) -> Iterator[bytes]:
        """The rows of quarantined messages in other tables."""
        for table in _OF_MESSAGES:
            for key, value in self._table(table):
                if self._is_quarantined(_sequence_of(key, value)):
                    yield key

    # -- comparing ---------------------------------------------------------------------------------

    def _compared(self, derived: Derived) -> Iterator[Finding]:
        """The rows that are missing or differ from what follows from others."""
        for key, row in derived:
            table = TABLES[key[8:9]]
            if table.prefix in _OTHERS:
                self._keys.add(key)
            value = self._rows.get(key)
            if value is None:
                yield Finding(key, "it is missing")
                continue
            self._found[table.prefix] += 1
            if row is not AS_STORED and (stored := table.decode(key, value)) != row:
                yield Finding(key, _difference(stored, row))

    def _superfluous(self, table: bytes) -> Iterator[Finding]:
        if sum(1 for _ in self._table(table)) == self._found[table]:
            return
        for key, value in self._table(table):
            if not self._must_be(key, value):
                yield Finding(key, "no message requires it")

    def _must_be(self, key: bytes, value: bytes) -> bool:
        if key[8:9] not in _OF_MESSAGES:
            return key in self._keys
        sequence = _sequence_of(key, value)
        if self._is_quarantined(sequence):
            return True
        place = row_keys.row_key(self._id, row_keys.MESSAGE, sequence)
        stored = self._rows.get(place)
        if stored is None:
            return False
        message = decode_row(StoredMessage, place, stored)
        required = references(self._id, sequence, message, waits=sequence not in self._leased)
        return any(key == each for each, _ in required)


def _sequence_of(key: bytes, value: bytes) -> int:
    """The message that a row in another table is of."""
    return (
        decode_row(int, key, value) if key[8:9] == row_keys.ALIAS else row_keys.last_number_of(key)
    )


def _difference(stored: object, row: object) -> str:
    if isinstance(stored, msgspec.Struct) and isinstance(row, msgspec.Struct):
        pairs = [
            (name, getattr(stored, name), getattr(row, name)) for name in stored.__struct_fields__
        ]
        return ", ".join(f"{name} is {old}, not {new}" for name, old, new in pairs if old != new)
    if isinstance(stored, int):
        return f"it is {stored}, not {row}"
    return "it names another group"
