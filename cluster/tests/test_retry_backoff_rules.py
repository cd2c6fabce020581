"""Retry back-off: a message that becomes visible again waits, twice as long each time."""

from __future__ import annotations

import pytest

from cluster.tests.driver import Driver
from cluster.tests.one_queue import OneQueue
from visibility.contract.attributes import checked_tags
from visibility.contract.errors import InvalidParameterValue
from visibility.contract.model import QueueCounters, Receipt
from visibility.contract.retry_backoff import retry_wait_ms
from visibility.rules.hold_messages import HoldMessages, ReleaseMessages
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues

TAGS = {"holdfast:retry-min": "10", "holdfast:retry-max": "60"}
VISIBLE, IN_FLIGHT, WAITING = QueueCounters(1, 0, 0), QueueCounters(0, 1, 0), QueueCounters(0, 0, 1)
EXPIRED = "The receipt handle has expired."


class Consumer(OneQueue):
    """A consumer of one queue with a visibility timeout of 5 seconds, who fails."""

    def __init__(self, suffix: str = "", *, max_receive_count: int = 0) -> None:
        dead = prepared.queue_named("dead" + suffix, 2)
        self.dead = dead
        self.queue = prepared.queue_named(
            "q" + suffix,
            1,
            tags=TAGS,
            VisibilityTimeout="5",
            dead_letters_to=dead if max_receive_count else None,
            max_receive_count=max_receive_count,
        )
        self.is_fifo = bool(suffix)
        self.driver = Driver(KnownQueues(self.queue, dead))

    def send(self, *bodies: str) -> None:
        """Send messages; in a FIFO queue the group is the first letter."""
        for body in bodies:
            group = body[0] if self.is_fifo else None
            self.driver.submit(
                prepared.send(self.queue, body, group=group, deduplication_id=body)
                if self.is_fifo
                else prepared.send(self.queue, body)
            )

    def receive(self, most: int = 10, *, timeout_s: int | None = None) -> list[Receipt]:
        """The receipts of what can be received."""
        dead = self.dead if self.queue.settings.redrive_policy else None
        request = prepared.receive(self.queue, most, timeout_s=timeout_s, dead_letter_queue=dead)
        leases = self.driver.submit(request).deliveries.leases
        return [Receipt(lease.sequence, lease.receive_count) for lease in leases]

    def waited_ms(self, receipts: int = 1) -> int:
        """The time until so many messages can be received again, which they then are."""
        for second in range(1, 61):
            self.driver.pass_time(1000)
            if self.counts().visible >= receipts:
                assert len(self.receive()) == receipts
                return second * 1000
            assert not self.receive()
        raise AssertionError("none comes back within a minute")


@pytest.fixture(params=["", ".fifo"], ids=["standard", "fifo"])
def consumer(request: pytest.FixtureRequest) -> Consumer:
    return Consumer(request.param)


def test_each_wait_is_twice_as_long_up_to_the_most(consumer: Consumer) -> None:
    consumer.send("a")
    assert consumer.receive()
    assert consumer.counts() == IN_FLIGHT

    for low_s, high_s in ((10, 12.5), (20, 25), (40, 50), (48, 60), (48, 60)):
        consumer.driver.pass_time(4_999)
        assert consumer.counts() == IN_FLIGHT
        consumer.driver.pass_time(1)
        assert consumer.counts() == WAITING
        assert low_s * 1000 <= consumer.waited_ms() <= high_s * 1000 + 1000


def test_the_end_of_a_wait_answers_a_long_poll(consumer: Consumer) -> None:
    consumer.send("a")
    consumer.receive()
    consumer.driver.pass_time(5_000)
    poll = consumer.driver.submit(prepared.receive(consumer.queue, wait_s=20))

    consumer.driver.pass_time(9_999)
    assert poll.answers == []
    consumer.driver.pass_time(2_501)

    assert len(poll.deliveries.leases) == 1


