"""Small fleets for the tests of single rules: loads are given by part, time passes by reports."""

from __future__ import annotations

from collections.abc import Mapping

from cluster.fleet.choices import hand
from cluster.fleet.load_history import LoadHistory
from cluster.fleet.loads import REPORT_MS, HostLoad, PartLoad, ShardLoad
from cluster.fleet.peaks import KnownPeaks, Peaks
from cluster.fleet.plan import Plan, plan
from cluster.fleet.plan_table import Change, Cluster, Kind, Part, Queue
from cluster.fleet.reasons import Why
from cluster.fleet.thresholds import KEPT_MS
from cluster.tests.fleet.made_fleet_records import FleetRecords

START_MS = 1_800_000_000_000
HOSTS = 3


class SmallFleet:
    """Clusters `a`, `b`, ... of three hosts and three shards; host I of a cluster leads shard I."""

    def __init__(self, clusters: int = 4, zones: int = 1) -> None:
        self.records = FleetRecords(
            Cluster(chr(ord("a") + n), tuple(range(3 * n, 3 * n + 3)), HOSTS, f"zone-{n % zones}")
            for n in range(clusters)
        )
        self.history = LoadHistory()
        self.now_ms = START_MS
        self.forget_peaks()
        self.asked: dict[tuple[str, int], PartLoad] = {}
        """The load of each part."""
        self.other: dict[int, float] = {}
        """The share of a loop that others ask of each shard."""
        self.hosts: dict[str, dict[str, float | int]] = {}
        """Other figures of all hosts of a cluster."""
        self.shards: dict[int, dict[str, float | int | bool]] = {}
        """Other figures of a shard."""
        self.silent: set[str] = set()
        """Clusters that do not report."""

    def forget_peaks(self) -> None:
        """No queue was worth a split in the last week, as is known."""
        self.history.peaks = Peaks()
        self.history.peaks.learn(KnownPeaks(self.now_ms - KEPT_MS, self.now_ms))

    def queue(
        self, name: str, *shards: int, is_fifo: bool = False, can_split: bool = True
    ) -> Queue:
        """Make a queue with a part on each of these shards."""
        size = (1 << 64) // len(shards)
        parts = tuple(
            Part(n, shard, low=n * size, high=(n + 1) * size) if is_fifo else Part(n, shard)
            for n, shard in enumerate(shards)
        )
        queue = Queue(name, "account", 1, parts, is_fifo, can_split)
        self.records.put(queue)
        return queue

    def ask(
        self, queue: str, number: int, asked: float, top_group: float = 0.0, messages: int = 0
    ) -> None:
        """From now on this share of a loop is asked of the part."""
        self.asked[queue, number] = PartLoad(queue, number, asked, top_group, messages)

    def report(self, seconds: int = 10) -> None:
        """Hosts report every ten seconds for so long."""
        for _ in range(seconds // 10):
            self.now_ms += REPORT_MS
            self.history.observe(self.records.clusters, self.reports(), self.now_ms)

    def order(self) -> tuple[str, ...]:
        """The clusters in the order of the queues' account: its hand, then the others."""
        clusters = self.records.clusters.values()
        return hand("account", clusters, len(clusters))

    def plan(self) -> Plan:
        """As of now."""
        return plan(self.records.fleet(), self.history, self.now_ms)

    def apply(self, made: Plan) -> None:
        """Make all changes."""
        for change in made.changes:
            assert self.records.apply(change, self.now_ms)

    def reports(self) -> list[HostLoad]:
        by_shard: dict[int, list[PartLoad]] = {}
        for queue in self.records.queues.values():
            for part in queue.parts:
                load = self.asked.get((queue.queue_id, part.number))
                load = load or PartLoad(queue.queue_id, part.number, 0.0)
                messages = load.messages or self.records.messages(queue.queue_id, part)
                by_shard.setdefault(part.shard, []).append(load._replace(messages=messages))
        return [
            self._report(cluster, shard, by_shard.get(shard, []))
            for cluster in self.records.clusters.values()
            if cluster.name not in self.silent
            for shard in cluster.shards
        ]

    def _report(self, cluster: Cluster, shard: int, parts: list[PartLoad]) -> HostLoad:
        asked = self.other.get(shard, 0.0) + sum(part.asked for part in parts)
        load = ShardLoad(shard, asked, parts=tuple(parts))
        figures: Mapping[str, float | int] = self.hosts.get(cluster.name, {})
        fields = {"loop": min(1.0, asked), **figures}
        return HostLoad(
            host=f"{cluster.name}-{shard}",
            cluster=cluster.name,
            at_ms=self.now_ms,
            shards=(load._replace(**self.shards.get(shard, {})),),  # type: ignore[arg-type]
            **fields,  # type: ignore[arg-type]
        )


def of_kind(made: Plan, kind: Kind) -> list[Change]:
    """The changes of one kind."""
    return [change for change in made.changes if change.kind is kind]


def refusals(made: Plan) -> set[tuple[str, str, Why]]:
    """Kind, subject and reason of each refusal."""
    return {(each.wanted, each.of, each.reason.why) for each in made.refusals}


def warnings(made: Plan) -> set[tuple[str, Why]]:
    """Subject and reason of each warning."""
    return {(each.of, each.reason.why) for each in made.warnings}
