"""Moves: off clusters that are emptied, off what was overloaded for ten minutes, for balance."""

from __future__ import annotations

import pytest

from cluster.fleet.plan_table import Kind, Part, PartState
from cluster.fleet.reasons import Why
from cluster.tests.fleet.fleets import SmallFleet, of_kind, refusals

TEN_MINUTES_S = 610


def overloaded(load: float = 0.9, queues: int = 10) -> SmallFleet:
    """Cluster `a` has this load, on each shard queues that ask for 0.03 of a loop."""
    fleet = SmallFleet()
    for shard in range(3):
        for number in range(queues):
            fleet.queue(f"q{shard}-{number}", shard)
            fleet.ask(f"q{shard}-{number}", 0, 0.03)
        fleet.other[shard] = load - 0.03 * queues
    for shard in range(3, 12):
        fleet.other[shard] = 0.6
    return fleet


def test_parts_leave_an_overloaded_cluster_after_ten_minutes() -> None:
    fleet = overloaded()
    fleet.report(600)
    whys = {move.reason.why for move in of_kind(fleet.plan(), Kind.MOVE)}
    assert whys <= {Why.UNEVEN}
    fleet.report(20)
    moves = of_kind(fleet.plan(), Kind.MOVE)
    assert moves
    assert {move.reason.why for move in moves} == {Why.CLUSTER_OVERLOADED}
    assert {fleet.records.fleet().cluster_of[move.opens[0]] for move in moves} <= {"b", "c", "d"}


def test_a_cluster_between_the_thresholds_is_left_alone() -> None:
    """It takes nothing new above 80 %, and loses nothing up to 85 %."""
    fleet = overloaded(0.84)
    for shard in range(3, 12):
        fleet.other[shard] = 0.8
    fleet.report(TEN_MINUTES_S)
    assert not fleet.plan().changes


def test_moves_go_to_clusters_below_seventy_percent_only() -> None:
    """One threshold for leaving and one for coming: what was moved does not come back."""
    fleet = overloaded()
    for shard in range(3, 12):
        fleet.other[shard] = 0.75
    fleet.report(TEN_MINUTES_S)
    made = fleet.plan()
    assert not of_kind(made, Kind.MOVE)
    assert Why.NO_ROOM in {each.reason.why for each in made.refusals}


def test_two_parts_are_under_way_from_and_to_a_cluster() -> None:
    """A cluster that is overloaded has no time for copying ten parts at once."""
    fleet = overloaded()
    fleet.report(TEN_MINUTES_S)
    made = fleet.plan()
    assert len(of_kind(made, Kind.MOVE)) == 2
    fleet.apply(made)
    fleet.report(10)
    again = fleet.plan()
    assert not again.changes
    assert Why.TRANSFERS in {each.reason.why for each in again.refusals}
    fleet.records.finish(*fleet.records.draining()[0])
    assert len(of_kind(fleet.plan(), Kind.MOVE)) == 1


def test_a_draining_part_without_messages_is_not_under_way() -> None:
    """It stays a while for retries of the last sends, and costs nothing then."""
    fleet = overloaded()
    fleet.report(TEN_MINUTES_S)
    fleet.apply(fleet.plan())
    emptied, other = fleet.records.draining()
    fleet.records.emptied.add(emptied)
    assert not fleet.plan().changes, "its last report is older than the change"
    fleet.report(10)
    (move,) = of_kind(fleet.plan(), Kind.MOVE)
    assert move.queue not in {emptied[0], other[0]}


def test_a_draining_part_that_no_report_names_is_under_way() -> None:
    fleet = overloaded()
    fleet.report(TEN_MINUTES_S)
    fleet.apply(fleet.plan())
    fleet.records.emptied.update(fleet.records.draining())
    fleet.report(10)
    assert len(of_kind(fleet.plan(), Kind.MOVE)) == 2
    for part in fleet.records.emptied:
        del fleet.history.parts[part]
    assert not of_kind(fleet.plan(), Kind.MOVE)


def test_no_part_returns_within_an_hour_to_the_cluster_that_it_left() -> None:
    fleet = SmallFleet(clusters=2)
    fleet.queue("q", 0)
    fleet.ask("q", 0, 0.3)
    for shard in range(3):
        fleet.other[shard] = 0.6 if shard == 0 else 0.9
    fleet.report(TEN_MINUTES_S)
    made = fleet.plan()
    (move,) = of_kind(made, Kind.MOVE)
    assert move.opens[0] in (3, 4, 5)
    fleet.apply(made)
    fleet.records.finish("q", 0)
    fleet.ask("q", 1, 0.3)
    for shard in range(6):
        fleet.other[shard] = 0.3 if shard < 3 else 0.92
    fleet.other[move.opens[0]] = 0.62
    fleet.report(3000)
    made = fleet.plan()
    assert not of_kind(made, Kind.MOVE)
    assert ("move", "q", Why.NO_ROOM) in refusals(made)
    fleet.report(700)
    assert of_kind(fleet.plan(), Kind.MOVE)


