"""The side of an outbox's shard: messages depart, are read for delivery, and are cleared.

    depart → (committed) read → the other shard accepts or refuses → clear → it forgets

A message leaves its queue with its departure. Its FIFO group stays locked until the clear, which
returns the message to its place if the other shard refused it. One that came to no part of its
queue departs again, to another part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set

import msgspec
from typing_extensions import override

from visibility.contract.death import was_rescued
from visibility.contract.errors import OverLimit, QueueDoesNotExist
from visibility.contract.limits import HELD_UNTIL_MS
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.move_task import MoveTask
from visibility.contract.operations import Operation
from visibility.contract.outcomes import OutboxPage
from visibility.contract.stored_message import Arrival, Hold, Lease, SentElsewhere, StoredMessage
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import (
    DELAYED,
    DEPARTURE,
    GROUP_LINE,
    LEASE,
    group_line_key,
    pair_key,
    row_key,
)
from visibility.rows.row_places import put_message, remove
from visibility.rows.row_values import TARGET_MOVED, THE_SHARD, Departure, OutboxRow
from visibility.rows.state_rows import write_outbox
from visibility.rules.closing_parts import open_part
from visibility.rules.decided import Outcome
from visibility.rules.events import Effects, Event
from visibility.rules.hold_messages import MessagesHeld
from visibility.rules.move_tasks import MoveTaskChanged
from visibility.rules.operation_kinds import OperationKind, Operations
from visibility.rules.orders import order_of
from visibility.rules.prepared_deletes import Settling
from visibility.rules.quarantine import uncovered
from visibility.rules.remembered_ids import over_at
from visibility.rules.send_order import InTurn, those_behind
from visibility.rules.waiting_sends import (
    WAITING_BEHIND_MAX,
    Load,
    load_beside_waiting,
    queues_away,
)
from visibility.state.in_flight import drop_removed, hide, trim
from visibility.state.outbox import OUTBOX_BYTES_MAX, OUTBOX_MESSAGES_MAX, TARGET_SHARE
from visibility.state.places import add_size, count, join_delayed, leave, leave_delayed
from visibility.state.queue_state import QueueState
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp
from visibility.state.waiters import place_of

PAGE_MESSAGES = 100
"""Messages that are delivered in one request."""
_PAGE_BYTES = 512 << 10


class ReadOutbox(Operation, frozen=True):
    """Read the next messages of the outbox for another shard; answers `outcomes.OutboxPage`.

    The request's queue is `archive_batches.the_shard`, as for the next two.
    """

    to_shard: int = 0


class ClearOutbox(Operation, frozen=True):
    """Remove messages from the outbox; answers None.

    `outcomes` are those of `outcomes.Accepted`: a message with a reason returns to its queue,
    unless it can depart to another part of its target.
    """

    outcomes: list[tuple[bytes, int, str]] = msgspec.field(default_factory=list)


class Departures:
    """The messages of one queue that depart by one decision."""

    __slots__ = ("_beside", "_departures", "_locks", "_queue_id", "_shard", "_size", "_stamp")

    def __init__(self, shard: ShardState, queue: QueueDefinition, stamp: Stamp) -> None:
        self._shard = shard
        self._queue_id = queue.queue_id
        self._locks = order_of(queue.settings).locks_groups
        self._stamp = stamp
        self._departures: list[Departure] = []
        self._size = 0
        self._beside: Load | None = None
        """The outbox before, without those that wait; None as long as nobody asks."""

    def __len__(self) -> int:
        return len(self._departures)

    @property
    def size(self) -> int:
        """Bytes of content that depart."""
        return self._size

    @property
    def has_room(self) -> bool:
        """True if the outbox takes one more message."""
        return self.has_room_in(1)

    def has_room_for(self, target: QueueDefinition) -> bool:
        """True if the outbox takes one more message that is a dead letter or moved for this
        queue."""
        departing = self._shard.outbox.by_target[target.queue_id] + len(self._departures)
        return self.has_room and departing < max(1, OUTBOX_MESSAGES_MAX // TARGET_SHARE)

    def has_room_in(self, part: int, size: int = 0) -> bool:
        """The same, for messages that leave the rest of the outbox to others; `size` is that of one
        that must not exceed it. What waits for deleted queues does not count to a part."""
        outbox = self._shard.outbox
        load = Load(len(outbox.departures), outbox.size)
        if self._fit(load, part, size):
            return True
        if part == 1:
            return False
        if self._beside is None:
            self._beside = load_beside_waiting(self._shard)
        return self._fit(self._beside, part, size)

    def _fit(self, load: Load, part: int, size: int) -> bool:
        return (
            load.messages + len(self._departures) < OUTBOX_MESSAGES_MAX // part
            and load.size + self._size + size < OUTBOX_BYTES_MAX // part
        )

    def add(
        self,
        lease: Lease,
        message: StoredMessage,
        target: QueueDefinition,
        arriving: StoredMessage,
        task: str = "",
        *,
        transfers: bool = False,
        hold: Hold | None = None,
        due_ms: int = -1,
        sent: SentElsewhere | None = None,
    ) -> None:
        """Have a message depart; `arriving` is how its destination gets it. One that is `sent` was
        in no queue: it departs from `the_shard`."""
        resealed = arriving.data is not message.data
        if not resealed:
            arriving = msgspec.structs.replace(arriving, data=b"")
        departure = Departure(
            self._shard.outbox.origin or self._new_origin(),
            self._queue_id,
            self._stamp.now_ms,
            lease,
            message,
            target.shard,
            target.queue_id,
            target.arn,
            arriving,
            resealed,
            self._locks,
            task,
            transfers,
            hold,
            due_ms,
            sent,
        )
        self._departures.append(departure)
        self._size += departure.size

    def _new_origin(self) -> bytes:
        if self._departures:
            return self._departures[0].origin
        return self._stamp.bits128().to_bytes(16)

    def events(self) -> tuple[Event, ...]:
        """The departure of all of them."""
        if not self._departures:
            return ()
        first = self._shard.outbox.next_number
        if self._queue_id == THE_SHARD:
            return (DeparturesRenewed(THE_SHARD, [], first, self._departures),)
        return (MessagesDeparted(self._queue_id, first, self._departures),)


def decide_read_outbox(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """The next messages for a shard. Like any answer, this one leaves once they are committed.

    Messages that waited long behind some for another shard get new numbers, with all of their group
    behind them: none of these was sent to a shard yet. Questions come first, on a page of their
    own: they are answered also on a disk without space for messages.
    """
    operation = request.operation
    assert isinstance(operation, ReadOutbox)
    outbox = shard.outbox
    questions = [
        outbox.departures[number].arrival(number)
        for number, _ in outbox.prepared()
        if number not in outbox.unasked and outbox.departures[number].to_shard == operation.to_shard
    ]
    if questions:
        return OutboxPage(questions[:PAGE_MESSAGES], outbox.floors(operation.to_shard)), ()
    page: list[Arrival] = []
    size = 0
    away, in_turn = queues_away(shard), InTurn()
    waits = False
    late: dict[int, Departure] = {}
    for number, departure in outbox.departures.items():
        is_next = in_turn.may_go(departure)
        if departure.to_shard != operation.to_shard or number in outbox.unasked:
            continue
        is_late = outbox.next_number - number > WAITING_BEHIND_MAX
        if is_late and not is_next:
            late[number] = departure
        if departure.sent is not None and departure.target_arn in away:
            is_next &= is_late
        if not is_next:
            waits = True
            continue  # in its place, behind which others go on
        if len(page) == PAGE_MESSAGES or size >= _PAGE_BYTES:
            break
        page.append(departure.arrival(number))
        size += len(page[-1].message.data)
    late.update(list(those_behind(outbox, late, set())))
    events = (_renewed(shard, late, stamp),) if late else ()
    return OutboxPage(page, outbox.floors(operation.to_shard), waits), events


def decide_clear_outbox(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Forget messages that the other shard has, and take back those that it refused."""
    operation = request.operation
    assert isinstance(operation, ClearOutbox)
    known = shard.outbox.departures
    by_queue: dict[int, _Clearing] = {}
    renewed: dict[int, Departure] = {}
    settling = Settling(shard, stamp.now_ms)
    for origin, number, reason in operation.outcomes:
        departure = known.get(number)
        if departure is None or departure.origin != origin:
            continue
        if departure.prepared is not None:
            settling.settle(number, departure.prepared, is_accepted=not reason)
            continue
        if reason == TARGET_MOVED:
            other = _to_another_part(shard, departure, stamp)
            if other is not None:
                renewed[number] = other
                continue
            reason = QueueDoesNotExist.code
        if reason and departure.sent is not None and _waits(shard, departure):
            renewed[number] = departure
            continue
        clearing = by_queue.setdefault(departure.queue_id, _Clearing(departure, stamp.now_ms))
        clearing.settled[number] = departure, reason
    events = [event for each in by_queue.values() for event in each.events(shard)]
    if settling.numbers:
        events += settling.events()
        events.append(DeparturesCleared(THE_SHARD, stamp.now_ms, settling.numbers))
    full = [
        each.target_queue_id
        for clearing in by_queue.values()
        for each, reason in clearing.settled.values()
        if reason == OverLimit.code
    ]
    if full:
        events.append(TargetsFull(THE_SHARD, stamp.now_ms, list(dict.fromkeys(full))))
    if renewed:
        cleared = {number for each in by_queue.values() for number in each.settled}
        for number, departure in list(those_behind(shard.outbox, renewed, cleared)):
            other = None if departure.has_id else _to_another_part(shard, departure, stamp)
            renewed[number] = other or departure  # the old part may know the id
        events.append(_renewed(shard, renewed, stamp))
    return None, tuple(events)


