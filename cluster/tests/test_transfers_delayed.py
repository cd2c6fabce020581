"""Transfers of delayed and scheduled messages: each keeps its instant, and its time to live counts
from then."""

from __future__ import annotations

import pytest

from cluster.tests.test_transfers import NONE, PartPair
from visibility.contract.model import QueueCounters
from visibility.contract.outcomes import BrowsedPage
from visibility.rules.arrivals import TARGET_GONE
from visibility.rules.browse import BrowseMessages
from visibility.rules.schedules import ChangeSchedule
from visibility.tests import prepared

HOUR = 3_600_000
DELAYED = QueueCounters(0, 0, 1)


class Delaying(PartPair):
    """See `PartPair`; here with messages that wait for their time."""

    def delay(self, body: str, seconds: int, group: str | None = None) -> None:
        """Send a message to the source with a delay."""
        self.shards[0].submit(prepared.send(self.source, body, delay_s=seconds, group=group))

    def schedule(self, body: str, in_ms: int) -> None:
        """Send one to be delivered so much later."""
        at_ms = self.shards[0].now_ms + in_ms
        self.shards[0].submit(prepared.send(self.source, body, at_ms=at_ms))

    def places(self) -> list[tuple[int, int]]:
        """The delayed messages of the heir, (due_ms, sequence)."""
        page = self.shards[self.heir.shard].submit(
            prepared.prepared(self.heir, BrowseMessages(delayed=True))
        )
        assert isinstance(page.answer, BrowsedPage)
        return [(each.due_ms, each.sequence) for each in page.answer.messages]

    def both(self) -> QueueCounters:
        """The counters of both parts together."""
        one, other = self.counters(self.source), self.counters(self.heir)
        return QueueCounters(
            one.visible + other.visible,
            one.in_flight + other.in_flight,
            one.delayed + other.delayed,
        )


@pytest.fixture(params=[1, 0], ids=["other shard", "same shard"])
def pair(request: pytest.FixtureRequest) -> Delaying:
    return Delaying(request.param)


def test_a_part_with_a_schedule_ends(pair: Delaying) -> None:
    pair.schedule("in a month", 30 * 24 * HOUR)
    pair.close()
    pair.transfer()

    assert pair.look().drained_version == pair.whole.version
    assert pair.counters(pair.heir) == DELAYED


def test_each_comes_at_its_instant(pair: Delaying) -> None:
    pair.schedule("later", 2 * HOUR)
    pair.delay("soon", 600)
    begun_ms = pair.shards[0].now_ms
    pair.close()
    pair.transfer()

    assert [due_ms - begun_ms for due_ms, _ in pair.places()] == [600_000, 2 * HOUR]
    pair.pass_time(597_990)
    assert pair.receive(pair.heir) == []
    pair.pass_time(20)
    ((_, receipt),) = pair.received(pair.heir)
    pair.delete(pair.heir, receipt)
    pair.pass_time(2 * HOUR - 600_020)
    assert pair.receive(pair.heir) == []
    pair.pass_time(20)
    assert pair.receive(pair.heir) == ["later"]


@pytest.mark.parametrize("is_scheduled", [True, False])
def test_retention_counts_from_the_instant_of_a_schedule_and_else_from_the_send(
    pair: Delaying, is_scheduled: bool
) -> None:
    sent_ms = pair.shards[0].now_ms
    if is_scheduled:
        pair.schedule("a", 600_000)
    else:
        pair.delay("a", 600)
    pair.close()
    pair.transfer()
    pair.pass_time(600_000)

    found = pair.shards[pair.heir.shard].submit(prepared.receive(pair.heir, 1)).deliveries
    (message,) = found.messages
    assert message.sent_at_ms == sent_ms
    assert (message.retained_from_ms > sent_ms) is is_scheduled


def test_one_counts_as_delayed_on_its_way() -> None:
    pair = Delaying()
    pair.schedule("a", HOUR)
    pair.close()
    pair.pass_time(100)

    assert len(pair.shards[0].state.outbox.departures) == 1
    assert pair.both() == DELAYED
    pair.restart(0)
    assert pair.both() == DELAYED
    pair.check()
    pair.transfer()
    assert pair.both() == DELAYED
    assert pair.counters(pair.source) == NONE


def test_one_that_is_refused_waits_for_its_instant_again() -> None:
    pair = Delaying()
    pair.delay("a", 600, group="g")
    pair.close()
    pair.pass_time(100)
    arrivals = pair.read().arrivals
    heir, pair.queues.issued = pair.queues.queues.pop(12), 99
    outcomes = pair.accept(arrivals)
    assert [reason for *_, reason in outcomes] == [TARGET_GONE]
    pair.clear(outcomes)
    assert pair.counters(pair.source) == DELAYED
    pair.restart(0)
    pair.check()

    pair.queues.queues[12] = heir
    pair.look()
    pair.transfer()
    pair.pass_time(600_000)

    assert pair.receive(pair.heir) == ["a"]


def test_one_arrives_once(pair: Delaying) -> None:
    pair.schedule("a", HOUR)
    pair.close()
    pair.pass_time(100)
    if pair.heir.shard:
        arrivals = pair.read().arrivals
        pair.accept(arrivals)
        pair.restart(1)
        pair.accept(arrivals)
    pair.transfer()
    assert pair.both() == DELAYED


def test_fair_groups_keep_their_delayed_ones(pair: Delaying) -> None:
    pair.delay("a", 60, group="g")
    pair.delay("b", 90, group="g")
    pair.send("c", group="h")
    pair.close()
    pair.transfer()
    for number in (0, 1):
        pair.restart(number)
    pair.check()

    assert pair.receive(pair.heir) == ["c"]
    pair.pass_time(90_000)
    assert sorted(pair.receive(pair.heir)) == ["a", "b", "c"]


def test_an_operator_cancels_one_at_its_new_place(pair: Delaying) -> None:
    pair.schedule("a", HOUR)
    pair.close()
    pair.transfer()
    cancel = ChangeSchedule(pair.places())
    pair.shards[pair.heir.shard].submit(prepared.prepared(pair.heir, cancel))

    assert pair.both() == NONE


def test_many_leave_step_by_step(pair: Delaying) -> None:
    for number in range(250):
        pair.schedule(str(number), HOUR + number)
    pair.close()
    for _ in range(4):
        pair.transfer()

    assert pair.look().drained_version
    assert pair.counters(pair.heir).delayed == 250
    pair.pass_time(2 * HOUR)
    assert pair.counters(pair.heir).visible == 250


def test_those_of_which_the_clock_is_doubted_leave_too(pair: Delaying) -> None:
    pair.schedule("a", HOUR)
    pair.schedule("b", 3 * HOUR)
    state = pair.shards[0].state.queue(11)
    (first, *_) = pair.shards[0].state.rows.delayed(11, 2)
    state.doubted = ((first[0], first[1] - 1), first[:2])
    state.delayed_after = (first[0] + 1, 0)
    pair.close()
    pair.transfer()

    assert pair.look().drained_version
    assert pair.counters(pair.heir).delayed == 2
