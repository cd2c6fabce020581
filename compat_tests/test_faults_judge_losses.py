"""The judge of shards that are lost for good: what only they had may be missing, what only they
knew is forgotten, and all else holds as ever."""

from __future__ import annotations

from compat_tests.faults.fault_history import Loss, Outcome
from compat_tests.faults.judge import judge
from compat_tests.test_faults_judge import Story

AT = 50.0


def lost(*held: str, coming: tuple[str, ...] = ()) -> Story:
    story = Story()
    story.history.losses.append(Loss(frozenset(held), frozenset(coming), AT, AT + 10))
    return story


def test_only_what_the_lost_shards_had_may_be_missing() -> None:
    story = lost("a")
    story.send("a", 1)
    story.send("b", 1)
    assert judge(story.history).broken() == ["lost: b"]


def test_a_group_goes_on_behind_what_was_lost() -> None:
    story = lost("a")
    story.send_in_order("a", "b", "c")
    story.receive("c", 60, queue="order.fifo")
    story.receive("b", 1_001, queue="order.fifo")
    (found,) = judge(story.history).violations
    assert str(found) == "out of order: c was served although b is before it"


def test_a_deleted_message_may_come_back_only_if_it_was_on_its_way_there() -> None:
    for coming, broken in ((("a",), 0), ((), 1)):
        story = lost(coming=coming)
        story.send("a", 1)
        story.delete(story.receive("a", 2), 3)
        story.receive("a", 60, 2)
        assert len(judge(story.history).broken()) == broken


def test_a_send_of_unknown_outcome_may_be_done_twice_only_before_the_loss_is_over() -> None:
    for first, broken in ((40.0, 0), (70.0, 1)):
        story = lost()
        story.send("a", first, Outcome.UNKNOWN)
        story.send("a", first + 1, message_id="id-2")
        story.delete(story.receive("a", first + 2, message_id="id-1"), first + 3)
        story.delete(story.receive("a", first + 30, message_id="id-2"), first + 31)
        assert bool(judge(story.history).broken()) == bool(broken)
