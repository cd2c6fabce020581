"""Shrinks: half an hour of little that was asked, no backlog, an hour after the split."""

from __future__ import annotations

import msgspec
import pytest

from cluster.fleet.load_history import LoadHistory
from cluster.fleet.loads import REPORT_MS
from cluster.fleet.peaks import KnownPeaks, Peaks
from cluster.fleet.plan_table import Kind
from cluster.fleet.reasons import Why
from cluster.fleet.thresholds import KEPT_MS
from cluster.tests.fleet.fleets import START_MS, SmallFleet, of_kind, refusals

HALF_HOUR_S = 1810
DAY_MS = 86_400_000


def idle(*, parts: int = 2, is_fifo: bool = False) -> SmallFleet:
    """A fleet with a queue `q` of several parts that ask for little."""
    fleet = SmallFleet()
    fleet.queue("q", *range(parts), is_fifo=is_fifo)
    for number in range(parts):
        fleet.ask("q", number, 0.02)
    return fleet


def test_an_idle_queue_loses_a_part_after_half_an_hour() -> None:
    fleet = idle()
    fleet.report(1500)
    made = fleet.plan()
    assert not made.changes
    assert ("shrink", "q", Why.UNSEEN) in refusals(made)
    fleet.report(310)
    (change,) = fleet.plan().changes
    assert (change.kind, change.reason.why) == (Kind.SHRINK, Why.IDLE_PARTS)
    assert len(change.drains) == 1
    assert not change.opens


def test_a_new_planner_shrinks_nothing() -> None:
    """It has watched for no time: who takes over from another one begins with patience."""
    fleet = idle()
    fleet.report(60)
    assert ("shrink", "q", Why.UNSEEN) in refusals(fleet.plan())


def test_a_peak_within_half_an_hour_keeps_the_parts() -> None:
    """The maximum counts, not the last second."""
    fleet = idle()
    fleet.report(HALF_HOUR_S)
    fleet.ask("q", 0, 0.3)
    fleet.report(10)
    fleet.ask("q", 0, 0.02)
    fleet.report(1700)
    assert not fleet.plan().changes
    fleet.report(170)
    assert fleet.plan().changes


def test_slow_does_not_look_idle() -> None:
    """A shard whose latency doubled serves less. Fewer parts would make it slower still."""
    fleet = idle()
    fleet.shards = {0: {"latency": 4.0}}
    fleet.report(HALF_HOUR_S)
    made = fleet.plan()
    assert not made.changes
    assert ("shrink", "q", Why.DISTURBED) in refusals(made)


def test_refused_and_held_requests_count_as_load() -> None:
    """Served load fell to nothing and asked load did not: a report has only what was asked."""
    fleet = idle()
    fleet.ask("q", 0, 0.45)
    fleet.shards = {0: {"asked": 0.45}}
    fleet.hosts = {"a": {"loop": 0.01}}
    fleet.report(HALF_HOUR_S)
    assert not of_kind(fleet.plan(), Kind.SHRINK)


def test_a_part_with_a_backlog_stays() -> None:
    """Its messages would wait behind all others at their new place."""
    fleet = idle()
    for number in (0, 1):
        fleet.ask("q", number, 0.02, messages=7)
    fleet.report(HALF_HOUR_S)
    made = fleet.plan()
    assert not made.changes
    assert ("shrink", "q", Why.BACKLOG) in refusals(made)


def test_two_thresholds_lie_between_split_and_shrink() -> None:
    """Half of what splits a queue keeps its parts: nothing flaps between the two."""
    fleet = idle()
    for number in (0, 1):
        fleet.ask("q", number, 0.13)
    fleet.report(HALF_HOUR_S)
    assert not fleet.plan().changes
    for number in (0, 1):
        fleet.ask("q", number, 0.12)
    fleet.report(HALF_HOUR_S + 60)
    assert of_kind(fleet.plan(), Kind.SHRINK)


