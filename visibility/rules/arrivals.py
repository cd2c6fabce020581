"""The side of an outbox's destination: messages of other shards arrive once, or are refused.

Both are remembered under the message's name until its shard says that it has cleared it (rule 30):
the same message may come again, from a leader that did not get the answer, after a consumer deleted
it here. Below an origin's floor everything has been answered, and a late request is ignored.

A message for a part that is closed, gone or purged comes to an open part of its queue in this
shard; if there is none, its own shard sends it to another one, under a new number. A queue that its
tags limit refuses what does not fit, so that nothing else waits for it.

A question about a transaction that was prepared elsewhere comes the same way. The transaction
answers it when it is accepted; before that the answer is no, and it is accepted no more.

The sends of a transaction come the same way. They were accepted where it was decided, so here they
are delayed and deduplicated as any send, and refused only if their queue or part is gone, or behind
one of their FIFO group that was refused. A part that drains finds the duplicates of what it has.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from typing_extensions import override

from visibility.contract.errors import OverLimit, TransactionConflict
from visibility.contract.model import Content, QueueDefinition, Request
from visibility.contract.operations import Operation
from visibility.contract.outcomes import Accepted
from visibility.contract.priority import joining_level
from visibility.contract.stored_message import Arrival, Hold, Lease, SentElsewhere, StoredMessage
from visibility.contract.time_to_live_tags import expiry
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import decode_row, encode_row
from visibility.rows.row_keys import (
    ARRIVAL,
    ARRIVALS_FLOOR,
    DELAYED,
    arrival_key,
    floor_key,
    pair_key,
)
from visibility.rows.row_places import put_waiting
from visibility.rows.row_values import TARGET_MOVED, THE_SHARD
from visibility.rules.closing_parts import closing, shares_out
from visibility.rules.collected_sends import Sending
from visibility.rules.decided import Outcome
from visibility.rules.events import Event
from visibility.rules.groups import GroupBook
from visibility.rules.hold_messages import MessagesHeld
from visibility.rules.operation_kinds import OperationKind, Operations
from visibility.rules.order import Order
from visibility.rules.orders import order_of
from visibility.rules.remembered_ids import known_ids, over_at
from visibility.rules.room import Room, takes
from visibility.rules.send_order import SendGroup, group_of_arrival
from visibility.rules.transfers import held_there
from visibility.state.places import add_size, count, join_delayed, join_level
from visibility.state.rows import Rows
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp

_ONE_BY_ONE_MAX = 1_000
"""So many names are forgotten one by one: after each deletion of a range, the store's next read
sorts all ranges that were deleted lately."""
TARGET_GONE = "AWS.SimpleQueueService.NonExistentQueue"


class AcceptMessages(Operation, frozen=True):
    """Take messages from another shard's outbox; answers `outcomes.Accepted`.

    By origin, what was remembered below the number in `floors` is forgotten.
    """

    arrivals: list[Arrival] = msgspec.field(default_factory=list)
    floors: list[tuple[bytes, int]] = msgspec.field(default_factory=list)


def decide_accept_messages(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Add messages to their queues. Those behind one that must wait are not answered."""
    operation = request.operation
    assert isinstance(operation, AcceptMessages)
    accepting = _Accepting(shard, request.queue.shard, operation.arrivals, stamp)
    outcomes: list[tuple[bytes, int, str]] = []
    for arrival in operation.arrivals:
        reason = accepting.reason(arrival)
        if reason is None:
            break
        outcomes.append((arrival.origin, arrival.number, reason))
    risen = [
        (origin, accepting.floor(origin), floor)
        for origin, floor in operation.floors
        if floor > accepting.floor(origin)
    ]
    forgotten = (ArrivalsForgotten(THE_SHARD, risen),) if risen else ()
    return Accepted(outcomes), (*accepting.events(), *forgotten)


