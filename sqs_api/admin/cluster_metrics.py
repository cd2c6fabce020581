"""The metrics of a host's copies of the cluster's shards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from cryptography import x509
from prometheus_client.core import GaugeMetricFamily, Metric
from typing_extensions import override

from cluster.replication.contract import PeerReport, ReplicaReport
from sqs_api.gateway.metrics import Source

_LEADER = "leader"
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
        "replica_conflicts",
        "1 while the copy has acknowledged Entries that the others lost; it counts no more.",
        lambda report: float(bool(report.conflict)),
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
    (
        "replica_leads",
        "1 if this host leads the shard.",
        lambda report: float(report.role == _LEADER),
    ),
    (
        "replica_term",
        "The term that the copy has promised; it rises with each change of the leader.",
        lambda report: float(report.term),
    ),
    (
        "replica_committed_entries",
        "The last Entry that is known to be committed.",
        lambda report: float(report.commit),
    ),
    (
        "replica_fetches_checkpoint",
        "1 while the copy waits for another host's rows, since its log is too old.",
        lambda report: float(report.needs_checkpoint),
    ),
)
_OF_PEERS: tuple[tuple[str, str, Callable[[ReplicaReport, PeerReport], float | None]], ...] = (
    (
        "peer_behind_entries",
        "Entries of the leader's log that another host's copy does not hold yet.",
        lambda report, peer: float(max(0, report.last_index - peer.matched)),
    ),
    (
        "peer_silent_seconds",
        "Time since the leader last heard from another host's copy.",
        lambda report, peer: peer.heard_s,
    ),
)
"""Of the shards that this host leads."""


class ClusterMetrics(Source):
    """The metrics of a member of a cluster."""

    def __init__(
        self, reports: Callable[[], dict[int, ReplicaReport]], certificate: Path | None
    ) -> None:
        """`reports` are those of this host's copies, by shard; `certificate` is shown to peers."""
        self._reports = reports
        self._certificate = certificate
        self._expires_at_s: float | None = None

    @override
    async def read(self) -> None:
        self._expires_at_s = None
        if self._certificate is not None:
            self._expires_at_s = await asyncio.to_thread(_expires_at_s, self._certificate)

    @override
    def collect(self) -> Iterator[Metric]:
        if self._expires_at_s is not None:
            yield GaugeMetricFamily(
                "holdfast_peer_certificate_expires_seconds",
                "When the certificate that this host shows to others expires, since 1970.",
                value=self._expires_at_s,
            )
        reports = self._reports()
        for name, text, value_of in _GAUGES:
            family = GaugeMetricFamily(f"holdfast_{name}", text, labels=("shard",))
            for shard, report in sorted(reports.items()):
                family.add_metric((str(shard),), value_of(report))
            yield family
        for name, text, of_peer in _OF_PEERS:
            family = GaugeMetricFamily(f"holdfast_{name}", text, labels=("shard", "peer"))
            for shard, report in sorted(reports.items()):
                for peer in report.peers if report.role == _LEADER else ():
                    value = of_peer(report, peer)
                    if value is not None:
                        family.add_metric((str(shard), peer.name), value)
            yield family


class UnheardShards(Source):
    """The shards of the fleet that a host or gateway has not heard yet, see `RaisedIds`."""

    def __init__(self, unheard: Callable[[], Collection[int]]) -> None:
        self._unheard = unheard

    @override
    async def read(self) -> None:
        """There is nothing to read."""

    @override
    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "holdfast_parts_unheard_shards",
            "Shards that have not answered since this process started, or etcd went back: splits, "
            "shrinks and moves wait for them.",
            value=len(self._unheard()),
        )


def _expires_at_s(certificate: Path) -> float | None:
    """The end of the first certificate in a file; None if it cannot be read."""
    try:
        first = x509.load_pem_x509_certificate(certificate.read_bytes())
    except (OSError, ValueError):
        return None
    return first.not_valid_after_utc.timestamp()
