"""Consistency of one queue's rows: tables must agree with each other, and counters must be right.

Each row must already be sound (`verify.py`). Memory is bounded by leases and spans, however many
messages wait: tables in the same order are read side by side, others by lookups, and missing rows
are searched for only if counts differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import TypeVar

from storage.checks.readable_rows import ReadableRows
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rows.overlay import RowReader
from visibility.rows.row_codec import decode_row
from visibility.rows.row_keys import (
    ALIAS,
    BLOCKED,
    CLOCK,
    DELAYED,
    DEPARTURE,
    GROUP,
    GROUP_LINE,
    HEAD,
    LEASE,
    MESSAGE,
    QUARANTINED,
    SPAN,
    group_key,
    group_line_key,
    is_between,
    last_number_of,
    number_of,
    pair_key,
    pair_of,
    queue_key,
    row_key,
    table_range,
)
from visibility.rows.row_values import (
    NOWHERE,
    THE_SHARD,
    Departure,
    GroupRow,
    Quarantined,
    QueueRow,
)
from visibility.rules.features import SHARD_PARTS, TABLES
from visibility.rules.tables import Finding
from visibility.state.queue_state import SPAN_BITS, is_passed_by

_T = TypeVar("_T")
Expect = Callable[[StoredMessage, int], bytes | None]
"""The key of the row that a message must have in another table; None if it must have none there."""


def check_queue(rows: RowReader, queue_id: int) -> Iterator[Finding]:
    """Inconsistencies of a queue. O(rows of the queue). Raises DamagedRecord."""
    yield from _QueueCheck(rows, queue_id).findings()
    for table in TABLES.values():
        if table.check is not None:
            yield from table.check(rows, queue_id)


def check_shard(rows: RowReader) -> Iterator[Finding]:
    """Inconsistencies of the rows that are of no queue. O(these rows). Raises DamagedRecord."""
    for part in SHARD_PARTS:
        yield from part.check(rows)


class _QueueCheck:
    def __init__(self, rows: RowReader, queue_id: int) -> None:
        self._rows = rows
        self._id = queue_id
        self._row = QueueRow(1, 1, 0, 0)
        self._leases: dict[int, Lease] = {}
        self._leased_by_group: dict[bytes, int] = {}
        """FIFO: the lowest sequence of each group that is in flight or in the outbox."""
        self._messages = self._departed = 0
        self._wanted: Counter[bytes] = Counter()
        """Number of rows that other tables must have for messages, by table."""
        self._spans: Counter[int] = Counter()
        self._quarantined: dict[int, Quarantined] = {}

    def findings(self) -> Iterator[Finding]:
        own = queue_key(self._id)
        value = self._rows.get(own)
        if value is None:
            yield Finding(own, "the queue has rows but none of its own")
            return
        self._row = decode_row(QueueRow, own, value)
        self._leases = {number_of(k): decode_row(Lease, k, v) for k, v in self._table(LEASE)}
        for sequence, lease in self._leases.items():
            if lease.group:
                first = self._leased_by_group.get(lease.group, sequence)
                self._leased_by_group[lease.group] = min(first, sequence)
        self._take_departed()
        records = (decode_row(Quarantined, k, v) for k, v in self._table(QUARANTINED))
        self._quarantined = {record.span: record for record in records}
        yield from self._check_messages()
        yield from self._check_counters()
        yield from self._counted("messages on their way", self._row.departed, self._departed)
        yield from self._check_clocks()
        yield from self._check_aliases()
        yield from self._check_lines()
        yield from self._check_groups()

    def _take_departed(self) -> None:
        """Its readable messages in the outbox; a damaged one is found there."""
        for _, departure in ReadableRows(self._rows).table(THE_SHARD, DEPARTURE, Departure):
            if departure.queue_id == self._id:
                self._departed += 1
                if departure.locked:
                    sequence = departure.lease.sequence
                    first = self._leased_by_group.get(departure.locked, sequence)
                    self._leased_by_group[departure.locked] = min(first, sequence)

    def _table(self, table: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._rows.scan(*table_range(self._id, table))

    def _look_up(self, kind: type[_T], key: bytes) -> _T | None:
        value = self._rows.get(key)
        return None if value is None else decode_row(kind, key, value)

    def _each_message(self) -> Iterator[tuple[int, StoredMessage]]:
        return (
            (number_of(k), decode_row(StoredMessage, k, v))
            for k, v in self._table(MESSAGE)
            if not self._is_quarantined(number_of(k))
        )

    def _is_quarantined(self, sequence: int) -> bool:
        """A message in flight may be damaged; it leaves later."""
        record = self._quarantined.get(sequence >> SPAN_BITS)
        return (
            record is not None and sequence not in self._leases and is_passed_by(record, sequence)
        )

    # -- messages and their leases -----------------------------------------------------------------

    def _check_messages(self) -> Iterator[Finding]:
        left = dict(self._leases)
        for sequence, message in self._each_message():
            key = row_key(self._id, MESSAGE, sequence)
            self._messages += 1
            self._spans[sequence >> SPAN_BITS] += 1
            for table, expect in self._expectations():
                self._wanted[table] += expect(message, sequence) is not None
            if sequence >= self._row.next_sequence:
                yield Finding(key, f"the queue counts only up to {self._row.next_sequence}")
            lease = left.pop(sequence, None)
            if lease is None:
                if sequence < self._row.low_water and not self._row.fifo:
                    yield Finding(key, f"it waits below the low water {self._row.low_water}")
            elif (lease.group, lease.clock_ms, lease.original_sequence) != (
                message.group,
                message.clock_ms,
                message.original_sequence,
            ):
                yield Finding(row_key(self._id, LEASE, sequence), "it is not its message's")
        for sequence in left:
            yield Finding(row_key(self._id, LEASE, sequence), "its message is missing")

    def _check_counters(self) -> Iterator[Finding]:
        for key, value in self._table(SPAN):
            counted, found = decode_row(int, key, value), self._spans.pop(number_of(key), 0)
            if counted != found:
                yield Finding(key, f"it counts {counted} messages, there are {found}")
        for span, found in self._spans.items():
            key = row_key(self._id, SPAN, span)
            yield Finding(key, f"it is missing, there are {found} messages")
        yield from self._counted(
            "waiting messages", self._row.waiting, self._messages - len(self._leases)
        )

    def _counted(self, of: str, counted: int, found: int) -> Iterator[Finding]:
        if counted != found:
            yield Finding(queue_key(self._id), f"it counts {counted} {of}, there are {found}")

    # -- rows of messages in other tables ----------------------------------------------------------

    def _expectations(self) -> tuple[tuple[bytes, Expect], ...]:
        return (CLOCK, self._clock_key), (ALIAS, self._alias_key), (GROUP_LINE, self._line_key)

    def _clock_key(self, message: StoredMessage, sequence: int) -> bytes | None:
        if not message.clock_ms:
            return None
        return pair_key(self._id, CLOCK, message.clock_ms, sequence)

    def _alias_key(self, message: StoredMessage, sequence: int) -> bytes | None:
        if not message.original_sequence:
            return None
        return row_key(self._id, ALIAS, message.original_sequence)

    def _line_key(self, message: StoredMessage, sequence: int) -> bytes | None:
        if not message.group or sequence in self._leases:
            return None
        return group_line_key(self._id, GROUP_LINE, message.group, sequence)

    def _check_refers(self, key: bytes, sequence: int, expect: Expect) -> Iterator[Finding]:
        """Check that a message's row in another table is the one it must have."""
        if self._is_quarantined(sequence):
            return
        message = self._look_up(StoredMessage, row_key(self._id, MESSAGE, sequence))
        if message is None:
            yield Finding(key, f"its message {sequence} is missing")
        elif expect(message, sequence) != key:
            yield Finding(key, f"its message {sequence} says otherwise")

    def _check_complete(self, table: bytes, found: int, expect: Expect) -> Iterator[Finding]:
        """With as many rows as messages require, each of them required, none is missing."""
        if found == self._wanted[table]:
            return
        for sequence, message in self._each_message():
            key = expect(message, sequence)
            if key is not None and self._rows.get(key) is None:
                yield Finding(key, f"message {sequence} has no such row")

    def _check_clocks(self) -> Iterator[Finding]:
        found = 0
        for key, _ in self._table(CLOCK):
            found += 1
            yield from self._check_refers(key, pair_of(key)[1], self._clock_key)
        yield from self._check_complete(CLOCK, found, self._clock_key)

    def _check_aliases(self) -> Iterator[Finding]:
        found = 0
        for key, value in self._table(ALIAS):
            found += 1
            yield from self._check_refers(key, decode_row(int, key, value), self._alias_key)
        yield from self._check_complete(ALIAS, found, self._alias_key)
        yield from self._counted("aliases", self._row.aliases, found)

    def _check_lines(self) -> Iterator[Finding]:
        found = 0
        for key, _ in self._table(GROUP_LINE):
            found += 1
            yield from self._check_refers(key, last_number_of(key), self._line_key)
        yield from self._check_complete(GROUP_LINE, found, self._line_key)

    # -- groups ------------------------------------------------------------------------------------

    def _check_groups(self) -> Iterator[Finding]:
        lost = self._quarantined.get(NOWHERE, Quarantined(NOWHERE, 0, 0)).delayed
        delayed = [
            decode_row(StoredMessage, k, v).group
            for k, v in self._table(DELAYED)
            if not is_between(k, lost)
        ]
        yield from self._counted("delayed messages", self._row.delayed, len(delayed))
        delays = Counter(group for group in delayed if group)
        lines = groupby((k for k, _ in self._table(GROUP_LINE)), key=lambda key: key[9:25])
        line = next(lines, None)
        listed = 0
        for key, value in self._table(GROUP):
            group, row = key[9:25], decode_row(GroupRow, key, value)
            listed += bool(row.order)
            while line is not None and line[0] < group:
                yield self._no_group(line[0])
                line = next(lines, None)
            sequences: list[int] = []
            if line is not None and line[0] == group:
                sequences = _first_and_count(line[1])
                line = next(lines, None)
            yield from self._check_group(key, row, sequences, delays.pop(group, 0))
        while line is not None:
            yield self._no_group(line[0])
            line = next(lines, None)
        for group in delays:
            yield self._no_group(group)
        yield from self._check_ready_groups(listed)

    def _no_group(self, group: bytes) -> Finding:
        return Finding(
            group_key(self._id, GROUP, group), "it is missing, and the group has messages"
        )

    def _check_group(
        self, key: bytes, row: GroupRow, line: list[int], delayed: int
    ) -> Iterator[Finding]:
        first, count = line or (0, 0)
        if (row.count, row.delayed) != (count, delayed):
            yield Finding(
                key,
                f"it counts {row.count} waiting and {row.delayed} delayed messages, there are "
                f"{count} and {delayed}",
            )
        elif count and row.first > first:
            yield Finding(key, f"it begins at {row.first}, its line at {first}")
        may_go = bool(count) and not (
            self._row.fifo
            and (
                self._leased_by_group.get(key[9:25], first + 1) < first
                or self._rows.get(group_key(self._id, BLOCKED, key[9:25])) is not None
            )
        )
        if bool(row.order) != may_go:
            yield Finding(
                key, "it is listed and may not go" if row.order else "it may go, not listed"
            )

    def _check_ready_groups(self, listed: int) -> Iterator[Finding]:
        found = 0
        for key, group in self._table(HEAD):
            found += 1
            row = self._look_up(GroupRow, group_key(self._id, GROUP, group))
            if row is None or row.order != number_of(key):
                yield Finding(key, "its group is listed elsewhere or not at all")
        if found != listed:
            for key, value in self._table(GROUP):
                order = decode_row(GroupRow, key, value).order
                if order and self._rows.get(row_key(self._id, HEAD, order)) is None:
                    yield Finding(key, f"its place {order} is missing")
        yield from self._counted("listed groups", self._row.listed, found)


def _first_and_count(keys: Iterator[bytes]) -> list[int]:
    first, count = 0, 0
    for key in keys:
        first, count = first or last_number_of(key), count + 1
    return [first, count]
