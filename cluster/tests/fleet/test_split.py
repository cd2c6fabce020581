"""Splits: a queue that is hot for three windows, in steps, never one group."""

from __future__ import annotations

import pytest

from cluster.fleet.load_history import LoadHistory
from cluster.fleet.plan_table import Kind, Part, PartState
from cluster.fleet.reasons import Why
from cluster.tests.fleet.fleets import SmallFleet, of_kind, refusals, warnings
from visibility.contract.queue_parts import PARTS_MAX


def test_a_hot_queue_is_split_after_three_windows() -> None:
    """A peak of one window is no reason; one of three is."""
    fleet = SmallFleet()
    fleet.queue("q", 0)
    fleet.ask("q", 0, 0.5)
    fleet.report(20)
    assert not fleet.plan().changes
    fleet.report(10)
    (change,) = fleet.plan().changes
    assert (change.kind, change.queue, change.version) == (Kind.SPLIT, "q", 1)
    assert change.reason.why is Why.HOT_QUEUE
    assert not change.drains
    assert len(change.opens) == 1
    assert 0 not in change.opens


def test_windows_must_follow_each_other() -> None:
    """Three hot windows with an idle one between them."""
    fleet = SmallFleet()
    fleet.queue("q", 0)
    for asked in (0.6, 0.6, 0.1, 0.6, 0.6):
        fleet.ask("q", 0, asked)
        fleet.report()
    assert not fleet.plan().changes


def test_reports_of_a_clock_that_was_ahead_are_replaced() -> None:
    """They would else be believed until their time comes."""
    fleet = SmallFleet()
    fleet.queue("q", 0)
    fleet.ask("q", 0, 0.6)
    fleet.now_ms += 86_400_000
    fleet.report(30)
    fleet.now_ms -= 86_400_000
    assert fleet.plan().changes
    fleet.ask("q", 0, 0.1)
    fleet.report(10)
    assert not fleet.plan().changes
    fleet.ask("q", 0, 0.6)
    fleet.report(20)
    assert not fleet.plan().changes
    fleet.report(10)
    assert fleet.plan().changes


def test_a_queue_of_forty_percent_is_split_on_a_busy_shard_only() -> None:
    """Two thresholds: the shard's loop, and the queue's share of it."""
    fleet = SmallFleet()
    fleet.queue("q", 0)
    fleet.ask("q", 0, 0.42)
    fleet.report(30)
    assert not fleet.plan().changes
    fleet.other[0] = 0.4
    fleet.report(30)
    (change,) = fleet.plan().changes
    assert change.reason.why is Why.HOT_SHARD


def far_fleet(asked: float = 0.45, others: float = 0.3, **queue: bool) -> SmallFleet:
    """Cluster a is far above the mean, and has a warm queue."""
    fleet = SmallFleet()
    for shard in range(12):
        fleet.other[shard] = others if shard < 3 else 0.2
    fleet.queue("q", 0, **queue)
    fleet.ask("q", 0, asked)
    return fleet


def test_a_warm_queue_of_a_cluster_far_above_the_mean_is_split_after_a_minute() -> None:
    """Whole parts could leave two at a time only, and none would find a place below the mean."""
    fleet = far_fleet()
    fleet.report(60)
    assert not fleet.plan().changes
    fleet.report(10)
    (change,) = fleet.plan().changes
    assert (change.kind, change.reason.why, change.drains) == (Kind.SPLIT, Why.WARM_QUEUE, ())
    assert change.taken == change.given == (0.225,)
    assert str(change.reason) == (
        "the queue asked for 20% of a loop or more in each of three windows, and cluster a has 45% "
        "where the mean is 26%"
    )


def test_a_warm_queue_elsewhere_stays_whole() -> None:
    """There it would be changed for nothing, ten minutes before it may be hot."""
    fleet = far_fleet(asked=0.35, others=0.2)
    fleet.report(170)
    assert not fleet.plan().changes


def test_a_queue_that_is_not_warm_is_moved_from_a_cluster_far_above_the_mean() -> None:
    fleet = far_fleet(asked=0.19, others=0.4)
    fleet.report(70)
    (change,) = fleet.plan().changes
    assert (change.kind, change.reason.why) == (Kind.MOVE, Why.UNEVEN)


