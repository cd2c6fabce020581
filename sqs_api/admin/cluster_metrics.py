"""The metrics of a host's copies of the cluster's shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from cluster.replication.report import ReplicaReport

_GAUGES: tuple[tuple[str, str, Callable[[ReplicaReport], float]], ...] = (
    (
        "replica_damaged",
        "1 while the rows are damaged: the copy neither leads nor counts until it has healed.",
        lambda report: float(bool(report.damage)),
    ),
    (
        "replica_no_good_copy",
        "1 if the rows of all hosts are damaged: what cannot be read is quarantined.",
        lambda report: float(report.has_no_good_copy),
    ),
    (
        "replica_counts",
        "1 if the copy is a voter.",
        lambda report: float(report.is_voter),
    ),
    (
        "replica_unapplied_entries",
        "Committed Entries that the rows lack.",
        lambda report: float(max(0, report.commit - report.applied)),
    ),
)


class ClusterMetrics:
    """The metrics of a member of a cluster."""

    def __init__(self, reports: Callable[[], dict[int, ReplicaReport]]) -> None:
        """`reports` are those of this host's copies, by shard."""
        self._reports = reports

    async def read(self) -> None:
        """See `Source.read`: these are all in memory."""

    def collect(self) -> Iterator[Metric]:
        """See `Source.collect`."""
        reports = self._reports()
        for name, text, value_of in _GAUGES:
            family = GaugeMetricFamily(f"holdfast_{name}", text, labels=("shard",))
            for shard, report in sorted(reports.items()):
                family.add_metric((str(shard),), value_of(report))
            yield family
