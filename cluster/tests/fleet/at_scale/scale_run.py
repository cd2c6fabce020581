"""A simulated day of a fleet: only the rules of the plan are real, clusters are models."""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field

from cluster.fleet.choices import choose_shard
from cluster.fleet.loads import REPORT_MS, HostLoad
from cluster.fleet.new_queues import QueueCounts
from cluster.fleet.plan import ILL_SHARE
from cluster.fleet.plan_table import Change, Cluster, Part, Queue
from cluster.fleet.thresholds import KEPT_MS
from cluster.tests.fleet.at_scale.clusters import Clusters
from cluster.tests.fleet.at_scale.explained import Explained
from cluster.tests.fleet.at_scale.planners import Bugs, PlannerModel
from cluster.tests.fleet.at_scale.scale_faults import Faults
from cluster.tests.fleet.at_scale.scale_traffic import Traffic, skewed
from cluster.tests.fleet.at_scale.witness import Witness
from cluster.tests.fleet.fleet_judge import Judge
from cluster.tests.fleet.made_fleet_records import FleetRecords
from visibility.rules.closing_parts import RETRIES_OVER_MS

RATIO_MAX = 1.3
"""Greatest load of a cluster, divided by the mean, over ten minutes."""
START_MS = 1_800_000_000_000
_MEAN_LOAD = 0.5
_MEASURED = 60
"""Reports of which a figure is the mean: ten minutes."""


@dataclass(frozen=True)
class Size:
    """The size of a simulated fleet."""

    clusters: int = 100
    queues: int = 100_000
    accounts: int = 3000
    warm_s: int = 4 * 3600
    """Before figures are taken: queues begin where creates put them."""
    measured_s: int = 24 * 3600
    faults: float = 1.0
    """Faults for each of a day."""
    bursts_a_day: float = 2.0
    slow_s: float = 20 * 3600
    kept_s: int = KEPT_MS // 1000
    """A queue keeps the parts that it needed within this time; a week is longer than a run."""
    all_hear: bool = False
    """Planners without the key read reports, too, unlike hosts: where the key changes each few
    minutes none would else watch for half an hour."""


SMALL = Size(
    clusters=6,
    queues=200,
    accounts=20,
    warm_s=1800,
    measured_s=9000,
    faults=10.0,
    kept_s=1800,
    all_hear=True,
)


@dataclass
class Figures:
    """The outcome of a run."""

    ratios: list[float] = field(default_factory=list)
    """Greatest divided by mean load of clusters, means of ten minutes, over what can be split."""
    not_counted: int = 0
    """Times ten minutes in which a zone was lost, so that nothing may be changed."""
    above: int = 0
    """Cluster reports above 85 %, over what can be split, of all of `reports`."""
    above_all: int = 0
    """The same with queues that cannot be split."""
    reports: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    share_max: float = 0.0
    parts: int = 0
    explained: list[str] = field(default_factory=list)
    """Lines on the greatest clusters above RATIO_MAX, if they were wanted."""
    by_hour: list[tuple[float, float]] = field(default_factory=list)
    """Mean and greatest load of each hour's last ten minutes that count."""

    def ratio(self, share: float) -> float:
        """The ratio that this share of the ten minutes does not exceed."""
        return sorted(self.ratios)[min(len(self.ratios) - 1, int(share * len(self.ratios)))]


