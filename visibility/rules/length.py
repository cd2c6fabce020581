"""Limits of a queue's length: room for messages that join it, and who makes room for them.

What comes from a send, another queue or a restore obeys the limits; what returns to its place, and
what goes from one part of a queue to another, does not. A send above a limit may push out the
oldest waiting messages: none that is in flight, on its way or brought by the same request, and of a
FIFO group none behind such a one, so that a group loses its beginning and gets no hole. It takes
what it needs or nothing, and little more than it brings.

Dead letters for another shard make room only once they are there. So they leave before the queue is
full, for the sends to come, and a refused send, too, makes room for its repeat.
"""

from __future__ import annotations

from visibility.contract.death import OVER_LENGTH
from visibility.contract.errors import OverLimit
from visibility.contract.length_tags import DROP_OLDEST, OVERFLOW_TAG, TO_ARCHIVE, TO_DEAD_LETTERS
from visibility.contract.model import QueueDefinition
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rules.archive_batches import ROW_BYTES, hand_over, has_room
from visibility.rules.dead_letters import DeadLetters
from visibility.rules.events import Event
from visibility.rules.message_events import MessagesExpired
from visibility.rules.order import Candidates
from visibility.rules.orders import order_of, receiving_order
from visibility.rules.room import Room, spare_room
from visibility.state.queue_state import QueueState
from visibility.state.rows import the_message
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp

_TIMES_MAX = 10
"""Messages, and sizes of a new message, that it pushes out at most."""
_PUSHED_OUT_MAX = 100
"""Messages that it pushes out at most, whatever their size."""

_Leaving = tuple[int, StoredMessage]


def full() -> OverLimit:
    """The refusal of a message for which there is no room."""
    return OverLimit(
        "The queue is full: its tags holdfast:max-messages and holdfast:max-bytes limit it."
    )