@pytest.mark.parametrize("queue", [{"is_fifo": True}, {"can_split": False}])
def test_a_warm_queue_that_is_fifo_or_stays_whole_is_not_split(queue: dict[str, bool]) -> None:
    """All parts of a FIFO queue would be replaced. It is not hot, so its owner hears nothing."""
    fleet = far_fleet(**queue)
    fleet.report(190)
    made = fleet.plan()
    assert not of_kind(made, Kind.SPLIT)
    assert not warnings(made)


def test_no_more_warm_queues_are_split_than_the_cluster_has_too_much() -> None:
    fleet = far_fleet(asked=0.3, others=0.12)
    for shard in range(3, 12):
        fleet.other[shard] = 0.1 if shard < 6 else 0.25
    fleet.queue("r", 1)
    fleet.ask("r", 0, 0.22)
    fleet.report(70)
    assert [each.queue for each in of_kind(fleet.plan(), Kind.SPLIT)] == ["q"]
    fleet.ask("r", 0, 0.29)
    fleet.report(30)
    assert [each.queue for each in of_kind(fleet.plan(), Kind.SPLIT)] == ["q", "r"]


def test_a_warm_queue_is_not_split_to_clusters_that_are_uneven_then() -> None:
    fleet = far_fleet(others=0.235)
    for shard in range(3, 12):
        fleet.other[shard] = 0.275
    fleet.report(70)
    made = fleet.plan()
    assert not of_kind(made, Kind.SPLIT)
    assert ("split", "q", Why.NO_ROOM) in refusals(made)


def test_a_warm_queue_gets_only_the_parts_that_have_a_place() -> None:
    """Four are wanted, and one cluster is low enough: three get more each."""
    fleet = far_fleet(asked=0.0)
    for shard, other in ((3, 0.2), (6, 0.38), (9, 0.1)):
        fleet.other |= dict.fromkeys(range(shard, shard + 3), other)
    fleet.queue("r", 0, 3)
    for number in range(2):
        fleet.ask("r", number, 0.46)
    fleet.report(70)
    (change,) = of_kind(fleet.plan(), Kind.SPLIT)
    assert change.reason.why is Why.WARM_QUEUE
    assert len(change.opens) == 1
    assert change.given[0] == pytest.approx(0.92 / 3)


def test_a_queue_of_many_parts_is_not_split_for_being_warm() -> None:
    fleet = far_fleet(asked=0.3)
    fleet.records.put(fleet.records.queues.pop("q")._replace(queue_id="x"))
    fleet.queue("q", 0, 3, 6, 9)
    fleet.report(70)
    assert not of_kind(fleet.plan(), Kind.SPLIT)


def test_a_warm_queue_whose_host_is_silent_for_long_is_left_alone() -> None:
    """Its shard was reported, and its part is forgotten after half an hour."""
    fleet = far_fleet()
    fleet.report(70)
    fleet.history.parts.clear()
    assert not of_kind(fleet.plan(), Kind.SPLIT)


def test_many_idle_messages_are_no_reason() -> None:
    """Ten million messages that nobody asks for gain nothing from parts."""
    fleet = SmallFleet()
    fleet.queue("q", 0)
    fleet.ask("q", 0, 0.01, messages=10_000_000)
    fleet.report(600)
    assert not fleet.plan().changes


def test_one_group_with_most_of_the_load_is_not_split_and_the_owner_hears_it() -> None:
    """A split would give its hot half less than before."""
    fleet = SmallFleet()
    fleet.queue("q.fifo", 0, is_fifo=True)
    fleet.ask("q.fifo", 0, 0.7, top_group=0.61)
    fleet.report(60)
    made = fleet.plan()
    assert not made.changes
    assert ("split", "q.fifo", Why.ONE_GROUP) in refusals(made)
    assert ("q.fifo", Why.ONE_GROUP) in warnings(made)
    assert "61%" in str(made.refusals[0].reason)


