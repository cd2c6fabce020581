"""Scheduled messages: delivered at their time, kept over restarts and restores, changed by
operators."""

from __future__ import annotations

import msgspec
import pytest

from cluster.tests.driver import Driver, loaded
from cluster.tests.one_queue import OneQueue
from visibility.contract import schedule
from visibility.contract.errors import InvalidParameterValue, OverLimit
from visibility.contract.limits import DAY
from visibility.contract.model import QueueCounters, QueueDefinition
from visibility.contract.outcomes import BrowsedPage, SelectedChanged
from visibility.rules import collected_sends, schedules
from visibility.rules.browse import BrowseMessages
from visibility.rules.resend import ResendMessage
from visibility.rules.schedules import ChangeSchedule
from visibility.state.ages import oldest_messages
from visibility.tests import prepared
from visibility.tests.prepared import START_MS, KnownQueues

HOUR = 3_600_000
MONTH = 30 * DAY * 1000
TAGS = {"holdfast:deliver-at": "on"}


class Scheduling(OneQueue):
    """A queue whose messages may be scheduled, with a retention of a minute."""

    def __init__(self, name: str = "q", delay_s: int = 0) -> None:
        self.queue = prepared.queue_named(
            name, 1, tags=TAGS, MessageRetentionPeriod="60", DelaySeconds=str(delay_s)
        )
        self.driver = Driver(KnownQueues(self.queue))

    def send(self, body: str, at_ms: int = 0, **given: object) -> None:
        """Send a message to be delivered then."""
        request = prepared.send(self.queue, body, at_ms=at_ms, **given)  # type: ignore[arg-type]
        assert self.driver.submit(request).refusal is None

    def received(self) -> list[str]:
        """The bodies that a receive gets."""
        return self.driver.submit(prepared.receive(self.queue, 10)).bodies

    def places(self) -> list[tuple[int, int]]:
        """The delayed messages, (due_ms, sequence)."""
        page = self.driver.submit(prepared.prepared(self.queue, BrowseMessages(delayed=True)))
        assert isinstance(page.answer, BrowsedPage)
        return [(each.due_ms, each.sequence) for each in page.answer.messages]

    def change(self, *places: tuple[int, int], at_ms: int = 0) -> tuple[int, int]:
        """Reschedule or cancel messages; how many were changed and kept."""
        operation = ChangeSchedule(list(places), at_ms)
        answer = self.driver.submit(prepared.prepared(self.queue, operation)).answer
        assert isinstance(answer, SelectedChanged)
        return answer.changed, answer.kept


# -- delivery --------------------------------------------------------------------------------------


def test_a_message_is_delivered_at_its_time_and_retained_from_then() -> None:
    scheduling = Scheduling()
    scheduling.send("later", START_MS + MONTH)

    assert scheduling.counts() == QueueCounters(0, 0, 1)
    scheduling.driver.pass_time(MONTH - 1)
    assert scheduling.received() == []
    scheduling.driver.pass_time(1)
    assert scheduling.counts() == QueueCounters(1, 0, 0)
    scheduling.driver.pass_time(59_000)
    assert scheduling.received() == ["later"]
    scheduling.driver.pass_time(2_000)
    assert scheduling.counts() == QueueCounters(0, 0, 0)


def test_a_time_that_is_over_means_now_whatever_the_delay_of_the_queue() -> None:
    scheduling = Scheduling(delay_s=900)

    scheduling.send("late", START_MS - 1)
    scheduling.send("soon", START_MS + 1_000)

    assert scheduling.received() == ["late"]
    scheduling.driver.pass_time(1_000)
    assert scheduling.received() == ["soon"]


def test_messages_come_in_the_order_of_their_times_beside_delayed_ones() -> None:
    scheduling = Scheduling()
    scheduling.send("third", START_MS + 3_000)
    scheduling.send("first", START_MS + 1_000)
    scheduling.send("second", delay_s=2)
    scheduling.send("tenant", START_MS + 4_000, group="g")

    scheduling.driver.pass_time(4_000)

    assert scheduling.received() == ["first", "second", "third", "tenant"]


def test_a_restart_keeps_schedules_and_what_was_due_meanwhile_comes_late_and_once() -> None:
    scheduling = Scheduling()
    scheduling.send("missed", START_MS + HOUR)
    scheduling.send("later", START_MS + 3 * HOUR)
    scheduling.driver.now_ms += 2 * HOUR

    scheduling.restart()

    assert scheduling.received() == ["missed"]
    scheduling.driver.pass_time(HOUR)
    assert scheduling.received() == ["later"]


def test_scheduled_messages_have_no_age_before_their_time() -> None:
    scheduling = Scheduling()
    scheduling.send("later", START_MS + MONTH)
    scheduling.driver.pass_time(MONTH // 2)
    state = scheduling.driver.state

    oldest = oldest_messages(state, state.queue(1))

    assert (oldest.stored_ms, oldest.unspent_ms, oldest.receivable_ms) == (0, 0, 0)


def test_a_full_queue_takes_no_more_schedules_but_other_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collected_sends, "SCHEDULED_MAX", 2)
    scheduling = Scheduling()
    for number in range(2):
        scheduling.send(str(number), START_MS + HOUR)

    request = prepared.send(scheduling.queue, "x", at_ms=START_MS + HOUR)
    refusal = scheduling.driver.submit(request).refusal

    assert isinstance(refusal, OverLimit)
    scheduling.send("now")
    scheduling.send("soon", delay_s=1)


