"""Faults: lost hosts, clusters and zones, planners that are killed, stopped and doubled, reports
that come late, clusters that are emptied and added."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from cluster.fleet.loads import HostLoad
from cluster.fleet.plan_table import Cluster
from cluster.tests.fleet.at_scale.planners import PlannerModel

if TYPE_CHECKING:
    from cluster.tests.fleet.at_scale.scale_run import Simulation

_STEP_S = 10
_HOST_S, _CLUSTER_S, _ZONE_S = 120 * 3600, 2400 * 3600, 10 * 3600
"""Mean time between losses of a host of a cluster, of a cluster, and of a zone."""
_PLANNER_S, _BLIND_S = 3600, 4 * 3600
_EMPTY_S = 8 * 3600


class Faults:
    """Belongs to one run."""

    def __init__(self, run: Simulation, often: float, slow_s: float) -> None:
        """`often` multiplies the faults of a day; one or all clusters become slow each `slow_s`."""
        self._run = run
        self._slow_s = slow_s
        self.often = often
        self._chance = run.chance
        self._heal: list[tuple[int, str, int]] = []
        self.blind_until_ms = 0
        self._created = 0

    def step(self) -> None:
        """The faults of ten seconds."""
        now_ms = self._run.now_ms
        for at_ms, name, host in [each for each in self._heal if each[0] <= now_ms]:
            self._heal.remove((at_ms, name, host))
            if name in self._run.clusters.models:
                self._run.clusters.models[name].heal(host, now_ms)
        self._lose()
        self._disturb_planners()
        if self._happens(_EMPTY_S):
            self._empty_and_add()
        if self._chance.random() < 0.1:
            self._created += 1
            account = f"account-{self._chance.randrange(40)}"
            base = min(0.3, 0.0005 * self._chance.paretovariate(1.05))
            self._run.create(f"new-{self._created}", account, base)

    def seen_by(self, planner: PlannerModel, late: deque[list[HostLoad]]) -> list[HostLoad]:
        """The reports that this planner has: a tenth of them is ten or twenty seconds late."""
        if self._run.now_ms < self.blind_until_ms and planner.name.endswith("0"):
            return []
        if self._chance.random() < 0.1:
            return self._chance.choice(late)
        return late[-1]

    def _happens(self, mean_s: float) -> bool:
        return self._chance.random() < self.often * _STEP_S / mean_s

    def _lose(self) -> None:
        models = self._run.clusters.models
        names = sorted(models)
        if self._happens(_HOST_S / len(names)):
            self._lose_hosts([self._chance.choice(names)], [self._chance.randrange(3)], 900)
        if self._happens(_CLUSTER_S / len(names)):
            self._lose_hosts([self._chance.choice(names)], [0, 1, 2], 1500)
        if self._happens(_ZONE_S):
            self._lose_hosts(names, [self._chance.randrange(3)], 600)
        if self._happens(self._slow_s):
            until_ms = self._run.now_ms + self._chance.randrange(60, 3600) * 1000
            for name in names if self._chance.random() < 0.5 else [self._chance.choice(names)]:
                models[name].slow_until_ms = until_ms

    def _lose_hosts(self, names: list[str], hosts: list[int], most_s: int) -> None:
        back_ms = self._run.now_ms + self._chance.randrange(60, most_s) * 1000
        for name in names:
            for host in hosts:
                self._run.clusters.models[name].lose(host, self._run.now_ms)
                self._heal.append((back_ms, name, host))

    def _disturb_planners(self) -> None:
        run, chance = self._run, self._chance
        for holder, other in (run.planners, reversed(run.planners)):
            is_stopped = holder.stopped_until_ms > run.now_ms
            if holder.term == run.records.term and is_stopped:
                other.take()  # its lease ended
            elif holder.gives_up and other.stopped_until_ms <= run.now_ms:
                other.take()
        if self._happens(_BLIND_S):
            self.blind_until_ms = run.now_ms + chance.randrange(60, 600) * 1000
        if not self._happens(_PLANNER_S):
            return
        index = next(n for n, each in enumerate(run.planners) if each.term == run.records.term)
        holder, other = run.planners[index], run.planners[1 - index]
        what = chance.choice(("killed", "stopped", "stopped with a plan"))
        stop_ms = chance.randrange(30, 1200) * 1000
        if what == "killed":
            run.planners[index] = run.new_planner(holder.name)
        elif what == "stopped":
            holder.stopped_until_ms = run.now_ms + stop_ms
        else:
            holder.stops_amid_ms = stop_ms
            return
        other.take()

    def _empty_and_add(self) -> None:
        """An operator empties a cluster for good, and adds a new one."""
        run = self._run
        clusters = run.records.clusters
        if any(each.is_draining for each in clusters.values()):
            return
        name = self._chance.choice(sorted(clusters))
        clusters[name] = clusters[name]._replace(is_draining=True)
        first = max(shard for each in clusters.values() for shard in each.shards) + 1
        new = Cluster(f"c{first // 3:03}", (first, first + 1, first + 2), 3, clusters[name].zone)
        clusters[new.name] = new
        run.clusters.add(new)
