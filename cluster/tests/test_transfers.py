"""Transfers: a closed part gives its messages to another one. Each is in one place at a time."""

from __future__ import annotations

import msgspec
import pytest

from cluster.tests.shard_pair import ShardPair, in_shard
from visibility.contract.errors import Departing, Moved
from visibility.contract.model import QueueCounters, QueueDefinition, Receipt
from visibility.contract.outcomes import PartReading
from visibility.contract.queue_parts import GonePart, Part, PartState, first_sequence, way_of
from visibility.contract.stored_message import Hold
from visibility.rules import transfers
from visibility.rules.arrivals import TARGET_GONE
from visibility.rules.closing_parts import CheckPart, FindMessages
from visibility.rules.hold_messages import HoldMessages, held_leases
from visibility.state import outbox as outbox_state
from visibility.tests import prepared


class PartPair(ShardPair):
    """`source` is the home's former part, in shard 0; `heir` is in shard 1, or beside it."""

    def __init__(self, heir_in: int = 1) -> None:
        super().__init__()
        self.shards[0].pass_time(1)
        home = in_shard(heir_in, prepared.queue_named("q", 12, VisibilityTimeout="5"))
        before = (Part(16, 12, heir_in), Part(0, 11, 0))
        self.whole = msgspec.structs.replace(home, parts=before, version=7, last_part=16)
        self.heir, self.source = self._define(self.whole)

    def _define(self, queue: QueueDefinition) -> tuple[QueueDefinition, ...]:
        return tuple(self.queues.define(part) for part in queue.all_parts())

    def define(self, *parts: Part) -> None:
        """Other parts from now on."""
        self.whole = msgspec.structs.replace(
            self.whole, parts=parts, version=self.whole.version + 1
        )
        self.heir, self.source = self._define(self.whole)[:2]

    def close(self) -> PartReading:
        """The source drains, and its shard hears of it."""
        heir = self.whole.parts[0]
        self.define(heir, Part(0, 11, 0, PartState.DRAINING, heir=16))
        return self.look()

    def look(self) -> PartReading:
        """Ask its shard about the part that drains."""
        answer = self.shards[0].submit(prepared.prepared(self.source, CheckPart())).answer
        assert isinstance(answer, PartReading)
        return answer

    def transfer(self) -> None:
        """All that can go."""
        self.look()  # as each second
        self.pass_time(1_000)
        self.deliver()
        self.pass_time(1_000)
        self.check()


@pytest.fixture(params=[1, 0], ids=["other shard", "same shard"])
def pair(request: pytest.FixtureRequest) -> PartPair:
    return PartPair(request.param)


NONE = QueueCounters(0, 0, 0)


def test_a_closed_part_ends_without_consumers(pair: PartPair) -> None:
    pair.send("a", "b")
    pair.close()
    pair.transfer()

    assert pair.look().drained_version == pair.whole.version
    assert pair.receive(pair.heir) == ["a", "b"]


def test_a_message_stays_what_it_is(pair: PartPair) -> None:
    pair.send("a")
    (before,) = pair.shards[0].submit(prepared.receive(pair.source, 1)).deliveries.messages
    sent_ms = before.sent_at_ms
    pair.pass_time(6_000)
    pair.close()
    pair.transfer()

    found = pair.shards[pair.heir.shard].submit(prepared.receive(pair.heir, 1)).deliveries
    (message,), (lease,) = found.messages, found.leases
    assert (message.message_id, message.sent_at_ms) == (before.message_id, sent_ms)
    assert message.retained_from_ms == sent_ms
    assert (lease.receive_count, lease.base_count) == (2, 0), "receives count for dead letters"
    assert lease.first_received_at_ms < lease.received_at_ms
    assert lease.original_sequence == first_sequence(0)


def test_a_handle_of_before_deletes_it_after(pair: PartPair) -> None:
    pair.send("a")
    ((_, receipt),) = pair.received(pair.source)
    pair.pass_time(6_000)
    pair.close()
    pair.transfer()

    asked = pair.shards[0].submit(prepared.delete(pair.source, receipt))
    assert type(asked.refusal) is Moved
    pair.delete(pair.heir, receipt)
    assert pair.counters(pair.heir) == NONE


def test_a_request_waits_while_the_message_is_on_its_way() -> None:
    pair = PartPair()
    pair.send("a", "b")
    receipts = [receipt for _, receipt in pair.received(pair.source)]
    pair.pass_time(6_000)
    pair.close()
    pair.pass_time(100)
    for number in (0, 1):
        pair.restart(number)

    requests = [
        prepared.delete(pair.source, receipts[0]),
        prepared.delete_batch(pair.source, receipts),
        prepared.change(pair.source, receipts[0], 9),
    ]
    for request in requests:
        assert type(pair.shards[0].submit(request).refusal) is Departing
    pair.deliver()
    for request in requests:
        assert type(pair.shards[0].submit(request).refusal) is Moved


def test_a_message_in_flight_stays_until_it_is_back(pair: PartPair) -> None:
    pair.send("a", "b")
    ((_, first), (_, second)) = pair.received(pair.source)
    pair.close()
    pair.transfer()
    assert pair.look().waits_for == "2 messages in flight"

    pair.delete(pair.source, first)
    pair.pass_time(6_000)
    pair.transfer()

    assert pair.look().drained_version
    assert pair.receive(pair.heir) == ["b"]
    assert second.sequence == first.sequence + 1


