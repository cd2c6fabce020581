"""The judge finds dead letters that do not tell their cause, and messages that go round for
ever."""

from __future__ import annotations

from dataclasses import replace

from compat_tests.faults.fault_history import Outcome
from compat_tests.faults.judge import judge
from compat_tests.test_faults_judge import Story


def dying() -> Story:
    """A story whose messages of `failing` expire, and may die twice."""
    story = Story()
    queues = story.history.queues
    queues["letters"] = replace(queues["letters"], cause="expired")
    queues["failing"] = replace(queues["failing"], deaths_max=2)
    return story


def test_a_dead_letter_must_tell_its_cause() -> None:
    story = dying()
    for name, cause in (("a", "expired"), ("b", "max-receives")):
        story.send(name, 1, queue="failing")
        story.receive(name, 20, queue="letters", cause=cause)

    assert [each.name for each in judge(story.history).violations] == ["b"]
    assert "wrong cause" in story.rules


def test_a_message_must_not_die_more_often_than_it_may() -> None:
    story = dying()
    for name in ("a", "b"):
        story.send(name, 1, queue="failing")
        for count, died_ms in enumerate((10, 20, 20, 30)[: 3 if name == "a" else 4], 1):
            given = {"queue": "letters", "cause": "expired", "died_ms": died_ms}
            story.receive(name, 20 * count, count, **given)

    assert [each.name for each in judge(story.history).violations] == ["b"]
    assert "went round" in story.rules


def test_a_delay_ends_with_its_queue_only() -> None:
    story = dying()
    story.send("a", 1, queue="failing", delay_s=100.0)
    story.receive("a", 5, queue="letters", cause="expired")

    assert "early" not in story.rules
    story.receive("a", 15, 2, queue="failing")
    assert "early" in story.rules


def test_a_redriven_message_must_tell_the_id_under_which_it_was_sent() -> None:
    story = Story()
    for name, first_id in (("a", "a"), ("b", "new"), ("c", "")):
        story.send(name, 1)
        story.receive(name, 20, first_id=first_id, message_id="new")
    story.send("d", 1, Outcome.UNKNOWN)
    story.receive("d", 20, first_id="new", message_id="new")

    violations = judge(story.history).violations
    assert [each.name for each in violations if each.rule == "wrong origin"] == ["b"]
