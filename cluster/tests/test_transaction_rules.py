"""Stories of transactions: sends and deletes of several queues, on one shard and over two."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from cluster.parts.transacting import Entry, Token, Transacting
from cluster.tests.driver import Reply
from cluster.tests.shard_pair import DIGEST, TOKEN, ShardPair, in_shard
from visibility.contract.errors import (
    IdempotentParameterMismatch,
    Moved,
    ServiceUnavailable,
)
from visibility.contract.model import Content, QueueCounters, QueueDefinition, Receipt, Request
from visibility.contract.outcomes import Answer, Transacted
from visibility.contract.queue_parts import GonePart
from visibility.rules.archive_batches import the_shard
from visibility.rules.transactions import (
    BUCKET_MS,
    NOT_SETTLED,
    SETTLING_MS,
    FindTransaction,
)
from visibility.tests import prepared
from visibility.tests.prepared import START_MS

Done = tuple[QueueDefinition, Content | Receipt]


def _pair(suffix: str = "") -> ShardPair:
    """`orders` and `other` are in shard 0, `bills` is in shard 1."""
    pair = ShardPair(suffix)
    for name, number, shard in (("orders", 11, 0), ("other", 12, 0), ("bills", 13, 1)):
        queue = prepared.queue_named(name + suffix, number)
        pair.queues.define(in_shard(shard, queue))
    return pair


def _queue(pair: ShardPair, number: int) -> QueueDefinition:
    return pair.queues.queues[number]


def _content(queue: QueueDefinition, body: str, group: str | None = None) -> Content:
    if queue.settings.fifo:
        group = group or "g"
    return prepared.content(body, queue, group=group)


def _here(pair: ShardPair) -> Done:
    """A send that has shard 0 decide."""
    queue = _queue(pair, 12)
    return queue, _content(queue, "here")


def _accepted(
    pair: ShardPair,
    *entries: Done,
    at: int = 0,
    token: bytes = TOKEN,
    delay_s: int | None = None,
) -> Transacted:
    answer = pair.transact(entries, at=at, token=token, delay_s=delay_s)
    assert isinstance(answer, Transacted)
    assert not answer.reasons
    return answer


def _cancelled(pair: ShardPair, *entries: Done, at: int = 0) -> list[str]:
    answer = pair.transact(entries, at=at)
    assert isinstance(answer, Transacted)
    assert not answer.sent
    return [code for code, _ in answer.reasons]


def _found(pair: ShardPair, at: int = 0) -> Transacted | None:
    question = FindTransaction(TOKEN, DIGEST)
    answer = pair.shards[at].submit(prepared.prepared(the_shard(at), question)).answer
    assert answer is None or isinstance(answer, Transacted)
    return answer


def _waiting(pair: ShardPair, token: bytes = TOKEN) -> Reply:
    """A request that waits until the transaction is settled."""
    question = FindTransaction(token, DIGEST, waits=True)
    return pair.shards[0].submit(prepared.prepared(the_shard(0), question))


def _visible(pair: ShardPair, queue: QueueDefinition) -> int:
    counters = pair.counters(queue)
    assert isinstance(counters, QueueCounters)
    return counters.visible


@pytest.mark.parametrize("suffix", ["", ".fifo"])
def test_a_message_is_consumed_and_two_are_produced(suffix: str) -> None:
    pair = _pair(suffix)
    orders, other, bills = (_queue(pair, number) for number in (11, 12, 13))
    pair.send("order", to=orders)
    ((_, receipt),) = pair.received(orders)
    answer = _accepted(
        pair, (orders, receipt), (other, _content(other, "here")), (bills, _content(bills, "bill"))
    )
    assert answer.sent[0] == (None, None)
    assert not answer.is_settled
    assert pair.counters(orders).stored == 0
    assert pair.receive(other) == ["here"]
    assert pair.receive(bills) == []
    pair.deliver()
    assert pair.receive(bills) == ["bill"]
    assert _found(pair) == msgspec.structs.replace(answer, is_settled=True)


def test_a_message_keeps_the_id_of_its_answer() -> None:
    pair = _pair()
    bills = _queue(pair, 13)
    answer = _accepted(pair, _here(pair), (bills, _content(bills, "bill")))
    pair.deliver()
    (found,) = pair.shards[1].submit(prepared.receive(bills)).deliveries.messages
    assert (found.message_id, None) == answer.sent[1]


def test_who_waits_for_a_transaction_is_answered_once_all_it_sent_has_arrived() -> None:
    pair = _pair()
    bills = _queue(pair, 13)
    one, two = (bills, _content(bills, "one")), (bills, _content(bills, "two"))
    answer = _accepted(pair, _here(pair), one, two)
    _accepted(pair, _here(pair), (bills, _content(bills, "other")), token=b"u" * 16)
    first, second, other = _waiting(pair), _waiting(pair), _waiting(pair, b"u" * 16)
    page = pair.read()
    outcomes = pair.accept(page.arrivals, page.floors)
    pair.clear(outcomes[:1])
    replies = first, second, other
    assert [each.waits for each in replies] == [True, True, True]
    pair.clear(outcomes[1:2])
    settled = msgspec.structs.replace(answer, is_settled=True)
    assert [each.waits for each in replies] == [False, False, True]
    assert first.answer == second.answer == settled
    pair.clear(outcomes[2:])
    assert [each.waits for each in replies] == [False, False, False]
    assert _waiting(pair).answer == settled
    assert _waiting(pair, b"v" * 16).answer is None


def test_who_waits_for_a_transaction_hears_after_a_while_that_it_is_not_settled() -> None:
    pair = _pair()
    bills = _queue(pair, 13)
    _accepted(pair, _here(pair), (bills, _content(bills, "bill")))
    reply = _waiting(pair)
    pair.pass_time(SETTLING_MS - 1)
    assert reply.waits
    pair.pass_time(1)
    assert reply.answer == NOT_SETTLED
    pair.shards[0].state.waits.is_open = False
    assert _waiting(pair).answer == NOT_SETTLED


def test_one_stale_handle_cancels_all() -> None:
    pair = _pair()
    orders, other, bills = (_queue(pair, number) for number in (11, 12, 13))
    pair.send("one", "two", to=orders)
    (_, stale), (_, fresh) = pair.received(orders)
    pair.pass_time(31_000)
    ((body, again),) = pair.received(orders, 1)
    assert body == "one"
    entries: list[Done] = [
        (orders, stale),
        (other, _content(other, "here")),
        (bills, _content(bills, "bill")),
    ]
    assert _cancelled(pair, *entries) == ["TransactionConflict", "", ""]
    assert pair.counters(orders).stored == 2
    assert _visible(pair, other) == 0
    pair.deliver()
    assert _visible(pair, bills) == 0
    # A handle whose lease is over is still the latest one, as long as nobody else received it.
    entries[0] = (orders, fresh)
    _accepted(pair, *entries, (orders, again))
    assert pair.counters(orders).stored == 0


def test_a_repeat_without_the_token_consumes_nothing_and_produces_nothing() -> None:
    pair = _pair()
    orders, other = _queue(pair, 11), _queue(pair, 12)
    pair.send("order", to=orders)
    ((_, receipt),) = pair.received(orders)
    entries = (orders, receipt), (other, _content(other, "made"))
    _accepted(pair, *entries)
    answer = pair.transact(entries, token=b"u" * 16)
    assert isinstance(answer, Transacted)
    assert [code for code, _ in answer.reasons] == ["TransactionConflict", ""]
    assert _visible(pair, other) == 1


def test_a_handle_named_twice_cancels() -> None:
    pair = _pair()
    orders = _queue(pair, 11)
    pair.send("order", to=orders)
    ((_, receipt),) = pair.received(orders)
    twice = (orders, receipt), (orders, receipt)
    assert _cancelled(pair, *twice) == ["", "TransactionConflict"]
    assert pair.counters(orders).in_flight == 1


def test_an_expired_handle_of_a_fifo_queue_cancels() -> None:
    pair = _pair(".fifo")
    orders = _queue(pair, 11)
    pair.send("order", to=orders)
    ((_, receipt),) = pair.received(orders)
    pair.pass_time(31_000)
    assert _cancelled(pair, (orders, receipt)) == ["TransactionConflict"]
    assert _visible(pair, orders) == 1


def test_an_expired_handle_of_a_fifo_message_that_waits_for_its_retry_cancels() -> None:
    pair = _pair(".fifo")
    tags = {"holdfast:retry-min": "60", "holdfast:retry-max": "60"}
    orders = pair.queues.define(prepared.queue_named("orders.fifo", 11, tags=tags))
    pair.send("order", to=orders)
    ((_, receipt),) = pair.received(orders)
    pair.pass_time(31_000)
    assert _cancelled(pair, (orders, receipt)) == ["TransactionConflict"]
    assert pair.counters(orders).stored == 1


def test_a_retry_with_the_token_gets_the_same_answer_also_after_a_restart() -> None:
    pair = _pair()
    other, bills = _queue(pair, 12), _queue(pair, 13)
    entries = (other, _content(other, "here")), (bills, _content(bills, "bill"))
    first = _accepted(pair, *entries)
    assert _accepted(pair, *entries) == first
    pair.restart(0)
    assert _accepted(pair, *entries) == first
    pair.deliver()
    pair.restart(0)
    assert _accepted(pair, *entries) == msgspec.structs.replace(first, is_settled=True)
    assert (_visible(pair, other), _visible(pair, bills)) == (1, 1)


@pytest.mark.parametrize("behind_ms", [0, 100, 20_000])
def test_a_token_is_known_to_a_leader_whose_clock_is_behind(behind_ms: int) -> None:
    """Also across the edge of ten minutes."""
    pair = _pair()
    other, bills = _queue(pair, 12), _queue(pair, 13)
    entries = (other, _content(other, "here")), (bills, _content(bills, "bill"))
    edge_ms = (pair.shards[0].now_ms // BUCKET_MS + 1) * BUCKET_MS
    pair.pass_time(edge_ms + 50 - pair.shards[0].now_ms)
    first = _accepted(pair, *entries)

    pair.shards[0].now_ms -= behind_ms
    pair.restart(0)

    assert _found(pair) == first
    assert _accepted(pair, *entries) == first
    pair.pass_time(BUCKET_MS)
    assert _found(pair) == first


def test_a_token_with_other_content_is_refused() -> None:
    pair = _pair()
    other = _queue(pair, 12)
    _accepted(pair, (other, _content(other, "one")))
    answer = pair.transact([(other, _content(other, "two"))], digest=b"e" * 16)
    assert isinstance(answer, IdempotentParameterMismatch)
    assert _visible(pair, other) == 1


def test_a_token_is_remembered_for_ten_minutes_and_then_forgotten() -> None:
    pair = _pair()
    other = _queue(pair, 12)
    entry = (other, _content(other, "one"))
    _accepted(pair, entry)
    pair.pass_time(BUCKET_MS)
    _accepted(pair, entry)
    assert _visible(pair, other) == 1
    pair.pass_time(BUCKET_MS)
    _accepted(pair, entry, token=b"u" * 16)
    assert _visible(pair, other) == 2
    pair.pass_time(BUCKET_MS)
    _accepted(pair, entry)
    assert _visible(pair, other) == 3


def test_a_cancelled_transaction_is_not_remembered() -> None:
    pair = _pair()
    orders, other = _queue(pair, 11), _queue(pair, 12)
    gone = (orders, Receipt(5, 1))
    assert _cancelled(pair, gone, (other, _content(other, "one"))) == ["TransactionConflict", ""]
    _accepted(pair, (other, _content(other, "one")))
    assert _visible(pair, other) == 1


def test_a_token_that_was_not_accepted_is_not_found() -> None:
    pair = _pair()
    assert _found(pair) is None
    other = _queue(pair, 12)
    older = msgspec.structs.replace(other, version=0)
    pair.queues.define(older)
    question = FindTransaction(TOKEN, DIGEST, other.queue_id, other.version)
    asked = pair.shards[0].submit(prepared.prepared(the_shard(0), question))
    assert isinstance(asked.refusal, Moved)


def test_a_duplicate_is_a_success_here_and_there() -> None:
    pair = _pair(".fifo")
    other, bills = _queue(pair, 12), _queue(pair, 13)
    pair.send("same", to=other)
    pair.send("same", to=bills)
    entries = (other, _content(other, "same")), (bills, _content(bills, "same"))
    _accepted(pair, *entries)
    pair.deliver()
    assert (_visible(pair, other), _visible(pair, bills)) == (1, 1)


def test_what_came_from_a_transaction_deduplicates_later_sends() -> None:
    pair = _pair(".fifo")
    bills = _queue(pair, 13)
    _accepted(pair, _here(pair), (bills, _content(bills, "same")))
    pair.deliver()
    pair.send("same", "next", to=bills)
    assert _visible(pair, bills) == 2


def test_delays_hold_here_and_there() -> None:
    pair = _pair()
    other, bills = _queue(pair, 12), _queue(pair, 13)
    entries = (other, _content(other, "here")), (bills, _content(bills, "bill"))
    _accepted(pair, *entries, delay_s=60)
    pair.deliver()
    assert pair.counters(other).delayed == pair.counters(bills).delayed == 1
    pair.pass_time(60_000)
    assert (pair.receive(other), pair.receive(bills)) == (["here"], ["bill"])


def test_a_group_goes_on_in_order_when_its_message_is_replaced() -> None:
    pair = _pair(".fifo")
    orders = _queue(pair, 11)
    pair.send("1", "2", to=orders)
    ((_, receipt),) = pair.received(orders, 1)
    again = _content(orders, "1 again"), _content(orders, "x", "new"), _content(orders, "y", "new")
    _accepted(pair, (orders, receipt), *((orders, content) for content in again))
    assert pair.receive(orders) == ["x", "y", "2", "1 again"]


def test_the_only_message_of_a_group_is_replaced_by_one_of_it_and_one_of_another() -> None:
    pair = _pair(".fifo")
    orders = _queue(pair, 11)
    pair.send("1", to=orders)
    ((_, receipt),) = pair.received(orders, 1)
    _accepted(
        pair,
        (orders, receipt),
        (orders, _content(orders, "2")),
        (orders, _content(orders, "x", "new")),
    )
    pair.restart(0)
    pair.send("3", to=orders)
    assert sorted(pair.receive(orders)) == ["2", "3", "x"]


@pytest.mark.parametrize("is_on_its_way", [False, True])
def test_messages_for_a_queue_that_was_deleted_meanwhile_wait_until_it_is_restored(
    is_on_its_way: bool,
) -> None:
    pair = _pair()
    bills = _queue(pair, 13)
    _accepted(pair, _here(pair), (bills, _content(bills, "bill")))
    page = pair.read()
    pair.queues.hidden.add(bills.arn)
    if is_on_its_way:
        pair.clear(pair.accept(page.arrivals, page.floors))
    for _ in range(3):
        pair.deliver_once()
    pair.restart(0)
    pair.queues.hidden.clear()
    pair.deliver()
    assert pair.receive(bills) == ["bill"]


def test_messages_for_a_queue_that_is_never_restored_go_with_it() -> None:
    pair = _pair()
    bills = _queue(pair, 13)
    _accepted(pair, _here(pair), (bills, _content(bills, "bill")))
    pair.queues.issued = bills.queue_id
    del pair.queues.queues[bills.queue_id]
    pair.deliver()
    pair.queues.define(bills)
    assert pair.counters(bills).stored == 0


def test_messages_for_a_deleted_queue_wait_as_long_as_it_can_be_restored() -> None:
    pair = _pair()
    bills = _queue(pair, 13)
    _accepted(pair, _here(pair), (bills, _content(bills, "bill")))
    pair.queues.hidden.add(bills.arn)
    pair.pass_time(86_400_000)
    pair.deliver_once()
    pair.queues.hidden.clear()
    pair.deliver()
    assert _visible(pair, bills) == 1


def test_sends_to_a_restored_fifo_queue_keep_their_order() -> None:
    pair = _pair(".fifo")
    bills = _queue(pair, 13)
    for name in "123":  # a page has two of them
        content = _content(bills, name * 300_000, "g")
        _accepted(pair, _here(pair), (bills, content), token=name.encode() * 16)
    pair.queues.hidden.add(bills.arn)
    pair.deliver_once()
    pair.queues.hidden.clear()
    pair.deliver()
    assert [body[0] for body in pair.receive(bills)] == ["1", "2", "3"]


def test_other_sends_pass_those_that_wait_for_a_deleted_queue() -> None:
    pair = _pair()
    bills = _queue(pair, 13)
    mails = pair.queues.define(msgspec.structs.replace(bills, queue_id=15, name="mails"))
    _accepted(pair, _here(pair), (bills, _content(bills, "bill")), token=b"1" * 16)
    _accepted(pair, _here(pair), (mails, _content(mails, "mail")), token=b"2" * 16)
    pair.queues.hidden.add(bills.arn)
    pair.deliver()
    assert pair.receive(mails) == ["mail"]
    pair.queues.hidden.clear()
    pair.deliver()
    assert pair.receive(bills) == ["bill"]


def test_a_purge_in_between_leaves_the_messages_of_the_transaction() -> None:
    pair = _pair()
    bills = _queue(pair, 13)
    _accepted(pair, _here(pair), (bills, _content(bills, "bill")))
    successor = pair.shards[1].purge(bills)
    pair.deliver()
    assert _visible(pair, successor) == 1


def test_nothing_is_done_before_the_shard_knows_of_a_purge() -> None:
    pair = _pair()
    orders = _queue(pair, 11)
    pair.send("order", to=orders)
    ((_, receipt),) = pair.received(orders)
    successor = pair.queues.purge(orders)
    assert isinstance(pair.transact([(successor, _content(successor, "x"))]), Moved)
    assert isinstance(pair.transact([(successor, receipt)]), Moved)
    pair.shards[0].submit(prepared.purge(orders, successor))
    _accepted(pair, (successor, _content(successor, "x")))
    assert pair.receive(successor) == ["x"]


def test_dead_letters_and_sends_of_transactions_arrive_in_the_same_queue() -> None:
    pair = ShardPair()
    pair.spend("dead", "deader")
    pair.receive(pair.source)
    assert pair.counters(pair.source).stored == 0
    letters = pair.letters
    pair.queues.define(prepared.queue_named("other", 12))
    _accepted(pair, _here(pair), (letters, _content(letters, "sent")))
    pair.spend("deadest")
    pair.receive(pair.source)
    pair.deliver()
    assert sorted(pair.receive(letters)) == ["dead", "deader", "deadest", "sent"]


def test_an_arrival_that_is_repeated_is_sent_once() -> None:
    pair = _pair()
    bills = _queue(pair, 13)
    _accepted(pair, _here(pair), (bills, _content(bills, "bill")))
    page = pair.read()
    outcomes = pair.accept(page.arrivals, page.floors)
    assert pair.receive(bills) == ["bill"]
    pair.restart(1)
    assert pair.accept(page.arrivals, page.floors) == outcomes
    pair.clear(outcomes)
    assert pair.counters(bills).stored == 1


def test_a_full_outbox_refuses_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("visibility.rules.departures.OUTBOX_MESSAGES_MAX", 8)
    pair = _pair()
    bills = _queue(pair, 13)
    entries = [_here(pair), *((bills, _content(bills, str(number))) for number in range(3))]
    assert isinstance(pair.transact(entries), ServiceUnavailable)
    _accepted(pair, *entries[:3])
    assert isinstance(pair.transact(entries[:2], token=b"u" * 16), ServiceUnavailable)
    pair.deliver()
    _accepted(pair, *entries[:2], token=b"u" * 16)


def test_a_queue_that_is_unknown_here_or_elsewhere_is_looked_for_again() -> None:
    pair = _pair()
    bills = _queue(pair, 13)
    newer = msgspec.structs.replace(bills, version=bills.version + 1)
    assert isinstance(pair.transact([_here(pair), (newer, _content(bills, "bill"))]), Moved)
    assert isinstance(pair.transact([(bills, _content(bills, "bill"))]), Moved)
    assert isinstance(pair.transact([(bills, Receipt(1, 1))]), Moved)


def test_a_throttled_queue_cancels() -> None:
    pair = _pair()
    throttled = prepared.queue_named("throttled", 14, tags={"holdfast:throttle-depth": "1"})
    pair.queues.define(throttled)
    pair.send("one", "two", "three", to=throttled)
    other = _queue(pair, 12)
    entries = (other, _content(other, "here")), (throttled, _content(throttled, "more"))
    assert _cancelled(pair, *entries) == ["", "RequestThrottled"]
    assert _visible(pair, other) == 0


@pytest.mark.parametrize("tag", ["throttle-depth", "max-messages"])
def test_a_duplicate_is_answered_first_also_in_a_queue_that_takes_no_more(tag: str) -> None:
    pair = _pair(".fifo")
    queue = prepared.queue_named("taken.fifo", 14, tags={f"holdfast:{tag}": "1"})
    pair.queues.define(queue)
    pair.send("same", to=queue)
    other = _queue(pair, 12)
    entries = (other, _content(other, "here")), (queue, _content(queue, "same"))
    assert _cancelled(pair, *entries, (queue, _content(queue, "new"))) != ["", "", ""]
    _accepted(pair, *entries)
    assert (_visible(pair, other), _visible(pair, queue)) == (1, 1)


def test_a_full_queue_that_is_throttled_too_cancels_as_a_throttled_one() -> None:
    pair = _pair()
    tags = {"holdfast:throttle-depth": "1", "holdfast:max-messages": "1"}
    queue = pair.queues.define(prepared.queue_named("full", 14, tags=tags))
    pair.send("one", to=queue)
    assert _cancelled(pair, (queue, _content(queue, "more"))) == ["RequestThrottled"]


def test_a_full_queue_cancels_and_pushes_nothing_out() -> None:
    pair = _pair()
    tags = {"holdfast:max-messages": "10", "holdfast:overflow": "drop-oldest"}
    full = pair.queues.define(prepared.queue_named("full", 14, tags=tags))
    pair.send(*map(str, range(9)), to=full)
    ((_, receipt),) = pair.received(full, 1)
    two = (full, _content(full, "x")), (full, _content(full, "y"))
    assert _cancelled(pair, *two) == ["", "OverLimit"]
    _accepted(pair, (full, receipt), *two)
    assert pair.counters(full).stored == 10


def test_what_was_accepted_elsewhere_passes_a_limit() -> None:
    pair = _pair()
    tags = {"holdfast:max-messages": "10"}
    full = pair.queues.define(in_shard(1, prepared.queue_named("full", 14, tags=tags)))
    pair.send(*map(str, range(10)), to=full)
    _accepted(pair, _here(pair), (full, _content(full, "x")))
    pair.deliver()
    assert _visible(pair, full) == 11


def test_a_priority_goes_along() -> None:
    pair = _pair()
    tags = {"holdfast:priority": "strict"}
    ranked = pair.queues.define(in_shard(1, prepared.queue_named("ranked", 14, tags=tags)))
    pair.send("low", to=ranked)
    high = msgspec.structs.replace(_content(ranked, "high"), level=10)
    _accepted(pair, _here(pair), (ranked, high))
    pair.deliver()
    assert pair.receive(ranked) == ["high", "low"]


def test_the_time_of_the_sender_goes_along() -> None:
    pair = _pair()
    tags = {"holdfast:order": "sender-clock", "holdfast:order-window": "500"}
    far = pair.queues.define(in_shard(1, prepared.queue_named("far", 14, tags=tags)))
    near = pair.queues.define(prepared.queue_named("near", 15, tags=tags))
    for queue in (far, near):
        second = msgspec.structs.replace(_content(queue, "second"), sent_at_ms=START_MS - 1)
        first = msgspec.structs.replace(_content(queue, "first"), sent_at_ms=START_MS - 2)
        token = bytes([queue.queue_id]) * 16
        _accepted(pair, _here(pair), (queue, second), (queue, first), token=token)
    pair.deliver()
    assert pair.receive(far) == pair.receive(near) == []
    pair.pass_time(500)
    assert pair.receive(far) == pair.receive(near) == ["first", "second"]


def test_a_repeat_finds_its_answer_where_the_home_was() -> None:
    pair = _pair()
    other = _queue(pair, 12)
    first = _accepted(pair, (other, _content(other, "once")))
    moved = msgspec.structs.replace(
        in_shard(1, other), queue_id=15, version=2, number=16, gone=(GonePart(0, 16, 0, 0),)
    )
    del pair.queues.queues[other.queue_id]
    pair.queues.define(moved)

    async def ask(request: Request) -> Answer:
        return pair.shards[request.queue.shard].submit(request).answer

    transacting = Transacting(ask, lambda request: None, lambda: 1, lambda: 0)
    entries = [Entry(moved, _content(moved, "once"))]
    found = asyncio.run(
        transacting.decide(entries, Token(TOKEN, DIGEST), prepared.CALLER, attempt=0)
    )
    assert found == (first, 0)
    other_token = Token(b"u" * 16, DIGEST)
    _, shard = asyncio.run(transacting.decide(entries, other_token, prepared.CALLER, attempt=0))
    assert shard == 1
