"""The judge finds messages served too late or too early, and excuses those that expired."""

from __future__ import annotations

from dataclasses import replace

from compat_tests.faults.fault_history import Outcome
from compat_tests.test_faults_judge import Story


def short() -> Story:
    """A story whose queue keeps messages for a minute."""
    story = Story()
    story.history.queues["q"] = replace(story.history.queues["q"], retention_s=60.0)
    return story


def test_message_must_not_be_too_old() -> None:
    story = short()
    for name, outcome in (("a", Outcome.DONE), ("b", Outcome.DONE), ("c", Outcome.UNKNOWN)):
        story.send(name, 1, outcome)
    story.receive("a", 61)
    for name in ("b", "c"):
        story.receive(name, 62)

    assert story.rules == ["served too old"], "c may have been sent later"


def test_message_that_expired_is_not_missing() -> None:
    story = short()
    story.send("a", 1)

    assert (story.rules, story.missing) == ([], [])


def test_time_that_was_set_back_makes_no_message_older() -> None:
    story = short()
    story.history.set_back.append((30.0, 5.0))
    story.send("a", 1)
    story.receive("a", 64)

    assert story.rules == []


def test_consumers_must_not_get_more_than_the_rate_and_once_what_it_saved() -> None:
    story = Story()
    story.history.queues["q"] = replace(story.history.queues["q"], receive_rate=2)
    for number, at in enumerate((10, 10, 10.4, 11, 11.5)):
        story.send(str(number), 1)
        story.receive(str(number), at)
    assert story.rules == []

    for name in ("next", "last"):
        story.send(name, 1)
        story.receive(name, 11.5)
    assert story.rules == ["too fast"]
    story.history.starts.append(11.2)
    assert story.rules == [], "a new leader begins with one"


def test_a_queue_must_not_hold_more_than_its_limit() -> None:
    story = Story()
    story.history.queues["q"] = replace(story.history.queues["q"], messages_max=1)
    story.send("a", 1)
    story.delete(story.receive("a", 2), 3, Outcome.UNKNOWN)
    story.send("b", 3)
    story.send("c", 4, Outcome.UNKNOWN)

    assert story.rules == []
    story.send("d", 5)
    assert story.rules == ["over length"], "a may be deleted, and c not sent"


def test_a_queue_whose_messages_move_holds_those_that_it_still_gives() -> None:
    story = Story()
    limited = replace(story.history.queues["q"], messages_max=2, reach=frozenset(("dead",)))
    story.history.queues["q"] = limited
    for name, at in (("a", 1), ("b", 2), ("c", 3)):
        story.send(name, at)
    story.receive("b", 4)
    story.receive("c", 5)
    assert story.rules == [], "a may be a dead letter"

    story.receive("a", 6)
    assert story.rules == ["over length"]


def test_a_send_must_not_be_accepted_behind_too_many_waiting_messages() -> None:
    story = Story()
    story.history.queues["q"] = replace(story.history.queues["q"], throttle_depth=2)
    story.send("a", 1)
    story.send("b", 2)
    story.receive("a", 3)
    story.send("c", 4)
    story.send("unknown", 5, Outcome.UNKNOWN)
    assert story.rules == [], "a does not wait"

    story.send("d", 6)
    assert story.rules == ["not throttled"]
    story.history.unknown_receives["q"] = 1
    assert story.rules == [], "a receive of unknown outcome may have got them"


def test_message_must_not_come_before_one_of_a_higher_priority_that_waits() -> None:
    story = Story()
    story.history.queues["q"] = replace(story.history.queues["q"], is_strict=True)
    for name, priority, at in (("low", 1, 1), ("high", 8, 2), ("late", 9, 3)):
        story.send(name, at, priority=priority)
    story.receive("low", 3)
    story.receive("high", 6)
    story.receive("late", 6)

    assert story.rules == ["higher waited"], "late was sent while low was received"
    story.history.unknown_receives["q"] = 1
    assert story.rules == [], "a receive of unknown outcome may have got it"
