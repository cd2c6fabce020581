"""Two clusters of three hosts and one catalog on simulated time, disks and networks: requests go
through any host, and messages cross between the clusters, under all faults of one cluster.

`make simulate SEEDS=2000 ARGS=--fleet` runs more seeds, `make simulate SEED=123 ARGS=--fleet`
replays one.
"""

from __future__ import annotations

import os

import pytest

from cluster.peers.forwarding import PeerRouter
from cluster.tests.repeated import printed_digest
from cluster.tests.simulation.cluster_run import fleet_shape, simulate

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "200")) // 10
_AT_ONCE = 5
_UNTIL_FOUND = 30
"""Seeds within which the planted bug is found."""
_FIRST = 56
"""The seed from which it is found soonest: one in about ten shows it."""
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("first", range(0, SEEDS, _AT_ONCE))
def test_history_is_one_that_sqs_may_have(first: int) -> None:
    for seed in range(first, min(first + _AT_ONCE, SEEDS)):
        findings = simulate(seed, fleet_shape(seed)).findings
        assert not findings, f"make simulate SEED={seed} ARGS=--fleet"


def test_a_seed_repeats_its_history() -> None:
    printed = printed_digest("cluster.tests.simulation.cluster_run", "fleet_shape")
    assert printed == simulate(3, fleet_shape(3)).digest


def test_a_router_that_forgets_that_it_tries_again_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PeerRouter, "_age_ms", lambda router, ticket: 0)
    assert any(
        simulate(seed, fleet_shape(seed)).findings for seed in range(_FIRST, _FIRST + _UNTIL_FOUND)
    )
