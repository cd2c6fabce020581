"""Bugs that the simulator of a cluster must find, planted into the production code for the time of
a test."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster.replication.replicated_store import ReplicatedStore
from cluster.shards.answers import NotDecided, RefusedReceives
from cluster.shards.lead import Lead
from cluster.shards.shard import Shard
from cluster.shards.shard_report import Phase
from cluster.tests.replication import test_shards as stories
from cluster.tests.simulation.cluster_run import Shape
from cluster.tests.simulation.planting import Plant

Story = Callable[[], None]


def answer_without_confirmation(patch: pytest.MonkeyPatch) -> None:
    """A Turn without changes takes its word for it that this host leads."""
    patch.setattr(ReplicatedStore, "confirm", lambda self, done: done(True))


def apply_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """A follower applies whatever its log has."""
    tick = ReplicatedStore._tick

    def tick_and_apply(self: ReplicatedStore) -> None:
        tick(self)
        journal = self.replica.journal
        while journal.is_open and self.applied.index < journal.log.last_index:
            if self._is_leading or self.replica.part:
                return
            if self._apply_from_log(self.applied.index + 1) is None:
                return

    patch.setattr(ReplicatedStore, "_tick", tick_and_apply)


def answer_when_deposed(patch: pytest.MonkeyPatch) -> None:
    """A deposed leader answers what it decided."""
    end = Lead.end

    def answer_first(self: Lead, refused: RefusedReceives | None = None) -> None:
        if self._owner.phase is Phase.FOLLOWING:  # type: ignore[attr-defined]
            for entry in self._under_way:
                self._answer_all(entry.answers)
                entry.answers.clear()
        end(self, refused)

    patch.setattr(Lead, "end", answer_first)


def keep_memory_when_deposed(patch: pytest.MonkeyPatch) -> None:
    """A shard that leads again goes on with what it remembers."""
    on_deposed, on_leading = Shard.on_deposed, Shard.on_leading
    kept: dict[Shard, Lead | None] = {}

    def keep(self: Shard) -> None:
        kept[self] = self.lead
        on_deposed(self)

    def go_on(self: Shard) -> None:
        lead = kept.get(self)
        if lead is None or self._store is None:
            on_leading(self)
            return
        del lead._rows.store.layers[:-1]
        self._begin_lead(self._store, lead._rows, lead._state)

    patch.setattr(Shard, "on_deposed", keep)
    patch.setattr(Shard, "on_leading", go_on)


def say_not_decided_of_everything(patch: pytest.MonkeyPatch) -> None:
    """A deposed leader says of Entries under way that they were not decided."""
    refuse = Lead.refuse

    def refuse_all(self: Lead, tickets: list, refusal: object = None) -> None:  # type: ignore[type-arg]
        refuse(self, tickets, NotDecided())

    patch.setattr(Lead, "refuse", refuse_all)


PLANTS: tuple[tuple[Plant, Shape | Story], ...] = (
    (answer_without_confirmation, stories.test_a_leader_that_was_stopped_tells_nothing_old),
    (apply_before_the_commit, Shape(often=("isolate", "cut off"))),
    (answer_when_deposed, Shape(often=("isolate", "cut off"))),
    (keep_memory_when_deposed, Shape(often=("isolate", "cut off"))),
    (say_not_decided_of_everything, Shape(often=("isolate", "failing syncs"))),
)
"""Each with the kind of run, or the story, in which it shows."""
