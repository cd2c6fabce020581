"""Messages whose retention is over are never received, also before a pulse has removed them: a
shard may find many at once, after a failover, a stop or a sleep."""

from __future__ import annotations

import pytest

from cluster.tests.driver import Driver
from cluster.tests.row_consistency import check_rows
from visibility.content.id_digests import group_digest
from visibility.contract.model import QueueCounters, QueueDefinition
from visibility.rules.pulse import STEP_MESSAGES
from visibility.rules.pulses import PULSES_MAX
from visibility.rules.queues import QueueChanged
from visibility.rules.retention import PASSED_MAX
from visibility.state.window import PAGE_MESSAGES
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues

Q = prepared.queue_named("q", 1, VisibilityTimeout="5", MessageRetentionPeriod="60")
FIFO = prepared.queue_named("f.fifo", 2, VisibilityTimeout="5", MessageRetentionPeriod="60")
LONG = prepared.queue_named("long", 3)
DEAD = prepared.queue_named("dead", 4)
SPENT = prepared.queue_named(
    "spent", 5, dead_letters_to=DEAD, VisibilityTimeout="0", MessageRetentionPeriod="60"
)
DEAD_FIFO = prepared.queue_named("dead.fifo", 6)
SPENT_FIFO = prepared.queue_named(
    "spent.fifo", 7, dead_letters_to=DEAD_FIFO, VisibilityTimeout="0", MessageRetentionPeriod="60"
)
QUEUES = (Q, FIFO, LONG, DEAD, SPENT, DEAD_FIFO, SPENT_FIFO)
MANY = STEP_MESSAGES + 2 * PAGE_MESSAGES + 3
BOTH = pytest.mark.parametrize("queue", [Q, FIFO], ids=["standard", "fifo"])
TRUST = pytest.mark.parametrize("is_trusted", [True, False], ids=["trusted", "not-trusted"])


@pytest.fixture
def driver() -> Driver:
    return Driver(KnownQueues(*QUEUES))


def send(driver: Driver, queue: QueueDefinition, *bodies: str, group: str = "g") -> None:
    is_fifo = queue.settings.fifo
    driver.turn([prepared.send(queue, body, group=group if is_fifo else None) for body in bodies])


def sleep(driver: Driver, seconds: float, *, is_trusted: bool = True) -> None:
    """Let time pass without a Turn; a clock that is not trusted stops retention where it was."""
    if not is_trusted:
        driver.trusted_ms = driver.now_ms
    driver.now_ms += round(seconds * 1000)


def received(driver: Driver, queue: QueueDefinition, most: int = 10) -> list[str]:
    target = driver.queues.dead_letter_queue(queue)
    bodies = driver.submit(prepared.receive(queue, most, dead_letter_queue=target)).bodies
    check_rows(driver.store, driver.state)
    return bodies


def counted(driver: Driver, queue: QueueDefinition) -> QueueCounters:
    answer = driver.submit(prepared.counters(queue)).answer
    assert isinstance(answer, QueueCounters)
    return answer


@TRUST
@BOTH
def test_a_receive_passes_by_more_than_a_pulse_removes(
    driver: Driver, queue: QueueDefinition, is_trusted: bool
) -> None:
    send(driver, queue, *[f"old {number}" for number in range(MANY)])
    sleep(driver, 50)
    send(driver, queue, "new 1", "new 2")
    sleep(driver, 20, is_trusted=is_trusted)

    assert received(driver, queue, 1) == ["new 1"], "a group does not wait for what is too old"
    driver.now_ms += 5_000
    assert received(driver, queue, 10) == ["new 1", "new 2"]
    assert received(driver, queue, 10) == []


def test_a_line_of_any_length_is_passed_by_while_the_clock_is_not_trusted(driver: Driver) -> None:
    for first in range(0, 3 * PASSED_MAX, 500):
        send(driver, Q, *[f"old {first + number}" for number in range(500)])
    sleep(driver, 50)
    send(driver, Q, *[f"new {number}" for number in range(300)])
    sleep(driver, 20, is_trusted=False)

    found = [body for _ in range(31) for body in received(driver, Q)]

    assert found == [f"new {number}" for number in range(300)]
    assert counted(driver, Q) == QueueCounters(3 * PASSED_MAX, 300, 0), "none is removed yet"
    driver.trusted_ms = 0
    driver.pass_time(60_000)
    assert counted(driver, Q) == QueueCounters(0, 0, 0)


def test_what_a_longer_retention_keeps_is_received_again(driver: Driver) -> None:
    send(driver, Q, *[f"old {number}" for number in range(20)])
    sleep(driver, 70, is_trusted=False)
    assert received(driver, Q) == []

    changed = prepared.queue_named("q", 1, VisibilityTimeout="5", MessageRetentionPeriod="600")
    driver.queues.define(changed)
    driver.submit(prepared.prepared(changed, QueueChanged()))

    assert received(driver, changed, 10) == [f"old {number}" for number in range(10)]
    assert received(driver, changed, 10) == [f"old {number}" for number in range(10, 20)]


