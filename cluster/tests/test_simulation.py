"""The worker on simulated time, files and rows: with any fault, clients see a history allowed by
SQS.

`make simulate SEEDS=20000` runs more seeds, `make simulate SEED=123` replays one.
"""

from __future__ import annotations

import os

import pytest

from cluster.tests.repeated import printed_digest
from cluster.tests.simulation.clock_planted import PLANTS as CLOCK_PLANTS
from cluster.tests.simulation.death_planted import PLANTS as DEATH_PLANTS
from cluster.tests.simulation.fifo_planted import PLANTS as FIFO_PLANTS
from cluster.tests.simulation.held_planted import PLANTS as HOLD_PLANTS
from cluster.tests.simulation.outbox_planted import PLANTS as OUTBOX_PLANTS
from cluster.tests.simulation.outbox_planted import UNLOCKING
from cluster.tests.simulation.parts_planted import PLANTS as PARTS_PLANTS
from cluster.tests.simulation.parts_planted import SCHEDULE_PLANTS as MOVED_SCHEDULE_PLANTS
from cluster.tests.simulation.planted import PLANTS
from cluster.tests.simulation.planting import Plant
from cluster.tests.simulation.policies_planted import PLANTS as POLICY_PLANTS
from cluster.tests.simulation.priority_planted import CROWDED_PLANTS, LENGTH_PLANTS
from cluster.tests.simulation.priority_planted import PLANTS as PRIORITY_PLANTS
from cluster.tests.simulation.refused_planted import PLANTS as REFUSED_PLANTS
from cluster.tests.simulation.retention_planted import BRIEF_PLANTS, ONCE_PLANTS, SCHEDULE_PLANTS
from cluster.tests.simulation.retention_planted import PLANTS as RETENTION_PLANTS
from cluster.tests.simulation.simulated_queues import Extra
from cluster.tests.simulation.simulated_run import Shape, simulate
from cluster.tests.simulation.transaction_planted import PLANTS as TRANSACTION_PLANTS
from cluster.tests.test_outbox import test_a_group_is_locked_until_the_clear as locked_until_cleared

