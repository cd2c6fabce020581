"""Time, restarts and power losses in the models of queues, and the settings of their runs."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cluster.tests.archive_rules import LIMITS, ArchiveRules
from cluster.tests.driver import Driver, loaded
from cluster.tests.row_consistency import check_rows
from visibility.contract.model import QueueDefinition
from visibility.state.advance import advance
from visibility.tests import prepared
from visibility.tests.invariants import check_shard
from visibility.tests.prepared import KnownQueues

SOURCE_ID, TARGET_ID = 1, 2
_QUICK = (Phase.explicit, Phase.generate)
"""Without shrinking, which takes minutes: for `MODEL_SHRINK=0`."""


def model_settings(examples: int, steps: int) -> settings:
    """Settings of a machine; `MODEL_EXAMPLES` overrides the number of its examples."""
    return settings(
        max_examples=int(os.environ.get("MODEL_EXAMPLES", str(examples))),
        stateful_step_count=steps,
        deadline=None,
        phases=_QUICK if os.environ.get("MODEL_SHRINK") == "0" else tuple(Phase),
        suppress_health_check=[HealthCheck.too_slow],
    )


class ModelRules(ArchiveRules, RuleBasedStateMachine):
    """For a machine with two queues whose model has `settle`, `pass_time` and `next_instant`."""

    known: KnownQueues
    sealing: prepared.Keys
    durable: Any
    """The model as of the last sync."""

    def queue(self, queue_id: int) -> QueueDefinition:
        raise NotImplementedError

    @rule(late_ms=st.sampled_from((-1, 0, 0, 1)))
    def pass_time_to_the_next_instant(self, late_ms: int) -> None:
        """To when something happens next, or nearly so."""
        next_ms = self.model.next_instant()
        if next_ms is not None:
            self.let_pass(max(0, next_ms - self.model.now_ms + late_ms))

    def let_pass(self, ms: int) -> None:
        self.driver.pass_time(ms)
        self.model.pass_time(ms)

    @rule()
    def sync(self) -> None:
        self.store.sync_all()
        self.durable = self.model.copy()

    @rule()
    def stop_and_start(self) -> None:
        self.sync()
        self.restart()

    @rule()
    def lose_power(self) -> None:
        self.store.crash()
        now_ms = self.model.now_ms
        self.model = self.durable.copy()
        self.model.now_ms = now_ms
        self.model.settle()
        self.restart()

    def restart(self) -> None:
        self.follower = loaded(self.store, self.known)
        self.driver = Driver(
            self.known,
            store=self.store,
            now_ms=self.model.now_ms,
            on_event=lambda event: event.apply(self.follower),
            archive=LIMITS,
            sealing=self.sealing,
        )
        self.sync()

    @invariant()
    def memory_and_rows_are_sound(self) -> None:
        """The driver checks the memory of its shard after each Turn."""
        check_rows(self.store, self.driver.state)

    @invariant()
    def counters_are_exact(self) -> None:
        queue_ids = (SOURCE_ID, TARGET_ID)
        replies = self.driver.turn([prepared.counters(self.queue(each)) for each in queue_ids])
        for queue_id, reply in zip(queue_ids, replies, strict=True):
            assert reply.answer == self.model.counters(queue_id)

    @invariant()
    def a_follower_knows_the_same(self) -> None:
        advance(self.follower, self.model.now_ms)
        check_shard(self.follower)
        for queue_id, queue in self.driver.state.queues.items():
            followed = self.follower.queue(queue_id)
            assert followed.counters() == queue.counters()
            assert followed.next_sequence == queue.next_sequence
            assert followed.entries.keys() == queue.entries.keys()
