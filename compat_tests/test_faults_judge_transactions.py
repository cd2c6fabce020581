"""The judge finds transactions of which a part was done."""

from __future__ import annotations

import pytest

from compat_tests.faults.fault_history import Delivery, Outcome, Transaction
from compat_tests.test_faults_judge import END, Story


def transacted(story: Story, outcome: Outcome, *back: str, came: bool = False) -> None:
    """Consume `a` and `b`, and send `made`; some come back at the end."""
    consumed: list[Delivery] = []
    for name in ("a", "b"):
        story.send(name, 1)
        delivery = story.receive(name, 5)
        consumed.append(delivery)
        story.delete(delivery, 6, outcome)
    story.send("made", 6, outcome)
    story.history.transactions.append(Transaction(("made",), tuple(consumed), 6, outcome))
    for name in back:
        story.receive(name, END + 1, count=2)
    if came:
        story.receive("made", END + 1)


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, Outcome.DONE])
def test_all_that_is_done_is_sound(outcome: Outcome) -> None:
    story = Story()
    transacted(story, outcome, came=True)
    assert (story.rules, story.missing) == ([], [])


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, Outcome.REFUSED])
def test_nothing_that_is_done_is_sound(outcome: Outcome) -> None:
    story = Story()
    transacted(story, outcome, "a", "b")
    assert (story.rules, story.missing) == ([], [])


def test_a_message_of_two_that_is_gone_is_half_a_transaction() -> None:
    story = Story()
    transacted(story, Outcome.UNKNOWN, "a")
    assert story.rules == ["half consumed"]


def test_a_message_that_a_cancelled_transaction_deleted_is_missing() -> None:
    story = Story()
    transacted(story, Outcome.REFUSED, "a")
    assert story.missing == ["b"]


def test_a_message_that_comes_back_beside_what_was_made_of_it_is_half_a_transaction() -> None:
    story = Story()
    transacted(story, Outcome.UNKNOWN, came=True)
    story.receive("b", END + 2, count=2)
    assert "half done" in story.rules
    assert "half consumed" in story.rules