def test_a_message_counts_once(pair: PartPair) -> None:
    pair.send("a", "b")
    pair.close()
    pair.pass_time(100)

    def visible() -> int:
        return pair.counters(pair.source).visible + pair.counters(pair.heir).visible

    assert visible() == 2
    pair.transfer()
    assert visible() == 2
    counts = [pair.shards[0].state.queue(11).counts]
    counts.append(pair.shards[pair.heir.shard].state.queue(12).counts)
    for each in counts:
        assert (each.moved_in, each.moved_out) == (0, 0)
    assert [each.transferred for each in counts] == [-2, 2]


def test_a_held_message_stays_held(pair: PartPair) -> None:
    pair.send("a", "b")
    hold = HoldMessages([1], "anna", "T-1")
    pair.shards[0].submit(prepared.prepared(pair.source, hold))
    pair.close()
    pair.transfer()

    assert pair.look().drained_version
    there = pair.shards[pair.heir.shard].state.queue(12)
    ((mark, lease),) = held_leases(there)
    assert (mark.owner, mark.reference, mark.sequence) == ("anna", "T-1", lease.sequence)
    assert pair.receive(pair.heir) == ["b"]


def test_an_arrival_at_a_part_that_is_gone_comes_back_and_goes_on() -> None:
    pair = PartPair()
    pair.send("a", "b")
    pair.shards[0].submit(prepared.prepared(pair.source, HoldMessages([1], "anna", "T-1")))
    pair.close()
    pair.pass_time(100)
    arrivals = pair.read().arrivals
    heir, pair.queues.issued = pair.queues.queues.pop(12), 99
    outcomes = pair.accept(arrivals)
    assert [reason for *_, reason in outcomes] == [TARGET_GONE] * 2
    pair.clear(outcomes)
    (held, _) = next(held_leases(pair.shards[0].state.queue(11)))
    pair.queues.queues[12] = heir
    assert held == Hold(1, held.since_ms, "anna", "T-1", 0)

    pair.look()
    pair.transfer()

    assert pair.receive(pair.heir) == ["b"]
    assert len(pair.shards[1].state.queue(12).holds) == 1


def test_a_purge_keeps_what_is_on_its_way_out_of_the_queue_that_continues() -> None:
    pair = PartPair()
    pair.send("a")
    pair.close()
    pair.pass_time(100)
    purged = pair.queues.purge(pair.heir)
    pair.shards[1].submit(prepared.purge(pair.heir, purged))

    pair.deliver()

    assert pair.receive(purged) == []
    assert pair.shards[0].state.queue(11).stored == 1


def test_most_of_the_outbox_is_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("visibility.rules.departures.OUTBOX_MESSAGES_MAX", 12)
    pair = PartPair()
    pair.send(*"abcdefgh")
    pair.close()
    pair.pass_time(1_000)

    assert len(pair.shards[0].state.outbox.departures) == 3
    assert outbox_state.OUTBOX_MESSAGES_MAX >= 8 * transfers.STEP_MESSAGES


def test_nothing_goes_while_purged_messages_can_be_restored(pair: PartPair) -> None:
    pair.send("a")
    pair.close()
    pair.shards[0].state.queue(11).continues = 5
    pair.transfer()
    assert pair.look().waits_for == "purged messages that can be restored"
    pair.shards[0].state.queue(11).continues = 0
    pair.look()
    pair.transfer()

    assert pair.look().drained_version


def test_a_part_gives_out_nothing_ten_minutes_after_it_closed(pair: PartPair) -> None:
    pair.send("a")
    pair.received(pair.source)
    pair.close()
    change = prepared.change(pair.source, Receipt(1, 1), 700)
    pair.shards[0].submit(change)
    pair.pass_time(650_000)
    pair.shards[0].submit(prepared.change(pair.source, Receipt(1, 1), 0))

    found = pair.shards[0].submit(prepared.receive(pair.source, 1)).deliveries
    assert not found.leases
    asked = pair.shards[0].submit(prepared.prepared(pair.source, FindMessages()))
    assert asked.deliveries.leases == []
    pair.transfer()
    assert pair.look().drained_version


def test_the_way_of_a_handle_goes_from_heir_to_heir() -> None:
    home = Part(48, 4, 0)
    parts = (home, Part(16, 2, 1, PartState.DRAINING, heir=48), Part(64, 5, 2))
    gone = (GonePart(0, 16, 1), GonePart(32, 64, 2))

    def way(number: int) -> list[int]:
        return [part.number for part in way_of(parts, gone, first_sequence(number))]

    assert way(0) == way(16) == [16, 48]
    assert way(32) == way(64) == [64]
    assert way(112) == way(48) == [48]


def test_a_closed_heir_takes_what_is_on_its_way_and_passes_it_on() -> None:
    pair = PartPair()
    pair.send("a")
    ((_, receipt),) = pair.received(pair.source)
    pair.pass_time(6_000)
    pair.send("b", to=pair.heir)
    ((_, other),) = pair.received(pair.heir)
    pair.close()
    pair.pass_time(100)
    draining = Part(16, 12, 1, PartState.DRAINING, heir=32)
    pair.define(Part(32, 13, 0), draining, Part(0, 11, 0, PartState.DRAINING, heir=16))
    last, heir, source = (pair.queues.queues[queue_id] for queue_id in (13, 12, 11))
    pair.shards[1].submit(prepared.prepared(heir, CheckPart()))

    outcomes = pair.accept(pair.read().arrivals)
    assert [reason for *_, reason in outcomes] == [""]
    pair.clear(outcomes)
    assert type(pair.shards[0].submit(prepared.delete(source, receipt)).refusal) is Moved
    pair.shards[1].submit(prepared.prepared(heir, CheckPart()))
    pair.pass_time(100)
    pair.deliver(1)

    pair.delete(heir, other)
    pair.delete(last, receipt)
    assert pair.counters(last) == pair.counters(heir) == pair.counters(source) == NONE
    assert pair.receive(last) == []