def test_a_queue_that_deduplicates_as_a_whole_is_not_split() -> None:
    """One part has to know all its deduplication ids."""
    fleet = SmallFleet()
    fleet.queue("q.fifo", 0, is_fifo=True, can_split=False)
    fleet.ask("q.fifo", 0, 0.7)
    fleet.report(60)
    made = fleet.plan()
    assert not made.changes
    assert ("q.fifo", Why.QUEUE_SCOPE) in warnings(made)


def test_all_parts_of_a_fifo_queue_are_replaced() -> None:
    """New parts have higher numbers than any before: sequence numbers of a group rise."""
    fleet = SmallFleet()
    fleet.queue("q.fifo", 0, 3, is_fifo=True)
    fleet.ask("q.fifo", 0, 0.7, top_group=0.1)
    fleet.ask("q.fifo", 1, 0.1, top_group=0.1)
    fleet.report(60)
    made = fleet.plan()
    (change,) = made.changes
    assert change.drains == (0, 1)
    assert len(set(change.opens)) == 3
    fleet.apply(made)
    parts = fleet.records.queues["q.fifo"].open_parts
    assert [part.number for part in parts] == [2, 3, 4]
    assert parts[0].low == 0
    assert [part.high for part in parts[:-1]] == [part.low for part in parts[1:]]
    assert parts[-1].high == 1 << 64


def test_a_fifo_queue_is_split_later_than_a_standard_one() -> None:
    """Each of its parts is closed for it: it is hot for a minute, and asks for 60 %."""
    fleet = SmallFleet()
    fleet.queue("q.fifo", 0, is_fifo=True)
    fleet.ask("q.fifo", 0, 0.59)
    fleet.report(300)
    assert not fleet.plan().changes
    fleet.ask("q.fifo", 0, 0.45)
    fleet.report(10)
    fleet.ask("q.fifo", 0, 0.7)
    fleet.report(50)
    assert not fleet.plan().changes
    fleet.report(10)
    assert of_kind(fleet.plan(), Kind.SPLIT)


def test_a_fifo_queue_is_not_split_while_closed_parts_give_their_messages() -> None:
    """A part gives each group to one that is open."""
    fleet = SmallFleet()
    queue = fleet.queue("q.fifo", 0, 3, is_fifo=True)
    closed = queue.parts[0]._replace(state=PartState.DRAINING)
    fleet.records.put(queue._replace(parts=(closed, Part(1, 3, low=0, high=1 << 64))))
    fleet.ask("q.fifo", 1, 0.7)
    fleet.report(60)
    made = fleet.plan()
    assert not made.changes
    assert ("split", "q.fifo", Why.BACKLOG) in refusals(made)
    fleet.records.emptied.add(("q.fifo", 0))
    fleet.report()
    assert of_kind(fleet.plan(), Kind.SPLIT)


