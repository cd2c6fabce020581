"""Explained: what the greatest cluster of ten minutes was asked, and what held its changes back."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from cluster.fleet.plan import Plan

if TYPE_CHECKING:
    from cluster.tests.fleet.at_scale.scale_run import Simulation

_BUSY = 0.02
"""Queues that ask for less are not named."""
_NAMED = 4


class Explained:
    """Belongs to one run; `step` is called after each of its steps."""

    def __init__(self, run: Simulation, steps: int) -> None:
        """`steps` are those of ten minutes."""
        self._run = run
        self._plans = 0
        self._planned: deque[int] = deque(maxlen=steps)
        self._refused: list[tuple[str, str]] = []
        self._refusals: deque[list[tuple[str, str]]] = deque(maxlen=steps)
        self._loads: deque[dict[str, dict[str, float]]] = deque(maxlen=steps)
        """The load of each cluster by queue."""

    def refused(self, made: Plan) -> None:
        """A plan of this step, with its refusals."""
        self._plans += 1
        self._refused += [
            (each.of, f"{each.wanted} {each.reason.why.value}") for each in made.refusals
        ]

    def step(self) -> None:
        """Note what is asked now."""
        run = self._run
        self._refusals.append(self._refused)
        self._refused = []
        self._planned.append(self._plans)
        self._plans = 0
        cluster_of = run.records.fleet().cluster_of
        loads: dict[str, dict[str, float]] = {}
        for shard, parts in run.clusters.parts.items():
            of_cluster = loads.setdefault(cluster_of[shard], {})
            for part in parts:
                if part.asked >= _BUSY:
                    of_cluster[part.queue] = of_cluster.get(part.queue, 0.0) + part.asked
        self._loads.append(loads)

    def lines(self, cluster: str, greatest: float, mean: float) -> list[str]:
        """Of the cluster with the greatest load of the last ten minutes."""
        run = self._run
        loads: Counter[str] = Counter()  # in thousandths
        for each in self._loads:
            loads.update({q: int(1000 * load) for q, load in each.get(cluster, {}).items()})
        hours = (run.now_ms - run.start_ms) / 3_600_000
        others = sum(map(run.traffic.others, run.records.clusters[cluster].shards))
        refused = _counted(said for _, said in self._of({*loads, cluster, "fleet"}))
        return [
            f"{hours:.2f} h: {cluster} had {greatest:.2f} of {mean:.2f}, "
            f"{greatest / mean:.2f} times; queues below 0.3 %: {others:.2f} loops; "
            f"{sum(self._planned)} plans; refused: {refused}",
            *(
                f"  {self._of_queue(queue_id, cluster)}"
                for queue_id, _ in loads.most_common(_NAMED)
            ),
        ]

    def _of(self, subjects: set[str]) -> list[tuple[str, str]]:
        return [each for refusals in self._refusals for each in refusals if each[0] in subjects]

    def _of_queue(self, queue_id: str, cluster: str) -> str:
        run = self._run
        queue, traffic = run.records.queues[queue_id], run.traffic.busy[queue_id]
        now_s = (run.now_ms - run.start_ms) / 1000
        seen = [each.get(cluster, {}).get(queue_id, 0.0) for each in self._loads]
        changes = [
            f"{each.change.kind.value} {(run.now_ms - each.at_ms) // 60_000} min ago"
            for each in run.records.fleet().last_changes.get(queue_id, [])
        ]
        loads = " ".join(f"{each:.2f}" for each in seen[::6])
        return (
            f"{queue_id}{' FIFO' * queue.is_fifo}: {loads}; "
            f"now {run.traffic.of_queue(traffic):.2f} in {len(queue.open_parts)} parts, "
            f"{traffic.burst:.1f} times its base for {(now_s - traffic.since_s) / 60:.0f} min, "
            f"one group {traffic.group:.0%}{', stays whole' * (not queue.can_split)}; "
            f"{', '.join(changes) or 'no change'}; "
            f"refused: {_counted(said for _, said in self._of({queue_id}))}"
        )


def _counted(said: Iterable[str]) -> str:
    return ", ".join(f"{count} {each}" for each, count in Counter(said).most_common()) or "nothing"
