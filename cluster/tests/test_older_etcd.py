"""Older snapshots of etcd are restored while queues are split, moved and shrunk: no acknowledged
message is lost, and all are served again.

`make simulate SEEDS=200 ARGS=--older-etcd` runs more seeds.
"""

from __future__ import annotations

import os

import pytest

from cluster.tests.simulation.cluster_run import older_etcd_shape, simulate
from cluster.tests.simulation.older_etcd_planted import PLANTS
from cluster.tests.simulation.planting import Plant

SEEDS = max(3, int(os.environ.get("SIMULATION_SEEDS", "200")) // 20)
_UNTIL_FOUND = 10


@pytest.mark.parametrize("seed", range(SEEDS))
def test_history_is_one_that_sqs_may_have(seed: int) -> None:
    outcome = simulate(seed, older_etcd_shape(seed))

    assert not outcome.findings, f"make simulate SEED={seed} ARGS=--older-etcd"
    assert sum("etcd is restored" in line for line in outcome.lines) == 3


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTS, ids=[plant.__name__ for plant in PLANTS])
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)

    seeds = range(_UNTIL_FOUND)
    assert any(simulate(seed, older_etcd_shape(seed)).findings for seed in seeds)
