"""Stories of transactions whose deletes are in two shards: shard 0 prepares, shard 1 decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from cluster.parts.transacting import Entry, Token, Transacting
from cluster.tests.driver import Driver
from cluster.tests.shard_pair import ShardPair, in_shard
from visibility.contract.errors import Departing, QueueError, ServiceUnavailable
from visibility.contract.model import QueueCounters, QueueDefinition, Receipt, Request
from visibility.contract.outcomes import Answer, PartReading, Prepared, Transacted
from visibility.contract.queue_parts import GonePart, Part, PartState
from visibility.contract.stored_message import Arrival, StoredMessage
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import decode_row, encode_row
from visibility.rows.row_keys import DEPARTURE, LEASE, queue_key, row_key
from visibility.rows.row_values import TARGET_MOVED, THE_SHARD, QueueRow
from visibility.rules.archive_batches import the_shard
from visibility.rules.closing_parts import CheckPart
from visibility.rules.departures import ClearOutbox
from visibility.rules.hold_messages import HoldMessages
from visibility.rules.prepared_deletes import PREPARED_MS, AskPrepared
from visibility.rules.selected import DeleteSelected
from visibility.rules.transactions import PrepareDeletes, TransactedEntry, TransactMessages
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues

TOKEN = Token(b"t" * 16, b"d" * 16)
OTHER = Token(b"u" * 16, b"d" * 16)
Before = Callable[[Request], None]


class _World:
    """`orders` is in shard 0, `bills` in shard 1, `made` in shard 0; one message of each of the
    first two is received."""

    def __init__(
        self, suffix: str = "", tags: dict[str, str] | None = None, **attributes: Any
    ) -> None:
        self.pair = ShardPair(suffix)
        self.orders, self.bills, self.made = (
            self.pair.queues.define(
                in_shard(
                    shard, prepared.queue_named(name + suffix, number, tags=tags, **attributes)
                )
            )
            for name, number, shard in (("orders", 11, 0), ("bills", 12, 1), ("made", 13, 0))
        )
        self.before: Before = lambda request: None
        """Called before each request of the gateway."""
        self.outcomes: list[tuple[bytes, int, str]] = []
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

    def transact(self, entries: Sequence[Entry] | None = None, token: Token = TOKEN) -> Transacted:
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

    def preparation(self, token: Token, decides: int = 1) -> Request:
        """The request that prepares the delete of the order."""
        entry = TransactedEntry(self.orders.queue_id, self.orders.version)
        operation = PrepareDeletes([entry], *token, decides)
        return prepared.prepared(the_shard(0), operation, [self.order])

    def prepare(self, token: Token) -> Prepared:
        answer = self.pair.shards[0].submit(self.preparation(token)).answer
        self.pair.check()
        assert isinstance(answer, Prepared)
        return answer

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
    assert world.pair.receive(world.orders, 1) == ["order"]
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
    change = prepared.change(orders, world.order, 0)
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
    for place, codes in (
        (0, ["TransactionConflict", "", ""]),
        (1, ["", "TransactionConflict", ""]),
    ):
        world = _World()
        entries = world.entries()
        stale = Receipt(entries[place].part.sequence, 7)  # type: ignore[union-attr]
        entries[place] = Entry(entries[place].queue, stale)
        assert _codes(world.transact(entries)) == list(codes)
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


def test_a_retry_finds_its_answer_where_it_was_decided_before_a_queue_moved() -> None:
    world = _World()
    first = world.transact()
    world.settle()
    moved = msgspec.structs.replace(
        in_shard(0, world.bills), queue_id=15, version=2, number=16, gone=(GonePart(0, 16, 0, 1),)
    )
    del world.pair.queues.queues[world.bills.queue_id]
    world.bills = world.pair.queues.define(moved)
    assert world.transact().sent == first.sent
    assert _codes(world.transact(token=OTHER)) == ["TransactionConflict", "TransactionConflict", ""]


def test_a_retry_goes_on_with_what_its_first_try_prepared() -> None:
    world = _World()
    world.only_prepared()
    assert not world.pair.read(0).arrivals, "the other shard is asked later"
    assert not world.transact().reasons
    world.settle()
    assert world.counters(world.orders).stored == 1
    assert world.counters(world.made).stored == 1


def test_a_decision_answers_for_each_name_once() -> None:
    """Two other shards prepared deletes; what one of them heard the answer of is over."""
    world = _World()
    one, two = b"1" * 16, b"2" * 16
    delete = TransactedEntry(world.bills.queue_id, world.bills.version)

    def decide(*prepared_as: tuple[bytes, int]) -> QueueError | None:
        operation = TransactMessages([delete], *TOKEN, list(prepared_as))
        request = prepared.prepared(the_shard(1), operation, [world.bill])
        return world.pair.shards[1].submit(request).refusal

    world.pair.accept([], [(one, 8)])
    assert isinstance(decide((one, 7), (two, 7)), Departing)
    assert decide((one, 8), (two, 7)) is None

    nothing = StoredMessage("", 0, 0, b"")
    asked = [Arrival(name, 7 + (name == one), 0, "", nothing, asks=True) for name in (one, two)]
    assert [reason for _, _, reason in world.pair.accept(asked)] == ["", ""]


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


def test_nothing_is_hidden_for_a_shard_that_cannot_decide() -> None:
    """It has no leader, or is of a cluster that is away."""
    world = _World()

    def fail(request: Request) -> None:
        if request.queue.shard == 1:
            raise ServiceUnavailable()

    world.before = fail
    with pytest.raises(ServiceUnavailable):
        world.transact()
    assert not world.pair.shards[0].state.outbox.departures
    assert world.delete(world.orders, world.order) is None


@pytest.mark.parametrize("sends", [True, False])
def test_a_short_disk_where_it_is_decided_hides_nothing(sends: bool) -> None:
    """Deletes alone free space there."""
    world = _World()

    def refuse(request: Request) -> None:
        if getattr(request.operation, "takes_space", False) and request.queue.shard == 1:
            raise ServiceUnavailable()

    world.before = refuse
    if sends:
        with pytest.raises(ServiceUnavailable):
            world.transact()
        assert world.delete(world.orders, world.order) is None
    else:
        assert not world.transact(world.entries()[:2]).reasons


def test_a_question_does_not_wait_for_the_dead_letters_before_it() -> None:
    world = _World()
    world.pair.spend("letter")
    assert not world.pair.receive(world.pair.source), "it departs"
    world.only_prepared()
    world.pair.pass_time(PREPARED_MS)

    page = world.pair.read()
    assert [each.asks for each in page.arrivals] == [True]
    world.pair.deliver_once()
    page = world.pair.read()
    assert [each.message.data for each in page.arrivals] == [b"letter"]
    assert world.delete(world.orders, world.order) is None


def test_of_two_transactions_that_want_the_same_messages_the_first_goes_on() -> None:
    world = _World()
    first, second = world.prepare(TOKEN), world.prepare(OTHER)
    assert not first.reasons
    assert [code for code, _ in second.reasons] == ["TransactionConflict"]
    assert not world.transact().reasons
    world.settle()
    assert world.counters(world.made).stored == 1


def test_an_earlier_try_that_another_shard_was_to_decide_ends_first() -> None:
    world = _World()
    first = world.prepare(TOKEN)
    assert world.prepare(TOKEN) == first
    refused = world.pair.shards[0].submit(world.preparation(TOKEN, decides=5)).refusal
    assert isinstance(refused, Departing)
    world.pair.pass_time(PREPARED_MS)
    world.settle()
    second = world.prepare(TOKEN)
    assert (second.reasons, second.number > first.number) == ([], True)


def test_what_was_prepared_is_no_answer_to_who_asks_for_more() -> None:
    world = _World()
    world.prepare(TOKEN)
    ((_, other),) = world.pair.received(world.orders, 1)
    entry = TransactedEntry(world.orders.queue_id, world.orders.version)
    more = PrepareDeletes([entry, entry], *TOKEN, 1)
    request = prepared.prepared(the_shard(0), more, [world.order, other])
    assert isinstance(world.pair.shards[0].submit(request).refusal, Departing)


def test_who_hangs_up_gives_nothing_back_that_is_prepared() -> None:
    world = _World()
    world.only_prepared()
    world.pair.shards[0].submit(prepared.give_back(world.orders, [world.order]))
    world.pair.check()
    assert world.counters(world.orders) == QueueCounters(1, 1, 0)


def test_a_full_outbox_refuses_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("visibility.rules.transactions.OUTBOX_MESSAGES_MAX", 4)
    world = _World()
    world.only_prepared()
    shard = world.pair.shards[0]
    assert isinstance(shard.submit(world.preparation(OTHER)).refusal, ServiceUnavailable)
    world.pair.pass_time(PREPARED_MS)
    world.settle()
    assert not world.transact().reasons


def test_what_is_settled_by_one_request_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("visibility.rules.prepared_deletes.MESSAGES_MAX", 1)
    world = _World()
    world.only_prepared()
    ((_, other),) = world.pair.received(world.orders, 1)
    world.order = other
    world.prepare(OTHER)
    world.pair.pass_time(PREPARED_MS)
    page = world.pair.read(0)
    outcomes = world.pair.accept(page.arrivals, page.floors)
    assert len(outcomes) == 2
    world.pair.clear(outcomes)
    assert len(world.pair.read(0).arrivals) == 1
    world.settle()
    assert world.counters(world.orders).stored == 2
    assert not world.pair.shards[0].state.outbox.departures


def test_nothing_is_prepared_while_a_backup_is_made() -> None:
    world = _World()
    world.pair.shards[0].state.prepares = False
    with pytest.raises(Departing):
        world.transact()
    world.pair.shards[0].state.prepares = True
    assert not world.transact().reasons


def test_a_shard_that_is_lost_accepted_nothing() -> None:
    world = _World()
    world.only_prepared()
    world.pair.pass_time(PREPARED_MS)
    page = world.pair.read(0)
    taken = [(each.origin, each.number, TARGET_MOVED) for each in page.arrivals]
    world.pair.clear(taken)
    assert not world.pair.shards[0].state.outbox.departures
    assert world.delete(world.orders, world.order) is None


# -- what happens to the queue meanwhile -----------------------------------------------------------


@pytest.mark.parametrize("suffix", ["", ".fifo"])
@pytest.mark.parametrize("is_accepted", [False, True])
def test_a_purge_meanwhile_is_undone_with_what_was_not_consumed(
    suffix: str, is_accepted: bool
) -> None:
    world = _World(suffix)
    world.accepted_unheard() if is_accepted else world.only_prepared()
    shard, orders = world.pair.shards[0], world.orders
    successor = shard.purge(orders)
    assert isinstance(world.delete(successor, world.order), ServiceUnavailable)
    step = shard.restore(orders, successor)
    assert (step.is_done, 0 < step.again_in_ms <= 1_000) == (False, True)
    world.pair.pass_time(PREPARED_MS)  # it asks although the queue is gone
    world.settle()
    world.pair.pass_time(30_000)
    while not shard.restore(orders, successor).is_done:
        world.pair.pass_time(1_000)
    world.pair.check()
    expected = ["next order"] if is_accepted else ["next order", "order"]
    assert sorted(world.pair.receive(successor)) in (expected, expected[-1:])
    assert world.counters(successor).stored == len(expected)


def test_a_queue_that_is_gone_for_good_leaves_nothing() -> None:
    world = _World()
    world.accepted_unheard()
    del world.pair.queues.queues[world.orders.queue_id]
    world.pair.queues.issued = 20
    world.pair.shards[0].drop(world.orders)
    world.pair.pass_time(PREPARED_MS)
    world.pair.restart(0)
    world.settle()
    assert not world.pair.shards[0].state.outbox.departures
    world.pair.check()


@pytest.mark.parametrize("is_accepted", [False, True])
def test_a_deleted_queue_settles_and_may_be_restored(is_accepted: bool) -> None:
    world = _World()
    world.accepted_unheard() if is_accepted else world.only_prepared()
    definition = world.pair.queues.queues.pop(world.orders.queue_id)
    world.pair.queues.issued = 20
    world.pair.pass_time(PREPARED_MS)
    world.settle()
    world.pair.queues.define(definition)
    world.pair.pass_time(60_000)
    assert sorted(world.pair.receive(world.orders)) == sorted(
        ["next order"] if is_accepted else ["next order", "order"]
    )


def test_a_retention_that_ends_meanwhile_waits() -> None:
    world = _World(MessageRetentionPeriod="60", VisibilityTimeout="600")
    world.pair.pass_time(59_000)
    world.accepted_unheard()
    world.pair.pass_time(2_000)
    counts = world.pair.shards[0].state.queues[world.orders.queue_id].counts
    assert (counts.expired, counts.deleted) == (1, 0)
    world.pair.pass_time(1_000)
    world.settle()
    assert (counts.expired, counts.deleted) == (1, 1)


def test_a_retention_that_ends_meanwhile_ends_after_a_refusal() -> None:
    world = _World(MessageRetentionPeriod="60", VisibilityTimeout="600")
    world.pair.pass_time(59_000)
    world.only_prepared()
    world.pair.pass_time(PREPARED_MS)
    assert world.counters(world.orders).stored == 1
    world.settle()
    world.pair.pass_time(1_000)
    assert world.counters(world.orders).stored == 0


def test_a_time_to_live_that_ends_meanwhile_waits() -> None:
    world = _World(tags={"holdfast:ttl": "60"}, VisibilityTimeout="600")
    world.pair.pass_time(59_000)
    world.only_prepared()
    world.pair.pass_time(PREPARED_MS)
    assert world.counters(world.orders).stored == 1
    world.settle()
    world.pair.pass_time(600_000)
    assert world.counters(world.orders).stored == 0


def test_a_message_that_was_received_too_often_is_a_dead_letter_only_after_the_refusal() -> None:
    pair = ShardPair()
    pair.send("x", to=pair.source)
    ((_, receipt),) = pair.received(pair.source)
    request = prepared.prepared(
        the_shard(0),
        PrepareDeletes([TransactedEntry(1, pair.source.version)], *TOKEN, 1),
        [receipt],
    )
    pair.shards[0].submit(request)
    pair.pass_time(PREPARED_MS - 1)
    pair.pass_time(6_000)
    assert pair.receive(pair.source) == []
    assert pair.counters(pair.source).in_flight == 1
    pair.deliver(0)
    assert pair.receive(pair.source) == []
    pair.deliver(0)
    assert pair.receive(pair.letters) == ["x"]


def test_what_is_deleted_goes_to_the_archive_once() -> None:
    world = _World(tags={"holdfast:archive": "all"})
    archive = world.pair.shards[0].state.archive
    archive.is_on, archive.source, archive.size_max = True, "source", 1 << 20
    world.accepted_unheard()
    assert not archive.has_open
    world.pair.pass_time(PREPARED_MS)
    world.settle()
    assert archive.next_position - archive.open_first == 1


@pytest.mark.parametrize("is_accepted", [False, True])
def test_a_closed_part_keeps_what_is_prepared_until_it_is_decided(is_accepted: bool) -> None:
    home = prepared.queue_named("q", 1)

    def part(state: PartState) -> QueueDefinition:
        parts = Part(0, 1, 0), Part(16, 2, 0, state)
        whole = msgspec.structs.replace(home, parts=parts, version=7, last_part=16)
        return whole.all_parts()[1]

    known = KnownQueues(*part(PartState.OPEN).all_parts())
    known.define(part(PartState.OPEN))
    driver = Driver(known)
    driver.submit(prepared.send(part(PartState.OPEN), "m"))
    (lease,) = driver.submit(prepared.receive(part(PartState.OPEN), 1)).deliveries.leases
    receipt = Receipt(lease.sequence, lease.receive_count)
    operation = PrepareDeletes([TransactedEntry(2, 7)], *TOKEN, 1)
    answer = driver.submit(prepared.prepared(the_shard(0), operation, [receipt])).answer
    assert isinstance(answer, Prepared)
    closed = known.define(part(PartState.DRAINING))

    def reading() -> PartReading:
        found = driver.submit(prepared.prepared(closed, CheckPart())).answer
        assert isinstance(found, PartReading)
        return found

    driver.pass_time(60_000)
    assert reading().waits_for == "1 messages in flight"
    outcome = (answer.origin, answer.number, "" if is_accepted else "TransactionConflict")
    driver.submit(prepared.prepared(the_shard(0), ClearOutbox([outcome])))
    reading()
    driver.pass_time(1_000)
    assert reading().drained_version == 7
    assert driver.state.queue(1).stored == (0 if is_accepted else 1)


# -- damage ----------------------------------------------------------------------------------------


def test_a_message_that_lost_its_lease_is_deleted_all_the_same() -> None:
    world = _World()
    world.accepted_unheard()
    store = world.pair.shards[0].store
    own_key = queue_key(world.orders.queue_id)
    own = decode_row(QueueRow, own_key, store.rows[own_key])
    changes = Changes()
    changes.delete(row_key(world.orders.queue_id, LEASE, world.order.sequence))
    changes.put(own_key, encode_row(msgspec.structs.replace(own, waiting=2, low_water=1)))
    store.apply(changes)
    world.pair.restart(0)
    assert world.counters(world.orders).visible == 2
    world.settle()
    world.pair.check()
    assert world.counters(world.orders).stored == 1


@pytest.mark.parametrize("suffix", ["", ".fifo"])
def test_a_message_whose_question_was_lost_is_shown_again(suffix: str) -> None:
    world = _World(suffix)
    world.only_prepared()
    store = world.pair.shards[0].store
    (number,) = world.pair.shards[0].state.outbox.departures
    changes = Changes()
    changes.delete(row_key(THE_SHARD, DEPARTURE, number))
    store.apply(changes)
    world.pair.restart(0)
    world.pair.pass_time(1)
    world.pair.check()
    assert "order" in world.pair.receive(world.orders)
