"""Deleted and purged queues: kept for a while, then dropped or restored.

A purge gives the queue's name to an empty successor, which continues the sequences of the purged
queue, so that no number is issued twice. The messages stay in the purged queue for the time it is
kept. Clients cannot reach them, except to delete one that they received before. Restoring a purged
queue moves its messages to the end of its successor, where their receipt handles still work.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from typing_extensions import override

from visibility.contract.model import QueueDefinition, Request
from visibility.contract.move_task import MoveTask
from visibility.contract.operations import Operation
from visibility.contract.outcomes import Progress
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import MOVE_TASK, queue_range, row_key, table_range
from visibility.rules.archive_batches import DELETED, MessagesDiscarded, hand_over, takes_deleted
from visibility.rules.decided import Outcome
from visibility.rules.events import Effects, Event
from visibility.rules.groups import GroupBook
from visibility.rules.leases import lease_of, no_lease
from visibility.rules.message_events import MessagesMoved, Move
from visibility.rules.noted_parts import dropped_part
from visibility.rules.operation_kinds import OperationKind, Operations
from visibility.rules.orders import order_of
from visibility.rules.remembered_ids import ids_count_for_ms, undone
from visibility.rules.room import Room, takes
from visibility.rules.schedules import MessagesRescheduled, Reschedule
from visibility.state import window
from visibility.state.queue_state import Counts, Quarantine, QueueState
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp

STEP_MESSAGES = 250
"""Messages of one step."""
STEP_BYTES = 512 << 10
_ARCHIVED_BYTES = 128 << 10
"""Content that one step hands over to the archive, which writes it again."""
_FULL_AGAIN_MS = 1_000
"""Pause of a restoration while its destination is full."""
_NO_ROOM_AGAIN_MS = 15_000
"""Interval at which messages are offered again to an archive that had no room for them."""

_Found = list[tuple[int, StoredMessage]]


class ContinueQueue(Operation, frozen=True):
    """Make the request's empty `destination` the successor of a purged queue; answers None.

    The messages stay in the old queue, which clients no longer reach.
    """


class RestoreMessages(Operation, frozen=True):
    """Put messages of a purged queue into the request's `destination`; answers `outcomes.Progress`.

    One bounded step, from `from_sequence` on. FIFO: messages of `blocked` groups wait for the next
    pass.
    """

    from_sequence: int = 0
    blocked: frozenset[bytes] = frozenset()


class DropQueue(Operation, frozen=True):
    """Forget a deleted queue and end its long polls; answers `outcomes.Progress`.

    Messages for the archive are exported first, one bounded step at a time.
    """


def continue_queue(shard: ShardState, queue_id: int, successor_id: int) -> QueueContinued:
    """The event by which a queue continues a purged one."""
    old = shard.queue(queue_id)
    return QueueContinued(queue_id, successor_id, old.next_sequence, list(old.tasks.values()))


def unfinished_purges(shard: ShardState) -> list[QueueContinued]:
    """Events for purges that the catalog knows but a crash kept from the shard."""
    return [
        continue_queue(shard, queue_id, successor_id)
        for queue_id, successor_id in shard.definitions.continued()
        if queue_id in shard.queues
        and shard.queue(successor_id).next_sequence < shard.queue(queue_id).next_sequence
    ]


def decide_continue_queue(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Make the destination the successor of the purged queue."""
    assert request.destination is not None
    queue_id, successor_id = request.queue.queue_id, request.destination.queue_id
    if shard.queue(successor_id).continues == queue_id:
        return None, ()
    return None, (continue_queue(shard, queue_id, successor_id),)


# -- drop ------------------------------------------------------------------------------------------


