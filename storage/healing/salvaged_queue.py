"""One queue of a damaged shard, rewritten from its messages and everything derived from them.

Waiting order, counters, spans, groups and clocks follow from messages and leases. An unreadable
queue row is replaced: the queue continues far above every number that it may have issued.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

import msgspec

from storage.checks.readable_rows import ReadableRows
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rows.queue_rows import write_queue
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import (
    ALIAS,
    CLOCK,
    DELAYED,
    DEPARTURE,
    GROUP,
    GROUP_LINE,
    HEAD,
    LEASE,
    MESSAGE,
    group_key,
    group_line_key,
    number_of,
    pair_key,
    pair_of,
    queue_key,
    row_key,
)
from visibility.rows.row_values import THE_SHARD, Departure, GroupRow, QueueRow
from visibility.rules.features import TABLES
from visibility.state.queue_state import SPAN_BITS

SEQUENCES_SKIPPED = 1 << 40
"""See `cluster.copies.restore`."""
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


class _Group(msgspec.Struct):
    count: int = 0
    first: int = 0
    delayed: int = 0
    held_first: int = 0


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
        self._own = own or QueueRow(1, 1, 0, 0)
        self._fifo = self._own.fifo if own or fifo is None else fifo
        self._leases: dict[int, Lease] = {}
        self._groups: dict[bytes, _Group] = {}
        self._spans: dict[int, int] = {}
        self._lowest_waiting = 0
        self._highest = 0
        self._in_flight = self._delayed = self._aliases = 0
        self.has_own_row = own is not None
        """True if the queue's own row was readable."""
        self._messages = 0
        self._blocked = blocked
        self._keeps_leases = keeps_leases
        self.kept = 0
        """Number of leases without their message."""

    def run(self) -> None:
        """Copy the queue. O(rows of the queue); holds its leases, groups and spans in memory."""
        self._leases = {lease.sequence: lease for _, lease in self._table(LEASE, Lease)}
        self._copy_messages()
        if self._fifo and self._keeps_leases:
            self._keep_leases()
        if self._fifo:
            self._lock_groups()
        self._copy_delayed()
        for table in TABLES.values():
            if table.salvage is not None and table.row is not None:
                for key, row in self._table(table.prefix, table.row):
                    self._put(key, row)
                    self._own = table.salvage(self._own, row)
        next_number, listed = self._write_groups(self._next_number())
        self._write_own_row(next_number, listed)
        self._target.write()

    def _table(self, table: bytes, kind: type[_T]) -> Iterator[tuple[bytes, _T]]:
        return self._rows.table(self._id, table, kind)

    def _put(self, key: bytes, row: object) -> None:
        self._target.put(key, encode_row(row))

    # -- messages ----------------------------------------------------------------------------------

    def _copy_messages(self) -> None:
        for key, message in self._table(MESSAGE, StoredMessage):
            sequence = number_of(key)
            self._count(sequence)
            self._spans[sequence >> SPAN_BITS] = self._spans.get(sequence >> SPAN_BITS, 0) + 1
            self._put(key, message)
            if message.clock_ms:
                self._put_empty(pair_key(self._id, CLOCK, message.clock_ms, sequence))
            if message.original_sequence:
                self._aliases += 1
                self._highest = max(self._highest, message.original_sequence)
                self._put(row_key(self._id, ALIAS, message.original_sequence), sequence)
            lease = self._leases.pop(sequence, None)
            if lease is None:
                self._put_waiting(sequence, message)
            else:
                self._put_lease(lease, message)

    def _put_waiting(self, sequence: int, message: StoredMessage) -> None:
        self._lowest_waiting = self._lowest_waiting or sequence
        if not message.group:
            return
        group = self._groups.setdefault(message.group, _Group())
        group.count += 1
        group.first = group.first or sequence
        key = group_line_key(self._id, GROUP_LINE, message.group, sequence)
        history = self._rows.row(key, Lease)
        if history is None:
            self._put_empty(key)
        else:
            self._put(key, history)

    def _put_lease(self, lease: Lease, message: StoredMessage) -> None:
        self._in_flight += 1
        if message.group:
            group = self._groups.setdefault(message.group, _Group())
            group.held_first = group.held_first or lease.sequence
        own = msgspec.structs.replace(
            lease,
            group=message.group,
            clock_ms=message.clock_ms,
            original_sequence=message.original_sequence,
        )
        self._put(row_key(self._id, LEASE, lease.sequence), own)

    def _keep_leases(self) -> None:
        """Keep leases of lost messages: consumers may delete these, else they are found missing
        when their leases end."""
        for lease in self._leases.values():
            self._count(lease.sequence)
            self._in_flight += 1
            self.kept += 1
            span = lease.sequence >> SPAN_BITS
            self._spans[span] = self._spans.get(span, 0) + 1
            group = self._groups.setdefault(lease.group, _Group())
            group.held_first = min(group.held_first or lease.sequence, lease.sequence)
            own = msgspec.structs.replace(lease, original_sequence=0)
            self._put(row_key(self._id, LEASE, lease.sequence), own)

    def _lock_groups(self) -> None:
        """Groups wait for their messages in the outbox, as for those in flight."""
        for _, departure in self._rows.table(THE_SHARD, DEPARTURE, Departure):
            group = self._groups.get(departure.locked)
            if departure.queue_id == self._id and group is not None:
                sequence = departure.lease.sequence
                group.held_first = min(group.held_first or sequence, sequence)

    def _copy_delayed(self) -> None:
        for key, message in self._table(DELAYED, StoredMessage):
            self._count(pair_of(key)[1])
            self._delayed += 1
            self._put(key, message)
            if message.group:
                self._groups.setdefault(message.group, _Group()).delayed += 1

    def _count(self, sequence: int) -> None:
        self._highest = max(self._highest, sequence)
        self._messages += 1

    def _put_empty(self, key: bytes) -> None:
        self._target.put(key, b"")

    # -- derived rows ------------------------------------------------------------------------------

    def _next_number(self) -> int:
        """A number above every sequence and order that the queue issued."""
        if self.has_own_row:
            return max(self._own.next_sequence, self._highest + 1)
        return max([self._highest, *self._leases]) + SEQUENCES_SKIPPED

    def _write_groups(self, next_number: int) -> tuple[int, int]:
        """Write the groups; returns the next free number, and the number of listed groups."""
        orders = self._known_orders(next_number)
        listed = 0
        for name, group in self._groups.items():
            order = 0
            is_blocked = self._fifo and (
                name in self._blocked or 0 < group.held_first < group.first
            )
            if group.count and not is_blocked:
                listed += 1
                order = orders.get(name, next_number)
                next_number = max(next_number, order + 1)
                self._target.put(row_key(self._id, HEAD, order), name)
            if group.count or group.delayed:
                row = GroupRow(group.count, group.first, order, group.delayed)
                self._put(group_key(self._id, GROUP, name), row)
        return next_number, listed

    def _known_orders(self, below: int) -> dict[bytes, int]:
        """The orders of groups in readable rows; each once."""
        groups: dict[int, bytes] = {}
        for key, row in self._table(GROUP, GroupRow):
            if 0 < row.order < below:
                groups[row.order] = key[9:25]
        return {group: order for order, group in groups.items()}

    def _write_own_row(self, next_number: int, listed: int) -> None:
        waiting = self._messages - self._delayed - self._in_flight
        own = msgspec.structs.replace(
            self._own,
            next_sequence=next_number,
            low_water=self._low_water(next_number),
            waiting=waiting,
            delayed=self._delayed,
            listed=listed,
            aliases=self._aliases,
            departed=self._rows.departed[self._id],
            fifo=self._fifo,
        )
        write_queue(self._target.batch, self._id, own, self._spans)

    def _low_water(self, next_number: int) -> int:
        lowest = self._lowest_waiting or next_number
        return min(self._own.low_water, lowest) if self.has_own_row else lowest
