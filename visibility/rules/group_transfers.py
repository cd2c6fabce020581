"""Transfers of FIFO groups: a closed part gives each group to the part that has it now, in order.

A message keeps its sequence, which is its place in the group, so it comes before all that was sent
to the new part, and its receipt handles stay as they are. A group goes in chunks, and neither part
gives out any of it meanwhile: here it is locked from the first departure on, and there until no
earlier part has messages of it. Groups of which a consumer has messages, or some are delayed, stay
until that is over. The part that has a group now is open while an earlier one has messages of it
(`part_rules.py` in cluster/catalog refuses to close it).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice

import msgspec

from visibility.contract.model import QueueDefinition
from visibility.contract.stored_message import Hold, Lease
from visibility.rules.departures import Departures
from visibility.rules.events import Event
from visibility.rules.groups import FifoBook
from visibility.rules.hold_messages import HoldsEnded, MessagesHeld, held_leases
from visibility.rules.leases import no_lease
from visibility.rules.message_events import MessagesMoved, Move
from visibility.rules.orders import order_of
from visibility.rules.transfers import (
    OUTBOX_SHARE,
    PACE_MS,
    STEP_BYTES,
    STEP_MESSAGES,
    held_there,
    may_transfer,
    transferred,
)
from visibility.state.queue_state import QueueState
from visibility.state.rows import MessagesMissing, the_message
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp

_GROUPS_MAX = 1_000
"""Groups that one step looks at."""
_PAGE = 16
"""Messages of a group's line that are read at once."""


def advance_group_transfers(
    shard: ShardState, queue: QueueState, definition: QueueDefinition, stamp: Stamp
) -> tuple[tuple[Event, ...], int | None]:
    """Transfer messages of groups that nobody has; see `pulse.Step`. A part that may not go on is
    looked at again by `CheckPart`."""
    has_groups = order_of(definition.settings).parts_have_groups
    if not has_groups or not may_transfer(shard, queue, definition):
        return (), None
    events = _Step(shard, queue, definition, stamp).events()
    return events, stamp.now_ms + PACE_MS if events else None


class _Step:
    """One step of one part."""

    def __init__(
        self, shard: ShardState, queue: QueueState, definition: QueueDefinition, stamp: Stamp
    ) -> None:
        self._shard = shard
        self._queue = queue
        self._definition = definition
        self._now_ms = stamp.now_ms
        self._book = FifoBook(shard, queue)
        self._there: dict[int, FifoBook] = {}
        """The books of the next parts in this shard."""
        self._departures = Departures(shard, definition, stamp)
        self._moves: list[Move] = []
        self._held: dict[int, list[tuple[Hold, Lease]]] = {}
        self._unmarked: list[int] = []
        self._size = 0
        self._holds = {
            lease.sequence: (hold, lease)
            for hold, lease in held_leases(queue)
            if not hold.deleted_at_ms
        }

    def events(self) -> tuple[Event, ...]:
        """The transfer. Raises DamagedRecord, MessagesMissing."""
        for group in islice(self._groups(), _GROUPS_MAX):
            if self._is_full:
                break
            if self._may_leave(group):
                self._leave_group(group)
        if not self._moves and not len(self._departures):
            return ()
        events = self._book.events()
        for book in self._there.values():
            events += book.events()
        if self._moves:
            moved = MessagesMoved(self._queue.queue_id, self._now_ms, self._moves, transfers=True)
            events += (moved,)
        events += self._departures.events()
        if self._unmarked:
            events += (HoldsEnded(self._queue.queue_id, self._unmarked),)
        for queue_id, held in self._held.items():
            marks, leases = [mark for mark, _ in held], [lease for _, lease in held]
            events += (MessagesHeld(queue_id, self._now_ms, marks, leases),)
        return events

    def _groups(self) -> Iterator[bytes]:
        """Those that are locked, held, or listed, each once."""
        queue = self._queue
        first = dict.fromkeys(queue.locked)
        first |= dict.fromkeys(lease.group for _, lease in self._holds.values())
        yield from first
        read = partial(self._shard.rows.ready_groups, queue.queue_id)
        for _, group in queue.ready_groups.in_order(read):
            if group not in first:
                yield group

    def _may_leave(self, group: bytes) -> bool:
        queue = self._queue
        if group in queue.quarantined.groups or self._book.row(group).delayed:
            return False
        in_flight = queue.in_flight_by_group.get(group, ())
        return all(sequence in self._holds for sequence in in_flight)

    @property
    def _is_full(self) -> bool:
        return (
            len(self._moves) + len(self._departures) >= STEP_MESSAGES
            or self._size >= STEP_BYTES
            or not self._departures.has_room_in(OUTBOX_SHARE)
        )

    def _leave_group(self, group: bytes) -> None:
        """Let messages of the group leave, as many as the step takes."""
        heir = self._definition.part_for(group)
        if self._shard.definitions.queue_of_id(heir.queue_id) is None:
            return
        is_here = heir.shard == self._definition.shard
        if is_here and not self._shard.is_ready(heir.queue_id):
            return
        left = len(self._moves) + len(self._departures)
        for sequence, history, hold in self._line(group):
            if self._is_full:
                break
            self._leave(sequence, history, hold, heir, is_here)
        if len(self._moves) + len(self._departures) > left:
            self._book.begin_leaving(group)

    def _line(self, group: bytes) -> Iterator[tuple[int, Lease | None, Hold | None]]:
        """The messages of a group in order, with their last leases and holds."""
        held = sorted(
            sequence for sequence, (_, lease) in self._holds.items() if lease.group == group
        )
        rows, queue_id = self._shard.rows, self._queue.queue_id
        row = self._book.row(group)
        after, left = row.first, row.count
        while left > 0:
            page = rows.group_line(queue_id, group, after, min(left, _PAGE))
            if not page:
                raise MessagesMissing(queue_id, after)
            for sequence, history in page:
                while held and held[0] < sequence:
                    yield self._held_one(held.pop(0))
                yield sequence, history, None
            after, left = page[-1][0] + 1, left - len(page)
        for sequence in held:
            yield self._held_one(sequence)

    def _held_one(self, sequence: int) -> tuple[int, Lease | None, Hold | None]:
        hold, lease = self._holds[sequence]
        return sequence, lease, hold

    def _leave(
        self,
        sequence: int,
        history: Lease | None,
        hold: Hold | None,
        heir: QueueDefinition,
        is_here: bool,
    ) -> None:
        message = the_message(self._shard.rows, self._queue.queue_id, sequence)
        lease = history or no_lease(sequence, message)
        arriving = transferred(message, history)
        arriving = msgspec.structs.replace(arriving, original_sequence=0)
        self._size += len(message.data)
        if hold is not None:
            self._unmarked.append(sequence)
        elif is_here:
            self._book.leave(message.group, sequence)
        else:
            self._book.depart(message.group, sequence)
        if not is_here:
            self._departures.add(lease, message, heir, arriving, transfers=True, hold=hold)
            return
        there = self._there.get(heir.queue_id)
        if there is None:
            there = FifoBook(self._shard, self._shard.queue(heir.queue_id))
            self._there[heir.queue_id] = there
        self._moves.append(Move(lease, -1, heir.queue_id, sequence, arriving))
        if hold is None:
            there.arrive(message.group, sequence)
        else:
            there.arrive_held(message.group)
            marked = held_there(hold, sequence, arriving)
            self._held.setdefault(heir.queue_id, []).append(marked)
