"""GroupBook: the effect of one decision on a queue's groups, before anything is applied.

Standard: a group is listed while it has waiting messages, under a sequence not above that of the
first. FIFO: a group is listed while its first waiting message may be received, that is, while no
earlier one is in flight. A new group is listed under the sequence of its message. A group that
becomes free again after a receive is listed under a fresh number, so it goes behind the groups
without a receive so far.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import ClassVar

import msgspec
from typing_extensions import override

from visibility.content.id_digests import UNGROUPED
from visibility.contract.stored_message import Lease
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import GROUP, HEAD, group_key, row_key
from visibility.rows.row_values import GroupRow
from visibility.rules.events import Event
from visibility.rules.group_locks import LEAVES, GroupsLocked, GroupsUnlocked, must_ask
from visibility.state.queue_state import Blocked, QueueState
from visibility.state.shard_state import ShardState

_NOBODY: frozenset[int] = frozenset()
_EMPTY = GroupRow()
_GROUPS_MAX = 20_000
"""Group rows of one queue that are cached in memory."""


class GroupBook:
    """Changes of one queue's groups in one decision; it also gives out the queue's numbers."""

    __slots__ = ("_before", "_blocked", "_queue", "_rows", "_shard", "next_number")

    _fifo: ClassVar[bool] = False
    """The type of the queue, as its row has it."""

    def __init__(
        self, shard: ShardState, queue: QueueState, blocked: Collection[bytes] | None
    ) -> None:
        """`blocked`: groups that are never listed; by default those of the queue."""
        self._blocked = queue.quarantined.groups if blocked is None else blocked
        self.next_number = queue.next_sequence
        """The next free sequence or order."""
        self._shard = shard
        self._queue = queue
        self._before: dict[bytes, int] = {}
        self._rows: dict[bytes, GroupRow] = {}

    @property
    def queue_id(self) -> int:
        """The queue that has these groups."""
        return self._queue.queue_id

    def allocate(self) -> int:
        """A fresh number, for a message or for an order."""
        self.next_number += 1
        return self.next_number - 1

    def place_after_delay(self, sequence: int) -> int:
        """The sequence under which a delayed message joins the line."""
        return self.allocate()

    def row(self, group: bytes) -> GroupRow:
        """The group as changed by this decision. Raises DamagedRecord."""
        row = self._rows.get(group)
        if row is None:
            row = self._queue.groups.get(group)
            if row is None:
                row = self._shard.rows.group(self._queue.queue_id, group) or _EMPTY
            self._rows[group] = row
            self._before[group] = row.order
        return row

    def recount(self, group: bytes, row: GroupRow) -> None:
        """Use this in place of the group's row, which cannot be read."""
        self._rows[group] = row
        self._before[group] = row.order

    def forget(self, group: bytes) -> None:
        """Drop a group that was read and has not changed."""
        del self._rows[group]

    def group_of(self, group: bytes) -> bytes:
        """The group under which a message joins the line; without one, UNGROUPED once others are
        listed."""
        if group:
            return group
        if self._queue.ready_groups.total:
            return UNGROUPED
        has_others = self._rows and any(row.order for row in self._rows.values())
        return UNGROUPED if has_others else group

    def delay(self, group: bytes) -> None:
        """Count a delayed message of the group."""
        row = self.row(group)
        self._rows[group] = GroupRow(row.count, row.first, row.order, row.delayed + 1)

    def end_delay(self, group: bytes) -> None:
        """Stop counting a delayed message of the group."""
        row = self.row(group)
        self._rows[group] = GroupRow(row.count, row.first, row.order, max(0, row.delayed - 1))

    def arrive(self, group: bytes, sequence: int) -> None:
        """Add a message that was never received here to the group's line."""
        row = self.row(group)
        first = min(row.first, sequence) if row.count else sequence
        order = row.order
        if not order and group not in self._blocked:
            order = self._order_of_arrival(group, sequence)
        self._rows[group] = GroupRow(row.count + 1, first, order, row.delayed)

    def arrive_held(self, group: bytes) -> None:
        """Add a message that an operator holds: it is in no line. Raises DamagedRecord."""

    def _order_of_arrival(self, group: bytes, sequence: int) -> int:
        """The order of a group that is not listed, now that this message arrives; 0 if it may not
        be received."""
        return sequence

    def leave(self, group: bytes, sequence: int) -> None:
        """Remove a waiting message from the line."""
        row = self.row(group)
        count = row.count - 1
        first = sequence + 1 if sequence == row.first else row.first
        order = row.order if count else 0
        self._rows[group] = GroupRow(count, first, order, row.delayed)

    def depart(self, group: bytes, sequence: int) -> None:
        """Remove a waiting message that leaves for another shard."""
        self.leave(group, sequence)

    def departed(self, group: bytes) -> set[int] | frozenset[int]:
        """Messages that leave for another shard by this decision, and lock the group meanwhile."""
        return _NOBODY

    def leave_all(self, leases: list[Lease]) -> None:
        """Remove messages for good, wherever they are. Raises DamagedRecord."""
        for lease in leases:
            if lease.group and lease.sequence not in self._queue.entries:
                self.leave(lease.group, lease.sequence)

    def settle(self, group: bytes, gone: Iterable[int], back: list[int]) -> None:
        """Let a group go on that waited for messages: `gone` for good, `back` in the line. None
        waits in a standard queue. Raises DamagedRecord."""

    def settle_all(self, gone: Iterable[Lease], back: Iterable[Lease]) -> None:
        """The same for messages of several groups. Raises DamagedRecord."""

    def events(self) -> tuple[Event, ...]:
        """The change of the index: none, or one event that precedes the decision's others."""
        changes = [
            GroupChange(group, self._before[group], row) for group, row in self._rows.items()
        ]
        if not changes:
            return ()
        return (GroupsChanged(self._queue.queue_id, self._fifo, changes),)


