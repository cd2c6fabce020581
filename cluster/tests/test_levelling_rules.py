"""Load levelling: limits of what consumers take, and refusals that slow producers down."""

from __future__ import annotations

import msgspec
import pytest

from cluster.tests.driver import Driver, Reply
from cluster.tests.one_queue import OneQueue
from visibility.contract.errors import RequestThrottled
from visibility.contract.levelling_tags import is_throttled, keeps_whole
from visibility.contract.model import QueueCounters, Receipt
from visibility.contract.queue_parts import Part
from visibility.rules.hold_messages import HoldMessages, ReleaseMessages
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues


class Levelled(OneQueue):
    """A queue with these tags."""

    def __init__(self, tags: dict[str, str], suffix: str = "", hidden_s: int = 30) -> None:
        self.queue = prepared.queue_named(
            "q" + suffix, 1, tags=tags, VisibilityTimeout=str(hidden_s)
        )
        self.suffix = suffix
        self.driver = Driver(KnownQueues(self.queue))

    def send(self, messages: int) -> None:
        """Send messages, of a group each in a FIFO queue."""
        for number in range(messages):
            assert self.tried(str(number)).refusal is None

    def tried(self, body: str, request_id: str = "") -> Reply:
        """Send a message."""
        group = body if self.suffix else None
        request = prepared.send(self.queue, body, group=group, deduplication_id=group)
        if request_id:
            request = msgspec.structs.replace(request, request_id=request_id)
        return self.driver.submit(request)

    def receive(self, most: int = 10, *, wait_s: int = 0) -> Reply:
        """Receive, or begin to wait."""
        return self.driver.submit(prepared.receive(self.queue, most, wait_s=wait_s))

    def taken(self, most: int = 10) -> list[Receipt]:
        """The receipts of what a short receive gets."""
        leases = self.receive(most).deliveries.leases
        return [Receipt(lease.sequence, lease.receive_count) for lease in leases]

    def retag(self, tags: dict[str, str]) -> None:
        """Change the queue's tags."""
        changed = prepared.queue_named("q" + self.suffix, 1, tags=tags, VisibilityTimeout="30")
        self.queue = self.driver.queues.define(changed)


FIFO = pytest.mark.parametrize("suffix", ["", ".fifo"], ids=["standard", "fifo"])


# -- messages in flight ----------------------------------------------------------------------------


@FIFO
def test_no_more_messages_are_in_flight_than_the_tag_allows(suffix: str) -> None:
    levelled = Levelled({"holdfast:max-in-flight": "3"}, suffix)
    levelled.send(10)

    receipts = levelled.taken(2) + levelled.taken()
    empty = levelled.receive().deliveries

    assert len(receipts) == 3
    assert (empty.leases, empty.is_limited) == ([], True)
    assert levelled.counts() == QueueCounters(7, 3, 0)
    levelled.driver.submit(prepared.delete(levelled.queue, receipts[0]))
    assert len(levelled.taken()) == 1


@FIFO
def test_a_free_slot_wakes_one_poll_at_once(suffix: str) -> None:
    levelled = Levelled({"holdfast:max-in-flight": "1"}, suffix)
    levelled.send(3)
    (receipt,) = levelled.taken()
    first, second = levelled.receive(wait_s=20), levelled.receive(wait_s=20)
    levelled.driver.pass_time(5_000)
    assert first.waits
    assert second.waits

    levelled.driver.submit(prepared.delete(levelled.queue, receipt))

    assert len(first.deliveries.leases) == 1
    assert second.waits


@FIFO
def test_the_end_of_a_lease_gives_its_slot_to_a_poll(suffix: str) -> None:
    levelled = Levelled({"holdfast:max-in-flight": "1"}, suffix, hidden_s=5)
    levelled.send(2)
    levelled.taken()
    poll = levelled.receive(wait_s=20)

    levelled.driver.pass_time(4_999)
    assert poll.waits
    levelled.driver.pass_time(1)

    assert [lease.receive_count for lease in poll.deliveries.leases] in ([1], [2])


def test_a_poll_that_ends_without_a_slot_is_no_error_and_is_told_apart() -> None:
    levelled = Levelled({"holdfast:max-in-flight": "1"})
    levelled.send(2)
    levelled.taken()
    limited, other = levelled.receive(wait_s=2), Levelled({"holdfast:max-in-flight": "1"})
    empty = other.receive(wait_s=2)

    levelled.driver.pass_time(2_000)
    other.driver.pass_time(2_000)

    assert (limited.deliveries.leases, limited.deliveries.is_limited) == ([], True)
    assert (empty.deliveries.leases, empty.deliveries.is_limited) == ([], False)


def test_an_empty_queue_is_empty_and_not_limited() -> None:
    levelled = Levelled({"holdfast:receive-rate": "1"})
    levelled.send(1)
    levelled.taken()

    assert not levelled.receive().deliveries.is_limited


