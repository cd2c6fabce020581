"""The plan on models of clusters: small fleets with many faults, and planted bugs.

`make fleet-at-scale` runs the large one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cluster.fleet import draft, moves, plan
from cluster.fleet.counted import Counted
from cluster.tests.fleet.at_scale import scale_run as run
from cluster.tests.fleet.at_scale.planners import Bugs
from cluster.tests.fleet.at_scale.scale_run import SMALL, Simulation

SHRINKING = replace(SMALL, kept_s=7)
"""Peaks count for nothing, or in hours no queue that was busy would be shrunk."""
SLOW = replace(SHRINKING, queues=60, slow_s=1800)
TINY = replace(SMALL, warm_s=600, measured_s=900)


def test_a_small_fleet_keeps_the_rules() -> None:
    """Lost hosts, clusters and zones, planners killed, stopped and doubled, late reports."""
    figures = Simulation(TINY, 1).run()
    assert not figures.findings
    assert figures.kinds


def test_a_run_explains_its_greatest_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "RATIO_MAX", 1.0)
    figures = Simulation(TINY, 1, explains=True).run()
    first, queue, *_ = figures.explained
    assert " times; queues below 0.3 %: " in first
    assert " parts, " in queue
    named = [line for line in figures.explained if not line.startswith("  ")]
    assert len(named) == len([each for each in figures.ratios if each > 1.0])


def test_a_planner_that_hears_nothing_lets_the_other_one_plan() -> None:
    simulation = Simulation(TINY, 1)
    simulation.faults.often = 0.0
    simulation.faults.blind_until_ms = run.START_MS + 600_000
    simulation.run(until="no such finding")
    assert simulation.records.term == simulation.planners[1].term
    assert not simulation.figures.findings


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 5))
def test_other_small_fleets_keep_the_rules(seed: int) -> None:
    assert not Simulation(SMALL, seed).run().findings


def test_a_run_is_repeated_by_its_seed() -> None:
    first, second = (Simulation(TINY, 3).run() for _ in range(2))
    assert (first.kinds, first.refusals, first.ratios) == (
        second.kinds,
        second.refusals,
        second.ratios,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bugs", "finding", "seeds"),
    [
        (Bugs(writes_unchecked=True, two_planners=True), "from another version", range(11, 21)),
        (Bugs(two_planners=True), "without the key", range(3)),
        (Bugs(cleans_by_age=True), "twice in ten minutes", range(3, 6)),
        (Bugs(reports_served=True), "is busy and loses a part", range(28, 31)),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_a_planted_bug_is_found(bugs: Bugs, finding: str, seeds: range) -> None:
    assert_found(finding, seeds, bugs)


def no_count(*_: Any) -> None:
    return None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "finding", "seeds"),
    [
        ([(draft, "UNDO_MS", 0)], "returns to a", range(5, 10)),
        ([(draft, "CALM_MS", 0)], "twice in ten minutes", range(3)),
        ([(draft, "TRANSFERS_MAX", 9), (moves, "TRANSFERS_MAX", 9)], "leave", range(3)),
        ([(draft, "BUDGET_LEAST", 50)], "parts were changed in ten minutes", range(3)),
        ([(plan, "ILL_SHARE", 1.0)], "clusters look ill", range(1, 10)),
        ([(Counted, "add", no_count), (Counted, "_count_load", no_count)], "at once", range(4, 20)),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_a_rule_that_is_left_out_is_found(
    changes: list[tuple[Any, str, Any]],
    finding: str,
    seeds: range,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for of, name, value in changes:
        monkeypatch.setattr(of, name, value)
    assert_found(finding, seeds)


def assert_found(finding: str, seeds: range, bugs: Bugs | None = None) -> None:
    """A finding with this text comes up within these seeds."""
    size = SMALL if bugs is None else SLOW if bugs.reports_served else SHRINKING
    for seed in seeds:
        found = Simulation(size, seed, bugs).run(until=finding).findings
        if any(finding in each for each in found):
            return
    pytest.fail(f"no {finding!r} in {seeds}")