def _renewed(
    shard: ShardState, departures: dict[int, Departure], stamp: Stamp
) -> DeparturesRenewed:
    """New numbers for these, in the order of those they have."""
    origin = shard.outbox.origin or stamp.bits128().to_bytes(16)
    numbers = sorted(departures)
    again = [msgspec.structs.replace(departures[each], origin=origin) for each in numbers]
    return DeparturesRenewed(THE_SHARD, numbers, shard.outbox.next_number, again)


def _waits(shard: ShardState, departure: Departure) -> bool:
    """True if the queue that a transaction sent to may come back with its messages; then this one
    is to be among them."""
    return shard.definitions.keeps(departure.target_arn)


def _to_another_part(shard: ShardState, departure: Departure, stamp: Stamp) -> Departure | None:
    """The departure to another part than the one that refused it; None if none is known. With a
    deduplication id it goes to all parts that may remember the id, in their order."""
    queue = shard.definitions.queue_of_arn(departure.target_arn)
    group, refused_by = departure.arriving.group, departure.target_queue_id
    if queue is None:
        part = None
    elif departure.has_id:
        part = queue.part_after(refused_by, group, over_at(stamp.now_ms))
    else:
        part = open_part(shard, queue, stamp, group, refused_by)
    if part is None:
        return None
    return msgspec.structs.replace(departure, to_shard=part.shard, target_queue_id=part.queue_id)