def decide_drop_queue(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Forget the queue once the archive has taken its messages."""
    queue = shard.queue(request.queue.queue_id)
    if queue.stored and takes_deleted(shard, request.queue.settings):
        step = _hand_over_some(shard, queue, request.queue, stamp)
        if step is not None:
            return step
    ids_count_for = ids_count_for_ms(queue, stamp.now_ms)
    if ids_count_for:
        return Progress(is_done=False, again_in_ms=ids_count_for), ()
    forgotten = dropped_part(shard, request.queue, stamp.now_ms)
    return Progress(is_done=True), (*forgotten, QueueDropped(queue.queue_id))


def _hand_over_some(
    shard: ShardState, queue: QueueState, definition: QueueDefinition, stamp: Stamp
) -> Outcome | None:
    """Hand the next messages to the archive; None if no more can be read."""
    now_ms, order = stamp.now_ms, order_of(definition.settings)
    delayed = shard.rows.delayed(queue.queue_id, STEP_MESSAGES, quarantined=queue.quarantined)
    if delayed:
        book = order.book(shard, queue)
        moves = [_end_delay(book, due_ms, sequence, m) for due_ms, sequence, m in delayed]
        return Progress(is_done=False), (
            *book.events(),
            MessagesMoved(queue.queue_id, now_ms, moves),
        )
    found = next_messages(shard, queue, 0, _ARCHIVED_BYTES)[0]
    if not found:
        return None
    leases = [lease_of(queue, sequence, message) for sequence, message in found]
    archived = hand_over(shard, definition, leases, dict(found), reason=DELETED, now_ms=now_ms)
    if shard.archive.retains and any(type(event) is MessagesDiscarded for event in archived):
        return Progress(is_done=False, again_in_ms=_NO_ROOM_AGAIN_MS), ()
    return Progress(is_done=False), (*archived, *order.expired(shard, queue, leases))


def _end_delay(book: GroupBook, due_ms: int, sequence: int, message: StoredMessage) -> Move:
    """Move a delayed message into the line of its own queue."""
    to = book.place_after_delay(sequence)
    moved = _arrived(book, to, message, no_lease(sequence, message))
    if message.group:
        book.end_delay(message.group)
    return Move(no_lease(sequence, message), due_ms, book.queue_id, to, moved)


# -- restore ---------------------------------------------------------------------------------------


def decide_restore_messages(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Move the next messages to the destination.

    A message in flight follows after its lease, in a FIFO queue together with its group.
    """
    operation, destination = request.operation, request.destination
    assert isinstance(operation, RestoreMessages)
    assert destination is not None
    queue = shard.queue(request.queue.queue_id)
    restoring = _Restoring(shard, queue, destination, request.queue, stamp, operation.blocked)
    next_sequence = restoring.move_line(operation.from_sequence)
    if not next_sequence and not restoring.is_full:
        # Last: the delayed messages of a FIFO group are its last ones.
        restoring.move_delayed()
        if queue.delayed > restoring.moved_delayed > 0:
            next_sequence = queue.next_sequence
    if not next_sequence:
        restoring.wait_for_all()
    if restoring.is_full:
        return Progress(is_done=False, again_in_ms=_FULL_AGAIN_MS), restoring.events()
    if next_sequence:
        step = Progress(is_done=False, next_sequence=next_sequence, blocked=restoring.blocked)
        return step, restoring.events()
    if restoring.blocked and not restoring.again_in_ms:
        return Progress(is_done=False, again_in_ms=1), restoring.events()
    again_in_ms = restoring.again_in_ms
    left = 0 if again_in_ms else queue.stored + queue.quarantined.lost - restoring.moved
    return Progress(not again_in_ms, 0, again_in_ms, left), restoring.events()


class _Restoring:
    """One step of a restoration."""

    def __init__(
        self,
        shard: ShardState,
        queue: QueueState,
        destination: QueueDefinition,
        definition: QueueDefinition,
        stamp: Stamp,
        blocked: frozenset[bytes],
    ) -> None:
        self._shard = shard
        self._queue = queue
        self._now_ms = stamp.now_ms
        self._order = order_of(definition.settings)
        self._from = self._order.book(shard, queue)
        self._to = self._order.book(shard, shard.queue(destination.queue_id))
        self._room = Room.of(shard.queue(destination.queue_id), destination)
        self.is_full = False
        """True if the destination's tags leave no room for more: it goes on when there is some."""
        self._moves: list[Move] = []
        self._schedules: list[Reschedule] = []
        self.again_in_ms = 0
        """Time until the first lease ends; 0 if nothing is in flight."""
        self.blocked = blocked
        """FIFO: groups with messages in flight, now or in an earlier step of this pass."""
        self.moved_delayed = 0
        if self._order.locks_groups:
            self.blocked |= {
                group for group, held in queue.in_flight_by_group.items() if self._waits(held)
            }

    def _waits(self, sequences: set[int]) -> bool:
        """True if one of these messages is still in flight with a consumer."""
        left_ms = [
            _FULL_AGAIN_MS if entry.lease.is_prepared else entry.lease.visible_at_ms - self._now_ms
            for sequence in sequences
            if (entry := self._queue.entries.get(sequence)) is not None and not entry.lease.is_held
        ]
        left_ms = [ms for ms in left_ms if ms > 0]
        if left_ms:
            self.again_in_ms = min([*left_ms, self.again_in_ms or left_ms[0]])
        return bool(left_ms)

    def wait_for_all(self) -> None:
        """Note when the first lease ends, also of those messages that an earlier step passed."""
        self._waits(set(self._queue.entries))

    def move_delayed(self) -> None:
        """Move the next delayed messages; their delay ends, but scheduled ones keep their time.

        Messages of blocked groups stay, and so do those after a step full of them.
        """
        if not self._queue.delayed:
            return
        for due_ms, sequence, message in self._shard.rows.delayed(
            self._queue.queue_id, STEP_MESSAGES, quarantined=self._queue.quarantined
        ):
            if message.group in self.blocked:
                continue
            if not self._takes(message):
                return
            if message.group:
                self._from.end_delay(message.group)
            self.moved_delayed += 1
            if message.clock_ms:
                self._reschedule(due_ms, sequence, message)
            else:
                self._move(no_lease(sequence, message), due_ms, message)

    def _reschedule(self, due_ms: int, sequence: int, message: StoredMessage) -> None:
        if message.group:
            self._to.delay(message.group)
        place = (due_ms, self._to.queue_id, self._to.allocate())
        self._schedules.append(Reschedule(due_ms, sequence, message, *place))

    def move_line(self, from_sequence: int) -> int:
        """Move the next messages that are not delayed; returns the sequence to continue at, 0 at
        the end."""
        found, next_sequence = next_messages(self._shard, self._queue, from_sequence, STEP_BYTES)
        leases: list[Lease] = []
        for sequence, message in found:
            if message.group in self.blocked or self._waits({sequence}):
                continue
            if not self._takes(message):
                break
            lease = self._order.lease_unless_blocked(self._shard, self._queue, sequence, message)
            leases.append(lease)
            self._move(lease, -1, message)
        self._from.leave_all(leases)
        return next_sequence

    def _takes(self, message: StoredMessage) -> bool:
        self.is_full = self.is_full or not takes(self._room, message.size)
        return not self.is_full

    def _move(self, lease: Lease, due_ms: int, message: StoredMessage) -> None:
        to = self._to.allocate()
        moved = _arrived(self._to, to, message, lease)
        self._moves.append(Move(lease, due_ms, self._to.queue_id, to, moved))

    @property
    def moved(self) -> int:
        """Number of messages that this step moves."""
        return len(self._moves) + len(self._schedules)

    def events(self) -> tuple[Event, ...]:
        """The changes of the step."""
        events: list[Event] = [*undone(self._queue, self._to.queue_id)]
        if not self.moved:
            return tuple(events)
        events += self._from.events()
        events += self._to.events()
        if self._moves:
            events.append(MessagesMoved(self._queue.queue_id, self._now_ms, self._moves))
        if self._schedules:
            events.append(MessagesRescheduled(self._queue.queue_id, self._schedules))
        return tuple(events)


def _arrived(book: GroupBook, to: int, message: StoredMessage, lease: Lease) -> StoredMessage:
    """The message at its new place, with its history; retention and receipt handles are
    unaffected."""
    group = book.group_of(message.group)
    if group:
        book.arrive(group, to)
    was_received = lease.receive_count > lease.base_count or bool(message.original_sequence)
    moved = to != lease.sequence
    return msgspec.structs.replace(
        message,
        receive_count=lease.receive_count,
        first_received_at_ms=lease.first_received_at_ms,
        group=group,
        clock_ms=message.retained_from_ms if moved else message.clock_ms,
        sender_ms=0,
        original_sequence=(message.original_sequence or lease.sequence)
        if was_received and moved
        else 0,
        received_here=lease.receive_count - lease.base_count,
    )


def next_messages(
    shard: ShardState, queue: QueueState, from_sequence: int, size: int
) -> tuple[_Found, int]:
    """A step's messages from a sequence on, received ones included, and the next sequence (0 at the
    end)."""
    page = shard.rows.line(
        queue.queue_id,
        max(from_sequence, queue.floor),
        queue.next_sequence,
        messages=STEP_MESSAGES,
        size=size,
        quarantined=queue.quarantined,
        spans=queue.spans,
    )
    return page.messages, page.next_sequence or 0


# -- events ----------------------------------------------------------------------------------------


class QueueContinued(Event, frozen=True):
    """The queue was purged: `successor_id` continues it without its messages.

    The successor issues sequences from `first_sequence` on, and takes over the move tasks.
    """

    successor_id: int
    first_sequence: int
    tasks: list[MoveTask]

    @override
    def apply(self, shard: ShardState) -> None:
        old, new = shard.queue(self.queue_id), shard.queue(self.successor_id)
        new.continues = old.queue_id
        if new.next_sequence < self.first_sequence:  # else the purged queue never had a message
            new.fifo = old.fifo
            new.next_sequence = new.low_water = new.head = self.first_sequence
            new.first_sequence = self.first_sequence
            new.passed_ms = old.passed_ms
            new.counts, old.counts = old.counts, Counts(restored=old.stored)
            new.counts.purged += old.stored
            new.times_in_queue, old.times_in_queue = old.times_in_queue, {}
        old.tasks.clear()
        for task in self.tasks:
            new.tasks[task.number] = task
            if task.is_active:
                if task.is_shared:
                    shard.sharing[new.queue_id] = None
                shard.plan_pulse(new, task.started_at_ms)
        window.read_again(shard, old)

    @override
    def record(self, changes: Changes) -> None:
        changes.delete_range(*table_range(self.queue_id, MOVE_TASK))
        for task in self.tasks:
            changes.put(row_key(self.successor_id, MOVE_TASK, task.number), encode_row(task))

    @override
    def tell(self, turn: Effects) -> None:
        """Move the long polls of the purged queue to its successor."""
        turn.changed[self.successor_id] = None
        turn.deferred += turn.state.waits.take_all(self.queue_id)


class QueueDropped(Event, frozen=True, gc=False):
    """The queue was deleted with everything in it."""

    @override
    def apply(self, shard: ShardState) -> None:
        queue = shard.queues.pop(self.queue_id, None)
        if queue is not None:
            _empty(shard, queue)
            for heir in shard.continuing(self.queue_id):
                heir.continues = queue.continues

    @override
    def record(self, changes: Changes) -> None:
        changes.delete_range(*queue_range(self.queue_id))

    @override
    def tell(self, turn: Effects) -> None:
        """End the queue's long polls; its own row is gone, and that of its heir changes."""
        del turn.changed[self.queue_id]
        turn.dropped.append(self.queue_id)
        for heir in turn.state.continuing(self.queue_id):
            turn.changed[heir.queue_id] = None
        turn.close(self.queue_id)


def _empty(shard: ShardState, queue: QueueState) -> None:
    shard.hidden -= queue.in_flight
    for line in queue.lines:
        window.empty(shard, line)
    queue.changed_spans.update(queue.spans)
    emptied: Iterable[Any] = (
        queue.entries,
        queue.visible_again,
        queue.levels,
        queue.spans,
        queue.ready_groups,
        queue.groups,
        queue.prepared,
        queue.in_flight_by_group,
        queue.expired_leases,
        queue.over_received,
        queue.fairness.noisy,
    )
    for part in emptied:
        part.clear()
    queue.quarantined = Quarantine()
    queue.in_flight = queue.delayed = queue.waiting = queue.aliases = queue.in_levels = 0
    queue.size = 0
    queue.low_water = queue.head = queue.next_sequence


OPERATIONS: Operations = {
    ContinueQueue: OperationKind(decide_continue_queue, None, is_fixed=True),
    RestoreMessages: OperationKind(decide_restore_messages, Progress, is_fixed=True),
    DropQueue: OperationKind(decide_drop_queue, Progress, is_fixed=True),
}
