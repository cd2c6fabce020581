"""The rows of one queue that follow from its messages and leases: waiting order, counters, spans,
groups and clocks.

`consistency.py` compares them with the stored ones; a rebuild and `salvage` write them
(`storage/healing/salvaged_queue.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from visibility.contract.queue_parts import number_in
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rows import row_keys
from visibility.rows.row_values import Departure, GroupRow, QueueRow

SEQUENCES_SKIPPED = 1 << 40
"""More messages than a queue takes between a backup and its restore: a year of 30,000 a second.
Sixteen million nested restores fit into a sequence."""
AS_STORED: Final = object()
"""Takes the place of a value that does not follow from messages: the stored one, or none."""
_NOTHING: Final = None

Derived = Iterator[tuple[bytes, object]]
"""Keys, and values as `Table.decode` returns them, or AS_STORED."""


class _Group(msgspec.Struct):
    count: int = 0
    first: int = 0
    delayed: int = 0
    held_first: int = 0

    def add(self, sequence: int) -> None:
        """Add a waiting message."""
        self.count += 1
        self.first = min(self.first or sequence, sequence)

    def hold(self, sequence: int) -> None:
        """Let the group wait for this message."""
        self.held_first = min(self.held_first or sequence, sequence)


def references(queue_id: int, sequence: int, message: StoredMessage, *, waits: bool) -> Derived:
    """The rows of a message in other tables; `waits`: it has no lease."""
    if message.clock_ms:
        yield row_keys.pair_key(queue_id, row_keys.CLOCK, message.clock_ms, sequence), _NOTHING
    if message.expires_ms:
        yield row_keys.pair_key(queue_id, row_keys.EXPIRY, message.expires_ms, sequence), _NOTHING
    if message.original_sequence:
        yield row_keys.row_key(queue_id, row_keys.ALIAS, message.original_sequence), sequence
    if message.level and waits:
        yield row_keys.pair_key(queue_id, row_keys.LEVEL_LINE, message.level, sequence), _NOTHING
    if message.group and waits:
        yield (
            row_keys.group_line_key(queue_id, row_keys.GROUP_LINE, message.group, sequence),
            AS_STORED,
        )


class DerivedQueue:
    """Derives the rows of one queue. Holds its leases, groups and spans in memory."""

    def __init__(
        self,
        queue_id: int,
        own: QueueRow | None,
        leases: Iterable[Lease],
        *,
        groups: Mapping[bytes, GroupRow],
        blocked: Collection[bytes],
        departures: Collection[Departure],
        fifo: bool,
    ) -> None:
        """`own`: its own row, as far as it is known. `groups`: the known rows of its groups, which
        keep their order. `blocked`: FIFO groups that are never listed. `departures`: its messages
        in the outbox."""
        self._id = queue_id
        self._has_own = own is not None
        self.own = msgspec.structs.replace(own or QueueRow(1, 1, 0, 0, sized_from=0), fifo=fifo)
        """The queue's own row, from which the fields are taken that do not follow."""
        self.lost = {lease.sequence: lease for lease in leases}
        """Leases whose message was not there so far."""
        self._known = groups
        self._blocked = blocked
        self._departures = departures
        self._groups: dict[bytes, _Group] = {}
        self._spans: dict[int, int] = {}
        self._levels: dict[int, tuple[int, int]] = {}
        """Number of waiting messages and the first one, by level."""
        self._lowest_waiting = self._highest = 0
        self._waiting = self._delayed = self._aliases = self._size = 0

    def of_messages(self, messages: Iterable[tuple[int, StoredMessage]]) -> Derived:
        """The rows of each message, and its lease; (sequence, message) in order."""
        for sequence, message in messages:
            self._count(sequence)
            self._add_size(sequence, message.size)
            lease = self.lost.pop(sequence, None)
            if message.original_sequence:
                self._aliases += 1
                if number_in(message.original_sequence) == number_in(sequence):
                    self._highest = max(self._highest, message.original_sequence)
            yield from references(self._id, sequence, message, waits=lease is None)
            if lease is not None:
                yield self._leased(lease, message)
                continue
            self._waiting += 1
            self._lowest_waiting = self._lowest_waiting or sequence
            if message.level:
                waiting, first = self._levels.get(message.level, (0, sequence))
                self._levels[message.level] = waiting + 1, first
            if message.group:
                self._group(message.group).add(sequence)

    def _leased(self, lease: Lease, message: StoredMessage) -> tuple[bytes, Lease]:
        if message.group:
            self._group(message.group).hold(lease.sequence)
        own = msgspec.structs.replace(
            lease,
            group=message.group,
            clock_ms=message.clock_ms,
            expires_ms=message.expires_ms,
            level=message.level,
            original_sequence=message.original_sequence,
        )
        return row_keys.row_key(self._id, row_keys.LEASE, lease.sequence), own

    def of_lost(self) -> Derived:
        """The leases of lost messages: consumers may delete these, else they are found missing when
        their leases end."""
        for lease in self.lost.values():
            self._count(lease.sequence)
            self._group(lease.group).hold(lease.sequence)
            own = msgspec.structs.replace(lease, original_sequence=0, size=0)
            yield row_keys.row_key(self._id, row_keys.LEASE, lease.sequence), own

    def pass_by(self, key: bytes) -> None:
        """Count a row of a quarantined message: it is there until the quarantine ends."""
        if key[8:9] == row_keys.ALIAS:
            self._aliases += 1
        elif key[8:9] == row_keys.GROUP_LINE:
            self._group(key[9:25]).add(row_keys.last_number_of(key))

    def of_queue(self, delayed: Iterable[tuple[int, bytes, int]]) -> Derived:
        """The rows of groups and spans, and last the queue's own, after those of its messages;
        `delayed` has (sequence, group, size) of the delayed ones."""
        for sequence, name, size in delayed:
            self._delayed += 1
            self._add_size(sequence, size)
            self._highest = max(self._highest, sequence)
            if name:
                self._group(name).delayed += 1
        for departure in self._departures:
            if departure.locked in self._groups:
                self._groups[departure.locked].hold(departure.lease.sequence)
        next_number, listed = self._next_number(), 0
        orders = self._known_orders(next_number)
        for name, group in self._groups.items():
            order = 0
            if group.count and not self._is_blocked(name, group):
                listed += 1
                order = orders.get(name, next_number)
                next_number = max(next_number, order + 1)
                yield row_keys.row_key(self._id, row_keys.HEAD, order), name
            if group.count or group.delayed:
                yield (
                    row_keys.group_key(self._id, row_keys.GROUP, name),
                    self._group_row(name, group, order),
                )
        for span, count in self._spans.items():
            yield row_keys.row_key(self._id, row_keys.SPAN, span), count
        yield row_keys.queue_key(self._id), self._own_row(next_number, listed)

    def _group(self, name: bytes) -> _Group:
        return self._groups.setdefault(name, _Group())

    def _add_size(self, sequence: int, size: int) -> None:
        if sequence >= self.own.sized_from >= 0:
            self._size += size

    def _count(self, sequence: int) -> None:
        self._highest = max(self._highest, sequence)
        span = sequence >> row_keys.SPAN_BITS
        self._spans[span] = self._spans.get(span, 0) + 1

    def _is_blocked(self, name: bytes, group: _Group) -> bool:
        return self.own.fifo and (name in self._blocked or 0 < group.held_first < group.first)

    def _next_number(self) -> int:
        """A number above every sequence and order that the queue issued. Without its own row it
        continues far above every number that it may have issued."""
        if self._has_own:
            return max(self.own.next_sequence, self._highest + 1)
        return max([self._highest, *self.lost]) + SEQUENCES_SKIPPED

    def _known_orders(self, below: int) -> dict[bytes, int]:
        """The orders of groups in their known rows; each once."""
        groups = {row.order: name for name, row in self._known.items() if 0 < row.order < below}
        return {name: order for order, name in groups.items()}

    def _group_row(self, name: bytes, group: _Group, order: int) -> GroupRow:
        """The known bound below its messages stays."""
        first, known = group.first, self._known.get(name)
        if known is not None and (not group.count or 0 < known.first <= first):
            first = known.first
        return GroupRow(group.count, first, order, group.delayed)

    def _of_levels(self) -> list[tuple[int, int, int]]:
        """The known bounds below messages stay, and the order of known levels."""
        known = {level: low_water for level, _, low_water in self.own.levels}
        order = [*(each for each in known if each in self._levels), *sorted(self._levels)]
        return [
            (level, waiting, min(known.get(level, first), first))
            for level in dict.fromkeys(order)
            for waiting, first in (self._levels[level],)
        ]

    def _own_row(self, next_number: int, listed: int) -> QueueRow:
        low_water, lowest = self.own.low_water, self._lowest_waiting or next_number
        if not self._has_own:
            low_water = lowest
        elif not self.own.fifo:  # a FIFO queue's messages wait again below it
            low_water = min(low_water, lowest)
        return msgspec.structs.replace(
            self.own,
            next_sequence=next_number,
            low_water=low_water,
            waiting=self._waiting,
            delayed=self._delayed,
            listed=listed,
            aliases=self._aliases,
            levels=self._of_levels(),
            size=self._size,
            departed=len(self._departures),
        )
