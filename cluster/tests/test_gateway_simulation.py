"""A fleet whose gateway has no etcd for long, while queues are split, moved, shrunk and purged: the
clusters do what it asks for, and nothing is lost, doubled or out of order.

`make simulate SEEDS=200 ARGS=--gateway` runs more seeds.
"""

from __future__ import annotations

import os

import pytest

from cluster.peers.queue_news import QueueNews
from cluster.tests.simulation.cluster_run import gateway_shape, simulate
from cluster.tests.simulation.gateway_world import GatewayView
from cluster.tests.simulation.planting import Plant

SEEDS = max(3, int(os.environ.get("SIMULATION_SEEDS", "200")) // 20)
_UNTIL_FOUND = 5
pytestmark = pytest.mark.slow


def ask_nobody(patch: pytest.MonkeyPatch) -> None:
    """A gateway waits for its etcd only."""
    patch.setattr(
        QueueNews, "ask", lambda news, host, request, then: news._view.when_caught_up(then)
    )


def leave_records(patch: pytest.MonkeyPatch) -> None:
    """A gateway asks, and does not show what it is told."""
    patch.setattr(GatewayView, "adopt", lambda view, revision, records: True)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_history_is_one_that_sqs_may_have(seed: int) -> None:
    findings = simulate(seed, gateway_shape(seed)).findings
    assert not findings, f"make simulate SEED={seed} ARGS=--gateway"


@pytest.mark.parametrize("plant", [ask_nobody, leave_records])
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert any(simulate(seed, gateway_shape(seed)).findings for seed in range(_UNTIL_FOUND))
