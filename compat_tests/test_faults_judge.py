"""The judge finds each kind of broken promise in a small history, and excuses allowed behaviour."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from compat_tests.faults.fault_history import (
    Change,
    Delete,
    Delivery,
    History,
    Hold,
    Outcome,
    Queue,
    Removal,
    Send,
)
from compat_tests.faults.judge import judge

DONE, REFUSED, UNKNOWN = Outcome.DONE, Outcome.REFUSED, Outcome.UNKNOWN
END = 1000.0


class Story:
    """A history, one line for each operation, which takes a tenth of a second."""

    def __init__(self) -> None:
        self.history = History(drain_begun=END)
        for name, reach, is_ordered in (
            ("q", (), False),
            ("order.fifo", (), True),
            ("failing", ("letters",), False),
            ("letters", (), False),
        ):
            queue = Queue(name, name, frozenset(reach), is_ordered)
            self.history.queues[name] = queue

    def send(self, name: str, at: float, outcome: Outcome = DONE, **given: Any) -> None:
        """A send to `q`."""
        members: dict[str, Any] = {"queue": "q", "content": "c", "message_id": name} | given
        if outcome is not DONE:
            members["message_id"] = ""
        send = Send(name, begun=at, ended=at + 0.1, outcome=outcome, **members)
        self.history.sends.append(send)

    def send_in_order(self, *names: str) -> None:
        """Acknowledged sends to one group."""
        for place, name in enumerate(names, 1):
            self.send(name, place, queue="order.fifo", group="g", place=place)

    def receive(self, name: str, at: float, count: int = 1, **given: Any) -> Delivery:
        """A delivery that hides for five seconds."""
        members: dict[str, Any] = {"queue": "q", "content": "c", "message_id": name} | given
        members = {"hidden_s": 5.0} | members
        delivery = Delivery(name, count=count, begun=at, ended=at + 0.1, **members)
        self.history.deliveries.append(delivery)
        return delivery

    def delete(self, delivery: Delivery, at: float, outcome: Outcome = DONE) -> None:
        """A delete."""
        self.history.deletes.append(Delete(delivery, at, at + 0.1, outcome))

    def change(self, delivery: Delivery, to_s: float, at: float, outcome: Outcome = DONE) -> None:
        """A change of the visibility timeout."""
        self.history.changes.append(Change(delivery, to_s, at, at + 0.1, outcome))

    def purge(self, at: float, outcome: Outcome = DONE, *, queue: str = "q") -> None:
        """A purge of a queue."""
        self.history.removals.append(Removal(queue, at, at + 0.1, outcome))

    def restore(self, at: float, outcome: Outcome = DONE) -> None:
        """A restoration of `q`."""
        self.history.restorations.append(Removal("q", at, at + 0.1, outcome))

    def hold(
        self, name: str, at: float, outcome: Outcome = DONE, *, queue: str = "q", **given: Any
    ) -> None:
        """An operator holds a message."""
        held = Hold(name, queue, name, at, at + 0.1, outcome, **given)
        self.history.holds.append(held)

    @property
    def missing(self) -> list[str]:
        """The messages that the judge reports missing."""
        return judge(self.history).missing

    @property
    def rules(self) -> list[str]:
        """The broken rules."""
        return [each.rule for each in judge(self.history).violations]


# -- lost ------------------------------------------------------------------------------------------


def test_acknowledged_send_that_is_never_seen_is_missing() -> None:
    story = Story()
    story.send("a", 1)
    story.send("b", 1, UNKNOWN)

    assert story.missing == ["a"]
    assert story.rules == []


def test_received_message_is_missing_unless_it_may_be_deleted() -> None:
    story = Story()
    for name, outcome in (("kept", None), ("refused", REFUSED), ("gone", DONE), ("may", UNKNOWN)):
        story.send(name, 1)
        delivery = story.receive(name, 2)
        if outcome:
            story.delete(delivery, 3, outcome)

    assert story.missing == ["kept", "refused"]


def test_message_that_is_there_at_the_end_is_not_missing() -> None:
    story = Story()
    story.send("a", 1)
    story.receive("a", END + 1)

    assert (story.missing, story.rules) == ([], [])


def test_purged_message_is_missing_only_after_it_was_restored() -> None:
    story = Story()
    story.send("a", 1)
    story.purge(2)
    assert story.missing == []

    story.restore(3, UNKNOWN)
    assert story.missing == []

    story.restore(4)
    assert story.missing == ["a"]


# -- served wrongly --------------------------------------------------------------------------------


def test_foreign_altered_and_misplaced_messages_are_found() -> None:
    story = Story()
    for name in ("altered", "misplaced"):
        story.send(name, 1)
    story.receive("foreign", END + 1)
    story.receive("altered", END + 1, content="other")
    story.receive("misplaced", END + 1, queue="letters")

    assert story.rules == ["wrong message"] * 3


def test_deleted_message_must_not_come_back() -> None:
    story = Story()
    story.send("a", 1)
    story.delete(story.receive("a", 2), 3)
    story.receive("a", 20, 2)

    assert story.rules == ["returned"]


def test_deletes_that_may_be_late_or_undone_allow_a_return() -> None:
    story = Story()
    for name, at, outcome in (
        ("late", 6.9, DONE),
        ("unknown", 3, UNKNOWN),
        ("refused", 3, REFUSED),
    ):
        story.send(name, 1)
        story.delete(story.receive(name, 2), at, outcome)
        story.receive(name, END + 1, 2)

    assert story.rules == []


def test_purged_message_must_not_be_served_until_it_is_restored() -> None:
    story = Story()
    story.send("a", 1)
    story.purge(2)
    story.receive("a", END + 1)
    assert story.rules == ["served after removal"]

    story.restore(3, UNKNOWN)
    assert story.rules == []


def test_message_sent_after_the_purge_is_served() -> None:
    story = Story()
    story.purge(2)
    story.send("a", 3)
    story.receive("a", END + 1)

    assert (story.rules, story.missing) == ([], [])


def test_hidden_message_must_not_be_served() -> None:
    story = Story()
    story.send("a", 1)
    story.receive("a", 2)
    story.receive("a", 4, 2)
    story.receive("a", END + 1, 3)

    assert story.rules == ["hidden but served"]


def test_extended_timeout_counts_and_an_unknown_one_only_if_it_shortens() -> None:
    story = Story()
    for name, outcome in (("sure", DONE), ("unsure", UNKNOWN)):
        story.send(name, 1)
        story.change(story.receive(name, 2), 60, 3, outcome)
        story.receive(name, 20, 2)
        story.receive(name, END + 1, 3)

    (violation,) = judge(story.history).violations
    assert (violation.rule, violation.name) == ("hidden but served", "sure")


def test_message_put_back_is_served_again() -> None:
    story = Story()
    story.send("a", 1)
    story.change(story.receive("a", 2), 0, 3, UNKNOWN)
    story.receive("a", 3.5, 2)
    story.receive("a", END + 1, 3)

    assert story.rules == []


def test_delay_must_be_over() -> None:
    story = Story()
    story.send("a", 1, delay_s=5.0)
    story.receive("a", 2, hidden_s=0.0)
    story.receive("a", END + 1, 2)

    assert story.rules == ["early"]


# -- counts ----------------------------------------------------------------------------------------


def test_receive_counts_rise_with_time_and_not_by_more_than_was_received() -> None:
    for counts, unknown, expected in (
        ((1, 2), 0, []),
        ((1, 1), 0, ["wrong count"]),
        ((2, 1), 0, ["wrong count"]),
        ((1, 3), 0, ["wrong count"]),
        ((1, 3), 1, []),
    ):
        story = Story()
        story.send("a", 1)
        story.receive("a", 2, counts[0], hidden_s=0.0)
        story.receive("a", END + 1, counts[1])
        story.history.unknown_receives["q"] = unknown

        assert story.rules == expected, counts


def test_empty_queue_counts_zero() -> None:
    story = Story()
    story.history.left["q"] = (0, 1, 0)

    assert story.rules == ["wrong counters"]


# -- FIFO ------------------------------------------------------------------------------------------


def test_fifo_message_waits_for_the_earlier_ones_of_its_group() -> None:
    story = Story()
    story.send_in_order("a", "b")
    story.receive("b", 5, queue="order.fifo", hidden_s=0.0)
    story.receive("a", END, queue="order.fifo")
    story.receive("b", END, 2, queue="order.fifo", before=("a",))

    assert story.rules == ["out of order"]


def test_fifo_message_waits_for_a_hidden_one() -> None:
    story = Story()
    story.send_in_order("a", "b")
    first = story.receive("a", 5, queue="order.fifo")
    story.receive("b", 6, queue="order.fifo")
    story.delete(first, 7)
    story.receive("b", END, 2, queue="order.fifo")

    assert story.rules == ["out of order"]


def test_fifo_message_follows_a_deleted_one_and_one_in_the_same_answer() -> None:
    story = Story()
    story.send_in_order("a", "b", "c")
    story.delete(story.receive("a", 5, queue="order.fifo"), 5.5, UNKNOWN)
    story.receive("b", END, queue="order.fifo")
    story.receive("c", END, queue="order.fifo", before=("b",))

    assert (story.rules, story.missing) == ([], [])


def test_lost_message_does_not_put_the_later_ones_out_of_order() -> None:
    story = Story()
    story.send_in_order("a", "b")
    story.receive("b", END, queue="order.fifo")

    assert (story.rules, story.missing) == ([], ["a"])


def test_retried_send_is_one_message_for_five_minutes() -> None:
    story = Story()
    story.send("a", 1, queue="order.fifo", group="g", place=1, message_id="1")
    story.send("a", 2, UNKNOWN, queue="order.fifo", group="g", place=1)
    story.send("a", 200, queue="order.fifo", group="g", place=1, message_id="2")
    story.receive("a", END, queue="order.fifo", message_id="1")

    assert story.rules == ["duplicate"]


def test_id_may_be_sent_again_after_a_purge() -> None:
    story = Story()
    story.send("a", 1, queue="order.fifo", group="g", place=1, message_id="1")
    story.purge(1.2, queue="order.fifo")
    story.send("a", 2, queue="order.fifo", group="g", place=1, message_id="2")
    story.receive("a", END, queue="order.fifo", message_id="2")

    assert story.rules == []


def test_send_that_was_held_over_a_purge_is_another_message() -> None:
    """The second of two sends at once is answered before the purge, the first behind it."""
    story = Story()
    story.send("a", 1, queue="order.fifo", group="g", place=1, message_id="2")
    held = story.history.sends.pop()
    story.history.sends.append(replace(held, ended=3.0))
    story.send("a", 1.1, queue="order.fifo", group="g", place=1, message_id="1")
    story.purge(2, queue="order.fifo")
    story.receive("a", END, queue="order.fifo", message_id="2")

    assert story.rules == []


@pytest.mark.parametrize("purges", [True, False])
def test_message_that_was_purged_while_it_was_hidden_is_another_one_later(*, purges: bool) -> None:
    story = Story()
    first: dict[str, Any] = {"queue": "order.fifo", "content": "c", "group": "g", "place": 1}
    story.send("a", 1, **first, message_id="first")
    story.receive("a", 1.2, queue="order.fifo", message_id="first")
    if purges:
        story.purge(1.5, queue="order.fifo")
    story.send("a", 2, **first, message_id="second")
    again = story.receive("a", 3, queue="order.fifo", message_id="second")
    story.delete(again, 3.5)

    assert story.rules == ([] if purges else ["hidden but served", "duplicate"])


@pytest.mark.parametrize("purges", [True, False])
def test_deleted_message_may_be_another_one_after_a_purge(*, purges: bool) -> None:
    """A send without an answer is received, and repeated while the queue is purged."""
    story = Story()
    story.send("a", 1, UNKNOWN, queue="order.fifo", group="g", place=1)
    first = story.receive("a", 1.5, queue="order.fifo", message_id="1")
    story.send("a", 1.5, queue="order.fifo", group="g", place=1, message_id="2")
    if purges:
        story.purge(1.5, queue="order.fifo")
    story.delete(first, 1.7)
    story.receive("a", END, queue="order.fifo", message_id="2")

    assert story.rules == ([] if purges else ["returned", "duplicate"])


# -- moves -----------------------------------------------------------------------------------------


def test_message_is_in_one_place_at_the_end() -> None:
    story = Story()
    story.send("a", 1, queue="failing")
    story.receive("a", END, queue="failing")
    story.receive("a", END, queue="letters", message_id="moved")

    assert story.rules == ["two places"]


def test_message_that_moved_on_is_not_served_where_it_was() -> None:
    story = Story()
    story.send("a", 1, queue="failing")
    story.receive("a", 2, queue="letters", hidden_s=0.0)
    story.receive("a", 10, queue="failing", message_id="moved", hidden_s=0.0)
    story.receive("a", 20, 2, queue="letters", hidden_s=0.0)
    story.receive("a", END, 2, queue="letters", message_id="moved")

    assert story.rules == ["two places"]


def test_message_hidden_in_one_queue_is_not_served_by_another() -> None:
    story = Story()
    story.send("a", 1, queue="failing")
    story.receive("a", 2, queue="letters")
    story.receive("a", 3, queue="failing", message_id="moved", hidden_s=0.0)
    story.receive("a", END, 2, queue="failing", message_id="moved")

    assert story.rules == ["hidden but served"]


# -- answers, and damage ---------------------------------------------------------------------------


def test_errors_are_found_unless_the_fault_excuses_those_of_the_service() -> None:
    history = History(refusals=["400 no"], faults=["500 no"])

    assert len(judge(history).violations) == 2
    assert len(judge(history, excuses_faults=True).violations) == 1


# -- held ------------------------------------------------------------------------------------------


def test_a_held_message_is_served_by_nobody_before_its_release() -> None:
    story = Story()
    for name, outcome in (("sure", DONE), ("unsure", UNKNOWN)):
        story.send(name, 1)
        story.hold(name, 10, outcome, released=20)
        for count, at in enumerate((10.05, 15, 20, END + 1), 1):
            story.receive(name, at, count, hidden_s=0.0)

    (finding,) = judge(story.history).violations
    assert (finding.rule, finding.name) == ("served while held", "sure")


def test_a_held_message_is_not_served_by_another_queue() -> None:
    story = Story()
    story.send("a", 1, queue="failing")
    story.hold("a", 10, queue="failing")
    story.receive("a", 15, queue="letters", message_id="moved")
    story.receive("a", END + 1, 2, queue="letters", message_id="moved")

    assert story.rules == ["served while held"] * 2


def test_a_message_may_be_missing_only_if_an_operator_deleted_it_for_good() -> None:
    story = Story()
    for name, after_s, is_back in (("kept", 0.0, False), ("gone", 5.0, False), ("back", 5.0, True)):
        story.send(name, 1)
        story.hold(name, 10, deleted_after_s=after_s, released=12, is_back=is_back)

    assert story.missing == ["back", "kept"]


def test_a_held_message_locks_its_group_until_it_is_deleted() -> None:
    story = Story()
    story.send_in_order("a", "b")
    story.hold("a", 10, queue="order.fifo", deleted_after_s=5.0)
    story.receive("b", 13, queue="order.fifo", hidden_s=0.0)
    story.receive("b", 16, 2, queue="order.fifo")
    story.receive("b", END + 1, 3, queue="order.fifo")

    assert story.rules == ["out of order"]