def test_a_message_that_an_operator_holds_has_no_slot() -> None:
    levelled = Levelled({"holdfast:max-in-flight": "1"})
    levelled.send(3)
    levelled.driver.submit(prepared.prepared(levelled.queue, HoldMessages([1])))

    assert [receipt.sequence for receipt in levelled.taken()] == [2]
    assert levelled.taken() == []
    levelled.driver.submit(prepared.prepared(levelled.queue, ReleaseMessages([1])))
    assert levelled.taken() == []


def test_a_message_that_waits_for_its_retry_has_no_slot() -> None:
    tags = {"holdfast:max-in-flight": "1", "holdfast:retry-min": "60"}
    levelled = Levelled(tags, hidden_s=10)
    levelled.send(2)
    assert [receipt.sequence for receipt in levelled.taken()] == [1]
    assert levelled.taken() == []
    levelled.driver.pass_time(10_000)

    assert [receipt.sequence for receipt in levelled.taken()] == [2]


def test_a_restart_keeps_the_slots_taken() -> None:
    levelled = Levelled({"holdfast:max-in-flight": "2"})
    levelled.send(3)
    assert len(levelled.taken()) == 2
    driver = levelled.driver
    levelled.driver = driver.restarted()

    assert levelled.taken() == []


def test_a_higher_limit_is_noticed_by_polls_that_wait() -> None:
    levelled = Levelled({"holdfast:max-in-flight": "1"})
    levelled.send(3)
    levelled.taken()
    poll = levelled.receive(wait_s=20)

    levelled.retag({"holdfast:max-in-flight": "3"})
    levelled.driver.pass_time(1_000)

    assert len(poll.deliveries.leases) == 2


# -- messages a second -----------------------------------------------------------------------------


@FIFO
def test_a_rate_hands_out_one_message_after_the_other(suffix: str) -> None:
    levelled = Levelled({"holdfast:receive-rate": "5"}, suffix)
    levelled.send(40)
    assert len(levelled.taken()) == 1, "a leader begins with one, not with a burst"
    assert levelled.receive().deliveries.is_limited

    taken = 0
    for _ in range(40):
        levelled.driver.pass_time(100)
        taken += len(levelled.taken())

    assert taken == 20


def test_after_a_pause_a_second_of_messages_is_there_at_once() -> None:
    levelled = Levelled({"holdfast:receive-rate": "5"})
    levelled.send(20)
    levelled.taken()
    levelled.driver.pass_time(60_000)

    assert len(levelled.taken()) == 5
    assert levelled.taken() == []


def test_a_long_poll_gets_the_next_message_when_it_is_its_turn() -> None:
    levelled = Levelled({"holdfast:receive-rate": "4"})
    levelled.send(3)
    levelled.taken()
    first, second = levelled.receive(wait_s=20), levelled.receive(wait_s=20)

    levelled.driver.pass_time(249)
    assert first.waits
    levelled.driver.pass_time(1)
    assert len(first.deliveries.leases) == 1
    assert second.waits
    levelled.driver.pass_time(250)
    assert len(second.deliveries.leases) == 1


def test_what_could_not_be_delivered_does_not_count() -> None:
    levelled = Levelled({"holdfast:receive-rate": "1"})
    levelled.send(2)
    receipts = levelled.taken()

    levelled.driver.submit(prepared.give_back(levelled.queue, receipts))

    assert len(levelled.taken()) == 1
    assert levelled.taken() == []


def test_a_dead_letter_takes_no_turn() -> None:
    dead = prepared.queue_named("dead", 2)
    tags = {"holdfast:receive-rate": "1"}
    queue = prepared.queue_named(
        "q", 1, tags=tags, VisibilityTimeout="0", dead_letters_to=dead, max_receive_count=1
    )
    levelled = Levelled(tags)
    levelled.queue, levelled.driver = queue, Driver(KnownQueues(queue, dead))
    levelled.send(2)
    request = prepared.receive(queue, 1, dead_letter_queue=dead)
    assert len(levelled.driver.submit(request).deliveries.leases) == 1
    levelled.driver.pass_time(1_000)

    assert len(levelled.driver.submit(request).deliveries.leases) == 1, "the other message"


def test_a_failover_is_no_second_burst() -> None:
    levelled = Levelled({"holdfast:receive-rate": "100"})
    levelled.send(30)
    levelled.taken(1)
    levelled.driver.pass_time(60_000)
    assert len(levelled.taken()) == 10
    driver = levelled.driver
    levelled.driver = driver.restarted()

    assert len(levelled.taken()) == 1


# -- sends -----------------------------------------------------------------------------------------


@FIFO
def test_sends_are_refused_gradually_up_to_the_depth(suffix: str) -> None:
    levelled = Levelled({"holdfast:throttle-depth": "100"}, suffix)
    levelled.send(80)
    refused = [
        isinstance(levelled.tried(f"{number}x", f"request-{number}").refusal, RequestThrottled)
        for number in range(400)
    ]

    accepted = refused.count(False)
    assert accepted == 20, "never more than the depth"
    assert refused[:8] != [True] * 8, "the first are mostly accepted"
    assert all(refused[-50:])


