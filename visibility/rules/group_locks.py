"""Locked groups: FIFO groups of a part that wait until no earlier part has messages of them.

The first message of a group in a part with earlier parts is stored, and its group is locked, by
whatever it came. `earlier_parts.py` asks and unlocks. A closed part locks a group that it
transfers, from the first message that leaves to the last that is gone. A lock is a row: a later
leader knows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from typing_extensions import override

from visibility.contract.stored_message import Lease
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import LOCKED, group_key
from visibility.rules.events import Effects, Event
from visibility.rules.tables import GROUP_KEY, Table, Tables
from visibility.state.queue_state import QueueState
from visibility.state.rows import Rows
from visibility.state.shard_state import ShardState

WAITS, LEAVES = 0, 1
"""The reasons for a lock: earlier parts may have messages, or these go to the next part. Stored:
never renumber."""


def waiting_groups(queue: QueueState) -> Iterator[bytes]:
    """The groups that wait for earlier parts."""
    return (group for group, reason in queue.locked.items() if reason == WAITS)


def must_ask(shard: ShardState, queue: QueueState, group: bytes) -> bool:
    """True if an earlier part of the queue may have messages of a group that has none here."""
    # No definitions: a test that only applies events.
    known = shard.definitions.queue_of_id(queue.queue_id) if shard.definitions is not None else None
    return known is not None and bool(known.parts) and bool(known.earlier_parts(group))


# -- events ----------------------------------------------------------------------------------------


class GroupsLocked(Event, frozen=True):
    """Messages of these groups wait until no earlier part has some, or until they have left."""

    groups: list[bytes]
    reason: int = WAITS

    @override
    def apply(self, shard: ShardState) -> None:
        shard.queue(self.queue_id).locked.update(dict.fromkeys(self.groups, self.reason))
        if self.reason == WAITS:
            shard.locking[self.queue_id] = None

    @override
    def record(self, changes: Changes) -> None:
        for group in self.groups:
            changes.put(group_key(self.queue_id, LOCKED, group), encode_row(self.reason))

    @override
    def tell(self, turn: Effects) -> None:
        turn.locks = turn.locks or self.reason == WAITS


class GroupsUnlocked(Event, frozen=True):
    """No earlier part has messages of these groups, and none will; or they have left."""

    groups: list[bytes]

    @override
    def apply(self, shard: ShardState) -> None:
        locked = shard.queue(self.queue_id).locked
        for group in self.groups:
            del locked[group]
        if not locked:
            shard.locking.pop(self.queue_id, None)

    @override
    def record(self, changes: Changes) -> None:
        for group in self.groups:
            changes.delete(group_key(self.queue_id, LOCKED, group))

    @override
    def shown_in(self, shard: ShardState) -> Iterable[int]:
        return (self.queue_id,)


# -- the table -------------------------------------------------------------------------------------


def _load(rows: Rows, queue: QueueState, leases: list[Lease]) -> None:
    locks = LOCKS.read(rows.store, queue.queue_id)
    queue.locked = {key[9:]: reason for key, reason in locks}


LOCKS = Table(LOCKED, "locked group", GROUP_KEY, int, load=_load)
TABLES: Tables = (LOCKS,)
