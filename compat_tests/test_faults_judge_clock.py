"""The judge finds messages that broke the order of their senders' clocks, and excuses late ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compat_tests.test_faults_judge import Story


def by_clock() -> Story:
    """A story whose queue is in this order, with messages of the times 1, 2 and 3."""
    story = Story()
    queues = story.history.queues
    queues["q"] = replace(queues["q"], is_by_clock=True, reach=frozenset(("letters",)))
    for time, name in enumerate("abc", 1):
        story.send(name, time, clock_ms=time)
    return story


def test_what_was_sent_later_must_not_come_first() -> None:
    story = by_clock()
    for name, at in (("a", 5), ("c", 6), ("b", 7)):
        story.receive(name, at)

    assert story.rules == ["behind a later one"]


def test_nor_in_one_answer() -> None:
    story = by_clock()
    story.receive("b", 5)
    story.receive("a", 5, before=("b",))

    assert story.rules == ["behind a later one"]


def test_receives_at_one_time_and_second_ones_may_come_in_any_order() -> None:
    story = by_clock()
    story.receive("a", 5)
    story.receive("c", 6)
    story.receive("b", 6.05)
    story.receive("a", 11, count=2)

    assert story.rules == []


def test_a_late_message_may_come_from_the_late_queue() -> None:
    story = by_clock()
    story.receive("c", 5)
    story.receive("a", 6, queue="letters")

    assert story.rules == []


@pytest.mark.parametrize("is_in_time", [True, False])
def test_what_came_in_time_is_not_late(is_in_time: bool) -> None:
    story = by_clock()
    story.send("d", 4, clock_ms=4, is_in_time=is_in_time)
    story.receive("d", 6, queue="letters")

    assert ("late in time" in story.rules) is is_in_time
