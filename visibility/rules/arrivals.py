"""The side of an outbox's destination: messages of other shards arrive once, or are refused.

Both are remembered under the message's name until its shard says that it has cleared it: the same
message may come again, from a leader that did not get the answer, after a consumer deleted it here.
Below an origin's floor everything has been answered, and a late request is ignored.
"""

from __future__ import annotations

import msgspec

from visibility.contract.model import QueueDefinition, Request
from visibility.contract.operations import AcceptMessages
from visibility.contract.outcomes import Accepted
from visibility.contract.stored_message import Arrival, StoredMessage
from visibility.rules.decided import Outcome
from visibility.rules.groups import GroupBook
from visibility.rules.order import Order
from visibility.rules.orders import order_of
from visibility.state.events import THE_SHARD, Event
from visibility.state.outbox import ArrivalsForgotten, ArrivalsRefused, MessagesArrived
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp

TARGET_GONE = "AWS.SimpleQueueService.NonExistentQueue"


def decide_accept_messages(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Add messages to their queues. Those behind one that must wait are not answered."""
    operation = request.operation
    assert isinstance(operation, AcceptMessages)
    accepting = _Accepting(shard, request.queue.shard, stamp.now_ms)
    outcomes: list[tuple[bytes, int, str]] = []
    for arrival in operation.arrivals:
        reason = accepting.reason(arrival)
        if reason is None:
            break
        outcomes.append((arrival.origin, arrival.number, reason))
    risen = [
        (origin, floor) for origin, floor in operation.floors if floor > accepting.floor(origin)
    ]
    forgotten = (ArrivalsForgotten(THE_SHARD, risen),) if risen else ()
    return Accepted(outcomes), (*accepting.events(), *forgotten)


class _Accepting:
    """The messages of one request."""

    def __init__(self, shard: ShardState, number: int, now_ms: int) -> None:
        self._shard = shard
        self._number = number
        self._now_ms = now_ms
        self._floors: dict[bytes, int] = {}
        self._books: dict[int, GroupBook] = {}
        self._arrived: dict[int, list[tuple[bytes, int, int, StoredMessage]]] = {}
        self._refused: list[tuple[bytes, int, str]] = []

    def floor(self, origin: bytes) -> int:
        """The number below which all is answered."""
        if origin not in self._floors:
            self._floors[origin] = self._shard.rows.arrivals_floor(origin)
        return self._floors[origin]

    def reason(self, arrival: Arrival) -> str | None:
        """Empty if the message is here now or was before, the reason if it is refused; None if it
        must come again."""
        if arrival.number < self.floor(arrival.origin):
            return ""
        earlier = self._shard.rows.arrival(arrival.origin, arrival.number)
        if earlier is not None:
            return earlier
        definitions = self._shard.definitions
        target = definitions.queue_of_arn(arrival.arn)
        if target is None and arrival.queue_id > definitions.highest_queue_id:
            return None  # it is not known here yet
        if target is None or target.shard != self._number:
            self._refused.append((arrival.origin, arrival.number, TARGET_GONE))
            return TARGET_GONE
        if target.queue_id not in self._books and not self._shard.is_ready(target.queue_id):
            return None
        self._arrive(arrival, target)
        return ""

    def _arrive(self, arrival: Arrival, target: QueueDefinition) -> None:
        order = order_of(target.settings)
        book = self._books.get(target.queue_id)
        if book is None:
            queue = self._shard.queue(target.queue_id)
            book = self._books[target.queue_id] = order.book(self._shard, queue)
        sequence = book.allocate()
        group = book.group_of(arrival.message.group)
        message = _arrived(order, arrival.message, group, self._now_ms)
        if message.group:
            book.arrive(message.group, sequence)
        self._arrived.setdefault(target.queue_id, []).append(
            (arrival.origin, arrival.number, sequence, message)
        )

    def events(self) -> tuple[Event, ...]:
        """All that arrived, and what was refused."""
        events: list[Event] = []
        for queue_id, arrivals in self._arrived.items():
            events += self._books[queue_id].events()
            events.append(MessagesArrived(queue_id, self._now_ms, arrivals))
        if self._refused:
            events.append(ArrivalsRefused(THE_SHARD, self._refused))
        return tuple(events)


def _arrived(order: Order, message: StoredMessage, group: bytes, now_ms: int) -> StoredMessage:
    """The message at its new place: a dead letter keeps its age, a moved message is new."""
    if message.dead_letter_source_arn is None:
        return msgspec.structs.replace(
            message, group=group, sent_at_ms=now_ms, clock_ms=0, joined_at_ms=now_ms
        )
    clock_ms = order.dead_letter_clock_ms(message, now_ms)
    return msgspec.structs.replace(message, group=group, clock_ms=clock_ms, joined_at_ms=now_ms)
