"""Bugs of messages between shards that the simulator must find, planted for the time of a test."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import pytest

from cluster.shards.delivery import Deliveries
from cluster.shards.lead import Lead
from cluster.shards.shard import Shard
from cluster.tests.simulation.planting import Plant, change_operation
from storage.engines.store import Store
from visibility.contract.model import Request
from visibility.contract.outcomes import Accepted, OutboxPage
from visibility.rules import arrivals
from visibility.rules.arrivals import (
    AcceptMessages,
    ArrivalsAnswered,
    ArrivalsForgotten,
    MessagesArrived,
)
from visibility.rules.decided import Decided, Outcome
from visibility.rules.departures import ClearOutbox, ReadOutbox, decide_read_outbox
from visibility.rules.events import Effects, Event
from visibility.rules.groups import FifoBook
from visibility.state.outbox import Outbox
from visibility.state.rows import Rows
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp


def deliver_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """Messages are read from the outbox while their departure may still be lost."""
    commit = Lead._commit

    def commit_late(self: Lead, decided: Decided, stamp: Stamp) -> None:
        reads = [each for each in decided.answers if type(each[0].request.operation) is ReadOutbox]
        self._answer_all(reads)
        others = [each for each in decided.answers if each not in reads]
        commit(self, decided._replace(answers=others), stamp)

    patch.setattr(Lead, "_commit", commit_late)


def forget_before_the_clear(patch: pytest.MonkeyPatch) -> None:
    """The other shard forgets what it answered before the clear is committed, and keeps no floor
    either: with one, only refused messages are lost."""

    async def deliver(self: Deliveries, pair: tuple[int, int]) -> bool | None:
        page = await self._ask(pair[0], ReadOutbox(pair[1]))
        assert isinstance(page, OutboxPage)
        if not page.arrivals:
            return True
        accepted = await self._ask(pair[1], AcceptMessages(page.arrivals, page.floors))
        assert isinstance(accepted, Accepted)
        if not accepted.outcomes:
            return None
        floors = [(origin, number + 1) for origin, number, _ in accepted.outcomes]
        await self._ask(pair[1], AcceptMessages([], floors))
        await self._ask(pair[0], ClearOutbox(accepted.outcomes))
        return False

    patch.setattr(Deliveries, "_deliver", deliver)
    patch.setattr(arrivals, "floor_of", lambda rows, origin: 0)


def remember_nothing(patch: pytest.MonkeyPatch) -> None:
    """A message that comes again is a new one."""
    patch.setattr(arrivals, "answer_to", lambda rows, origin, number: None)
    patch.setattr(arrivals, "floor_of", lambda rows, origin: 0)


def forget_what_is_under_way(patch: pytest.MonkeyPatch) -> None:
    """The floor is not that of the oldest message in the outbox; messages go one by one."""

    def floors(self: Outbox, to_shard: int) -> list[tuple[bytes, int]]:
        return [(origin, self.next_number) for origin in sorted(self.origins)]

    patch.setattr(Outbox, "floors", floors)
    patch.setattr("visibility.rules.departures.PAGE_MESSAGES", 1)


def unlock_at_the_departure(patch: pytest.MonkeyPatch) -> None:
    """A group goes on while one of its messages is in the outbox."""
    patch.setattr(FifoBook, "depart", FifoBook.leave)


def unlock_at_the_delivery(patch: pytest.MonkeyPatch) -> None:
    """Groups are unlocked when their messages are read for delivery, before the clear."""

    def read_and_unlock(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
        answer, _ = decide_read_outbox(shard, request, stamp)
        events: list[Event] = []
        for queue in shard.queues.values():
            locked = [
                each.lease
                for each in shard.outbox.departures.values()
                if each.locked and each.queue_id == queue.queue_id
            ]
            if locked:
                book = FifoBook(shard, queue)
                book.settle_all(locked, ())
                events += book.events()
        return answer, tuple(events)

    change_operation(patch, ReadOutbox, decide=read_and_unlock)


def clear_without_delivery(patch: pytest.MonkeyPatch) -> None:
    """Messages leave the outbox once they were sent, whatever becomes of that."""
    ask = Deliveries._ask

    async def deliver(self: Deliveries, pair: tuple[int, int]) -> bool | None:
        page = await ask(self, pair[0], ReadOutbox(pair[1]))
        assert isinstance(page, OutboxPage)
        if not page.arrivals:
            await self._forget(pair, page.floors)
            return True
        sent = [(each.origin, each.number, "") for each in page.arrivals]
        await ask(self, pair[0], ClearOutbox(sent))
        await ask(self, pair[1], AcceptMessages(page.arrivals, page.floors))
        return False

    patch.setattr(Deliveries, "_deliver", deliver)


# -- of a cluster ----------------------------------------------------------------------------------


def forget_names_at_a_failover(patch: pytest.MonkeyPatch) -> None:
    """A new leader knows neither the messages that came to its predecessor nor their floors."""
    do = Effects.do
    own: WeakKeyDictionary[Rows, dict[object, object]] = WeakKeyDictionary()

    def note(self: Effects, event: Event) -> None:
        known = own.setdefault(self.state.rows, {})
        if isinstance(event, MessagesArrived):
            known |= {(origin, number): "" for origin, number, *_ in event.arrivals}
        elif isinstance(event, ArrivalsAnswered):
            known |= {(origin, number): reason for origin, number, reason in event.answers}
        elif isinstance(event, ArrivalsForgotten):
            known |= {origin: floor for origin, _, floor in event.floors}
        do(self, event)

    patch.setattr(Effects, "do", note)
    patch.setattr(arrivals, "answer_to", lambda rows, *name: own.get(rows, {}).get(name))
    patch.setattr(arrivals, "floor_of", lambda rows, origin: own.get(rows, {}).get(origin, 0))


def drop_the_outbox_at_adoption(patch: pytest.MonkeyPatch) -> None:
    """A new leader goes on with an empty outbox; what was in it stays in no queue."""
    load = Shard._load

    async def load_without(self: Shard, store: Store, highest_queue_id: int | None = None) -> None:
        await load(self, store, highest_queue_id)
        outbox = self._state.outbox
        for number in list(outbox.departures):
            departure = outbox.remove(number)
            queue = self._state.queues.get(departure.queue_id)
            if queue is not None:
                queue.departed -= 1
                queue.in_flight_by_group.pop(departure.locked, None)

    patch.setattr(Shard, "_load", load_without)


PLANTS: tuple[Plant, ...] = (
    deliver_before_the_commit,
    forget_before_the_clear,
    remember_nothing,
    forget_what_is_under_way,
    clear_without_delivery,
)
CLUSTER_PLANTS: tuple[Plant, ...] = (
    forget_names_at_a_failover,
    drop_the_outbox_at_adoption,
    deliver_before_the_commit,
    clear_without_delivery,
)
"""Those that the simulator of a cluster must find."""
UNLOCKING: tuple[Plant, ...] = (unlock_at_the_departure, unlock_at_the_delivery)
"""Clients of a simulation cannot tell these from what SQS may do; a story shows them."""