def test_a_duplicate_of_an_accepted_message_is_not_refused() -> None:
    levelled = Levelled({"holdfast:throttle-depth": "2"}, ".fifo")
    levelled.send(2)

    assert levelled.tried("1").refusal is None
    assert isinstance(levelled.tried("2").refusal, RequestThrottled)


def test_a_whole_batch_is_refused() -> None:
    levelled = Levelled({"holdfast:throttle-depth": "2"})
    levelled.send(2)

    reply = levelled.driver.submit(prepared.send_batch(levelled.queue, ["a", "b"]))

    assert isinstance(reply.refusal, RequestThrottled)
    assert reply.refusal.message == (
        "The queue has too many messages waiting for consumers (tag holdfast:throttle-depth)."
    )
    assert levelled.counts() == QueueCounters(2, 0, 0)


def test_a_batch_that_does_not_fit_either_is_refused_as_throttled() -> None:
    levelled = Levelled({"holdfast:throttle-depth": "2", "holdfast:max-messages": "2"})
    levelled.send(2)

    reply = levelled.driver.submit(prepared.send_batch(levelled.queue, ["a", "b"]))

    assert isinstance(reply.refusal, RequestThrottled)


def test_delayed_messages_and_those_in_flight_are_not_waiting() -> None:
    levelled = Levelled({"holdfast:throttle-depth": "1"})
    levelled.driver.submit(prepared.send(levelled.queue, "later", delay_s=600))
    assert levelled.tried("now").refusal is None
    assert levelled.tried("refused").refusal is not None
    assert len(levelled.taken()) == 1

    assert levelled.tried("again").refusal is None


@FIFO
def test_sends_are_refused_once_the_oldest_is_too_old(suffix: str) -> None:
    levelled = Levelled({"holdfast:throttle-age": "60"}, suffix)
    levelled.send(1)
    levelled.driver.pass_time(47_000)
    assert levelled.tried("young").refusal is None
    levelled.driver.pass_time(13_000)
    assert isinstance(levelled.tried("old").refusal, RequestThrottled)

    for receipt in levelled.taken():
        levelled.driver.submit(prepared.delete(levelled.queue, receipt))

    assert levelled.tried("new").refusal is None


def test_what_nobody_may_receive_is_not_too_old() -> None:
    levelled = Levelled({"holdfast:throttle-age": "60", "holdfast:retry-min": "600"})
    levelled.send(2)
    later = levelled.driver.now_ms + 500_000
    levelled.driver.submit(prepared.send(levelled.queue, "scheduled", at_ms=later))
    levelled.driver.submit(prepared.prepared(levelled.queue, HoldMessages([1])))
    levelled.taken()  # the second one waits for its retry, the first one for its operator
    levelled.driver.pass_time(300_000)

    assert levelled.tried("new").refusal is None
    levelled.driver.submit(prepared.prepared(levelled.queue, ReleaseMessages([1])))
    assert isinstance(levelled.tried("newer").refusal, RequestThrottled)


def test_what_comes_from_another_queue_is_not_refused() -> None:
    source = prepared.queue_named("source", 2)
    levelled = Levelled({"holdfast:throttle-depth": "1"})
    levelled.driver.queues.define(source)
    for body in "ab":
        levelled.driver.submit(prepared.send(source, body))
    levelled.send(1)
    assert levelled.tried("full").refusal is not None

    levelled.driver.submit(prepared.start_move_task(source, levelled.queue))
    levelled.driver.pass_time(1_000)

    assert levelled.counts() == QueueCounters(3, 0, 0)


def test_the_same_request_gets_the_same_answer() -> None:
    ids = [f"request-{number}" for number in range(1_000)]
    first = [is_throttled(90, 100, each) for each in ids]
    assert first == [is_throttled(90, 100, each) for each in ids]
    assert 400 < first.count(True) < 600


# -- parts -----------------------------------------------------------------------------------------


def test_small_limits_keep_a_queue_whole() -> None:
    assert keeps_whole({"holdfast:receive-rate": "100", "holdfast:max-in-flight": "1000"}) is None
    assert keeps_whole({"holdfast:receive-rate": "99"}) == "tag holdfast:receive-rate is below 100"
    assert keeps_whole({"holdfast:max-in-flight": "1"}) is not None


def test_a_part_has_its_share_of_a_limit() -> None:
    tags = {"holdfast:max-in-flight": "1000", "holdfast:throttle-depth": "20"}
    levelled = Levelled(tags)
    parts = (Part(0, 1, 0), Part(16, 2, 0))
    levelled.queue = levelled.driver.queues.define(
        msgspec.structs.replace(levelled.queue, parts=parts)
    )
    levelled.send(8)
    refused = [levelled.tried(str(each), str(each)).refusal is not None for each in range(30)]

    assert refused.count(False) == 2