class FifoBook(GroupBook):
    """The same for a FIFO queue, whose groups wait for their messages in flight."""

    __slots__ = ("_departed", "_leaving", "_left", "_locks", "_unlocked")

    _fifo = True

    def __init__(
        self, shard: ShardState, queue: QueueState, blocked: Collection[bytes] | None = None
    ) -> None:
        super().__init__(shard, queue, blocked)
        self._left: dict[bytes, set[int]] = {}
        """Messages that leave their group's line but are still in it on disk."""
        self._departed: dict[bytes, set[int]] | None = None
        self._locks: list[bytes] | None = None
        self._leaving: list[bytes] = []
        self._unlocked: list[bytes] = []

    @override
    def place_after_delay(self, sequence: int) -> int:
        """It keeps its place."""
        return sequence

    def in_flight_by_group(self, group: bytes) -> set[int] | frozenset[int]:
        """Sequences of the group's messages in flight before this decision, or in the outbox."""
        held = self._queue.in_flight_by_group.get(group, _NOBODY)
        return held if self._departed is None else held | self.departed(group)

    @override
    def group_of(self, group: bytes) -> bytes:
        """Each message has a group."""
        return group

    @override
    def _order_of_arrival(self, group: bytes, sequence: int) -> int:
        held = self.in_flight_by_group(group)
        if held and min(held) < sequence:
            return 0
        if self._is_locked(group):
            return 0
        if held:
            return self.allocate()
        if not self.row(group).count and must_ask(self._shard, self._queue, group):
            self._locks = [*(self._locks or ()), group]
            return 0
        return sequence

    @override
    def arrive_held(self, group: bytes) -> None:
        if self._is_locked(group) or self.row(group).count:
            return
        if must_ask(self._shard, self._queue, group):
            self._locks = [*(self._locks or ()), group]

    def begin_leaving(self, group: bytes) -> None:
        """Give out nothing of a group any more that goes to the next part, until all of it has
        left. Raises DamagedRecord."""
        reason = self._queue.locked.get(group)
        if not (self.row(group).count or self.in_flight_by_group(group)):
            self._unlocked += () if reason is None else (group,)
        elif reason != LEAVES:
            self._leaving.append(group)
        self.settle(group, (), [])

    def _is_locked(self, group: bytes) -> bool:
        if self._locks is not None and group in self._locks:
            return True
        if group in self._leaving:
            return True
        return group in self._queue.locked and group not in self._unlocked

    def unlock(self, groups: Collection[bytes]) -> None:
        """Let groups go on: no earlier part has messages of them. Raises DamagedRecord."""
        self._unlocked += groups
        for group in groups:
            self.settle(group, (), [])

    @override
    def leave(self, group: bytes, sequence: int) -> None:
        super().leave(group, sequence)
        self._left.setdefault(group, set()).add(sequence)

    @override
    def depart(self, group: bytes, sequence: int) -> None:
        """The group is locked until the message is settled."""
        self.leave(group, sequence)
        if self._departed is None:
            self._departed = {}
        self._departed.setdefault(group, set()).add(sequence)

    @override
    def departed(self, group: bytes) -> set[int] | frozenset[int]:
        return _NOBODY if self._departed is None else self._departed.get(group, _NOBODY)

    @override
    def leave_all(self, leases: list[Lease]) -> None:
        super().leave_all(leases)
        self.settle_all(leases, ())

    def take(self, group: bytes, sequences: list[int], *, are_first: bool = True) -> None:
        """Put waiting messages of a group in flight: it is then blocked, or empty. Unless they
        `are_first`, some were passed by, and stay first."""
        row = self.row(group)
        if not are_first:
            count = row.count - len(sequences)
            self._rows[group] = GroupRow(count, row.first, row.order, row.delayed)
            return
        first = max(row.first, sequences[-1] + 1)
        self._rows[group] = GroupRow(row.count - len(sequences), first, 0, row.delayed)

    @override
    def settle(self, group: bytes, gone: Iterable[int], back: list[int]) -> None:
        row = self.row(group)
        count = row.count + len(back)
        first = min([*back, row.first] if row.count else back, default=row.first)
        held = self.in_flight_by_group(group).difference(gone, back)
        row = GroupRow(count, first, row.order, row.delayed)
        if not (count or held or row.delayed) and self._queue.locked.get(group) == LEAVES:
            self._unlocked.append(group)
        listed = (
            bool(count)
            and group not in self._blocked
            and not self._is_locked(group)
            and (not held or self._may_go_before(group, row, min(held), back))
        )
        order = (row.order or self.allocate()) if listed else 0
        self._rows[group] = GroupRow(count, first, order, row.delayed)

    @override
    def settle_all(self, gone: Iterable[Lease], back: Iterable[Lease]) -> None:
        groups: dict[bytes, tuple[list[int], list[int]]] = {}
        for side, leases in enumerate((gone, back)):
            for lease in leases:
                groups.setdefault(lease.group, ([], []))[side].append(lease.sequence)
        for group, (left, waiting) in groups.items():
            self.settle(group, left, waiting)

    def _may_go_before(self, group: bytes, row: GroupRow, held_min: int, back: list[int]) -> bool:
        """True if a waiting message precedes the first one in flight."""
        if row.first > held_min:
            return False
        if back and min(back) < held_min:
            return True
        left = self._left.get(group, _NOBODY)
        line = self._shard.rows.group_line(self._queue.queue_id, group, row.first, len(left) + 1)
        return any(sequence < held_min for sequence, _ in line if sequence not in left)

    @override
    def events(self) -> tuple[Event, ...]:
        """Here locks may go before."""
        queue_id = self._queue.queue_id
        events = super().events()
        if self._unlocked:
            events = (GroupsUnlocked(queue_id, list(dict.fromkeys(self._unlocked))), *events)
        if self._leaving:
            events = (GroupsLocked(queue_id, self._leaving, LEAVES), *events)
        if self._locks:
            events = (GroupsLocked(queue_id, self._locks), *events)
        return events