def test_a_fifo_queue_of_half_the_most_parts_is_not_split() -> None:
    """Those that it has count until they are empty, beside as many new ones."""
    fleet = SmallFleet(clusters=26)
    fleet.queue("q.fifo", *range(PARTS_MAX // 2), is_fifo=True)
    fleet.ask("q.fifo", 0, 0.7)
    fleet.report(60)
    made = fleet.plan()
    assert not made.changes
    assert ("split", "q.fifo", Why.PARTS_MAX) in refusals(made)


def test_new_parts_lie_on_clusters_that_have_none_of_the_queue() -> None:
    """However the draw falls: parts of one queue on one cluster are one load there."""
    for number in range(16):
        fleet = SmallFleet()
        fleet.queue(f"q{number}", 0, 4)
        for part in (0, 1):
            fleet.ask(f"q{number}", part, 0.6)
        fleet.report(30)
        (change,) = of_kind(fleet.plan(), Kind.SPLIT)
        assert {shard // 3 for shard in change.opens} == {2, 3}


@pytest.mark.parametrize("is_fifo", [False, True])
def test_each_part_has_its_own_cluster_though_the_hand_has_four(is_fifo: bool) -> None:
    """Seven parts in a hand of four were two in one cluster, which had twice the load then."""
    fleet = SmallFleet(clusters=20)
    for shard in range(60):
        fleet.other[shard] = 0.4
    fleet.queue("q", 0, is_fifo=is_fifo)
    fleet.ask("q", 0, 2.7, top_group=0.1 * is_fifo)
    fleet.report(60)
    (change,) = of_kind(fleet.plan(), Kind.SPLIT)
    clusters = [shard // 3 for shard in change.opens]
    assert len(clusters) >= 6
    if not is_fifo:
        clusters.append(0)
    assert len({*clusters}) == len(clusters)


def test_clusters_below_the_mean_get_new_parts_first() -> None:
    """Also beyond the hand: else the account's four clusters are the busiest of all."""
    fleet = SmallFleet(clusters=20)
    dealt = fleet.order()
    for name in dealt:
        for shard in fleet.records.clusters[name].shards:
            fleet.other[shard] = 0.65 if name in dealt[:4] else 0.4
    first = fleet.records.clusters[dealt[0]].shards[0]
    fleet.other[first] = 0.0
    fleet.queue("q", first)
    fleet.ask("q", 0, 0.7)
    fleet.report(30)
    (change,) = of_kind(fleet.plan(), Kind.SPLIT)
    places = [fleet.records.fleet().cluster_of[shard] for shard in change.opens]
    assert {*places} == {*dealt[4 : 4 + len(places)]}


def test_no_cluster_gets_more_new_parts_than_it_has_room_for() -> None:
    """The halves of a hot FIFO queue do not both go to the only cluster, which has room for one."""
    fleet = SmallFleet()
    fleet.queue("q.fifo", 0, is_fifo=True)
    fleet.ask("q.fifo", 0, 0.7, top_group=0.1)
    loads = (1.0, 0.79, 0.79, 0.65)
    fleet.hosts = {name: {"loop": loop} for name, loop in zip("abcd", loads, strict=True)}
    fleet.report(60)
    made = fleet.plan()
    assert not of_kind(made, Kind.SPLIT)
    assert ("split", "q.fifo", Why.NO_ROOM) in refusals(made)
    fleet.hosts["d"] = {"loop": 0.55}
    fleet.report()
    (change,) = of_kind(fleet.plan(), Kind.SPLIT)
    assert {shard // 3 for shard in change.opens} == {3}


def test_parts_at_most_double_whatever_is_asked() -> None:
    """However hot it is, the next step is decided on what the first one did."""
    fleet = SmallFleet(clusters=4)
    fleet.queue("q", 0, 3)
    for number in (0, 1):
        fleet.ask("q", number, 0.78)
    fleet.report(30)
    (change,) = of_kind(fleet.plan(), Kind.SPLIT)
    assert len(change.opens) == 2


def test_parts_grow_by_what_is_asked_where_that_is_less_than_double() -> None:
    """The load chooses the number of parts."""
    fleet = SmallFleet()
    fleet.queue("q", 0, 3, 6, 9)
    fleet.ask("q", 0, 0.55)
    for number in (1, 2, 3):
        fleet.ask("q", number, 0.25)
    fleet.report(30)
    (change,) = of_kind(fleet.plan(), Kind.SPLIT)
    assert len(change.opens) == 1


@pytest.mark.parametrize("is_fifo", [False, True])
def test_a_queue_that_asks_for_three_loops_is_split_so_that_no_part_is_hot(is_fifo: bool) -> None:
    """Its halves fit on no loop either, and the next change comes ten minutes later."""
    fleet = SmallFleet(clusters=4)
    fleet.queue("q", 0, is_fifo=is_fifo)
    fleet.ask("q", 0, 3.0, top_group=0.1)
    fleet.report(60)
    made = fleet.plan()
    (change,) = of_kind(made, Kind.SPLIT)
    assert len(change.opens) == 7 + is_fifo
    assert len({shard // 3 for shard in (0, *change.opens)}) == 4, "over all clusters of the hand"
    fleet.apply(made)
    fleet.ask("q", 0, 3.0 / 8 * (not is_fifo))
    for part in fleet.records.queues["q"].open_parts:
        fleet.ask("q", part.number, 3.0 / 8, top_group=0.1)
    fleet.records.emptied.add(("q", 0))
    fleet.report(600)
    assert not of_kind(fleet.plan(), Kind.SPLIT)


def test_a_queue_of_several_loops_gets_all_its_parts_though_shards_are_busy() -> None:
    """With the few that fit below 80 % each of them would be hot until the next change."""
    fleet = SmallFleet(clusters=4)
    for shard in range(1, 12):
        fleet.other[shard] = 0.2 if shard in (3, 7) else 0.5
    fleet.queue("q", 0)
    fleet.ask("q", 0, 2.5)
    fleet.report(30)
    (change,) = of_kind(fleet.plan(), Kind.SPLIT)
    assert len(change.opens) == 6
    assert max(change.given) < 0.4


def test_the_busiest_group_counts_for_the_parts_of_a_fifo_queue() -> None:
    """The part that has it has its share of the others, too: of three it would be hot at once."""
    fleet = SmallFleet(clusters=4)
    fleet.queue("q.fifo", 0, is_fifo=True)
    fleet.ask("q.fifo", 0, 1.27, top_group=0.24)
    fleet.report(60)
    (change,) = of_kind(fleet.plan(), Kind.SPLIT)
    assert len(change.opens) == 5


def test_a_queue_has_sixty_four_parts_at_most() -> None:
    fleet = SmallFleet(clusters=26)
    fleet.queue("q", *range(PARTS_MAX))
    for number in range(PARTS_MAX):
        fleet.ask("q", number, 0.6)
    fleet.report(30)
    made = fleet.plan()
    assert not of_kind(made, Kind.SPLIT)
    assert ("split", "q", Why.PARTS_MAX) in refusals(made)


def test_a_queue_is_changed_once_in_ten_minutes() -> None:
    """A split takes effect before the next one is decided."""
    fleet = SmallFleet()
    fleet.queue("q", 0)
    fleet.ask("q", 0, 0.95)
    fleet.report(30)
    fleet.apply(fleet.plan())
    fleet.ask("q", 1, 0.95)
    fleet.report(590)
    made = fleet.plan()
    assert not of_kind(made, Kind.SPLIT)
    assert ("split", "q", Why.CALM) in refusals(made)
    fleet.report(10)
    assert of_kind(fleet.plan(), Kind.SPLIT)


def test_a_slow_shard_or_one_in_change_is_left_alone() -> None:
    """A split that begins beside a failover or a copy makes both slower."""
    fleet = SmallFleet()
    fleet.queue("q", 0)
    fleet.ask("q", 0, 0.7)
    fleet.report(30)
    for figures in (
        {"latency": 2.0},
        {"led_since_ms": fleet.now_ms - 20_000},
        {"is_checkpointing": True},
    ):
        fleet.shards[0] = dict(figures)
        fleet.report(10)
        made = fleet.plan()
        assert not made.changes, figures
        assert ("split", "q", Why.DISTURBED) in refusals(made)
    fleet.shards = {0: {"latency": 1.9}}
    fleet.report(10)
    assert fleet.plan().changes


@pytest.mark.parametrize(("window_ms", "is_left_alone"), [(10_000, True), (2_000, False)])
def test_a_shard_is_left_alone_for_six_windows_after_its_leader_changed(
    window_ms: int, is_left_alone: bool
) -> None:
    fleet = SmallFleet()
    fleet.history = LoadHistory(window_ms)
    fleet.queue("q", 0)
    fleet.ask("q", 0, 0.7)
    fleet.report(30)
    fleet.shards[0] = {"led_since_ms": fleet.now_ms - 2_000}
    fleet.report(10)
    made = fleet.plan()
    assert (("split", "q", Why.DISTURBED) in refusals(made)) == is_left_alone
    assert bool(of_kind(made, Kind.SPLIT)) != is_left_alone


def test_a_fifo_queue_that_a_task_reads_is_not_drained_by_a_split() -> None:
    """The task would miss what is transferred; a standard queue only gains a part."""
    fleet = SmallFleet()
    for queue in (fleet.queue("q.fifo", 0, is_fifo=True), fleet.queue("q", 1)):
        fleet.records.put(queue._replace(has_task=True))
        fleet.ask(queue.queue_id, 0, 0.7)
    fleet.report(60)
    made = fleet.plan()
    assert [change.queue for change in made.changes] == ["q"]
    assert ("split", "q.fifo", Why.TASK) in refusals(made)
