"""Two clusters of three hosts and one catalog on simulated time, disks and networks: requests go
through any host, and messages cross between the clusters, under all faults of one cluster.

`make simulate SEEDS=2000 ARGS=--fleet` runs more seeds, `make simulate SEED=123 ARGS=--fleet`
replays one.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

import pytest

from cluster.catalog.lost_parts import give_up_parts
from cluster.fleet import removing
from cluster.fleet.removing import Left, is_open, left_on
from cluster.peers.held_requests import Routed
from cluster.shards.delivery import Deliveries
from cluster.tests.repeated import printed_digest
from cluster.tests.simulation import known_parts
from cluster.tests.simulation.cluster_run import fleet_shape, leaving_shape, losing_shape, simulate
from cluster.tests.simulation.planting import Plant
from cluster.tests.simulation.policies_planted import FOUND_WITHIN, PLANTS
from cluster.tests.simulation.simulated_queues import Extra
from visibility.rules.departures import ClearOutbox

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "200")) // 10
_AT_ONCE = 5
_UNTIL_FOUND = 30
"""Seeds within which the planted bug is found."""
_FIRST = 287
"""The seed from which it is found soonest: one in about ten shows it."""
_LOST_WITHIN = 30
"""Seeds within which a bug of giving up a cluster is found."""
_DROPPED_FIRST = 15
"""The seed from which dropped messages are found soonest."""
_SOONER = {"give_each_part_the_whole_limit": 4}
"""The seed from which a bug of a policy is found soonest."""
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("first", range(0, SEEDS, _AT_ONCE))
def test_history_is_one_that_sqs_may_have(first: int) -> None:
    for seed in range(first, min(first + _AT_ONCE, SEEDS)):
        findings = simulate(seed, fleet_shape(seed)).findings
        assert not findings, f"make simulate SEED={seed} ARGS=--fleet"


@pytest.mark.parametrize("seed", range(max(2, SEEDS // 10)))
def test_a_cluster_leaves_the_fleet_and_nothing_is_lost(seed: int) -> None:
    """It is emptied amid faults and traffic, and its hosts are switched off for good."""
    outcome = simulate(seed, leaving_shape(seed))
    assert not outcome.findings
    assert any(line.endswith("the cluster of shard 1 leaves") for line in outcome.lines)


def test_a_cluster_that_leaves_with_messages_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: only open parts keep a cluster, and what its shards say counts nothing."""

    def open_ones(view: Any, shards: Collection[int]) -> Left:
        found = left_on(view, shards)
        return found._replace(parts=[part for part in found.parts if is_open(part)])

    monkeypatch.setattr(removing, "left_on", open_ones)
    monkeypatch.setattr(removing, "_left", lambda found, leaving: "")
    assert any(simulate(seed, leaving_shape(seed)).findings for seed in range(3))


@pytest.mark.parametrize("seed", range(max(3, SEEDS // 4)))
def test_a_cluster_is_lost_and_given_up_and_only_what_it_had_is_lost(seed: int) -> None:
    """Its hosts end at once, with their disks. Its queues answer again, all else stays."""
    outcome = simulate(seed, losing_shape(seed))
    assert not outcome.findings
    assert any(line.endswith("the cluster of shard 1 is given up") for line in outcome.lines)


def test_a_queue_that_gives_up_parts_that_are_not_lost_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planted: a queue with a lost part begins anew, without those that it has elsewhere."""

    def all_of_them(view: Any, queue: Any, lost: Any, *given: Any) -> Any:
        parts = {part.shard for part in queue.all_parts()}
        return give_up_parts(view, queue, parts if parts & lost else lost, *given)

    monkeypatch.setattr(known_parts, "give_up_parts", all_of_them)
    assert any(simulate(seed, losing_shape(seed)).findings for seed in range(_LOST_WITHIN))


def test_messages_on_their_way_to_a_lost_cluster_that_are_dropped_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planted: what departed to a lost shard counts as arrived."""

    async def dropped(deliveries: Any, source: int, page: Any) -> bool | None:
        if page.arrivals:
            taken = [(each.origin, each.number, "") for each in page.arrivals]
            await deliveries._ask(source, ClearOutbox(taken))
        return True

    monkeypatch.setattr(Deliveries, "_take_back", dropped)
    seeds = range(_DROPPED_FIRST, _DROPPED_FIRST + _LOST_WITHIN)
    assert any(simulate(seed, losing_shape(seed)).findings for seed in seeds)


@pytest.mark.parametrize(("plant", "extras"), PLANTS, ids=[plant.__name__ for plant, _ in PLANTS])
def test_a_planted_bug_in_a_policy_is_found(
    plant: Plant, extras: tuple[Extra, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    first = _SOONER.get(plant.__name__, 0)
    shapes = {
        seed: fleet_shape(seed)._replace(extras=extras)
        for seed in range(first, first + FOUND_WITHIN)
    }

    assert any(simulate(seed, shape).findings for seed, shape in shapes.items())


def test_the_manager_splits_fifo_queues_and_undoes_it() -> None:
    lines = [line for seed in (1, 3) for line in simulate(seed, fleet_shape(seed)).lines]
    assert any("the manager's split" in line for line in lines)
    assert any("the manager's shrink" in line for line in lines)


def test_a_seed_repeats_its_history() -> None:
    printed = printed_digest("cluster.tests.simulation.cluster_run", "fleet_shape")
    assert printed == simulate(3, fleet_shape(3)).digest


def test_a_router_that_forgets_that_it_tries_again_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Routed, "age_of_retry_ms", lambda ticket, now_s: 0)
    assert any(
        simulate(seed, fleet_shape(seed)).findings for seed in range(_FIRST, _FIRST + _UNTIL_FOUND)
    )