def test_a_group_waits_with_its_message_and_others_do_not() -> None:
    consumer = Consumer(".fifo")
    consumer.send("a1", "a2", "b1")
    assert len(consumer.receive(1)) == 1
    consumer.driver.pass_time(5_000)

    assert consumer.counts() == QueueCounters(2, 0, 1)
    (other,) = consumer.receive()
    consumer.driver.submit(prepared.delete(consumer.queue, other))
    assert consumer.waited_ms(2) >= 10_000, "both of the group, in order"


@pytest.mark.parametrize("first", [None, 0])
def test_a_visibility_timeout_of_0_begins_the_wait(consumer: Consumer, first: int | None) -> None:
    consumer.send("a")
    (receipt,) = consumer.receive(timeout_s=first)
    if first is None:
        consumer.driver.pass_time(2_000)
        changed = consumer.driver.submit(prepared.change(consumer.queue, receipt, 0))
        assert changed.answer is None

    assert consumer.counts() == WAITING
    assert 10_000 <= consumer.waited_ms() <= 13_500


def test_a_longer_visibility_timeout_is_followed_by_the_wait(consumer: Consumer) -> None:
    consumer.send("a")
    (receipt,) = consumer.receive()
    consumer.driver.submit(prepared.change(consumer.queue, receipt, 30))

    consumer.driver.pass_time(29_999)
    assert consumer.counts() == IN_FLIGHT
    consumer.driver.pass_time(1)
    assert consumer.counts() == WAITING
    assert consumer.waited_ms() >= 10_000


def test_a_handle_is_then_that_of_a_visible_message(consumer: Consumer) -> None:
    consumer.send("a")
    (receipt,) = consumer.receive()
    consumer.driver.pass_time(5_000)

    changed = consumer.driver.submit(prepared.change(consumer.queue, receipt, 0))
    deleted = consumer.driver.submit(prepared.delete(consumer.queue, receipt))

    if consumer.is_fifo:
        assert isinstance(changed.refusal, InvalidParameterValue)
        assert isinstance(deleted.refusal, InvalidParameterValue)
        assert deleted.refusal.message.endswith(EXPIRED)
        assert consumer.counts() == WAITING
    else:
        assert (changed.answer, deleted.answer) == (None, None)
        assert consumer.counts() == QueueCounters(0, 0, 0)


def test_what_becomes_a_dead_letter_next_does_not_wait() -> None:
    for suffix in ("", ".fifo"):
        consumer = Consumer(suffix, max_receive_count=2)
        consumer.send("a")
        consumer.receive()
        consumer.driver.pass_time(5_000)
        assert consumer.counts() == WAITING
        assert consumer.waited_ms() >= 10_000
        consumer.driver.pass_time(5_000)

        assert not consumer.receive()
        assert consumer.counts(consumer.dead) == VISIBLE


def test_a_restart_keeps_the_wait_and_its_end(consumer: Consumer) -> None:
    consumer.send("a")
    consumer.receive()
    consumer.driver.pass_time(4_000)
    consumer.restart()
    assert consumer.counts() == IN_FLIGHT
    (end_ms,) = [
        entry.lease.receivable_at_ms
        for entry in consumer.driver.state.queue(consumer.queue.queue_id).entries.values()
    ]
    consumer.driver.pass_time(3_000)
    consumer.restart()

    assert consumer.counts() == WAITING
    consumer.driver.pass_time(end_ms - consumer.driver.now_ms - 1)
    assert consumer.counts() == WAITING
    consumer.driver.pass_time(1)
    assert consumer.counts() == VISIBLE


def test_a_receive_that_nobody_got_is_no_reason_to_wait(consumer: Consumer) -> None:
    consumer.send("a")
    receipts = consumer.receive()

    consumer.driver.submit(prepared.give_back(consumer.queue, receipts))

    assert consumer.counts() == VISIBLE
    consumer.receive()
    consumer.driver.pass_time(5_000)
    assert 10_000 <= consumer.waited_ms() <= 13_500, "the first receive"


