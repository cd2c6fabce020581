"""Stories of transactions whose deletes are in two shards: shard 0 prepares, shard 1 decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec
import pytest

from cluster.parts.transacting import Entry, Token, Transacting
from cluster.tests.shard_pair import ShardPair, in_shard
from visibility.contract.errors import Departing, QueueError, ServiceUnavailable
from visibility.contract.model import QueueCounters, QueueDefinition, Receipt, Request
from visibility.contract.outcomes import Answer, Transacted
from visibility.rows.row_keys import LEASE, row_key
from visibility.rules.hold_messages import HoldMessages
from visibility.rules.prepared_deletes import PREPARED_MS, AskPrepared
from visibility.rules.selected import DeleteSelected
from visibility.rules.transactions import PrepareDeletes, TransactMessages
from visibility.tests import prepared

TOKEN = Token(b"t" * 16, b"d" * 16)
OTHER = Token(b"u" * 16, b"d" * 16)
Before = Callable[[Request], None]


class _World:
    """`orders` is in shard 0, `bills` in shard 1, `made` in shard 0; one message of each of the
    first two is received."""

    def __init__(self, suffix: str = "", **attributes: str) -> None:
        self.pair = ShardPair(suffix)
        self.orders, self.bills, self.made = (
            self.pair.queues.define(
                in_shard(shard, prepared.queue_named(name + suffix, number, **attributes))
            )
            for name, number, shard in (("orders", 11, 0), ("bills", 12, 1), ("made", 13, 0))
        )
        self.before: Before = lambda request: None
        """Called before each request of the gateway."""
        self.pair.send("order", "next order", to=self.orders)
        self.pair.send("bill", "next bill", to=self.bills)
        ((_, self.order),) = self.pair.received(self.orders, 1)
        ((_, self.bill),) = self.pair.received(self.bills, 1)

    def entries(self, body: str = "made") -> list[Entry]:
        content = prepared.content(body, self.made, group="g" if self.made.settings.fifo else None)
        return [
            Entry(self.orders, self.order),
            Entry(self.bills, self.bill),
            Entry(self.made, content),
        ]

    def transact(
        self, entries: Sequence[Entry] | None = None, token: Token = TOKEN
    ) -> Transacted:
        """One try of the gateway; raises QueueError."""
        transacting = Transacting(self._ask, self._tell, lambda: 1, lambda: 0)
        done, _ = asyncio.run(
            transacting.decide(entries or self.entries(), token, prepared.CALLER, attempt=0)
        )
        return done

    async def _ask(self, request: Request) -> Answer:
        self.before(request)
        reply = self.pair.shards[request.queue.shard].submit(request)
        self.pair.check()
        if reply.refusal is not None:
            raise reply.refusal
        return reply.answer

    def _tell(self, request: Request) -> None:
        try:
            self.before(request)
        except ServiceUnavailable:
            return
        self.pair.shards[request.queue.shard].submit(request)
        self.pair.check()

    def only_prepared(self) -> None:
        """A gateway that fails before the other shard decides."""

        def fail(request: Request) -> None:
            if isinstance(request.operation, TransactMessages | AskPrepared):
                raise ServiceUnavailable()

        self.before = fail
        with pytest.raises(ServiceUnavailable):
            self.transact()
        self.before = lambda request: None

    def accepted_unheard(self) -> None:
        """A gateway that fails before it tells that the transaction was accepted."""

        def fail(request: Request) -> None:
            if isinstance(request.operation, AskPrepared):
                raise ServiceUnavailable()

        self.before = fail
        assert not self.transact().reasons
        self.before = lambda request: None

    def settle(self) -> None:
        """Deliver until nothing is under way."""
        self.pair.deliver(0)
        self.pair.deliver(1)

    def counters(self, queue: QueueDefinition) -> QueueCounters:
        return self.pair.counters(queue)

    def delete(self, queue: QueueDefinition, receipt: Receipt) -> QueueError | None:
        return self.pair.shards[queue.shard].submit(prepared.delete(queue, receipt)).refusal


def _codes(done: Transacted) -> list[str]:
    return [code for code, _ in done.reasons]


@pytest.mark.parametrize("suffix", ["", ".fifo"])
def test_messages_of_two_shards_are_consumed_and_one_is_produced(suffix: str) -> None:
    world = _World(suffix)
    done = world.transact()
    assert not done.reasons
    assert [message_id is None for message_id, _ in done.sent] == [True, True, False]
    assert world.counters(world.orders).in_flight == 1
    world.settle()
    assert world.pair.receive(world.made) == ["made"]
    assert world.pair.receive(world.orders) == ["next order"]
    assert world.pair.receive(world.bills) == ["next bill"]
    assert not world.pair.shards[0].state.outbox.departures
    assert not world.pair.shards[0].state.deadlines.next_at_ms() is None


@pytest.mark.parametrize("suffix", ["", ".fifo"])
@pytest.mark.parametrize("restarts", [False, True])
def test_what_is_accepted_is_deleted_after_a_crash_of_all(suffix: str, restarts: bool) -> None:
    world = _World(suffix)
    world.accepted_unheard()
    if restarts:
        for number in (0, 1):
            world.pair.restart(number)
        world.pair.check()
    else:
        world.pair.pass_time(PREPARED_MS)
    world.settle()
    assert world.counters(world.orders).stored == 1
    assert world.counters(world.bills).stored == 1
    world.pair.pass_time(60_000)
    assert world.pair.receive(world.orders) == ["next order"]


@pytest.mark.parametrize("suffix", ["", ".fifo"])
@pytest.mark.parametrize("restarts", [False, True])
def test_what_nobody_decided_is_as_before(suffix: str, restarts: bool) -> None:
    world = _World(suffix)
    world.pair.pass_time(10_000)
    world.only_prepared()
    world.settle()
    assert world.counters(world.orders).in_flight == 1
    if restarts:
        world.pair.restart(0)
        world.pair.check()
    else:
        world.pair.pass_time(PREPARED_MS)
    world.settle()
    assert not world.pair.shards[0].state.outbox.departures
    left_ms = 20_000 - (0 if restarts else PREPARED_MS)
    world.pair.pass_time(left_ms - 1)
    assert "order" not in world.pair.receive(world.orders)
    world.pair.pass_time(1)
    assert world.pair.receive(world.orders) == ["order"]
    assert world.pair.receive(world.made) == []


@pytest.mark.parametrize("suffix", ["", ".fifo"])
def test_a_prepared_message_is_not_given_out_when_its_time_is_over(suffix: str) -> None:
    world = _World(suffix)
    world.pair.pass_time(29_000)
    world.only_prepared()
    world.pair.pass_time(2_000)
    if suffix:
        assert world.pair.receive(world.orders) == []  # its group waits
    else:
        assert world.pair.receive(world.orders) == ["next order"]
    world.pair.pass_time(1_000)
    world.settle()
    assert world.pair.receive(world.orders)[0] == "order"


def test_a_visible_message_whose_handle_is_the_latest_is_hidden_and_shown_again() -> None:
    world = _World()
    world.pair.pass_time(31_000)
    world.only_prepared()
    assert world.counters(world.orders) == QueueCounters(1, 1, 0)
    world.pair.pass_time(PREPARED_MS)
    world.settle()
    assert world.counters(world.orders) == QueueCounters(2, 0, 0)
    assert not world.transact().reasons
    world.settle()
    assert world.counters(world.orders) == QueueCounters(1, 0, 0)


@pytest.mark.parametrize("suffix", ["", ".fifo"])
def test_nobody_changes_a_prepared_message(suffix: str) -> None:
    world = _World(suffix)
    world.only_prepared()
    orders, shard = world.orders, world.pair.shards[0]
    assert isinstance(world.delete(orders, world.order), ServiceUnavailable)
    change = prepared.change_visibility(orders, world.order, 0)
    assert isinstance(shard.submit(change).refusal, ServiceUnavailable)
    for operation in (DeleteSelected([world.order.sequence]), HoldMessages([world.order.sequence])):
        shard.submit(prepared.prepared(orders, operation))
    world.pair.check()
    assert world.counters(orders).stored == 2
    assert _codes(world.transact(token=OTHER)) == ["TransactionConflict", "", ""]
    world.pair.pass_time(PREPARED_MS)
    world.settle()
    assert world.delete(orders, world.order) is None
    assert world.counters(orders).stored == 1


def test_a_stale_handle_in_either_shard_cancels_all() -> None:
    for place, codes in ((0, ["TransactionConflict", "", ""]), (1, ["", "TransactionConflict", ""])):
        world = _World()
        entries = world.entries()
        stale = Receipt(entries[place].part.sequence, 7)  # type: ignore[union-attr]
        entries[place] = Entry(entries[place].queue, stale)
        assert _codes(world.transact(entries)) == codes
        world.settle()
        assert world.counters(world.made).stored == 0
        assert world.counters(world.orders) == world.counters(world.bills) == QueueCounters(1, 1, 0)
        assert not world.transact().reasons  # as if nothing had been


def test_a_retry_gets_the_answer_again() -> None:
    world = _World()
    first = world.transact()
    world.settle()
    again = world.transact()
    assert again.sent == first.sent
    assert world.counters(world.made).stored == 1
    assert _codes(world.transact(token=OTHER)) == ["TransactionConflict", "", ""]


def test_a_retry_goes_on_with_what_its_first_try_prepared() -> None:
    world = _World()
    world.only_prepared()
    assert not world.transact().reasons
    world.settle()
    assert world.counters(world.orders).stored == 1
    assert world.counters(world.made).stored == 1


def test_a_decision_after_the_shard_was_asked_is_none() -> None:
    world = _World()

    def ask_before(request: Request) -> None:
        if isinstance(request.operation, TransactMessages):
            world.pair.pass_time(PREPARED_MS)
            page = world.pair.read(0)
            world.outcomes = world.pair.accept(page.arrivals, page.floors)

    world.before = ask_before
    with pytest.raises(Departing):
        world.transact()
    world.before = lambda request: None
    with pytest.raises(Departing):  # it is refused, and not back yet
        world.transact()
    world.pair.clear(world.outcomes)
    world.settle()
    assert world.counters(world.orders).stored == world.counters(world.bills).stored == 2
    assert not world.transact().reasons
    world.settle()
    assert world.counters(world.made).stored == 1


def test_of_two_transactions_that_want_the_same_messages_the_first_goes_on() -> None:
    world = _World()
    codes: list[str] = []

    def other_meanwhile(request: Request) -> None:
        if isinstance(request.operation, TransactMessages):
            world.before = lambda request: None
            answer = world.pair.shards[0].submit(
                prepared.prepared(
                    request.queue_of_shard if False else _the_shard(0),
                    PrepareDeletes(request.operation.entries[:1], *OTHER, 1),
                    request.parts[:1],
                )
            ).answer
            codes.extend(code for code, _ in answer.reasons)  # type: ignore[union-attr]

    world.before = other_meanwhile
    assert not world.transact().reasons
    assert codes == ["TransactionConflict"]