def test_a_hot_shard_gives_parts_to_others_of_its_cluster() -> None:
    """The cluster has room, one of its loops has not."""
    fleet = SmallFleet(clusters=1)
    for number in range(9):
        fleet.queue(f"q{number}", 0)
        fleet.ask(f"q{number}", 0, 0.1)
    fleet.report(TEN_MINUTES_S)
    moves = of_kind(fleet.plan(), Kind.MOVE)
    assert moves
    assert moves[0].reason.why is Why.SHARD_OVERLOADED
    assert moves[0].opens[0] in (1, 2)


def test_an_emptied_cluster_loses_its_parts_and_gets_none() -> None:
    fleet = SmallFleet()
    for number in range(5):
        fleet.queue(f"q{number}", number % 3)
    cluster = fleet.records.clusters["a"]
    fleet.records.clusters["a"] = cluster._replace(is_draining=True)
    fleet.report(10)
    gone = 0
    for _ in range(10):
        made = fleet.plan()
        assert len(made.changes) <= 2
        assert {change.reason.why for change in made.changes} <= {Why.CLUSTER_DRAINS}
        fleet.apply(made)
        for queue_id, number in fleet.records.draining():
            fleet.records.finish(queue_id, number)
            gone += 1
        fleet.report(10)
    assert gone == 5
    assert all(part.shard > 2 for queue in fleet.records.queues.values() for part in queue.parts)


def test_a_queue_that_stays_holds_up_no_other_one() -> None:
    fleet = SmallFleet()
    for number in range(4):
        fleet.queue(f"q{number}", 0)
        if number < 3:
            staying = fleet.records.queues[f"q{number}"]._replace(stays="it is a rock")
            fleet.records.put(staying)
    fleet.records.clusters["a"] = fleet.records.clusters["a"]._replace(is_draining=True)
    fleet.report(10)
    made = fleet.plan()
    assert [move.queue for move in made.changes] == ["q3"]
    assert [each.reason.why for each in made.refusals] == [Why.STAYS] * 3


def test_a_fifo_part_stays_until_the_one_before_it_is_empty() -> None:
    fleet = SmallFleet()
    for number in range(2):
        fleet.queue(f"q{number}.fifo", 0, is_fifo=True)
        before = fleet.records.queues[f"q{number}.fifo"]
        earlier = before.parts[0]._replace(shard=6, state=PartState.DRAINING, high=1 << 63)
        later = Part(16, 0, low=(1 << 63) * number)
        fleet.records.put(before._replace(parts=(earlier, later)))
        fleet.ask(f"q{number}.fifo", 0, 0.0, messages=7)
    fleet.records.clusters["a"] = fleet.records.clusters["a"]._replace(is_draining=True)
    fleet.report(10)
    made = fleet.plan()
    assert [move.queue for move in made.changes] == ["q1.fifo"], "its groups are others"
    (refusal,) = made.refusals
    assert (refusal.of, refusal.reason.why) == ("q0.fifo", Why.BACKLOG)
    fleet.ask("q0.fifo", 0, 0.0)
    fleet.records.emptied.add(("q0.fifo", 0))
    fleet.report(10)
    assert [move.queue for move in fleet.plan().changes] == ["q0.fifo", "q1.fifo"]


def test_emptying_goes_before_relief_and_splits() -> None:
    """The budget is spent on what an operator asked for, then on what hurts most."""
    fleet = overloaded()
    fleet.queue("hot", 3)
    fleet.ask("hot", 0, 0.6)
    for shard in range(3, 12):
        fleet.other[shard] = 0.3 if shard > 3 else 0.0
    fleet.queue("on-d", 9)
    fleet.records.clusters["d"] = fleet.records.clusters["d"]._replace(is_draining=True)
    fleet.report(TEN_MINUTES_S)
    whys = [change.reason.why for change in fleet.plan().changes]
    assert whys[0] is Why.CLUSTER_DRAINS
    assert whys.index(Why.CLUSTER_OVERLOADED) < whys.index(Why.HOT_QUEUE)


def test_uneven_clusters_are_balanced_with_the_fewest_moves() -> None:
    """The busiest part that fits goes first, of those that are light: a queue that was moved cannot
    be split for ten minutes. Clusters near the mean stay as they are."""
    fleet = SmallFleet()
    for shard in range(12):
        fleet.other[shard] = 0.4
    for number, asked in enumerate((0.005, 0.10, 0.008, 0.11)):
        fleet.queue(f"q{number}", 0)
        fleet.ask(f"q{number}", 0, asked)
    fleet.report(TEN_MINUTES_S)
    moves = of_kind(fleet.plan(), Kind.MOVE)
    assert [move.queue for move in moves] == ["q1"]
    assert moves[0].reason.why is Why.UNEVEN