_MANY_DELAYS = 6999
"""Of a queue by clock: more than fit into an Entry of the smallest segment."""
SEEDS = int(os.environ.get("SIMULATION_SEEDS", "200"))
_AT_ONCE = 20
_UNTIL_FOUND = 300
"""Seeds within which a planted bug is found."""
_SOONER = {
    "release_before_the_flush": 461,
    "read_by_index_alone": 46,
    "answer_unchanged_turns_at_once": 72,
    "trust_a_file_after_a_failed_sync": 34,
    "deliver_before_the_commit": 137,
    "forget_what_was_passed_by": 39,
    "do_not_wait": 40,
    "send_to_a_closed_part": 2,
    "keep_the_term": 5,
    "leave_groups_open": 6,
    "leave_retention_to_pulses": 19,
    "pass_by_the_window_only": 39,
    "forget_who_has_a_message": 86,
    "forget_the_rate": 75,
    "forget_the_next_end": 13,
    "drop_what_a_deleted_queue_was_sent": 2090,
    "pass_a_missing_message": 17,
    "deliver_the_delayed_at_once": 51,
    "clear_before_the_arrival": 1,
    "count_twice": 1,
    "call_the_travelling_gone": 6,
    "serve_a_group_at_once": 11,
    "answer_without_closing": 15,
    "ask_the_part_before_only": 55,
    "ask_for_no_ids": 6,
    "count_waiting_messages_only": 69,
    "release_at_a_failover": 3,
    "undelete_in_words_only": 3,
    "lose_the_receive_count": 3,
    "transfer_under_new_sequences": 6,
    "slow_nobody_down": 2,
    "forget_tokens": 1,
    "give_each_part_the_whole_limit": 1,
    "let_the_lease_of_a_prepared_message_end": 6,
}
"""Seeds from which a bug is found sooner than from 0; an outdated one costs time only."""
_PLANTED: list[tuple[Plant, Shape]] = [
    *PLANTS,
    *((plant, Shape(shards=3)) for plant in OUTBOX_PLANTS),
    *((plant, Shape(extras=(Extra.OPERATOR,))) for plant in HOLD_PLANTS),
    *((plant, Shape(extras=(Extra.SHORT,))) for plant in RETENTION_PLANTS),
    *((plant, Shape(extras=(Extra.BRIEF,))) for plant in BRIEF_PLANTS),
    *((plant, Shape(extras=(Extra.RANKED,))) for plant in PRIORITY_PLANTS),
    *((plant, Shape(extras=(Extra.FULL,))) for plant in LENGTH_PLANTS),
    *((plant, Shape(shards=2, extras=(Extra.FULL,))) for plant in CROWDED_PLANTS),
    *((plant, Shape(shards=2, extras=extras)) for plant, extras in POLICY_PLANTS),
    *((plant, Shape(extras=(Extra.CLOCKS,))) for plant in CLOCK_PLANTS),
    *((plant, Shape(extras=(Extra.ONCE,))) for plant in ONCE_PLANTS),
    *((plant, Shape(shards=2, extras=(Extra.DEATHS,))) for plant in DEATH_PLANTS),
    *((plant, Shape(extras=(Extra.SCHEDULES,))) for plant in SCHEDULE_PLANTS),
    *((plant, Shape(shards=3, extras=(Extra.TRANSACTIONS,))) for plant in TRANSACTION_PLANTS),
    *(
        (plant, Shape(shards=2, extras=(Extra.PARTS, Extra.SCHEDULES)))
        for plant in MOVED_SCHEDULE_PLANTS
    ),
    *((plant, Shape(extras=(Extra.SOLE,))) for plant in REFUSED_PLANTS),
    *((plant, Shape(shards=2, extras=(Extra.PARTS,))) for plant in (*PARTS_PLANTS, *FIFO_PLANTS)),
]
"""Bugs, each with the shape of the worker that shows it."""


@pytest.mark.parametrize("first", range(0, SEEDS, _AT_ONCE))
def test_history_is_one_that_sqs_may_have(first: int) -> None:
    for seed in range(first, min(first + _AT_ONCE, SEEDS)):
        findings = simulate(seed).findings
        assert not findings, f"make simulate SEED={seed}"


@pytest.mark.slow
def test_many_delays_that_end_at_once_take_several_entries() -> None:
    assert not simulate(_MANY_DELAYS).findings


@pytest.mark.slow
def test_a_flipped_bit_is_reported_and_nothing_wrong_is_served() -> None:
    losses, seeds = 0, max(8, SEEDS // 5)
    for seed in range(seeds):
        outcome = simulate(seed, Shape(flips=True))
        losses += outcome.has_loss
        assert not outcome.findings, f"make simulate SEED={seed} ARGS=--flips"

    assert losses > seeds // 2


@pytest.mark.slow
def test_a_seed_repeats_its_history() -> None:
    assert printed_digest("cluster.tests.simulation.simulated_run") == simulate(3).digest


def _is_found(plant: Plant, shape: Shape) -> bool:
    first = _SOONER.get(plant.__name__, 0)
    return any(simulate(first + tried, shape).findings for tried in range(_UNTIL_FOUND))


@pytest.mark.slow
@pytest.mark.parametrize(("plant", "shape"), _PLANTED, ids=[each.__name__ for each, _ in _PLANTED])
def test_a_planted_bug_is_found(
    plant: Plant, shape: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)

    assert _is_found(plant, shape)


@pytest.mark.parametrize("plant", UNLOCKING, ids=[plant.__name__ for plant in UNLOCKING])
def test_a_group_that_is_unlocked_early_is_found(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked_until_cleared()
    plant(monkeypatch)

    with pytest.raises(AssertionError):
        locked_until_cleared()