class _Accepting:
    """The messages of one request."""

    def __init__(
        self, shard: ShardState, number: int, arrivals: list[Arrival], stamp: Stamp
    ) -> None:
        self._shard = shard
        self._number = number
        self._stamp = stamp
        self._now_ms = stamp.now_ms
        self._contents = [content_of(each, each.sent) for each in arrivals if each.sent is not None]
        self._floors: dict[bytes, int] = {}
        self._books: dict[int, GroupBook] = {}
        self._rooms: dict[int, Room | None] = {}
        self._arrived: dict[int, list[tuple[bytes, int, int, StoredMessage]]] = {}
        self._sendings: dict[int, Sending] = {}
        """Sends of transactions, by queue; not to one of `_books` in the same request, since both
        give out numbers."""
        self._refused: set[SendGroup] = set()
        """Groups of sends that were refused, now or before; none is to pass them."""
        self._closing: dict[int, tuple[Event, ...]] = {}
        """The events that close parts that drain, by id."""
        self._answered: list[tuple[bytes, int, str]] = []
        self._transferred: set[tuple[bytes, int]] = set()
        """The names of those that came from another part of their queue."""
        self._held: dict[int, list[tuple[Hold, Lease]]] = {}
        self._delayed: dict[int, list[tuple[bytes, int, int, int, StoredMessage]]] = {}

    def floor(self, origin: bytes) -> int:
        """The number below which all is answered."""
        if origin not in self._floors:
            self._floors[origin] = floor_of(self._shard.rows, origin)
        return self._floors[origin]

    def reason(self, arrival: Arrival) -> str | None:
        """Empty if the message is here now or was before, the reason if it is refused; None if it
        must come again."""
        group = group_of_arrival(arrival)
        reason = self._reason(arrival, is_held_back=group in self._refused)
        if reason and group is not None:
            self._refused.add(group)
        return reason

    def _reason(self, arrival: Arrival, *, is_held_back: bool) -> str | None:
        if arrival.number < self.floor(arrival.origin):
            return ""
        earlier = answer_to(self._shard.rows, arrival.origin, arrival.number)
        if earlier is not None:
            return earlier
        if arrival.sent is not None and self._knows(arrival, arrival.sent.deduplication):
            self._answered.append((arrival.origin, arrival.number, ""))
            return ""
        if is_held_back:
            self._answered.append((arrival.origin, arrival.number, TARGET_MOVED))
            return TARGET_MOVED
        if arrival.asks:
            self._answered.append((arrival.origin, arrival.number, TransactionConflict.code))
            return TransactionConflict.code
        definitions = self._shard.definitions
        target = self._part_of_transfer(arrival) if arrival.transfers else self._target(arrival)
        if target is None or self._is_asked_later(arrival, target):
            if arrival.queue_id > definitions.highest_queue_id:
                return None  # it is not known here yet
            is_gone = arrival.transfers or definitions.queue_of_arn(arrival.arn) is None
            refusal = TARGET_GONE if is_gone else TARGET_MOVED
            self._answered.append((arrival.origin, arrival.number, refusal))
            return refusal
        if target.queue_id not in self._books and not self._shard.has_begun(target.queue_id):
            return None
        others = self._books if arrival.sent is not None else self._sendings
        if target.queue_id in others:
            return None
        if arrival.sent is not None:
            self._send(arrival, arrival.sent, target)
        elif not arrival.transfers and not self._takes(target, arrival.message.size):
            self._answered.append((arrival.origin, arrival.number, OverLimit.code))
            return OverLimit.code
        else:
            self._arrive(arrival, target)
        return ""

    def _knows(self, arrival: Arrival, deduplication: bytes) -> bool:
        """True if the part that a send is for drains, and knows its id. It is closed, so if it
        does not know the id, it never will, and another part may take the message."""
        part = self._shard.definitions.queue_of_id(arrival.queue_id) if deduplication else None
        if part is None or part.shard != self._number or not part.parts or part.part.is_open:
            return False
        if part.queue_id not in self._closing:
            self._closing[part.queue_id] = closing(self._shard, part, self._now_ms)
        queue = self._shard.queue(part.queue_id)
        return bool(known_ids(self._shard, queue, [deduplication], self._now_ms))

    def _is_asked_later(self, arrival: Arrival, target: QueueDefinition) -> bool:
        """True if a part before the target may know the id of a send."""
        if arrival.sent is None or not arrival.sent.deduplication or not target.parts:
            return False
        if arrival.queue_id == target.queue_id:
            return False
        is_over = over_at(self._now_ms)
        after = target.part_after(arrival.queue_id, arrival.message.group, is_over)
        return after.queue_id != target.queue_id

    def _send(self, arrival: Arrival, sent: SentElsewhere, target: QueueDefinition) -> None:
        sending = self._sendings.get(target.queue_id)
        if sending is None:
            sending = self._sendings[target.queue_id] = Sending(
                self._shard,
                self._shard.queue(target.queue_id),
                target,
                self._stamp,
                self._contents,
                makes_room=False,
            )
        sending.send(content_of(arrival, sent), sent.delay_s, arrival.message.message_id)
        self._answered.append((arrival.origin, arrival.number, ""))

    def _takes(self, target: QueueDefinition, size: int) -> bool:
        if not target.settings.own_tags:
            return True
        if target.queue_id not in self._rooms:
            queue = self._shard.queue(target.queue_id)
            self._rooms[target.queue_id] = Room.of(queue, target)
        return takes(self._rooms[target.queue_id], size)

    def _part_of_transfer(self, arrival: Arrival) -> QueueDefinition | None:
        """The part that it was sent to and no other, since handles follow it there. A closed one
        passes it on, until it is known to be empty; of a FIFO queue it has said that it has no
        messages of the group."""
        part = self._shard.definitions.queue_of_id(arrival.queue_id)
        row = self._shard.parts.get(arrival.queue_id)
        if part is None or part.shard != self._number:
            return None
        if row is None or not row.closed_version:
            return part
        has_none = row.drained_version or order_of(part.settings).parts_have_groups
        return None if has_none else part

    def _target(self, arrival: Arrival) -> QueueDefinition | None:
        """The part of this shard that it was sent to, if it takes messages, else another one that
        does."""
        queue = self._shard.definitions.queue_of_arn(arrival.arn)
        if queue is None:
            return None
        if shares_out(queue):
            part = queue.part_for(arrival.message.group)
            is_here = part.shard == self._number and not self._shard.is_closed(part.queue_id)
            return part if is_here else None
        here = [
            part
            for part in queue.all_parts()
            if part.shard == self._number
            and (not part.parts or part.part.is_open)
            and not self._shard.is_closed(part.queue_id)
        ]
        found = (part for part in here if part.queue_id == arrival.queue_id)
        return next(found, here[0] if here else None)

    def _arrive(self, arrival: Arrival, target: QueueDefinition) -> None:
        order = order_of(target.settings)
        book = self._books.get(target.queue_id)
        if book is None:
            queue = self._shard.queue(target.queue_id)
            book = self._books[target.queue_id] = order.book(self._shard, queue)
        sequence = arrival.sequence or book.allocate()
        if arrival.due_ms >= 0:
            if arrival.message.group:
                book.delay(arrival.message.group)
            self._delayed.setdefault(target.queue_id, []).append(
                (arrival.origin, arrival.number, sequence, arrival.due_ms, arrival.message)
            )
            return
        group = book.group_of(arrival.message.group)
        if arrival.transfers:
            message = msgspec.structs.replace(arrival.message, group=group)
            self._transferred.add((arrival.origin, arrival.number))
        else:
            message = _arrived(order, arrival.message, group, self._now_ms)
            if own_tags := target.settings.own_tags:
                message = msgspec.structs.replace(
                    message,
                    expires_ms=expiry(own_tags, self._now_ms) or message.expires_ms,
                    level=joining_level(own_tags, message.level),
                )
        if arrival.hold is not None:
            book.arrive_held(group)
            self._held.setdefault(target.queue_id, []).append(
                held_there(arrival.hold, sequence, message)
            )
        elif message.group:
            book.arrive(message.group, sequence)
        self._arrived.setdefault(target.queue_id, []).append(
            (arrival.origin, arrival.number, sequence, message)
        )

    def events(self) -> tuple[Event, ...]:
        """All that arrived, and what was refused."""
        events: list[Event] = []
        for book in self._books.values():
            events += book.events()
        for queue_id, delayed in self._delayed.items():
            events.append(DelayedArrived(queue_id, delayed))
        for queue_id, arrivals in self._arrived.items():
            transfers = sum(each[:2] in self._transferred for each in arrivals)
            events.append(MessagesArrived(queue_id, self._now_ms, arrivals, transfers))
            if queue_id in self._held:
                marks, leases = zip(*self._held[queue_id], strict=True)
                events.append(MessagesHeld(queue_id, self._now_ms, list(marks), list(leases)))
        for sending in self._sendings.values():
            events += sending.events()
        if self._answered:
            events.append(ArrivalsAnswered(THE_SHARD, self._answered))
        for closed in self._closing.values():
            events += closed
        return tuple(events)


