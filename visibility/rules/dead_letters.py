"""DeadLetters: moves to the dead-letter queue, of messages that were received too often and of
those that other features give up.

The move keeps the message and its count, and notes the cause. Retention of a standard queue still
counts from the first send, of a FIFO queue from the move; there the deduplication id becomes the
message id (`content.py` shows it). A message that cannot be sealed as the target requires is
received as if there were no target; one whose key is not there yet waits in its place. A target in
another shard gets it through the outbox; while that is full, messages are received as well. Of a
target of several parts each decision draws one.

A message that moved by itself as often as it may goes to the archive instead of round in a circle
of queues; without one, or without room in it, it stays.
Source: SQS developer guide, dead-letter queues; recorded receive counts.
"""

from __future__ import annotations

import msgspec

from visibility.content.sealing import KEY_AGAIN_MS
from visibility.contract.death import HOPS, is_at_end, next_death
from visibility.contract.errors import QueueError, ServiceUnavailable
from visibility.contract.model import QueueDefinition
from visibility.contract.priority import joining_level
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.contract.time_to_live_tags import expiry
from visibility.rules.archive_batches import ROW_BYTES, hand_over, has_room, takes_expired
from visibility.rules.closing_parts import open_part, shares_out
from visibility.rules.departures import Departures
from visibility.rules.events import Event
from visibility.rules.message_events import MessagesExpired, MessagesMoved, Move
from visibility.rules.orders import order_of
from visibility.rules.room import Room, takes
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp

MOVES_MAX = 100
"""Moves in one decision, and messages that wait for a key, so that a queue full of spent messages
cannot hold the shard."""
_BYTES_MAX = 3 << 19
"""Bytes of content moved in one decision, for the same reason; one more message may exceed it, and
is there twice if it departs under another key."""