@pytest.mark.parametrize(("parts", "kept"), [(2, True), (3, False)])
def test_a_queue_keeps_the_parts_that_it_needed_within_a_week(parts: int, *, kept: bool) -> None:
    """It has its hour each day, or each Monday. Who takes parts from it may not split it for an
    hour."""
    fleet = idle(parts=parts)
    for number in (0, 1):  # none of them is hot
        fleet.ask("q", number, 0.3)
    fleet.report(30)
    for number in (0, 1):
        fleet.ask("q", number, 0.02)
    fleet.report(7200)
    made = fleet.plan()
    assert (("shrink", "q", Why.BUSY_LATELY) in refusals(made)) is kept
    assert bool(made.changes) is not kept
    if not kept:
        return
    assert "asked for 0.6 loops within 7 days" in str(made.refusals[0].reason)
    for days, is_shrunk in ((6, False), (2, True)):
        fleet.now_ms += days * DAY_MS
        fleet.history.peaks.learn(KnownPeaks(START_MS - KEPT_MS, fleet.now_ms))
        fleet.report(HALF_HOUR_S)
        assert bool(of_kind(fleet.plan(), Kind.SHRINK)) is is_shrunk


def test_a_burst_that_splits_nothing_keeps_no_parts() -> None:
    """A split asks for three hot windows."""
    fleet = idle()
    for _ in range(3):
        for asked, seconds in ((0.9, 20), (0.02, 10)):
            for number in (0, 1):
                fleet.ask("q", number, asked)
            fleet.report(seconds)
    assert fleet.history.peaks.of("q", fleet.now_ms) == 0.0
    fleet.report(HALF_HOUR_S + 60)
    assert of_kind(fleet.plan(), Kind.SHRINK)


def test_a_peak_is_of_all_parts_whenever_their_hosts_report() -> None:
    fleet = idle()
    for number in (0, 1):
        fleet.ask("q", number, 0.3)
    for _ in range(3):
        fleet.now_ms += REPORT_MS
        reports = {each.host: each for each in fleet.reports()}
        for host in ("a-0", "a-1"):
            fleet.now_ms += 1
            fleet.history.observe(fleet.records.clusters, [reports[host]], fleet.now_ms)
    assert fleet.history.peaks.of("q", fleet.now_ms) == 0.6


def test_a_host_that_is_silent_after_a_burst_adds_no_windows() -> None:
    fleet = idle()
    for number in (0, 1):
        fleet.ask("q", number, 0.9)
    reports = fleet.reports()
    for _ in range(3):
        fleet.now_ms += REPORT_MS
        fleet.history.observe(fleet.records.clusters, reports, fleet.now_ms)
    assert fleet.history.peaks.of("q", fleet.now_ms) == 0.0


def test_nothing_is_shrunk_before_the_peaks_of_a_week_are_known() -> None:
    """In a new fleet, and after an hour without a manager: a weekend is quiet, too."""
    fleet = idle()
    fleet.history.peaks = Peaks()
    fleet.report(HALF_HOUR_S)
    made = fleet.plan()
    assert not made.changes
    assert ("shrink", "q", Why.PEAKS_UNKNOWN) in refusals(made)
    (refusal,) = made.refusals
    assert "its peaks of 7 days are known in 168 hours" in str(refusal.reason)
    fleet.forget_peaks()
    fleet.report(10)
    assert of_kind(fleet.plan(), Kind.SHRINK)
    fleet.now_ms += 3_600_000
    fleet.report(HALF_HOUR_S)
    assert ("shrink", "q", Why.PEAKS_UNKNOWN) in refusals(fleet.plan())


def test_a_new_planner_knows_the_peaks_that_the_one_before_wrote_down() -> None:
    fleet = idle()
    for number in (0, 1):
        fleet.ask("q", number, 0.3)
    fleet.report(30)
    for number in (0, 1):
        fleet.ask("q", number, 0.02)
    fleet.report()
    known = fleet.history.peaks.known(["q"], fleet.now_ms)
    fleet.history = LoadHistory()
    fleet.history.peaks.learn(msgspec.json.decode(msgspec.json.encode(known), type=KnownPeaks))
    fleet.report(HALF_HOUR_S)
    assert ("shrink", "q", Why.BUSY_LATELY) in refusals(fleet.plan())