class Overflow:
    """The messages that make room in one decision on sends."""

    def __init__(
        self,
        shard: ShardState,
        queue: QueueState,
        definition: QueueDefinition,
        stamp: Stamp,
        room: Room,
    ) -> None:
        self._shard = shard
        self._queue = queue
        self._definition = definition
        self._now_ms = stamp.now_ms
        self.room = room
        """The room that is left."""
        self._fate = definition.settings.own_tags.get(OVERFLOW_TAG)
        self._letters: DeadLetters | None = None
        if self._fate == TO_DEAD_LETTERS:
            target = shard.definitions.dead_letter_queue(definition)
            self._letters = DeadLetters(shard, definition, target, stamp, OVER_LENGTH)
        self.book = (
            order_of(definition.settings).book(shard, queue)
            if self._letters is None
            else self._letters.source_book
        )
        """The groups of the queue, also for those that send to it."""
        self._spare = spare_room(definition)
        self.leaves_early = self._letters is not None and self._letters.departs
        """True if what makes room for later sends leaves also by a send that is refused."""
        self._oldest: Candidates | None = None
        self._dropped: dict[int, tuple[Lease, StoredMessage]] = {}
        self._archived_size = 0
        self._on_their_way: list[int] = []
        """Sizes of the messages that depart."""

    def admit(self, size: int) -> None:
        """Take room for a message, which others make if there is none. Raises OverLimit,
        DamagedRecord, MessagesMissing."""
        room = self.room
        if self.leaves_early:
            if size <= room.most_bytes:
                self._make_room_early(size)
            if not room.has(size):
                raise full()
        elif not room.has(size) and (size > room.most_bytes or not self._make_room(size)):
            raise full()
        room.take(size)

    def _make_room_early(self, size: int) -> None:
        """Have messages depart, so that once they are gone, and those that departed before, the
        spare room is free behind this one."""
        messages, spare_bytes = self._spare
        coming = self._queue.departed + len(self._on_their_way) - messages
        coming_bytes = self._queue.departed_size + sum(self._on_their_way) - spare_bytes
        leaving: list[_Leaving] = []
        freed = 0
        while not self.room.has(
            size, freed=coming + len(leaving), freed_bytes=coming_bytes + freed
        ):
            is_enough = len(leaving) >= _TIMES_MAX and freed >= _TIMES_MAX * size
            found = None if is_enough or len(leaving) == _PUSHED_OUT_MAX else self._next()
            if found is None:
                break
            leaving.append(found)
            freed += found[1].size
        self._push_out(leaving)

    def _make_room(self, size: int) -> bool:
        """Push out what is needed; False if that is too much, or cannot go where it should.

        If the queue is above its limits, since they were lowered, it is enough that it shrinks.
        """
        leaving: list[_Leaving] = []
        freed = 0
        while not self.room.has(size, freed=len(leaving), freed_bytes=freed):
            is_enough = len(leaving) >= _TIMES_MAX and (
                self.room.has_bytes(size - freed) or freed >= _TIMES_MAX * size
            )
            found = None if is_enough or len(leaving) == _PUSHED_OUT_MAX else self._next()
            if found is None:
                if not (self.room.is_exceeded and leaving and freed >= size):
                    return False
                break
            leaving.append(found)
            freed += found[1].size
        return self._push_out(leaving)

    def _next(self) -> _Leaving | None:
        if not self._has_place:
            return None
        if self._oldest is None:
            order = receiving_order(self._definition.settings)
            self._oldest = order.first_to_go(self._shard, self._queue, self.book)
        found = next(self._oldest, None)
        if found is None:
            return None
        sequence, waiting, _ = found
        return sequence, waiting or the_message(self._shard.rows, self._queue.queue_id, sequence)

    @property
    def _has_place(self) -> bool:
        if self._letters is not None:
            return self._letters.has_target and not self._letters.goes_back
        return self._fate == DROP_OLDEST or (self._fate == TO_ARCHIVE and self._shard.archive.is_on)

    def _push_out(self, leaving: list[_Leaving]) -> bool:
        order = order_of(self._definition.settings)
        size = sum(len(message.data) + ROW_BYTES for _, message in leaving)
        if self._fate == TO_ARCHIVE:
            self._archived_size += size
            if not has_room(self._shard, self._definition, self._archived_size):
                return False
        for sequence, message in leaving:
            lease = order.lease_of(self._shard.rows, self._queue, sequence, message)
            if self._letters is None:
                self.book.leave_all([lease])
                self._dropped[sequence] = lease, message
            else:
                waits, before = sequence not in self._queue.entries, self._letters.moved
                if self._letters.is_full or not self._letters.move(lease, message, waits=waits):
                    return False
                if self._letters.moved == before:  # it waits for a key
                    return False
                if message.group:
                    self.book.settle(message.group, (), [])
            if self.leaves_early:
                self._on_their_way.append(message.size)
            else:
                self.room.give_back(message.size)
        return True

    def events(self) -> tuple[Event, ...]:
        """The changes of the groups, and what leaves."""
        if self._letters is not None:
            return self._letters.events()
        events = self.book.events()
        if not self._dropped:
            return events
        leases = [lease for lease, _ in self._dropped.values()]
        if self._fate == TO_ARCHIVE:
            messages = {sequence: message for sequence, (_, message) in self._dropped.items()}
            events += hand_over(
                self._shard,
                self._definition,
                leases,
                messages,
                reason=OVER_LENGTH,
                now_ms=self._now_ms,
            )
        gone = MessagesExpired(self._queue.queue_id, leases, made_room=True)
        return (*events, gone)


def overflow_of(
    shard: ShardState, queue: QueueState, definition: QueueDefinition, stamp: Stamp
) -> Overflow | None:
    """The overflow of a queue whose tags limit it, None for others."""
    room = Room.of(queue, definition)
    return None if room is None else Overflow(shard, queue, definition, stamp, room)
