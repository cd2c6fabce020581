"""Deletes of transactions that another shard decides.

    prepare → (committed) the other shard accepts or not → asked → delete, or as before

A prepared message stays in its place, in flight with a lease that ends at no time: nobody receives,
deletes or changes it, and its FIFO group waits (rule 51). What is prepared is in the outbox, as a
question to the shard that decides: was the transaction accepted? That shard answers once and for
good: a transaction that it has not accepted when it is asked is accepted no more (rule 50). So
however often it is asked, there is one answer, after any crash.

The gateway has it asked as soon as it knows the outcome. If it does not, the shard asks after
PREPARED_MS by itself, and a new leader at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from typing_extensions import override

from visibility.contract.model import QueueDefinition, Request
from visibility.contract.operations import Operation
from visibility.contract.stored_message import Lease, PreparedDeletes
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import DEPARTURE, row_key
from visibility.rows.row_values import THE_SHARD, Departure, OutboxRow
from visibility.rows.state_rows import write_outbox
from visibility.rules.archive_batches import DECISION_BYTES_MAX, DELETED, hand_over, takes_deleted
from visibility.rules.decided import Outcome
from visibility.rules.events import Effects, Event
from visibility.rules.message_events import MessagesDeleted, VisibilityChanged, record_leases
from visibility.rules.operation_kinds import OperationKind, Operations
from visibility.rules.order import Order
from visibility.rules.orders import order_of
from visibility.state.in_flight import hide, trim
from visibility.state.places import leave_line
from visibility.state.queue_state import QueueState
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp

PREPARED_MS = 3_000
"""Time after which a shard asks whether a transaction was accepted, if nobody told it to."""
_LOOK_MS = 10_000
"""Interval at which messages are looked for that wait for no transaction."""
MESSAGES_MAX = 500
"""Messages that one request settles; one transaction may exceed it."""


class AskPrepared(Operation, frozen=True):
    """Ask now whether the transaction with this token was accepted, of which deletes are prepared
    here; answers None. The request's queue is `the_shard`."""

    token: bytes


