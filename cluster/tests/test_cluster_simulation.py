"""Three hosts with real shards on simulated time, disks and network: with any fault, clients see a
history allowed by SQS.

`make simulate SEEDS=20000 ARGS=--cluster` runs more seeds, `make simulate SEED=123 ARGS=--cluster`
replays one.
"""

from __future__ import annotations

import os

import pytest

from cluster.tests.repeated import printed_digest
from cluster.tests.simulation.async_planted import ASYNC_PLANTS
from cluster.tests.simulation.cluster_planted import PLANTS, Story
from cluster.tests.simulation.cluster_run import APART, Shape, simulate
from cluster.tests.simulation.disk_planted import DISK_PLANTS
from cluster.tests.simulation.held_planted import PLANTS as HOLD_PLANTS
from cluster.tests.simulation.outbox_planted import CLUSTER_PLANTS
from cluster.tests.simulation.parts_planted import CLUSTER_PLANTS as PARTS_PLANTS
from cluster.tests.simulation.planting import Plant
from cluster.tests.simulation.policies_planted import CLUSTER_PLANTS as POLICY_PLANTS
from cluster.tests.simulation.policies_planted import FOUND_WITHIN
from cluster.tests.simulation.refused_planted import CLUSTER_PLANTS as REFUSED_PLANTS
from cluster.tests.simulation.simulated_queues import Extra
from storage.engines.store_options import Replication

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "200")) // 2
ASYNC_SEEDS = SEEDS // 5
_AT_ONCE = 10
_UNTIL_FOUND = 100
"""Seeds within which a planted bug is found."""
_SOONER = {
    "apply_before_the_commit": 10,
    "answer_when_deposed": 10,
    "forget_names_at_a_failover": 18,
    "deliver_before_the_commit": 74,
    "rows_at_the_local_sync": 5,
    "count_a_damaged_replica": 72,
    "forget_the_log_above_a_checkpoint": 78,
    "quarantine_at_once": 27,
    "refuse_bad_pages": 43,
    "leave_groups_open": 10,
    "undo_nothing": 64,
    "undo_the_answer_only": 64,
    "lose_what_a_closed_part_refused": 93,
    "receive_what_may_be_lost": 6,
    "cross_before_the_commit": 1,
    "no_learner_rule": 1,
    "ignore_what_a_scrub_finds": 3,
    "blame_the_other_host": 2,
    "swap_without_a_sync": 5,
    "let_held_messages_go": 3,
    "release_at_a_failover": 3,
    "keep_memory_when_deposed": 33,
    "give_a_checkpoint_without_its_last_rows": 1,
    "give_each_part_the_whole_limit": 3,
}
"""Seeds from which a bug is found sooner than from 0; an outdated one costs time only."""
_PLANTED: list[tuple[Plant, Shape | Story]] = [
    *PLANTS,
    *((plant, Shape(shards=3)) for plant in CLUSTER_PLANTS),
    *ASYNC_PLANTS,
    *DISK_PLANTS,
    *((plant, Shape(extras=(Extra.OPERATOR,))) for plant in HOLD_PLANTS),
    *((plant, Shape(often=APART, extras=(Extra.SOLE,))) for plant in REFUSED_PLANTS),
    *((plant, Shape(shards=3, extras=(Extra.PARTS,))) for plant in PARTS_PLANTS),
]
"""Bugs, each with the shape of the cluster that shows it, or the story that fails."""


@pytest.mark.parametrize("first", range(0, SEEDS, _AT_ONCE))
def test_history_is_one_that_sqs_may_have(first: int) -> None:
    for seed in range(first, min(first + _AT_ONCE, SEEDS)):
        findings = simulate(seed).findings
        assert not findings, f"make simulate SEED={seed} ARGS=--cluster"


@pytest.mark.parametrize("first", range(0, ASYNC_SEEDS, _AT_ONCE))
def test_only_what_was_answered_early_and_not_copied_is_lost(first: int) -> None:
    for seed in range(first, min(first + _AT_ONCE, ASYNC_SEEDS)):
        findings = simulate(seed, replication=Replication.ASYNC).findings
        assert not findings, f'make simulate SEED={seed} ARGS="--cluster --replication async"'


@pytest.mark.slow
def test_a_seed_repeats_its_history() -> None:
    assert printed_digest("cluster.tests.simulation.cluster_run") == simulate(3).digest


def _is_found(plant: Plant, shape: Shape) -> bool:
    first = _SOONER.get(plant.__name__, 0)
    return any(simulate(first + tried, shape).findings for tried in range(_UNTIL_FOUND))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "found_in"), _PLANTED, ids=[plant.__name__ for plant, _ in _PLANTED]
)
def test_a_planted_bug_is_found(
    plant: Plant, found_in: Shape | Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)

    if isinstance(found_in, Shape):
        assert _is_found(plant, found_in)
    else:
        with pytest.raises(AssertionError):
            found_in()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "extras"), POLICY_PLANTS, ids=[plant.__name__ for plant, _ in POLICY_PLANTS]
)
def test_a_planted_bug_in_a_policy_is_found_soon(
    plant: Plant, extras: tuple[Extra, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    shape = Shape(shards=3, often=APART, extras=extras)
    first = _SOONER.get(plant.__name__, 0)

    assert any(simulate(first + tried, shape).findings for tried in range(FOUND_WITHIN))