def test_what_is_passed_by_is_found_after_a_restart(driver: Driver) -> None:
    send(driver, Q, *[f"old {number}" for number in range(20)])
    sleep(driver, 50)
    send(driver, Q, "new 1", "new 2")
    sleep(driver, 20, is_trusted=False)
    assert received(driver, Q, 1) == ["new 1"]

    again = driver.restarted(passed_ms=5_000)

    assert received(again, Q) == ["new 1", "new 2"]
    assert counted(again, Q) == QueueCounters(0, 2, 0)


@TRUST
def test_more_queues_than_a_turn_has_pulses(is_trusted: bool) -> None:
    queues = [
        prepared.queue_named(f"q{number}", number, MessageRetentionPeriod="60")
        for number in range(1, PULSES_MAX + 50)
    ]
    driver = Driver(KnownQueues(*queues))
    for queue in queues:
        send(driver, queue, "old")
    sleep(driver, 61, is_trusted=is_trusted)

    replies = driver.turn([prepared.receive(queue) for queue in queues])

    assert not any(reply.deliveries.leases for reply in replies)


@TRUST
@BOTH
def test_a_message_that_was_received_before(
    driver: Driver, queue: QueueDefinition, is_trusted: bool
) -> None:
    send(driver, queue, *[f"old {number}" for number in range(5)])
    assert len(received(driver, queue)) == 5
    driver.pass_time(6_000)
    sleep(driver, 44)
    send(driver, queue, "new")
    sleep(driver, 11, is_trusted=is_trusted)

    assert received(driver, queue) == ["new"]


@TRUST
def test_a_noisy_group(driver: Driver, is_trusted: bool) -> None:
    for group in ("loud", "quiet"):
        driver.turn([prepared.send(Q, f"old {group}", group=group) for _ in range(50)])
    for _ in range(4):
        driver.submit(prepared.receive(Q, 10, timeout_s=43_200))
    sleep(driver, 50)
    driver.turn([prepared.send(Q, "new", group="quiet")])
    sleep(driver, 20, is_trusted=is_trusted)
    loud = group_digest("loud")
    driver.state.queue(1).fairness.noisy[loud] = driver.now_ms + 60_000

    assert received(driver, Q) == ["new"]


@TRUST
def test_messages_out_of_order_of_age(driver: Driver, is_trusted: bool) -> None:
    driver.turn([prepared.send(Q, f"late {number}", delay_s=40) for number in range(3)])
    driver.pass_time(30_000)
    send(driver, Q, "new")
    driver.pass_time(10_000)
    sleep(driver, 25, is_trusted=is_trusted)

    assert received(driver, Q) == ["new"]


@TRUST
@pytest.mark.parametrize(
    ("queue", "dead"), [(SPENT, DEAD), (SPENT_FIFO, DEAD_FIFO)], ids=["standard", "fifo"]
)
def test_it_does_not_become_a_dead_letter(
    driver: Driver, queue: QueueDefinition, dead: QueueDefinition, is_trusted: bool
) -> None:
    send(driver, queue, *["old"] * 5)
    for _ in range(5):
        received(driver, queue)
    before = counted(driver, dead)
    send(driver, queue, *[f"old {number}" for number in range(MANY)], group="h")
    received(driver, queue, 10)
    sleep(driver, 61, is_trusted=is_trusted)

    assert received(driver, queue) == []
    assert counted(driver, dead) == before


@TRUST
def test_a_move_task_leaves_it(driver: Driver, is_trusted: bool) -> None:
    dead = prepared.queue_named("dead", 4, MessageRetentionPeriod="60")
    driver.queues.define(dead)
    send(driver, dead, *[f"old {number}" for number in range(MANY)])
    sleep(driver, 50)
    send(driver, dead, "new")
    sleep(driver, 20, is_trusted=is_trusted)

    driver.submit(prepared.start_move_task(dead, LONG))
    driver.pass_time(2_000)

    assert received(driver, LONG) == ["new"]


@TRUST
@BOTH
def test_a_long_poll_waits_for_a_message_that_is_not_too_old(
    driver: Driver, queue: QueueDefinition, is_trusted: bool
) -> None:
    send(driver, queue, *[f"old {number}" for number in range(MANY)])
    sleep(driver, 61, is_trusted=is_trusted)

    (poll,) = driver.turn([prepared.receive(queue, 10, wait_s=20)])
    assert poll.waits
    send(driver, queue, "new")

    assert [message.data for message in poll.deliveries.messages] == [b"new"]


def test_a_repeated_attempt_does_not_bring_it_back(driver: Driver) -> None:
    send(driver, FIFO, "old")
    sleep(driver, 55)
    attempt = prepared.receive(FIFO, 10, timeout_s=30, attempt="a")
    assert len(driver.submit(attempt).deliveries.leases) == 1
    sleep(driver, 6, is_trusted=False)

    assert not driver.submit(attempt).deliveries.leases