def decide_ask_prepared(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Ask, unless it is asked already."""
    operation = request.operation
    assert isinstance(operation, AskPrepared)
    outbox = shard.outbox
    numbers = [
        number
        for number, prepared in outbox.prepared()
        if prepared.transaction == operation.token and number in outbox.unasked
    ]
    return None, (PreparedAsked(THE_SHARD, numbers),) if numbers else ()


class Settling:
    """The end of what is prepared, in one decision: as much as it may do at once."""

    def __init__(self, shard: ShardState, now_ms: int) -> None:
        self._shard = shard
        self._now_ms = now_ms
        self.numbers: list[int] = []
        """Those that are settled, of the outbox."""
        self._gone: dict[int, list[Lease]] = {}
        self._back: dict[int, list[Lease]] = {}
        self._size = self._messages = 0

    def settle(self, number: int, prepared: PreparedDeletes, *, is_accepted: bool) -> None:
        """Delete the messages, or let them be as they were before. Does nothing if it is full:
        then the other shard is asked again."""
        size = sum(lease.size for _, lease in prepared.leases) if is_accepted else 0
        if self.numbers and (
            self._messages + len(prepared.leases) > MESSAGES_MAX
            or self._size + size > DECISION_BYTES_MAX
        ):
            return
        self._messages += len(prepared.leases)
        self._size += size
        self.numbers.append(number)
        by_queue = self._gone if is_accepted else self._back
        for queue_id, lease in prepared.leases:
            by_queue.setdefault(queue_id, []).append(lease)

    def events(self) -> list[Event]:
        """The changes to all queues that are still there. Raises DamagedRecord."""
        events: list[Event] = []
        for queue_id in dict.fromkeys((*self._gone, *self._back)):
            queue = self._shard.queues.get(queue_id)
            if queue is not None:
                gone, back = self._gone.get(queue_id, ()), self._back.get(queue_id, ())
                events += _settled(self._shard, queue, gone, back, self._now_ms)
        return events


def _settled(
    shard: ShardState,
    queue: QueueState,
    gone: Sequence[Lease],
    back: Sequence[Lease],
    now_ms: int,
) -> list[Event]:
    """Delete messages of one queue, and give others their leases of before again."""
    definition = _definition(shard, queue)
    order = order_of(queue if definition is None else definition.settings)
    deleted = [lease for each in gone for lease in _present(shard, queue, order, each)]
    returned = [lease for lease in back if lease.sequence in queue.prepared]
    ended = [lease for lease in returned if lease.receivable_at_ms <= now_ms]
    hidden = [lease for lease in returned if lease.receivable_at_ms > now_ms]
    book = order.book(shard, queue)
    for lease in deleted:
        if lease.group and lease.sequence not in queue.entries:
            book.leave(lease.group, lease.sequence)
    book.settle_all(deleted, ended)
    events: list[Event] = []
    if deleted and definition is not None and takes_deleted(shard, definition.settings):
        sequences = [lease.sequence for lease in deleted]
        messages = dict(shard.rows.unless_quarantined(queue, sequences))
        events += hand_over(shard, definition, deleted, messages, reason=DELETED, now_ms=now_ms)
    events += book.events()
    if deleted:
        events.append(MessagesDeleted(queue.queue_id, now_ms, deleted))
    if hidden:
        events.append(VisibilityChanged(queue.queue_id, now_ms, hidden))
    if ended:
        events.append(order.ended(queue, ended, now_ms))
    return events


def _definition(shard: ShardState, queue: QueueState) -> QueueDefinition | None:
    """The queue's definition; of a purged one that of the queue that goes on, None of a deleted
    one."""
    while True:
        definition = shard.definitions.queue_of_id(queue.queue_id)
        heirs = shard.continuing(queue.queue_id) if definition is None else None
        if not heirs:
            return definition
        queue = heirs[0]


def _present(
    shard: ShardState, queue: QueueState, order: Order, prepared: Lease
) -> Iterable[Lease]:
    """The message at its place, also if damage cost its lease: it is deleted. Nothing if it is
    gone."""
    sequence = prepared.sequence
    entry = queue.entries.get(sequence)
    if entry is not None:
        return (entry.lease,)
    found = shard.rows.unless_quarantined(queue, [sequence])
    return [order.lease_of(shard.rows, queue, *each) for each in found]


def end_prepared(
    shard: ShardState, queue: QueueState, definition: QueueDefinition | None, stamp: Stamp
) -> tuple[tuple[Event, ...], int | None]:
    """Ask about transactions of which nothing was heard, and show messages that wait for none,
    since damage cost the question: a step of pulses, also of deleted queues."""
    if not queue.prepared:
        return (), None
    unasked = shard.outbox.unasked
    lost, due, next_ms = set(queue.prepared), list[int](), [stamp.now_ms + _LOOK_MS]
    for number, prepared in shard.outbox.prepared():
        here = {lease.sequence for queue_id, lease in prepared.leases if queue_id == queue.queue_id}
        lost -= here
        if here and number in unasked:
            if unasked[number] <= stamp.now_ms:
                due.append(number)
            else:
                next_ms.append(unasked[number])
    events: list[Event] = []
    if lost:
        leases = [queue.entries[each].lease.ended_at(stamp.now_ms) for each in sorted(lost)]
        events += _settled(shard, queue, (), leases, stamp.now_ms)
    if due:
        events.append(PreparedAsked(THE_SHARD, due))
    return tuple(events), min(next_ms)


# -- events ----------------------------------------------------------------------------------------


class MessagesPrepared(Event, frozen=True):
    """Messages of the queue are hidden until a transaction is decided; their leases say so."""

    prepared_at_ms: int
    leases: list[Lease]

    @override
    def apply(self, shard: ShardState) -> None:
        queue = shard.queue(self.queue_id)
        for lease in self.leases:
            if lease.sequence not in queue.entries:
                leave_line(shard, queue, lease)
            hide(shard, queue, lease, self.prepared_at_ms)
        shard.plan_pulse(queue, self.prepared_at_ms + PREPARED_MS)
        trim(queue)

    @override
    def record(self, changes: Changes) -> None:
        record_leases(changes, self.queue_id, self.leases)


class DeletesPrepared(Event, frozen=True):
    """Deletes of a transaction are prepared, under this number of the outbox. The queue is
    THE_SHARD."""

    number: int
    departure: Departure

    @override
    def apply(self, shard: ShardState) -> None:
        outbox = shard.outbox
        outbox.add(self.number, self.departure)
        outbox.origin = self.departure.origin
        outbox.unasked[self.number] = self.departure.departed_at_ms + PREPARED_MS

    @override
    def record(self, changes: Changes) -> None:
        changes.put(row_key(THE_SHARD, DEPARTURE, self.number), encode_row(self.departure))
        write_outbox(changes, OutboxRow(self.departure.origin, self.number + 1))


class PreparedAsked(Event, frozen=True):
    """The shards that decide are asked about what is prepared under these numbers. Kept in memory
    only. The queue is THE_SHARD."""

    numbers: list[int]

    @override
    def apply(self, shard: ShardState) -> None:
        for number in self.numbers:
            shard.outbox.unasked.pop(number, None)

    @override
    def record(self, changes: Changes) -> None:
        """No row: a new leader asks about all."""

    @override
    def tell(self, turn: Effects) -> None:
        turn.departs = True


OPERATIONS: Operations = {AskPrepared: OperationKind(decide_ask_prepared, None)}