class DeadLetters:
    """The moves of one decision."""

    __slots__ = (
        "_allowed",
        "_book",
        "_cause",
        "_departures",
        "_ended",
        "_now_ms",
        "_queue",
        "_room",
        "_shard",
        "_size",
        "_target",
        "_waiting",
        "moves",
        "source_book",
    )

    def __init__(
        self,
        shard: ShardState,
        queue: QueueDefinition,
        target: QueueDefinition | None,
        stamp: Stamp,
        cause: str,
    ) -> None:
        """`target` is the dead-letter queue of `queue`, None if it has none; `cause` is one of
        those in `death.py`."""
        policy = queue.settings.redrive_policy
        if target is not None and target.parts and not shares_out(target):
            target = open_part(shard, target, stamp, b"")
        self._queue = queue
        self._cause = cause
        self._target = target
        self._now_ms = stamp.now_ms
        self._shard = shard
        self._size = 0
        self._allowed = policy.max_receive_count if policy and target else None
        source = shard.queue(queue.queue_id)
        self.source_book = self._book = order_of(queue.settings).book(shard, source)
        self._departures: Departures | None = None
        if target is not None and (target.shard != queue.shard or shares_out(target)):
            self._departures = Departures(shard, queue, stamp)
        elif target is not None and target.queue_id != source.queue_id:
            there = shard.queue(target.queue_id)
            self._book = order_of(target.settings).book(shard, there)
        self._room: Room | None = None
        if target is not None and target.settings.own_tags and self._departures is None:
            if not self.goes_back:
                self._room = Room.of(shard.queue(target.queue_id), target)
        self.moves: list[Move] = []
        self._ended: dict[int, tuple[Lease, StoredMessage]] = {}
        """Messages that go to the archive."""
        self._waiting: list[bytes] = []
        """Groups of the messages that wait for a key."""

    @property
    def has_target(self) -> bool:
        """True if there is a queue, or a part of one, that takes messages."""
        return self._target is not None

    @property
    def goes_back(self) -> bool:
        """True if the queue is its own dead-letter queue."""
        return self._target is not None and self._target.queue_id == self._queue.queue_id

    @property
    def moved(self) -> int:
        """Messages moved by this decision."""
        return len(self.moves if self._departures is None else self._departures) + len(self._ended)

    @property
    def is_full(self) -> bool:
        """True if this decision has moved as many messages as it should."""
        if not self._size:  # nothing has moved
            return False
        return self.moved + len(self._waiting) >= MOVES_MAX or self._size >= _BYTES_MAX

    def locks(self, group: bytes) -> bool:
        """True if the group waits for a message that is on its way to another shard, or will be."""
        return group in self._waiting or bool(self.source_book.departed(group))

    @property
    def come_back(self) -> bool:
        """True if messages moved to the queue they came from."""
        return any(move.target_queue_id == self._queue.queue_id for move in self.moves)

    def wants(self, received: int) -> bool:
        """True if a message with this number of receives in its queue leaves it instead of being
        received."""
        return self._allowed is not None and received >= self._allowed

    def move(self, lease: Lease, message: StoredMessage, *, waits: bool, due_ms: int = -1) -> bool:
        """Move a message, or leave it until its key is there; False if it cannot be sealed for its
        target, that is full, or it may go no further: then it stays.

        `lease` is the one that ended; `waits` means that the message is in its group's line. A
        delayed one has its key, `due_ms`, and does not wait for a key that opens it.
        """
        target = self._target
        assert target is not None
        if is_at_end(message.death, self._cause):
            return self._end(lease, message)
        is_here = self._departures is None
        if is_here and not self.moves and not self._shard.is_ready(target.queue_id):
            return False
        try:
            sealed = self._shard.sealing.sealed_for(message, target)
        except ServiceUnavailable:
            if due_ms >= 0:
                return False
            self._keep(message)
            return True
        except QueueError:
            return False
        if self._shard.is_full(target.queue_id, self._now_ms) or not takes(
            self._room, message.size
        ):
            return False
        if self._departures is not None:
            return self._depart(self._departures, lease, message, sealed, waits, due_ms)
        if waits and message.group:
            self.source_book.leave(message.group, lease.sequence)
        elif due_ms >= 0 and message.group:
            self.source_book.end_delay(message.group)
        self._size += len(message.data)
        moved = self._moved(lease, sealed, target)
        sequence = self._book.allocate()
        if moved.group:
            self._book.arrive(moved.group, sequence)
        resealed = sealed is not message
        self.moves.append(Move(lease, due_ms, target.queue_id, sequence, moved, resealed))
        return True

    def _end(self, lease: Lease, message: StoredMessage) -> bool:
        """Hand a message to the archive; False if that does not take it."""
        messages = [message, *(each for _, each in self._ended.values())]
        size = sum(len(each.data) + ROW_BYTES for each in messages)
        is_taken = takes_expired(self._shard, self._queue.settings)
        if not is_taken or not has_room(self._shard, self._queue, size):
            return False
        self.source_book.leave_all([lease])
        self._ended[lease.sequence] = lease, message
        self._size += len(message.data)
        return True

    def _depart(
        self,
        departures: Departures,
        lease: Lease,
        message: StoredMessage,
        sealed: StoredMessage,
        waits: bool,
        due_ms: int,
    ) -> bool:
        target = self._target
        assert target is not None
        if shares_out(target):
            target = target.part_for(message.group)
        if not departures.has_room_for(target):
            return False
        if waits and message.group:
            self.source_book.depart(message.group, lease.sequence)
        elif due_ms >= 0 and message.group:
            self.source_book.end_delay(message.group)
        before = departures.size
        arriving = self._moved(lease, sealed, target)
        departures.add(lease, message, target, arriving, due_ms=due_ms)
        self._size += departures.size - before
        return True

    def _keep(self, message: StoredMessage) -> None:
        """Leave a message where it is; a pulse wakes the long polls, which try again."""
        source = self._shard.queue(self._queue.queue_id)
        source.waits_for_key = True
        self._shard.plan_pulse(source, self._now_ms + KEY_AGAIN_MS)
        self._waiting.append(message.group)
        self._size += len(message.data)

    def _moved(
        self, lease: Lease, message: StoredMessage, target: QueueDefinition
    ) -> StoredMessage:
        return msgspec.structs.replace(
            message,
            dead_letter_source_arn=self._queue.arn,
            death=next_death(message.death, self._cause, self._now_ms),
            expires_ms=expiry(target.settings.own_tags, self._now_ms),
            level=joining_level(target.settings.own_tags, message.level),
            receive_count=lease.receive_count,
            first_received_at_ms=lease.first_received_at_ms,
            group=message.group
            if self._departures is not None
            else self._book.group_of(message.group),
            clock_ms=order_of(target.settings).dead_letter_clock_ms(message, self._now_ms),
            original_sequence=0,
            received_here=0,
        )

    @property
    def departs(self) -> bool:
        """True if messages go to another shard, and hold their groups meanwhile."""
        return self._departures is not None

    def settle(self, leases: list[Lease]) -> None:
        """Let the groups of these messages go on, which left; those on their way hold theirs."""
        if not self.departs:
            self.source_book.settle_all(leases, ())
            return
        for group in {lease.group for lease in leases if lease.group}:
            self.source_book.settle(group, (), [])

    def events(self) -> tuple[Event, ...]:
        """The changes of the groups' indexes, then the move."""
        first = (*self.source_book.events(), *self._end_events())
        if self._departures is not None:
            return (*first, *self._departures.events())
        if not self.moves:
            return first
        if self._book is not self.source_book:
            first += self._book.events()
        moved = MessagesMoved(self._queue.queue_id, self._now_ms, self.moves)
        return (*first, moved)

    def _end_events(self) -> tuple[Event, ...]:
        if not self._ended:
            return ()
        leases = [lease for lease, _ in self._ended.values()]
        messages = {sequence: message for sequence, (_, message) in self._ended.items()}
        archived = hand_over(
            self._shard, self._queue, leases, messages, reason=HOPS, now_ms=self._now_ms
        )
        return (*archived, MessagesExpired(self._queue.queue_id, leases))
