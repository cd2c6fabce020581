"""Both ages of a queue, where the order of the queue is not that of the clock; the models compare
them at every step."""

from __future__ import annotations

import msgspec
import pytest

from cluster.tests.driver import Driver
from visibility.contract.model import QueueDefinition, Receipt
from visibility.state.ages import OldestMessages, oldest_messages
from visibility.tests import prepared
from visibility.tests.prepared import START_MS, KnownQueues

QUEUE = prepared.queue_named("q", 1)
FIFO = prepared.queue_named("f.fifo", 2)
DEAD = prepared.queue_named("dead", 3)
FAILING = prepared.queue_named("failing", 4, dead_letters_to=DEAD)


@pytest.fixture
def driver() -> Driver:
    return Driver(KnownQueues(QUEUE, FIFO, DEAD, FAILING))


def _oldest(driver: Driver, queue: QueueDefinition = QUEUE) -> OldestMessages:
    """Since the start of the story."""
    state = driver.state
    oldest = oldest_messages(state, state.queue(queue.queue_id))
    return OldestMessages(
        *(at_ms and at_ms - START_MS for at_ms in msgspec.structs.astuple(oldest))
    )


def _at(driver: Driver, at_ms: int) -> None:
    driver.pass_time(START_MS + at_ms - driver.now_ms)


def test_empty_queue_has_no_oldest_message(driver: Driver) -> None:
    driver.submit(prepared.receive(QUEUE))

    assert _oldest(driver) == OldestMessages(0, 0, 0)


def test_message_in_flight_is_stored_and_not_receivable(driver: Driver) -> None:
    for at_ms in (1_000, 2_000):
        _at(driver, at_ms)
        driver.submit(prepared.send(QUEUE, str(at_ms)))

    driver.submit(prepared.receive(QUEUE, timeout_s=30))
    assert _oldest(driver) == OldestMessages(1_000, 2_000, 1_000)

    _at(driver, 32_000)
    assert _oldest(driver) == OldestMessages(1_000, 1_000, 1_000)


def test_message_that_went_to_the_back_is_stored_and_not_the_first_to_be_received(
    driver: Driver,
) -> None:
    for at_ms in (1_000, 2_000):
        _at(driver, at_ms)
        driver.submit(prepared.send(QUEUE, str(at_ms)))

    for _ in range(3):
        driver.submit(prepared.receive(QUEUE, timeout_s=0))
    driver.submit(prepared.receive(QUEUE, timeout_s=600))  # the other one

    driver.submit(prepared.send(QUEUE, "late"))
    assert _oldest(driver) == OldestMessages(1_000, 1_000, 2_000)

    driver.submit(prepared.change(QUEUE, Receipt(2, 1), 0))
    assert _oldest(driver) == OldestMessages(1_000, 2_000, 2_000)


def test_delayed_message_is_stored_and_receivable_once_its_delay_is_over(driver: Driver) -> None:
    _at(driver, 1_000)
    driver.submit(prepared.send(QUEUE, "a", delay_s=60))
    assert _oldest(driver) == OldestMessages(1_000, 0, 1_000)

    _at(driver, 61_000)
    assert _oldest(driver) == OldestMessages(1_000, 1_000, 1_000)


def test_dead_letter_of_a_standard_queue_is_as_old_as_its_first_send(driver: Driver) -> None:
    _at(driver, 1_000)
    driver.submit(prepared.send(FAILING, "a"))
    driver.submit(prepared.receive(FAILING, timeout_s=0))
    _at(driver, 9_000)
    driver.submit(prepared.receive(FAILING, dead_letter_queue=DEAD))

    assert _oldest(driver, FAILING) == OldestMessages(0, 0, 0)
    assert _oldest(driver, DEAD) == OldestMessages(1_000, 1_000, 9_000)


def test_fifo_message_behind_one_in_flight_is_not_receivable(driver: Driver) -> None:
    for at_ms, group in ((1_000, "a"), (2_000, "a"), (3_000, "b")):
        _at(driver, at_ms)
        driver.submit(prepared.send(FIFO, str(at_ms), group=group))
    assert _oldest(driver, FIFO) == OldestMessages(1_000, 1_000, 1_000)

    driver.submit(prepared.receive(FIFO, 1, timeout_s=30))
    assert _oldest(driver, FIFO) == OldestMessages(1_000, 3_000, 1_000)

    driver.submit(prepared.receive(FIFO, 1, timeout_s=30))
    assert _oldest(driver, FIFO) == OldestMessages(1_000, 0, 1_000)


