"""Three hosts with real shards on simulated time, disks and network: with any fault, clients see a
history allowed by SQS.

`make simulate SEEDS=20000 ARGS=--cluster` runs more seeds, `make simulate SEED=123 ARGS=--cluster`
replays one.
"""

from __future__ import annotations

import os

import pytest

from cluster.tests.repeated import printed_digest
from cluster.tests.simulation.cluster_planted import PLANTS, Plant, Story
from cluster.tests.simulation.cluster_run import Shape, simulate

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "200")) // 2
_AT_ONCE = 10
_UNTIL_FOUND = 100
"""Seeds within which a planted bug is found."""
_SOONER = {
    "apply_before_the_commit": 2,
    "say_not_decided_of_everything": 14,
}
"""Seeds from which a bug is found sooner than from 0; an outdated one costs time only."""


@pytest.mark.parametrize("first", range(0, SEEDS, _AT_ONCE))
def test_history_is_one_that_sqs_may_have(first: int) -> None:
    for seed in range(first, min(first + _AT_ONCE, SEEDS)):
        findings = simulate(seed).findings
        assert not findings, f"make simulate SEED={seed} ARGS=--cluster"


def test_a_seed_repeats_its_history() -> None:
    assert printed_digest("cluster.tests.simulation.cluster_run") == simulate(3).digest


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