class _Clearing:
    """The messages of one queue that leave the outbox."""

    def __init__(self, departure: Departure, now_ms: int) -> None:
        self._queue_id = departure.queue_id
        self._fifo = departure.fifo
        self._order = order_of(departure)
        self._now_ms = now_ms
        self.settled: dict[int, tuple[Departure, str]] = {}

    def events(self, shard: ShardState) -> tuple[Event, ...]:
        """The unlocked groups, then the messages that are gone and those that come back."""
        if self._queue_id not in shard.queues:  # it was dropped meanwhile
            tokens = {
                each.sent.transaction for each, _ in self.settled.values() if each.sent is not None
            }
            cleared = DeparturesCleared(THE_SHARD, self._now_ms, list(self.settled), sorted(tokens))
            return (*self._failed_tasks(shard), cleared)
        gone = {number: each for number, (each, reason) in self.settled.items() if not reason}
        back = {number: each for number, (each, reason) in self.settled.items() if reason}
        delayed = {number: back.pop(number) for number in list(back) if back[number].is_delayed}
        leases = [_returned_lease(each.lease, self._now_ms) for each in back.values()]
        book = self._order.book(shard, shard.queue(self._queue_id))
        left = [each.lease for each in (*gone.values(), *delayed.values())]
        book.settle_all(left, leases)
        for each in back.values():
            if each.hold is not None and each.locked:
                book.depart(each.locked, each.lease.sequence)
                book.settle(each.locked, (), [])
        for each in delayed.values():
            if each.message.group:
                book.delay(each.message.group)
        events = [*book.events()]
        if gone:
            events.append(DeparturesCleared(self._queue_id, self._now_ms, list(gone)))
        if delayed:
            again = list(delayed.values())
            events.append(DelayedReturned(self._queue_id, list(delayed), again))
        if back:
            events += self._failed_tasks(shard)
            events += uncovered(shard.queue(self._queue_id), leases)
            messages = [each.message for each in back.values()]
            events.append(
                DeparturesReturned(
                    self._queue_id, self._now_ms, self._fifo, list(back), leases, messages
                )
            )
            held = [
                (each.hold, msgspec.structs.replace(lease, visible_at_ms=HELD_UNTIL_MS))
                for each, lease in zip(back.values(), leases, strict=True)
                if each.hold is not None
            ]
            if held:
                marks, ends = [mark for mark, _ in held], [lease for _, lease in held]
                events.append(MessagesHeld(self._queue_id, self._now_ms, marks, ends))
        return tuple(events)

    def _failed_tasks(self, shard: ShardState) -> list[Event]:
        """The move tasks of the returned messages, with their numbers."""
        returned: dict[str, list[tuple[int, str]]] = {}
        for each, reason in self.settled.values():
            if reason and each.task:
                returned.setdefault(each.task, []).append((each.lease.sequence, reason))
        if not returned:
            return []
        return [
            MoveTaskChanged(queue.queue_id, _with_returned(task, returned[task.task_id]))
            for queue in self._queues_of(shard, returned.keys())
            for task in queue.tasks.values()
            if task.task_id in returned
        ]

    def _queues_of(self, shard: ShardState, task_ids: Set[str]) -> Iterable[QueueState]:
        """The queues that may have these tasks: that of the messages; all, if it lacks one, since a
        purge gives tasks to the queue's successor."""
        own = shard.queues.get(self._queue_id)
        if own is not None and task_ids <= {task.task_id for task in own.tasks.values()}:
            return (own,)
        return shard.queues.values()


