"""Damage in a host's copies shows in its metrics."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.replication.contract import PeerReport, ReplicaReport
from sqs_api.admin.cluster_metrics import ClusterMetrics, UnheardShards


def _report(
    damage: str = "",
    *,
    has_no_good_copy: bool = False,
    conflict: str = "",
    applied: int = 9,
    role: str = "follower",
    peers: Sequence[PeerReport] = (),
) -> ReplicaReport:
    return ReplicaReport(
        role=role,
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
        peers=list(peers),
        conflict=conflict,
    )


def _values(*reports: ReplicaReport) -> dict[str, list[float]]:
    metrics = ClusterMetrics(lambda: dict(enumerate(reports)), certificate=None)
    found = metrics.collect()
    return {
        each.name.removeprefix("holdfast_replica_"): [sample.value for sample in each.samples]
        for each in found
    }


def test_each_copy_says_if_it_is_damaged_and_what_it_lacks() -> None:
    lacking = _report(has_no_good_copy=True, applied=4, conflict="up to 9")
    found = _values(_report(), _report("a row"), lacking)

    assert {name: found[name] for name in found if not name.startswith("holdfast_peer")} == {
        "leads": [0, 0, 0],
        "term": [1, 1, 1],
        "committed_entries": [9, 9, 9],
        "fetches_checkpoint": [0, 0, 0],
        "damaged": [0, 1, 0],
        "no_good_copy": [0, 0, 1],
        "conflicts": [0, 0, 1],
        "counts": [1, 1, 1],
        "unapplied_entries": [0, 0, 5],
    }


def test_a_leader_shows_how_far_behind_its_peers_are() -> None:
    peers = [PeerReport("b", "rb", 7, True, 0.5), PeerReport("c", "", 0, True, None)]
    reports = {0: _report(role="leader", peers=peers), 1: _report(peers=peers)}

    found = {
        each.name: each.samples
        for each in ClusterMetrics(lambda: reports, certificate=None).collect()
    }

    behind = {
        (s.labels["shard"], s.labels["peer"]): s.value
        for s in found["holdfast_peer_behind_entries"]
    }
    silent = {
        (s.labels["shard"], s.labels["peer"]): s.value
        for s in found["holdfast_peer_silent_seconds"]
    }
    assert behind == {("0", "b"): 2, ("0", "c"): 9}
    assert silent == {("0", "b"): 0.5}
    assert [sample.value for sample in found["holdfast_replica_leads"]] == [1, 0]


def test_shards_that_have_not_answered_are_counted() -> None:
    unheard = {1, 4}
    source = UnheardShards(lambda: unheard)
    (found,) = source.collect()
    assert found.name == "holdfast_parts_unheard_shards"
    assert [sample.value for sample in found.samples] == [2]
    unheard.clear()
    assert [sample.value for each in source.collect() for sample in each.samples] == [0]