def test_no_split_is_undone_within_an_hour() -> None:
    fleet = SmallFleet()
    fleet.queue("q", 0)
    fleet.ask("q", 0, 0.6)
    fleet.report(30)
    fleet.apply(fleet.plan())
    fleet.forget_peaks()  # an operator split it
    for number in (0, 1):
        fleet.ask("q", number, 0.0)
    fleet.report(3590)
    made = fleet.plan()
    assert not made.changes
    assert ("shrink", "q", Why.UNDOES) in refusals(made)
    fleet.report(10)
    assert of_kind(fleet.plan(), Kind.SHRINK)


def test_no_shrink_is_undone_within_an_hour() -> None:
    """Another place may be found for a hot part meanwhile."""
    fleet = idle()
    fleet.report(HALF_HOUR_S)
    made = fleet.plan()
    fleet.apply(made)
    (drained,) = made.changes[0].drains
    fleet.records.finish("q", drained)
    fleet.ask("q", 1 - drained, 0.6)
    fleet.report(1200)
    made = fleet.plan()
    assert not of_kind(made, Kind.SPLIT)
    assert ("split", "q", Why.UNDOES) in refusals(made)
    fleet.report(2400)
    assert of_kind(fleet.plan(), Kind.SPLIT)


def test_a_tenth_of_the_parts_leaves_at_once() -> None:
    """Polls that wait at a part that leaves have to find others."""
    fleet = SmallFleet(clusters=8)
    fleet.queue("q", *range(24))
    fleet.report(HALF_HOUR_S)
    (change,) = fleet.plan().changes
    assert len(change.drains) == 2


def test_all_parts_of_an_idle_fifo_queue_become_half_as_many_new_ones() -> None:
    """A range never changes: the successors have numbers above all, and may lie where those lay."""
    fleet = idle(parts=4, is_fifo=True)
    fleet.report(HALF_HOUR_S)
    made = fleet.plan()
    (change,) = made.changes
    assert change.drains == (0, 1, 2, 3)
    assert len(set(change.opens)) == 2
    fleet.apply(made)
    new = fleet.records.queues["q"].open_parts
    assert [part.number for part in new] == [4, 5]
    assert [(part.low, part.high) for part in new] == [(0, 1 << 63), (1 << 63, 1 << 64)]


def test_a_fifo_queue_is_shrunk_later_than_a_standard_one() -> None:
    """Each of its parts is closed for it."""
    fleet = idle(is_fifo=True)
    for number in (0, 1):
        fleet.ask("q", number, 0.08)
    fleet.report(HALF_HOUR_S)
    assert not fleet.plan().changes
    for number in (0, 1):
        fleet.ask("q", number, 0.07)
    fleet.report(HALF_HOUR_S + 60)
    assert of_kind(fleet.plan(), Kind.SHRINK)


def test_a_queue_that_a_task_reads_keeps_its_parts() -> None:
    """A redrive would miss the messages that a drain transfers behind it."""
    fleet = idle()
    fleet.records.put(fleet.records.queues["q"]._replace(has_task=True))
    fleet.report(HALF_HOUR_S)
    made = fleet.plan()
    assert not made.changes
    assert ("shrink", "q", Why.TASK) in refusals(made)


def test_a_part_that_lies_with_another_one_leaves_first() -> None:
    fleet = SmallFleet()
    fleet.queue("q", 0, 3, 4, 6)
    for number, asked in enumerate((0.01, 0.03, 0.02, 0.01)):
        fleet.ask("q", number, asked)
    fleet.report(1900)
    (change,) = of_kind(fleet.plan(), Kind.SHRINK)
    assert change.drains == (2,)


def test_a_part_beyond_the_hand_leaves_before_those_of_the_hand() -> None:
    """So an account is back in its four clusters when it asks for less."""
    fleet = SmallFleet(clusters=12)
    places = [fleet.records.clusters[name].shards[0] for name in fleet.order()]
    fleet.queue("q", places[0], places[7], places[2])
    for number, asked in enumerate((0.01, 0.03, 0.02)):
        fleet.ask("q", number, asked)
    fleet.report(1900)
    (change,) = of_kind(fleet.plan(), Kind.SHRINK)
    assert change.drains == (1,)