def test_an_uneven_cluster_gives_parts_after_three_minutes() -> None:
    """A burst lasts minutes: after ten of them most are over, and none was balanced."""
    fleet = SmallFleet()
    for shard in range(12):
        fleet.other[shard] = 0.4
    for number, asked in enumerate((0.15, 0.09)):
        fleet.queue(f"q{number}", 0)
        fleet.ask(f"q{number}", 0, asked)
    fleet.report(180)
    assert not fleet.plan().changes
    fleet.report(10)
    assert [move.reason.why for move in fleet.plan().changes] == [Why.UNEVEN]


@pytest.mark.parametrize(
    ("others", "order"), [(0.28, ["light", "heavy"]), (0.41, ["heavy", "light"])]
)
def test_a_cluster_far_above_the_mean_gives_heavier_parts_first(
    others: float, order: list[str]
) -> None:
    """Light ones leave two at once. What may be split soon goes last: a move would forbid it."""
    fleet = SmallFleet()
    for shard in range(12):
        fleet.other[shard] = 0.4
    for number, (name, asked) in enumerate((("hot", 0.45), ("heavy", 0.15), ("light", 0.09))):
        fleet.queue(name, number, is_fifo=name == "hot")
        fleet.other[number] = others + 0.1 * (number - 1)
        fleet.ask(name, 0, asked)
    fleet.report(190)
    assert [move.queue for move in of_kind(fleet.plan(), Kind.MOVE)] == order


def test_a_cluster_whose_parts_are_under_way_says_so() -> None:
    """Two of them may be; one waits for a consumer, perhaps for an hour."""
    fleet = SmallFleet()
    for shard in range(12):
        fleet.other[shard] = 0.4
    for number in range(4):
        fleet.queue(f"q{number}", 0)
        fleet.ask(f"q{number}", 0, 0.09)
    fleet.report(190)
    made = fleet.plan()
    fleet.apply(made)
    for number in range(4):
        fleet.ask(f"q{number}", 0, 0.3)
    fleet.report(30)
    assert len(made.changes) == 2
    assert ("move", "a", Why.TRANSFERS) in refusals(fleet.plan())


def test_an_idle_fleet_is_not_balanced() -> None:
    """Thrice the load of nearly nothing is nearly nothing."""
    fleet = SmallFleet()
    for number in range(3):
        fleet.queue(f"q{number}", 0)
        fleet.ask(f"q{number}", 0, 0.06)
    fleet.report(TEN_MINUTES_S)
    assert not fleet.plan().changes


def two_together(clusters: int = 8) -> SmallFleet:
    """A queue has two of its three parts in cluster `a`, which is above the mean."""
    fleet = SmallFleet(clusters=clusters)
    for shard in range(3 * clusters):
        fleet.other[shard] = 0.3 if shard > 2 else 0.26
    fleet.queue("q", 0, 1, 3)
    for number in range(3):
        fleet.ask("q", number, 0.15)
    fleet.queue("other", 2)
    fleet.ask("other", 0, 0.09)
    return fleet


def test_one_of_two_parts_in_one_cluster_moves_at_once() -> None:
    """It does not wait until the queue bursts, and asks twice as much of this cluster as of all
    others; nor the three minutes that other parts wait."""
    fleet = two_together()
    fleet.report(10)
    (move,) = of_kind(fleet.plan(), Kind.MOVE)
    assert (move.queue, move.reason.why) == ("q", Why.UNEVEN)
    assert move.opens[0] > 5, "to a cluster that has no part of it"
    fleet.apply(fleet.plan())
    fleet.report(10)
    assert not of_kind(fleet.plan(), Kind.MOVE)


def test_no_part_moves_to_a_cluster_that_has_another_one_of_its_queue() -> None:
    fleet = two_together(clusters=2)
    fleet.other[0] = fleet.other[1] = 0.36
    fleet.report(170)
    assert not of_kind(fleet.plan(), Kind.MOVE)
    fleet.report(30)
    assert [move.queue for move in of_kind(fleet.plan(), Kind.MOVE)] == ["other"]


def test_the_last_cluster_that_can_take_a_part_may_have_another_one() -> None:
    """An emptied cluster is emptied."""
    fleet = two_together(clusters=2)
    fleet.records.clusters["a"] = fleet.records.clusters["a"]._replace(is_draining=True)
    fleet.report(10)
    assert "q" in {move.queue for move in of_kind(fleet.plan(), Kind.MOVE)}
