"""Replicas on simulated time, disks and network: whatever fails, nothing acknowledged is lost.

`make simulate SEEDS=20000 ARGS=--replicas` runs more seeds, `make simulate SEED=123
ARGS=--replicas` replays one.
"""

from __future__ import annotations

import os

import pytest

from cluster.tests.repeated import printed_digest
from cluster.tests.replication.replica_planted import PLANTS, Plant, Story
from cluster.tests.replication.replica_run import Shape, simulate

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "200")) // 4
_AT_ONCE = 20
_UNTIL_FOUND = 120
"""Seeds within which a planted bug is found."""
_SOONER = {
    "no_learner_rule": 48,
    "count_entries_of_older_terms": 55,
    "keep_the_term_after_a_restart": 39,
    "answer_without_confirmation": 41,
}
"""Seeds from which a bug is found sooner than from 0; an outdated one costs time only."""


@pytest.mark.parametrize("first", range(0, SEEDS, _AT_ONCE))
def test_what_was_acknowledged_is_kept_and_progress_returns(first: int) -> None:
    for seed in range(first, min(first + _AT_ONCE, SEEDS)):
        findings = simulate(seed).findings
        assert not findings, f"make simulate SEED={seed} ARGS=--replicas"


@pytest.mark.slow
def test_a_seed_repeats_its_history() -> None:
    assert printed_digest("cluster.tests.replication.replica_run") == simulate(3).digest


@pytest.mark.slow
@pytest.mark.parametrize(("plant", "found_in"), PLANTS, ids=[plant.__name__ for plant, _ in PLANTS])
def test_a_planted_bug_is_found(
    plant: Plant, found_in: Shape | Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)

    if isinstance(found_in, Shape):
        first = _SOONER.get(plant.__name__, 0)
        assert any(simulate(first + tried, found_in).findings for tried in range(_UNTIL_FOUND))
    else:
        with pytest.raises(AssertionError):
            found_in()
