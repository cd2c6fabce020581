"""One queue of a damaged shard, rewritten from its messages and leases, with what follows from them
(`storage/checks/derived_queue.py`) and what its features keep."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

from storage.checks.derived_queue import AS_STORED, Derived, DerivedQueue
from storage.checks.readable_rows import ReadableRows
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import (
    DELAYED,
    GROUP,
    LEASE,
    LOCKED,
    MESSAGE,
    group_key,
    last_number_of,
    number_of,
    queue_key,
    table_range,
)
from visibility.rows.row_values import GroupRow, QueueRow
from visibility.rules.features import TABLES
from visibility.rules.tables import GROUP_KEY

_BATCH_BYTES = 4 << 20
_BATCH_ROWS = 10_000
_T = TypeVar("_T")


class Target:
    """The rows to fill."""

    def __init__(self, write: Callable[[Changes], None]) -> None:
        self.batch = Changes()
        """The next batch to write."""
        self._write = write

    def put(self, key: bytes, value: bytes) -> None:
        """Put a row into the batch, which is written if it is large."""
        self.batch.put(key, value)
        if self.batch.size >= _BATCH_BYTES or len(self.batch) >= _BATCH_ROWS:
            self.write()

    def write(self) -> None:
        """Write the batch."""
        changes, self.batch = self.batch, Changes()
        self._write(changes)


class QueueCopy:
    """Copies one queue."""

    def __init__(
        self,
        rows: ReadableRows,
        target: Target,
        queue_id: int,
        *,
        fifo: bool | None,
        blocked: Collection[bytes] = (),
        keeps_leases: bool = False,
    ) -> None:
        """`fifo`: the type in the catalog; None if it does not know the queue. `blocked`: FIFO
        groups that are never listed. `keeps_leases`: of lost FIFO messages in flight, too, so that
        their groups wait."""
        self._rows = rows
        self._target = target
        self._id = queue_id
        own = rows.row(queue_key(queue_id), QueueRow)
        is_fifo = own.fifo if own is not None else bool(fifo)
        self._locked = self._locked_groups()
        self._derived = DerivedQueue(
            queue_id,
            own,
            [lease for _, lease in self._table(LEASE, Lease)],
            groups={key[9:]: row for key, row in self._table(GROUP, GroupRow)},
            blocked={*blocked, *self._locked},
            departures=rows.departures.get(queue_id, ()),
            fifo=is_fifo,
        )
        self.has_own_row = own is not None
        """True if the queue's own row was readable."""
        self._keeps_leases = keeps_leases and is_fifo
        self.kept = 0
        """Number of leases without their message."""

    def run(self) -> None:
        """Copy the queue. O(rows of the queue); holds its leases, groups and spans in memory."""
        derived = self._derived
        self._copy_kept()
        for group in self._locked:
            self._target.put(group_key(self._id, LOCKED, group), encode_row(0))
        self._put_all(derived.of_messages(self._messages()))
        if self._keeps_leases:
            self.kept = len(derived.lost)
            self._put_all(derived.of_lost())
        self._put_all(derived.of_queue(self._delayed()))
        self._target.write()

    def _copy_kept(self) -> None:
        for table in TABLES.values():
            if table.salvage is not None and table.row is not None:
                for key, row in self._table(table.prefix, table.row):
                    self._put(key, row)
                    self._derived.own = table.salvage(self._derived.own, row)

    def _locked_groups(self) -> set[bytes]:
        """The groups that wait for earlier parts; the names of damaged rows count, too."""
        stored = [key for key, _ in self._rows.stored(self._id, LOCKED)]
        lost = self._rows.lost[table_range(self._id, LOCKED)[0][:9]]
        return {key[9:] for key in (*stored, *lost) if len(key) == GROUP_KEY}

    def _messages(self) -> Iterator[tuple[int, StoredMessage]]:
        """The messages, each of them copied."""
        for key, message in self._table(MESSAGE, StoredMessage):
            self._put(key, message)
            yield number_of(key), message

    def _delayed(self) -> Iterator[tuple[int, bytes, int]]:
        """The delayed messages, likewise."""
        for key, message in self._table(DELAYED, StoredMessage):
            self._put(key, message)
            yield last_number_of(key), message.group, message.size

    def _table(self, table: bytes, kind: type[_T]) -> Iterator[tuple[bytes, _T]]:
        return self._rows.table(self._id, table, kind)

    def _put_all(self, derived: Derived) -> None:
        for key, row in derived:
            self._put(key, self._rows.row(key, Lease) if row is AS_STORED else row)

    def _put(self, key: bytes, row: object) -> None:
        if row is None or isinstance(row, bytes):
            self._target.put(key, row or b"")
        else:
            self._target.put(key, encode_row(row))