def _with_returned(task: MoveTask, returned: list[tuple[int, str]]) -> MoveTask:
    """The task, some of whose messages came back as (sequence, reason). It looks again at those for
    which there was no room."""
    again = [sequence for sequence, reason in returned if reason == OverLimit.code]
    reasons = [reason for _, reason in returned if reason != OverLimit.code]
    cursor = task.cursor
    if again and task.is_active:
        places = again if task.picked is None else map(task.picked.index, again)
        cursor = min(cursor, *places)
    return msgspec.structs.replace(
        task,
        moved=task.moved - len(returned),
        stayed=task.stayed + len(reasons),
        looked_at=task.looked_at - len(again),
        cursor=cursor,
        failure_reason=task.failure_reason or next(iter(reasons), None),
    )


# -- events ----------------------------------------------------------------------------------------


class MessagesDeparted(Event, frozen=True):
    """Messages left the queue for other shards, under successive numbers of the outbox."""

    first_number: int
    departures: list[Departure]

    def numbered(self) -> Iterator[tuple[int, Departure]]:
        """(number, departure) in order."""
        return enumerate(self.departures, self.first_number)

    @override
    def apply(self, shard: ShardState) -> None:
        queue = shard.queue(self.queue_id)
        for number, departure in self.numbered():
            if departure.is_delayed:
                leave_delayed(queue, departure.due_ms, departure.lease.sequence)
                add_size(queue, departure.lease.sequence, -departure.message.size)
            else:
                leave(shard, queue, departure.lease)
            if departure.transfers:
                queue.counts.transferred -= 1
            else:
                queue.counts.moved_out += 1
            add_departure(shard, queue, number, departure)
        shard.outbox.origin = self.departures[-1].origin
        trim(queue)

    @override
    def record(self, changes: Changes) -> None:
        for departure in self.departures:
            if departure.is_delayed:
                changes.delete(_delayed_key(departure))
            else:
                remove(changes, self.queue_id, [departure.lease])
        _record_departures(changes, self.first_number, self.departures)

    @override
    def tell(self, turn: Effects) -> None:
        turn.departs = True

    @property
    @override
    def weight(self) -> int:
        return len(self.departures)


