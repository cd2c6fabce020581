"""The judge finds messages that came twice from a queue that delivers at most once, and excuses
those that a receive took."""

from __future__ import annotations

from dataclasses import replace

from compat_tests.test_faults_judge import Story


def once() -> Story:
    """A story whose queue delivers at most once."""
    story = Story()
    story.history.queues["q"] = replace(story.history.queues["q"], is_at_most_once=True)
    return story


def test_a_message_must_not_come_twice() -> None:
    story = once()
    for name in ("a", "b"):
        story.send(name, 1)
        story.receive(name, 5)
    story.receive("b", 99, count=2)

    assert "came again" in story.rules
    assert "came again" not in Story().rules


def test_a_taken_message_is_not_missing_but_one_that_nobody_got_is() -> None:
    story = once()
    for name in ("a", "b"):
        story.send(name, 1)
    story.receive("a", 5)

    assert story.missing == ["b"]


def test_a_receive_without_a_known_answer_may_have_taken_it() -> None:
    story = once()
    story.send("a", 1)
    story.history.unknown_receives["q"] += 1

    assert story.missing == []
