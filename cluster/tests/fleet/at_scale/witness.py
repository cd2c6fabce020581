"""Witness: knows how things really are, and says which changes no planner should have made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cluster.fleet.plan_table import Change, Kind

if TYPE_CHECKING:
    from cluster.tests.fleet.at_scale.scale_run import Simulation

_LATE_MS = 60_000
"""The truth may be this old: reports come late."""


class Witness:
    """Belongs to one run."""

    def __init__(self, run: Simulation) -> None:
        self._run = run
        self._given: list[tuple[int, int, float]] = []

    def of(self, change: Change, planner: str) -> list[str]:
        """Findings on a change that is about to be made."""
        return [*self._of_the_ill(change, planner), *self._of_loads(change)]

    def _of_the_ill(self, change: Change, planner: str) -> Iterator[str]:
        run = self._run
        heard_ms = next(each.heard_ms for each in run.planners if each.name == planner)
        silent = {
            name
            for name, model in run.clusters.models.items()
            for host in range(model.cluster.hosts)
            if run.now_ms - heard_ms.get(f"{name}/{host}", 0) > _LATE_MS
        }
        if len(silent) > max(1, len(run.clusters.models) / 10):
            yield f"{planner} changes {change.queue} while {len(silent)} clusters look ill"
        cluster_of = run.records.fleet().cluster_of
        for name in {cluster_of[shard] for shard in (*change.leaves, *change.opens)}:
            down_ms = run.clusters.models[name].down_since_ms
            if down_ms and run.now_ms - down_ms > _LATE_MS and change.kind is not Kind.SPLIT:
                yield f"{change.queue}: cluster {name} is away"

    def _of_loads(self, change: Change) -> Iterator[str]:
        run = self._run
        if change.kind is Kind.SHRINK:
            traffic = run.traffic.busy[change.queue]
            parts = len(run.records.queues[change.queue].open_parts)
            left = parts - len(change.drains) + len(change.opens)
            since_ms = (run.now_ms - run.start_ms) - traffic.since_s * 1000
            if since_ms > _LATE_MS and run.traffic.of_queue(traffic) / left > 0.3:
                yield f"{change.queue} is busy and loses a part"
        self._given = [each for each in self._given if run.now_ms - each[0] < 10_000]
        for shard, asked in zip(change.opens, change.given, strict=True):
            self._given.append((run.now_ms, shard, asked))
            given = [share for _, of, share in self._given if of == shard]
            if len(given) > 1 and sum(given) > 0.8:
                yield f"shard {shard} is given {sum(given):.0%} of a loop at once"