class DeparturesCleared(Event, frozen=True):
    """The other shards have these messages of the queue. The queue is THE_SHARD if it is gone, and
    for the sends of transactions with these `tokens`."""

    cleared_at_ms: int
    numbers: list[int]
    tokens: Sequence[bytes] = ()

    @override
    def apply(self, shard: ShardState) -> None:
        queue = shard.queues.get(self.queue_id)
        gone = [_remove_departure(shard, queue, number) for number in self.numbers]
        if shard.full_targets:
            for departure in gone:
                shard.full_targets.pop(departure.target_queue_id, None)
        if queue is not None and any(departure.transfers for departure in gone):
            shard.plan_pulse(queue, self.cleared_at_ms)  # the next ones go
        if queue is not None:
            queue.rescued += sum(
                was_rescued(each.arriving.death, each.departed_at_ms) for each in gone
            )
        _go_on(shard, queue, gone, self.cleared_at_ms)

    @override
    def record(self, changes: Changes) -> None:
        for number in self.numbers:
            changes.delete(row_key(THE_SHARD, DEPARTURE, number))

    @override
    def shown_in(self, shard: ShardState) -> Iterable[int]:
        outbox = shard.outbox
        return [place_of(each) for each in self.tokens if not outbox.has_of_transaction(each)]


class TargetsFull(Event, frozen=True):
    """Queues of other shards refused messages, as their tags leave no room: for a while nothing
    departs for them. Kept in memory only. The queue is THE_SHARD."""

    refused_at_ms: int
    targets: list[int]

    @override
    def apply(self, shard: ShardState) -> None:
        for target in self.targets:
            shard.note_full(target, self.refused_at_ms)

    @override
    def record(self, changes: Changes) -> None:
        """No row: a new leader finds out."""


class DeparturesRenewed(Event, frozen=True):
    """Messages that are in no queue here join the outbox under new numbers: the sends of a
    transaction, and those of the outbox that go to other parts of their queues, whose earlier
    `numbers` end. The queue is THE_SHARD."""

    numbers: list[int]
    first_number: int
    departures: list[Departure]

    @override
    def apply(self, shard: ShardState) -> None:
        for number in self.numbers:
            shard.outbox.remove(number)
        for number, departure in enumerate(self.departures, self.first_number):
            shard.outbox.add(number, departure)
        shard.outbox.origin = self.departures[-1].origin

    @override
    def record(self, changes: Changes) -> None:
        for number in self.numbers:
            changes.delete(row_key(THE_SHARD, DEPARTURE, number))
        _record_departures(changes, self.first_number, self.departures)

    @override
    def tell(self, turn: Effects) -> None:
        turn.departs = True


class DeparturesReturned(Event, frozen=True):
    """The other shards refused these messages: they wait in the queue again, in their places.

    Their leases are over.
    """

    returned_at_ms: int
    fifo: bool
    numbers: list[int]
    leases: list[Lease]
    messages: list[StoredMessage]

    @override
    def apply(self, shard: ShardState) -> None:
        queue = shard.queue(self.queue_id)
        drop_removed(
            queue
        )  # else one that departed while it was visible again would be there twice
        back = [_remove_departure(shard, queue, number) for number in self.numbers]
        for departure, lease in zip(back, self.leases, strict=True):
            _put_back(shard, queue, lease, departure, self)
        _go_on(shard, queue, back, self.returned_at_ms)

    @override
    def record(self, changes: Changes) -> None:
        queue_id = self.queue_id
        for number, lease, message in zip(self.numbers, self.leases, self.messages, strict=True):
            changes.delete(row_key(THE_SHARD, DEPARTURE, number))
            put_message(changes, queue_id, lease.sequence, message)
            if self.fifo:
                key = group_line_key(queue_id, GROUP_LINE, lease.group, lease.sequence)
            else:
                key = row_key(queue_id, LEASE, lease.sequence)
            changes.put(key, encode_row(lease))

    @override
    def shown_in(self, shard: ShardState) -> Iterable[int]:
        return (self.queue_id,)