def test_an_operator_lets_a_message_go_at_once(consumer: Consumer) -> None:
    consumer.send("a")
    consumer.receive()
    consumer.driver.pass_time(20_000)
    assert consumer.counts() == VISIBLE
    held = consumer.driver.submit(prepared.prepared(consumer.queue, HoldMessages([1])))
    assert held.answer is not None
    consumer.driver.pass_time(60_000)
    consumer.driver.submit(prepared.prepared(consumer.queue, ReleaseMessages([1])))

    assert consumer.counts() == VISIBLE


def test_messages_that_fail_together_do_not_come_back_together() -> None:
    consumer = Consumer()
    consumer.send(*map(str, range(10)))
    assert len(consumer.receive()) == 10

    entries = consumer.driver.state.queue(consumer.queue.queue_id).entries.values()

    assert len({entry.lease.retry_ms for entry in entries}) > 1


def test_the_wait_is_within_its_bounds_for_any_chance() -> None:
    for receives in (1, 2, 3, 4, 50, 100_000):
        low_ms = min(10_000 << min(receives - 1, 20), 48_000)
        waits = [retry_wait_ms(TAGS, receives, chance) for chance in range(0, 1 << 20, 997)]
        assert low_ms <= min(waits) < max(waits) <= min(low_ms * 5 // 4, 60_000)
    assert retry_wait_ms({"holdfast:retry-min": "7", "holdfast:retry-max": "7"}, 9, 5) == 7_000
    assert 720_000 <= retry_wait_ms({"holdfast:retry-min": "7"}, 50, 5) <= 900_000
    assert retry_wait_ms({"holdfast:retry-max": "7"}, 1, 5) == 0


@pytest.mark.parametrize(
    ("before", "given", "reason"),
    [
        ({}, {"holdfast:retry-min": "0"}, "Valid values are: whole numbers from 1 to 43200."),
        ({}, {"holdfast:retry-min": "1.5"}, "Valid values are: whole numbers from 1 to 43200."),
        (TAGS, {"holdfast:retry-max": "43201"}, "whole numbers from 1 to 43200."),
        ({}, {"holdfast:retry-max": "60"}, "Tag holdfast:retry-max needs tag holdfast:retry-min."),
        (
            {},
            {"holdfast:retry-min": "61", "holdfast:retry-max": "60"},
            "Value 60 for tag holdfast:retry-max is invalid. It is below that of tag "
            "holdfast:retry-min, 61.",
        ),
        (
            TAGS,
            {"holdfast:retry-min": "100"},
            "Value 60 for tag holdfast:retry-max is invalid. It is below that of tag "
            "holdfast:retry-min, 100.",
        ),
    ],
)
def test_tags_that_make_no_sense_are_refused(
    before: dict[str, str], given: dict[str, str], reason: str
) -> None:
    with pytest.raises(InvalidParameterValue) as refusal:
        checked_tags("q", before, given)
    assert refusal.value.message.endswith(reason)


def test_a_dead_letter_waits_for_its_receives_in_its_own_queue() -> None:
    end = prepared.queue_named("end", 3)
    letters = prepared.queue_named(
        "letters", 2, tags=TAGS, VisibilityTimeout="5", dead_letters_to=end, max_receive_count=3
    )
    consumer = Consumer()
    consumer.queue, consumer.dead = (
        prepared.queue_named(
            "q", 1, VisibilityTimeout="0", dead_letters_to=letters, max_receive_count=2
        ),
        letters,
    )
    consumer.driver = Driver(KnownQueues(consumer.queue, letters, end))
    consumer.send("a")
    assert [bool(consumer.receive()) for _ in range(3)] == [True, True, False]
    consumer.queue, consumer.dead = letters, end

    assert consumer.receive()
    assert 15_000 <= consumer.waited_ms() <= 18_000
    assert 25_000 <= consumer.waited_ms() <= 30_000
    consumer.driver.pass_time(5_000)
    assert consumer.counts() == VISIBLE, "its next receive makes a dead letter of it"