def test_of_several_accounts_one_cannot_schedule_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "SHARED_MAX", 12)
    scheduling = Scheduling()
    driver = scheduling.driver

    def is_taken(queue: QueueDefinition) -> bool:
        driver.pass_time(1_000)
        refusal = driver.submit(prepared.send(queue, "x", at_ms=START_MS + HOUR)).refusal
        assert refusal is None or isinstance(refusal, OverLimit)
        return refusal is None

    assert all(is_taken(scheduling.queue) for _ in range(8)), "there is no other account"
    other = msgspec.structs.replace(scheduling.queue, queue_id=2, account="111111111111")
    known = driver.state.definitions
    assert isinstance(known, KnownQueues)
    known.define(other)

    assert not is_taken(scheduling.queue)
    assert [is_taken(other) for _ in range(4)] == [True, True, True, False]


# -- a clock that is not trusted -------------------------------------------------------------------


def test_a_leap_of_the_clock_delivers_nothing_until_it_is_trusted() -> None:
    scheduling = Scheduling()
    driver = scheduling.driver
    scheduling.send("in a day", START_MS + DAY * 1000)
    scheduling.send("in an hour", START_MS + HOUR)
    driver.trusted_ms = START_MS + 2 * HOUR
    driver.now_ms = START_MS + MONTH
    scheduling.send("soon", delay_s=1)

    driver.pass_time(1_000)
    assert sorted(scheduling.received()) == ["in an hour", "soon"]
    driver.pass_time(300_000)
    assert scheduling.received() == []
    driver.trusted_ms = 0
    driver.pass_time(60_000)
    assert scheduling.received() == ["in a day"]


def test_many_doubted_messages_are_passed_by_in_steps() -> None:
    scheduling = Scheduling()
    driver = scheduling.driver
    for number in range(2_300):
        scheduling.send(str(number), START_MS + HOUR + number)
    driver.trusted_ms = START_MS
    driver.now_ms = START_MS + DAY * 1000
    scheduling.send("soon", delay_s=1)

    driver.pass_time(1_000)
    assert scheduling.received() == ["soon"]
    driver.trusted_ms = 0
    driver.pass_time(60_000)

    assert scheduling.counts() == QueueCounters(2_300, 0, 0)


# -- restores --------------------------------------------------------------------------------------


def test_a_restored_queue_keeps_its_schedules() -> None:
    scheduling = Scheduling()
    driver, purged = scheduling.driver, scheduling.queue
    scheduling.send("later", START_MS + HOUR)
    scheduling.send("tenant", START_MS + HOUR, group="g")
    scheduling.send("soon", delay_s=60)
    scheduling.queue = driver.purge(purged)

    driver.restore(purged, scheduling.queue)
    driver.drop(purged)

    assert scheduling.received() == ["soon"]
    assert scheduling.counts() == QueueCounters(0, 1, 2)
    driver.pass_time(HOUR)
    assert scheduling.received() == ["later", "tenant"]


# -- changes by operators --------------------------------------------------------------------------


def test_canceled_messages_are_gone_and_others_stay() -> None:
    scheduling = Scheduling()
    for body in "abc":
        scheduling.send(body, START_MS + HOUR, group="g")
    first, second, _ = scheduling.places()

    assert scheduling.change(first, second, (START_MS, 99)) == (2, 1)
    assert scheduling.counts() == QueueCounters(0, 0, 1)
    assert scheduling.change(first) == (0, 1)
    scheduling.restart()
    scheduling.driver.pass_time(HOUR)
    assert scheduling.received() == ["c"]


@pytest.mark.parametrize("at_ms", [START_MS + 60_000, START_MS + 2 * HOUR])
def test_rescheduled_messages_come_at_their_new_time(at_ms: int) -> None:
    scheduling = Scheduling()
    scheduling.send("a", START_MS + HOUR)
    scheduling.send("b", delay_s=900)

    assert scheduling.change(*scheduling.places(), at_ms=at_ms) == (2, 0)
    scheduling.restart()
    scheduling.driver.pass_time(at_ms - START_MS - 1)
    assert scheduling.received() == []
    scheduling.driver.pass_time(1)
    assert sorted(scheduling.received()) == ["a", "b"]


def test_a_message_rescheduled_to_the_past_comes_now() -> None:
    scheduling = Scheduling()
    scheduling.send("a", START_MS + HOUR)

    scheduling.change(*scheduling.places(), at_ms=1)

    assert scheduling.received() == ["a"]


def test_a_new_time_is_at_most_a_year_ahead_and_fifo_queues_have_none() -> None:
    scheduling, ordered = Scheduling(), Scheduling("q.fifo")
    far_ms = START_MS + schedule.AHEAD_MAX_MS + 1

    for queue, driver, at_ms in (
        (scheduling.queue, scheduling.driver, far_ms),
        (ordered.queue, ordered.driver, START_MS + HOUR),
    ):
        request = prepared.prepared(queue, ChangeSchedule([(1, 1)], at_ms))
        assert isinstance(driver.submit(request).refusal, InvalidParameterValue)


def test_a_copy_that_replaces_a_message_is_not_scheduled() -> None:
    scheduling = Scheduling()
    scheduling.send("a")
    request = prepared.prepared(
        scheduling.queue,
        ResendMessage(replaces=1),
        [prepared.content("b", at_ms=START_MS + HOUR)],
    )

    refusal = scheduling.driver.submit(
        msgspec.structs.replace(request, destination=scheduling.queue)
    ).refusal

    assert isinstance(refusal, InvalidParameterValue)
    assert scheduling.received() == ["a"]


def test_memory_after_a_start_is_as_before() -> None:
    scheduling = Scheduling()
    scheduling.send("a", START_MS + HOUR)
    scheduling.send("b", START_MS + HOUR, group="g")
    scheduling.change(scheduling.places()[0], at_ms=START_MS + 2 * HOUR)

    again = loaded(scheduling.driver.store, scheduling.driver.queues).queue(1)

    assert (again.delayed, again.next_sequence) == (2, 3)