def content_of(arrival: Arrival, sent: SentElsewhere) -> Content:
    """The content of a send of a transaction; nobody asks for its checksums."""
    message = arrival.message
    return Content(
        message.data,
        message.size,
        "",
        group=message.group,
        deduplication=sent.deduplication,
        sealed=message.sealed,
        deliver_at_ms=sent.deliver_at_ms,
        ttl_ms=sent.ttl_ms,
        level=message.level,
        sent_at_ms=sent.sent_at_ms,
    )


def _arrived(order: Order, message: StoredMessage, group: bytes, now_ms: int) -> StoredMessage:
    """The message at its new place: a dead letter keeps its age, a moved message is new."""
    if message.dead_letter_source_arn is None:
        return msgspec.structs.replace(
            message, group=group, sent_at_ms=now_ms, clock_ms=0, joined_at_ms=now_ms
        )
    clock_ms = order.dead_letter_clock_ms(message, now_ms)
    return msgspec.structs.replace(message, group=group, clock_ms=clock_ms, joined_at_ms=now_ms)


def answer_to(rows: Rows, origin: bytes, number: int) -> str | None:
    """The answer to a message of another shard's outbox: empty if it arrived, else the reason;
    None if it is not remembered."""
    key = arrival_key(THE_SHARD, ARRIVAL, origin, number)
    value = rows.store.get(key)
    return None if value is None else decode_row(str, key, value)


