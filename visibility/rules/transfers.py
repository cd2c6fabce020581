"""Transfers: a closed part gives what it has to its heir, so that it ends without consumers.

A transferred message stays what it is: its id, age, receive count, dead-letter source and content.
It gets a sequence of its new part; if it was received, its receipt handles keep the old one, as
those of a message that went to the back do. Messages in flight, and those that wait before they
are received again, stay until that is over. Delayed and scheduled ones go with their time, and
messages that an operator holds with their hold.

To a part of another shard they go through the outbox, of which transfers leave most to dead
letters. Nothing is transferred while a move task reads the part, or while purged messages can be
restored into it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import msgspec

from visibility.contract.errors import Departing, Moved
from visibility.contract.limits import HELD_UNTIL_MS
from visibility.contract.model import QueueDefinition
from visibility.contract.queue_parts import number_in
from visibility.contract.stored_message import Hold, Lease, StoredMessage
from visibility.rules.closing_parts import blocked_by
from visibility.rules.departures import Departures
from visibility.rules.events import Event
from visibility.rules.groups import GroupBook
from visibility.rules.hold_messages import HoldsEnded, MessagesHeld, held_leases
from visibility.rules.leases import lease_of, no_lease
from visibility.rules.message_events import MessagesMoved, Move
from visibility.rules.orders import order_of
from visibility.rules.retention import TooOld
from visibility.rules.schedules import MessagesRescheduled, Reschedule
from visibility.state.queue_state import QueueState
from visibility.state.rows import the_message
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp

STEP_MESSAGES = 100
"""Messages of one step."""
PACE_MS = 20
"""Time from one step to the next, so that requests of other queues do not wait for long."""
OUTBOX_SHARE = 4
"""Transfers fill up to this part of an outbox, a quarter."""
STEP_BYTES = 512 << 10
_PAGE = 16
"""Delayed messages that are read at once."""


def check_here(shard: ShardState, definition: QueueDefinition, sequence: int) -> None:
    """Refuse to say that a message is gone which this part does not have, but another part may.

    Raises Departing while it is on its way there, Moved if it may be there: this part is closed,
    or the handle is of a part that does not lead here.
    """
    queue_id = definition.queue_id
    if (queue_id, sequence) in shard.outbox.transfers:
        raise Departing()
    number = number_in(sequence)
    row = shard.parts.get(queue_id)
    if row is not None and row.closed_version:
        raise Moved()
    if number == definition.part_number:
        return
    if order_of(definition.settings).parts_have_groups:
        known = max((part.number for part in definition.parts), default=definition.part_number)
        if number > definition.last_part or definition.part_number < known:
            raise Moved()
        return
    is_later = sequence >= shard.queue(queue_id).next_sequence and number > definition.last_part
    if is_later or definition.way_of(sequence)[-1].queue_id != queue_id:
        raise Moved()


def transferred(message: StoredMessage, lease: Lease | None) -> StoredMessage:
    """The message as its new part gets it; `lease` is its last one here, None if it was not
    received here."""
    if lease is None:
        return msgspec.structs.replace(message, clock_ms=message.retained_from_ms)
    return msgspec.structs.replace(
        message,
        receive_count=lease.receive_count,
        first_received_at_ms=lease.first_received_at_ms,
        clock_ms=message.retained_from_ms,
        original_sequence=message.original_sequence or lease.sequence,
        received_here=lease.receive_count - lease.base_count,
    )


def advance_transfers(
    shard: ShardState, queue: QueueState, definition: QueueDefinition, stamp: Stamp
) -> tuple[tuple[Event, ...], int | None]:
    """Transfer the oldest messages that nobody has; see `pulse.Step`. A part that may not go on is
    looked at again by `CheckPart`."""
    has_groups = order_of(definition.settings).parts_have_groups
    if has_groups or not may_transfer(shard, queue, definition):
        return (), None
    heir = definition.way_of(definition.first_sequence)[-1]
    if shard.definitions.queue_of_id(heir.queue_id) is None:
        return (), None
    step = _Step(shard, queue, definition, heir, stamp)
    if step.is_here:
        there = shard.parts.get(heir.queue_id)
        if (there is not None and there.drained_version) or not shard.has_begun(heir.queue_id):
            return (), None
    events = step.events()
    return events, stamp.now_ms + PACE_MS if events else None


def may_transfer(shard: ShardState, queue: QueueState, definition: QueueDefinition) -> bool:
    """True for a part that is closed, not empty, and free to give what it has."""
    row = shard.parts.get(queue.queue_id)
    if row is None or not row.closed_version or row.drained_version:
        return False
    return bool(definition.parts) and not definition.part.is_open and not blocked_by(queue)


class _Leaving(NamedTuple):
    """A message that is to leave: `waits` if it is in line, `lease` if it was received here."""

    sequence: int
    message: StoredMessage
    waits: bool
    lease: Lease | None
    hold: Hold | None


class _Step:
    """One step of one part."""

    def __init__(
        self,
        shard: ShardState,
        queue: QueueState,
        definition: QueueDefinition,
        heir: QueueDefinition,
        stamp: Stamp,
    ) -> None:
        self._shard = shard
        self._queue = queue
        self._heir = heir
        self._now_ms = stamp.now_ms
        self.is_here = heir.shard == definition.shard
        """True if the same shard has the other part."""
        self._order = order_of(definition.settings)
        self._too_old = TooOld(shard, queue, definition.settings, stamp)
        self._departures = Departures(shard, definition, stamp)
        self._moves: list[Move] = []
        self._marks: list[Hold] = []
        self._held: list[Lease] = []
        self._unmarked: list[int] = []
        self._delayed: list[Reschedule] = []
        self._size = 0

    def events(self) -> tuple[Event, ...]:
        """The transfer. Raises DamagedRecord, MessagesMissing."""
        book = self._order.book(self._shard, self._queue)
        there = self._book_there()
        for leaving in self._leaving():
            if self._is_full:
                break
            self._leave(leaving, book, there)
            self._size += len(leaving.message.data)
        for due_ms, sequence, message in self._leaving_delayed():
            if self._is_full:
                break
            self._leave_delayed(due_ms, sequence, message, book, there)
            self._size += len(message.data)
        events = book.events()
        events += there.events() if there is not None else ()
        if self._delayed:
            delayed = MessagesRescheduled(self._queue.queue_id, self._delayed, transfers=True)
            events += (delayed,)
        if self._moves:
            moved = MessagesMoved(self._queue.queue_id, self._now_ms, self._moves, transfers=True)
            events += (moved,)
        events += self._departures.events()
        if self._unmarked:
            events += (HoldsEnded(self._queue.queue_id, self._unmarked),)
        if self._held:
            held = MessagesHeld(self._heir.queue_id, self._now_ms, self._marks, self._held)
            events += (held,)
        return events

    def _book_there(self) -> GroupBook | None:
        if not self.is_here:
            return None
        return self._order.book(self._shard, self._shard.queue(self._heir.queue_id))

    def _leaving(self) -> Iterator[_Leaving]:
        """The messages that may leave, those that are held first, then the oldest."""
        queue, rows = self._queue, self._shard.rows
        for hold, lease in held_leases(queue):
            if not hold.deleted_at_ms:
                for sequence, message in rows.unless_quarantined(queue, [lease.sequence]):
                    before = lease if lease.receive_count > lease.base_count else None
                    yield _Leaving(sequence, message, False, before, hold)
        for sequence, waiting, last in self._order.in_line(self._shard, queue):
            found = waiting or the_message(self._shard.rows, self._queue.queue_id, sequence)
            if not self._too_old.passes(found):
                yield _Leaving(sequence, found, waiting is not None, last, None)

    @property
    def _is_full(self) -> bool:
        leaving = len(self._moves) + len(self._delayed) + len(self._departures)
        return (
            leaving >= STEP_MESSAGES
            or self._size >= STEP_BYTES
            or not self._departures.has_room_in(OUTBOX_SHARE)
        )

    def _leaving_delayed(self) -> Iterator[tuple[int, int, StoredMessage]]:
        """The delayed messages, (due_ms, sequence, message), those that are due first at first."""
        queue = self._queue
        if not queue.delayed:
            return
        after = queue.delayed_after
        if queue.doubted is not None:
            after = min(after, queue.doubted[0])
        read = partial(self._shard.rows.delayed, queue.queue_id, _PAGE)
        while page := read(after=after, quarantined=queue.quarantined):
            yield from page
            after = page[-1][:2]

    def _leave_delayed(
        self,
        due_ms: int,
        sequence: int,
        message: StoredMessage,
        book: GroupBook,
        there: GroupBook | None,
    ) -> None:
        if message.group:
            book.end_delay(message.group)
        if there is None:
            lease = no_lease(sequence, message)
            self._departures.add(lease, message, self._heir, message, transfers=True, due_ms=due_ms)
            return
        if message.group:
            there.delay(message.group)
        place = (due_ms, self._heir.queue_id, there.allocate())
        self._delayed.append(Reschedule(due_ms, sequence, message, *place))

    def _leave(self, leaving: _Leaving, book: GroupBook, there: GroupBook | None) -> None:
        sequence, message, hold = leaving.sequence, leaving.message, leaving.hold
        lease = lease_of(self._queue, sequence, message)
        if leaving.waits and message.group:
            book.depart(message.group, sequence)
        arriving = transferred(message, leaving.lease)
        if hold is not None:
            self._unmarked.append(sequence)
        if there is None:
            self._departures.add(
                lease, message, self._heir, arriving, transfers=True, hold=leaving.hold
            )
            return
        to = there.allocate()
        group = there.group_of(arriving.group)
        arriving = msgspec.structs.replace(arriving, group=group)
        if group and hold is None:
            there.arrive(group, to)
        self._moves.append(Move(lease, -1, self._heir.queue_id, to, arriving))
        if hold is not None:
            mark, held = held_there(hold, to, arriving)
            self._marks.append(mark)
            self._held.append(held)


def held_there(hold: Hold, sequence: int, message: StoredMessage) -> tuple[Hold, Lease]:
    """A hold, and the lease that goes with it, of a message at its new place."""
    lease = no_lease(sequence, message)
    return (
        msgspec.structs.replace(hold, sequence=sequence),
        msgspec.structs.replace(lease, visible_at_ms=HELD_UNTIL_MS),
    )