def test_behind_many_blocked_messages_the_next_group_tells_the_age(driver: Driver) -> None:
    driver.submit(prepared.send_batch(FIFO, [f"a{n}" for n in range(20)], groups=["a"] * 20))
    for at_ms in (5_000, 6_000):
        _at(driver, at_ms)
        driver.submit(prepared.send(FIFO, str(at_ms), group="b"))

    driver.submit(prepared.receive(FIFO, 1, timeout_s=30))

    assert _oldest(driver, FIFO).receivable_ms == 5_000


def test_behind_many_in_flight_after_a_restart_the_age_is_not_less_than_it_is(
    driver: Driver,
) -> None:
    driver.submit(prepared.send_batch(QUEUE, [f"a{n}" for n in range(20)]))
    _at(driver, 5_000)
    driver.submit(prepared.send(QUEUE, "last"))
    for most in (10, 10):
        driver.submit(prepared.receive(QUEUE, most, timeout_s=600))
    assert _oldest(driver).receivable_ms == 5_000

    again = driver.restarted()

    assert _oldest(again).receivable_ms <= 5_000
    again.submit(prepared.receive(QUEUE, timeout_s=0))
    assert _oldest(again).receivable_ms == 5_000


def test_messages_received_three_times_do_not_count_for_cloudwatch(driver: Driver) -> None:
    for at_ms in (1_000, 2_000, 3_000):
        _at(driver, at_ms)
        driver.submit(prepared.send(QUEUE, str(at_ms)))
        driver.submit(prepared.send(FIFO, str(at_ms), group="g"))

    for queue in (QUEUE, FIFO):
        for receives in (1, 2):
            driver.submit(prepared.receive(queue, 2, timeout_s=0))
            assert _oldest(driver, queue).unspent_ms == 1_000, receives
        driver.submit(prepared.receive(queue, 2, timeout_s=600))

        assert _oldest(driver, queue) == OldestMessages(
            1_000, 3_000 if queue is QUEUE else 0, 3_000
        )
        again = driver.restarted()
        assert _oldest(again, queue).unspent_ms == 3_000


@pytest.mark.parametrize("queue", [QUEUE, FIFO], ids=["standard", "fifo"])
@pytest.mark.parametrize("messages", [1, 16, 20])
def test_behind_many_spent_messages_the_age_for_cloudwatch_is_not_less_than_it_is(
    driver: Driver, queue: QueueDefinition, messages: int
) -> None:
    groups = [f"g{number}" if queue is FIFO else None for number in range(messages + 1)]
    for number in range(messages):
        _at(driver, 1_000 + number)
        driver.submit(prepared.send(queue, str(number), group=groups[number]))
    for begins_ms in (2_000, 32_000, 62_000):
        _at(driver, begins_ms)
        for most in (10, 10):
            driver.submit(prepared.receive(queue, most, timeout_s=30))

    assert _oldest(driver, queue).unspent_ms == (0 if messages <= 16 else 1_015)

    driver.submit(prepared.send(queue, "fresh", group=groups[-1]))
    in_memory = queue is QUEUE
    assert _oldest(driver, queue).unspent_ms == (62_000 if in_memory or messages < 16 else 1_015)
    _at(driver, 92_000)
    assert _oldest(driver, queue).unspent_ms == (62_000 if in_memory or messages < 16 else 1_015)


def test_what_came_less_what_left_is_there(driver: Driver) -> None:
    driver.submit(prepared.send_batch(FAILING, ["a", "b", "c", "d"]))
    driver.submit(prepared.send(FAILING, "e", delay_s=600))
    driver.submit(prepared.receive(FAILING, 1, timeout_s=0))  # a
    driver.submit(prepared.receive(FAILING, 3, timeout_s=600, dead_letter_queue=DEAD))  # b, c, d
    driver.submit(prepared.delete(FAILING, Receipt(2, 1)))
    driver.submit(prepared.delete(FAILING, Receipt(2, 1)))
    successor = driver.purge(DEAD)

    failing = driver.state.queue(FAILING.queue_id)
    dead = driver.state.queue(successor.queue_id)

    counts = failing.counts
    assert (counts.sent, counts.sent_bytes, counts.received) == (5, 5, 4)
    assert (counts.deleted, counts.moved_out, counts.there) == (1, 1, 3)
    assert (dead.counts.sent, dead.counts.moved_in, dead.counts.purged) == (0, 1, 1)
    assert (failing.stored, dead.stored) == (3, 0)
