"""Damage in a host's copies shows in its metrics."""

from __future__ import annotations

from cluster.replication.report import ReplicaReport
from sqs_api.admin.cluster_metrics import ClusterMetrics


def _report(damage: str = "", *, has_no_good_copy: bool = False, applied: int = 9) -> ReplicaReport:
    return ReplicaReport(
        role="follower",
        replica_id="r",
        term=1,
        leader_id="l",
        is_voter=True,
        commit=9,
        applied=applied,
        last_index=9,
        needs_checkpoint=False,
        damage=damage,
        has_no_good_copy=has_no_good_copy,
        peers=[],
    )


def _values(*reports: ReplicaReport) -> dict[str, list[float]]:
    metrics = ClusterMetrics(lambda: dict(enumerate(reports)))
    found = metrics.collect()
    return {
        each.name.removeprefix("holdfast_replica_"): [sample.value for sample in each.samples]
        for each in found
    }


def test_each_copy_says_if_it_is_damaged_and_what_it_lacks() -> None:
    found = _values(_report(), _report("a row"), _report(has_no_good_copy=True, applied=4))

    assert found == {
        "damaged": [0, 1, 0],
        "no_good_copy": [0, 0, 1],
        "counts": [1, 1, 1],
        "unapplied_entries": [0, 0, 5],
    }