class Simulation:
    """One run of one seed."""

    def __init__(
        self, size: Size, seed: int, bugs: Bugs | None = None, explains: bool = False
    ) -> None:
        self._size = size
        self._bugs = bugs or Bugs()
        self.chance = random.Random(seed)
        self.records = FleetRecords(
            Cluster(f"c{n:03}", tuple(range(3 * n, 3 * n + 3)), 3, f"zone-{n % 3}")
            for n in range(size.clusters)
        )
        self.start_ms = self.now_ms = START_MS
        self.traffic = Traffic(size.bursts_a_day, self.chance)
        self.clusters = Clusters(self.records, self.traffic, self.chance)
        self.planners = [self.new_planner(f"planner-{n}") for n in range(2)]
        self.planners[0].take()
        self._judge = Judge(self.records)
        self._witness = Witness(self)
        self._drains: list[tuple[int, int, str, int]] = []
        """The time of the next event of each draining part, and the time of its closing."""
        self._late: deque[list[HostLoad]] = deque(maxlen=3)
        self._recent: deque[dict[str, float]] = deque(maxlen=_MEASURED)
        self._last = (0.0, 0.0)
        self.faults = Faults(self, size.faults, size.slow_s)
        self.figures = Figures()
        self._explained = Explained(self, _MEASURED) if explains else None
        self._create_all()

    def new_planner(self, name: str) -> PlannerModel:
        """A process that has just begun."""
        size = self._size
        return PlannerModel(name, self.records, size.kept_s * 1000, always_hears=size.all_hear)

    def _create_all(self) -> None:
        size, chance = self._size, self.chance
        total = _MEAN_LOAD * 3 * size.clusters / 1.3
        weights = [1 / (n + 10) for n in range(size.accounts)]
        accounts = chance.choices(range(size.accounts), weights, k=size.queues)
        bases = skewed(size.queues, total, max(total / 60, 0.7), chance)
        for number, (base, account) in enumerate(zip(bases, accounts, strict=True)):
            self.create(f"q{number}", f"account-{account}", base)

    def create(self, name: str, account: str, base: float) -> None:
        """Make a queue, as a gateway would: with the counts of queues and nobody asked."""
        chosen = choose_shard(
            name,
            account,
            self.records.clusters,
            QueueCounts(self.records.clusters, self.records.of_shard),
            lambda _: True,
        )
        assert chosen is not None
        is_fifo = self.chance.random() < 0.3
        can_split = not is_fifo or self.chance.random() < 0.8
        queue = Queue(name, account, 1, (Part(0, chosen),), is_fifo, can_split)
        self.records.put(queue)
        self.traffic.add(queue, base)

    def run(self, until: str | None = None) -> Figures:
        """All of it, or until a finding has this text."""
        steps = (self._size.warm_s + self._size.measured_s) * 1000 // REPORT_MS
        for step in range(steps):
            self.now_ms += REPORT_MS
            self._step(is_measured=step * REPORT_MS >= self._size.warm_s * 1000)
            if until is not None and any(until in each for each in self._findings()):
                break
        self.figures.findings = self._findings()
        self.figures.parts = self.records.parts
        return self.figures

    def _findings(self) -> list[str]:
        return self.figures.findings + self._judge.findings

    def _step(self, is_measured: bool) -> None:
        self.traffic.step((self.now_ms - START_MS) / 1000, REPORT_MS / 1000)
        self.faults.step()
        self.clusters.measure()
        self._late.append(self.clusters.reports(self.now_ms, self._bugs.reports_served))
        for planner in self.planners:
            reports = self.faults.seen_by(planner, self._late)
            planner.observe(reports, self.now_ms)
        for planner in self.planners:
            made = planner.tick(self.now_ms, self._bugs, self._apply)
            if made is not None:
                if self._explained is not None:
                    self._explained.refused(made)
                for refusal in made.refusals:
                    self.figures.refusals[refusal.reason.why.value] += 1
        self._finish_drains()
        if self.now_ms // 60_000 * 60_000 == self.now_ms:
            self._clean()
        self._measure(is_measured)

    def _apply(self, change: Change, planner: str, term: int) -> None:
        """Make a change, if its conditions hold; the judge looks at those that are made."""
        self._judge_if_made(change, planner, term)
        held = self.records.term if self._bugs.two_planners else term
        done = self.records.apply(change, self.now_ms, held, not self._bugs.writes_unchecked)
        if not done:
            return
        self.figures.kinds[f"{change.kind.value}: {change.reason.why.value}"] += 1
        if change.queue in self.records.queues:
            self.traffic.moved(self.records.queues[change.queue])
        for number in change.drains:
            chance = self.chance
            waits_s = (
                chance.uniform(10, 90) if chance.random() < 0.99 else chance.uniform(600, 3600)
            )
            emptied_ms = self.now_ms + int(waits_s * 1000)
            self._drains.append((emptied_ms, self.now_ms, change.queue, number))

    def _judge_if_made(self, change: Change, planner: str, term: int) -> None:
        is_holder = term == self.records.term
        queue = self.records.queues.get(change.queue)
        is_current = queue is None or queue.version == change.version
        if not (is_holder or self._bugs.two_planners):
            return
        if is_current or self._bugs.writes_unchecked:
            if not is_holder:
                self.figures.findings.append(f"{planner} changes {change.queue} without the key")
            self._judge.made(change, self.now_ms)
            self.figures.findings += self._witness.of(change, planner)

    def _finish_drains(self) -> None:
        due = [each for each in self._drains if each[0] <= self.now_ms]
        if due:
            self._drains = [each for each in self._drains if each[0] > self.now_ms]
        for _, closed_ms, queue_id, number in due:
            if self.records.queues[queue_id].part(number) is None:
                self.figures.findings.append(f"{queue_id}: part {number} is gone twice")
                continue
            if self.now_ms - closed_ms < RETRIES_OVER_MS:
                self.records.emptied.add((queue_id, number))
                self._drains.append((closed_ms + RETRIES_OVER_MS, closed_ms, queue_id, number))
                continue
            self.records.finish(queue_id, number)
            self.traffic.moved(self.records.queues[queue_id])

    def _clean(self) -> None:
        if self._bugs.cleans_by_age:
            self.records.changes = tuple(
                each for each in self.records.changes if self.now_ms - each.at_ms < 60_000
            )
        else:
            self.records.clean(self.now_ms)

    def _measure(self, is_measured: bool) -> None:
        figures, models = self.figures, self.clusters.models
        serving = {
            name: model
            for name, model in models.items()
            if model.serves and not self.records.clusters[name].is_draining
        }
        ill = sum(len(model.alive) < model.cluster.hosts for model in models.values())
        is_stopped = ill > max(1, ILL_SHARE * len(models))
        shares = {} if is_stopped else {name: model.share for name, model in serving.items()}
        self._recent.append(shares)
        if self._explained is not None:
            self._explained.step()
        if not is_measured:
            return
        figures.reports += len(serving)
        figures.above += sum(each.load_that_can_be_split > 0.85 for each in serving.values())
        figures.above_all += sum(each.load > 0.85 for each in serving.values())
        figures.share_max = self._judge.share_max
        if (self.now_ms - START_MS) % (_MEASURED * REPORT_MS) == 0:
            self._count_ten_minutes()
        if (self.now_ms - START_MS) % 3_600_000 == 0:
            figures.by_hour.append(self._last)

    def _count_ten_minutes(self) -> None:
        figures = self.figures
        mean, greatest, name = self._of_ten_minutes()
        if not mean:
            figures.not_counted += 1
            return
        if self._explained is not None and greatest > RATIO_MAX * mean:
            figures.explained += self._explained.lines(name, greatest, mean)
        figures.ratios.append(greatest / mean)
        self._last = mean, greatest

    def _of_ten_minutes(self) -> tuple[float, float, str]:
        """Mean and greatest of the loads of clusters that were there all the time."""
        names = set.intersection(*(set(each) for each in self._recent))
        if not names:
            return 0.0, 0.0, ""
        means = {
            name: sum(each[name] for each in self._recent) / len(self._recent) for name in names
        }
        most = max(means, key=lambda name: means[name])
        return sum(means.values()) / len(means), means[most], most