class DelayedReturned(Event, frozen=True):
    """The other shards refused these delayed messages: they are back, until the same time."""

    numbers: list[int]
    departures: list[Departure]

    @override
    def apply(self, shard: ShardState) -> None:
        queue = shard.queue(self.queue_id)
        for number in self.numbers:
            departure = _remove_departure(shard, queue, number)
            join_delayed(shard, queue, departure.due_ms)
            add_size(queue, departure.lease.sequence, departure.message.size)
            if departure.transfers:
                queue.counts.transferred += 1
            else:
                queue.counts.moved_in += 1

    @override
    def record(self, changes: Changes) -> None:
        for number, departure in zip(self.numbers, self.departures, strict=True):
            changes.delete(row_key(THE_SHARD, DEPARTURE, number))
            changes.put(_delayed_key(departure), encode_row(departure.message))


def _record_departures(changes: Changes, first_number: int, departures: list[Departure]) -> None:
    for number, departure in enumerate(departures, first_number):
        changes.put(row_key(THE_SHARD, DEPARTURE, number), encode_row(departure))
    next_number = first_number + len(departures)
    write_outbox(changes, OutboxRow(departures[-1].origin, next_number))


def _delayed_key(departure: Departure) -> bytes:
    return pair_key(departure.queue_id, DELAYED, departure.due_ms, departure.lease.sequence)


def add_departure(
    shard: ShardState, queue: QueueState | None, number: int, departure: Departure
) -> None:
    """Add a message to the outbox, and lock its group; `queue` is None if it is gone."""
    shard.outbox.add(number, departure)
    if queue is None:
        return
    queue.departed += 1
    queue.departed_size += departure.message.size
    queue.transferring += departure.transfers
    queue.transferring_delayed += departure.transfers and departure.is_delayed
    if departure.locked:
        held = queue.in_flight_by_group.setdefault(departure.locked, set())
        held.add(departure.lease.sequence)


def _remove_departure(shard: ShardState, queue: QueueState | None, number: int) -> Departure:
    departure = shard.outbox.remove(number)
    if queue is None:
        return departure
    queue.departed -= 1
    queue.departed_size -= departure.message.size
    queue.transferring -= departure.transfers
    queue.transferring_delayed -= departure.transfers and departure.is_delayed
    held = queue.in_flight_by_group.get(departure.locked)
    if held is not None:
        held.discard(departure.lease.sequence)
        if not held:
            del queue.in_flight_by_group[departure.locked]
    return departure


def _put_back(
    shard: ShardState,
    queue: QueueState,
    lease: Lease,
    departure: Departure,
    event: DeparturesReturned,
) -> None:
    message = departure.message
    if event.fifo:
        queue.waiting += 1
    else:
        hide(shard, queue, lease, event.returned_at_ms)
    if departure.transfers:
        queue.counts.transferred += 1
    else:
        queue.counts.moved_in += 1
    add_size(queue, lease.sequence, message.size)
    queue.aliases += bool(message.original_sequence)
    if message.clock_ms:
        queue.clocks_after = min(queue.clocks_after, (message.clock_ms, 0))
    shard.plan_expiry(queue, message.expires_ms)
    count(queue, lease.sequence, lease.sequence + 1)
    queue.fresh_until_ms = 0
    shard.plan_pulse(queue, event.returned_at_ms)


def _go_on(
    shard: ShardState, queue: QueueState | None, settled: list[Departure], at_ms: int
) -> None:
    """Let move tasks continue that waited for these messages or for room; after a purge they belong
    to another queue."""
    here: Iterable[QueueState] = () if queue is None else (queue,)
    known = {task.task_id for each in here for task in each.tasks.values()}
    are_known = all(each.task in known for each in settled if each.task)
    for each in here if are_known else shard.queues.values():
        if each.active_task is not None:
            shard.plan_pulse(each, at_ms)


def _returned_lease(lease: Lease, at_ms: int) -> Lease:
    """The lease of a returned message, which is over."""
    return msgspec.structs.replace(lease, visible_at_ms=min(lease.visible_at_ms, at_ms))


OPERATIONS: Operations = {
    ReadOutbox: OperationKind(decide_read_outbox, OutboxPage),
    ClearOutbox: OperationKind(decide_clear_outbox, None),
}