def floor_of(rows: Rows, origin: bytes) -> int:
    """The number below which an origin's messages were all answered, 0 for an unknown one."""
    key = floor_key(THE_SHARD, ARRIVALS_FLOOR, origin)
    value = rows.store.get(key)
    return 0 if value is None else decode_row(int, key, value)


# -- events ----------------------------------------------------------------------------------------


class MessagesArrived(Event, frozen=True):
    """Messages came from the outboxes of other shards, as (origin, number, sequence, message);
    `transfers` of them from another part of the queue.

    Their names are remembered until the origin says that it has forgotten them.
    """

    arrived_at_ms: int
    arrivals: list[tuple[bytes, int, int, StoredMessage]]
    transfers: int = 0

    @override
    def apply(self, shard: ShardState) -> None:
        queue = shard.queue(self.queue_id)
        queue.counts.transferred += self.transfers
        queue.counts.moved_in += len(self.arrivals) - self.transfers
        for _, _, sequence, message in self.arrivals:
            queue.next_sequence = max(queue.next_sequence, sequence + 1)
            queue.waiting += 1
            if message.joined_at_ms == self.arrived_at_ms:  # else from another part
                queue.counts.add_death(message)
            add_size(queue, sequence, message.size)
            if message.level:
                join_level(queue, message.level, sequence)
            queue.aliases += bool(message.original_sequence)
            if message.clock_ms:
                queue.clocks_after = min(queue.clocks_after, (message.clock_ms, 0))
            shard.plan_expiry(queue, message.expires_ms)
            count(queue, sequence, sequence + 1)
        queue.fresh_until_ms = 0
        shard.plan_pulse(queue, self.arrived_at_ms)

    @override
    def record(self, changes: Changes) -> None:
        for origin, number, sequence, message in self.arrivals:
            put_waiting(changes, self.queue_id, sequence, message)
            changes.put(arrival_key(THE_SHARD, ARRIVAL, origin, number), encode_row(""))

    @override
    def shown_in(self, shard: ShardState) -> Iterable[int]:
        return (self.queue_id,)


class DelayedArrived(Event, frozen=True):
    """Delayed messages came from another part of their queue, as (origin, number, sequence, due_ms,
    message). Their names are remembered like those of others."""

    arrivals: list[tuple[bytes, int, int, int, StoredMessage]]

    @override
    def apply(self, shard: ShardState) -> None:
        queue = shard.queue(self.queue_id)
        queue.counts.transferred += len(self.arrivals)
        for _, _, sequence, due_ms, message in self.arrivals:
            queue.next_sequence = max(queue.next_sequence, sequence + 1)
            add_size(queue, sequence, message.size)
            join_delayed(shard, queue, due_ms)

    @override
    def record(self, changes: Changes) -> None:
        for origin, number, sequence, due_ms, message in self.arrivals:
            key = pair_key(self.queue_id, DELAYED, due_ms, sequence)
            changes.put(key, encode_row(message))
            changes.put(arrival_key(THE_SHARD, ARRIVAL, origin, number), encode_row(""))


class ArrivalsAnswered(Event, frozen=True):
    """Messages of other shards, as (origin, number, reason), had no queue here, or were sends of
    transactions. The queue is THE_SHARD."""

    answers: list[tuple[bytes, int, str]]

    @override
    def apply(self, shard: ShardState) -> None:
        """Memory knows nothing of what was answered or forgotten."""

    @override
    def record(self, changes: Changes) -> None:
        for origin, number, reason in self.answers:
            changes.put(arrival_key(THE_SHARD, ARRIVAL, origin, number), encode_row(reason))


class ArrivalsForgotten(Event, frozen=True):
    """Origins send no lower numbers any more than these, as (origin, number before, number). The
    queue is THE_SHARD."""

    floors: list[tuple[bytes, int, int]]

    @override
    def apply(self, shard: ShardState) -> None:
        """Memory knows nothing of what was refused or forgotten."""

    @override
    def record(self, changes: Changes) -> None:
        for origin, before, floor in self.floors:
            first = arrival_key(THE_SHARD, ARRIVAL, origin, before)
            if floor - before > _ONE_BY_ONE_MAX:
                changes.delete_range(first, arrival_key(THE_SHARD, ARRIVAL, origin, floor))
            else:
                for number in range(before, floor):
                    changes.delete(arrival_key(THE_SHARD, ARRIVAL, origin, number))
            changes.put(floor_key(THE_SHARD, ARRIVALS_FLOOR, origin), encode_row(floor))


OPERATIONS: Operations = {AcceptMessages: OperationKind(decide_accept_messages, Accepted)}