# -- events ----------------------------------------------------------------------------------------


class GroupChange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A group's present row, and the order under which it was listed before."""

    group: bytes
    order_before: int
    row: GroupRow


class GroupsChanged(Event, frozen=True):
    """The index of groups changed. Precedes the events that it belongs to."""

    fifo: bool
    changes: list[GroupChange]

    @override
    def apply(self, shard: ShardState) -> None:
        queue = shard.queue(self.queue_id)
        queue.fifo = self.fifo
        if len(queue.groups) >= _GROUPS_MAX:
            queue.groups.clear()
        for change in self.changes:
            group, order_before, row = change.group, change.order_before, change.row
            if order_before != row.order:
                if order_before:
                    queue.ready_groups.remove(order_before)
                if row.order:
                    queue.ready_groups.insert(row.order, group)
                    queue.next_sequence = max(queue.next_sequence, row.order + 1)
            queue.groups[group] = row
            blocked = queue.quarantined.groups.get(group)
            if blocked is not None:
                queue.quarantined.groups[group] = Blocked(blocked.since_ms, row.count, row.delayed)
            if not row.count and queue.fairness.noisy:
                queue.fairness.drained(group)

    @override
    def record(self, changes: Changes) -> None:
        queue_id = self.queue_id
        for change in self.changes:
            row = change.row
            if change.order_before != row.order:
                if change.order_before:
                    changes.delete(row_key(queue_id, HEAD, change.order_before))
                if row.order:
                    changes.put(row_key(queue_id, HEAD, row.order), change.group)
            key = group_key(queue_id, GROUP, change.group)
            if row.count or row.delayed:
                changes.put(key, encode_row(row))
            else:
                changes.delete(key)

    @override
    def shown_in(self, shard: ShardState) -> Iterable[int]:
        return (self.queue_id,)
