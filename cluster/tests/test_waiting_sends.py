"""Sends of transactions that wait for a deleted queue leave the rest of the outbox to others."""

from __future__ import annotations

import pytest

from cluster.tests.shard_pair import DIGEST, TOKEN, ShardPair, in_shard
from visibility.contract.errors import QueueError, ServiceUnavailable
from visibility.contract.model import QueueDefinition
from visibility.contract.outcomes import Prepared, Transacted
from visibility.rows.row_keys import ARRIVAL, table_range
from visibility.rows.row_values import THE_SHARD
from visibility.rules.archive_batches import the_shard
from visibility.rules.transactions import PrepareDeletes, TransactedEntry
from visibility.rules.waiting_sends import moving_since_ms, waiting_messages, waiting_share
from visibility.tests import prepared


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> ShardPair:
    """`bills` and `mails` are in shard 1. Transactions of shard 0 have room for two messages."""
    for module in ("departures", "transactions", "waiting_sends"):
        monkeypatch.setattr(f"visibility.rules.{module}.OUTBOX_MESSAGES_MAX", 8)
    pair = ShardPair()
    for number, name in enumerate(("bills", "mails"), 13):
        pair.queues.define(in_shard(1, prepared.queue_named(name, number)))
    return pair


def _queue(pair: ShardPair, name: str) -> QueueDefinition:
    return next(each for each in pair.queues.queues.values() if each.name == name)


def _asked(pair: ShardPair, to: QueueDefinition, body: str) -> Transacted | QueueError:
    here = _queue(pair, "other")
    entries = [(queue, prepared.content(body, queue)) for queue in (here, to)]
    return pair.transact(entries, token=body.encode().ljust(16))


def _send(pair: ShardPair, to: QueueDefinition, body: str) -> None:
    answer = _asked(pair, to, body)
    assert isinstance(answer, Transacted)
    assert not answer.reasons


def _has_room(pair: ShardPair, to: QueueDefinition) -> bool:
    """Ask with a transaction that is accepted if there is room."""
    return not isinstance(_asked(pair, to, "x"), ServiceUnavailable)


def _deleted(pair: ShardPair, name: str) -> QueueDefinition:
    """A queue for which two sends wait."""
    found = _queue(pair, name)
    _send(pair, found, f"{name} 1")
    _send(pair, found, f"{name} 2")
    pair.queues.hidden.add(found.arn)
    return found


def test_other_transactions_go_on(pair: ShardPair) -> None:
    mails = _queue(pair, "mails")
    _send(pair, mails, "1")
    _send(pair, mails, "2")
    assert not _has_room(pair, mails)
    pair.deliver()
    bills = _deleted(pair, "bills")

    _send(pair, mails, "3")
    pair.deliver()
    assert sorted(pair.receive(mails)) == ["1", "2", "3"]

    pair.restart(0)
    pair.queues.hidden.clear()
    pair.deliver()
    assert sorted(pair.receive(bills)) == ["bills 1", "bills 2"]


def test_so_do_those_with_deletes_of_several_shards(pair: ShardPair) -> None:
    _deleted(pair, "bills")
    other = _queue(pair, "other")
    ((_, receipt), _) = pair.received(other)
    entries = [TransactedEntry(other.queue_id, other.version)]
    operation = PrepareDeletes(entries, TOKEN, DIGEST, decides=1)
    request = prepared.prepared(the_shard(0), operation, [receipt])
    answer = pair.shards[0].submit(request).answer
    assert isinstance(answer, Prepared)
    assert answer.number


def test_what_waits_is_bounded(pair: ShardPair) -> None:
    _deleted(pair, "bills")
    _deleted(pair, "mails")
    letters = pair.letters
    assert not _has_room(pair, letters)
    pair.queues.hidden.discard(_queue(pair, "mails").arn)
    pair.deliver()
    assert _has_room(pair, letters)


def test_a_transaction_finds_out_once_what_waits(
    pair: ShardPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    _deleted(pair, "bills")
    asked: list[str] = []

    def keeps(arn: str) -> bool:
        asked.append(arn)
        return arn in pair.queues.hidden

    monkeypatch.setattr(pair.queues, "keeps", keeps)
    queues = [_queue(pair, name) for name in ("other", "mails", "mails")]
    sends = [(queue, prepared.content("x", queue)) for queue in queues]
    assert isinstance(pair.transact(sends), Transacted)
    assert len(asked) == 1


def test_it_is_told_how_full_the_room_for_those_is_that_wait(
    pair: ShardPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = pair.shards[0].state
    bills = _queue(pair, "bills")
    _send(pair, bills, "1")
    assert waiting_share(state) == 0
    pair.queues.hidden.add(bills.arn)
    assert waiting_share(state) == 0.5
    _deleted(pair, "mails")
    assert waiting_share(state) == 1.5
    monkeypatch.setattr("visibility.rules.waiting_sends.OUTBOX_BYTES_MAX", 8)
    assert waiting_share(state) == len("1" + "mails 1" + "mails 2") / 2


def test_what_waits_is_told_apart(pair: ShardPair) -> None:
    state = pair.shards[0].state
    assert (waiting_messages(state), moving_since_ms(state)) == (0, 0)
    _deleted(pair, "bills")
    assert (waiting_messages(state), moving_since_ms(state)) == (2, 0)
    pair.pass_time(1_000)
    _send(pair, _queue(pair, "mails"), "mail")
    assert waiting_messages(state) == 2
    assert moving_since_ms(state) == pair.shards[0].now_ms
    pair.queues.hidden.clear()
    assert moving_since_ms(state) == pair.shards[0].now_ms - 1_000


def test_the_other_shard_forgets_what_came_long_after(
    pair: ShardPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("visibility.rules.departures.WAITING_BEHIND_MAX", 6)
    bills, mails = _deleted(pair, "bills"), _queue(pair, "mails")
    for number in range(30):
        _send(pair, mails, f"mail {number}")
        pair.deliver()
    begin, end = table_range(THE_SHARD, ARRIVAL)
    assert len(list(pair.shards[1].store.scan(begin, end))) < 10
    assert waiting_messages(pair.shards[0].state) == 2
    pair.queues.hidden.clear()
    pair.deliver()
    assert sorted(pair.receive(bills)) == ["bills 1", "bills 2"]
    assert pair.counters(mails).stored == 30
