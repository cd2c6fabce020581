"""The problems that the status of a cluster names; none for a cluster that is well."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from cluster.coordination.etcd_client import EtcdStatus
from cluster.members.status import (
    ClusterStatus,
    HostStatus,
    ReplicaStatus,
    ShardStatus,
    last_committed,
    problems_of,
)
from cluster.tests.members.test_removal import report_of

_URLS = ("http://1", "http://2", "http://3")


def _host(name: str) -> HostStatus:
    return HostStatus(name, f"{name}:1", "1", is_alive=True, is_reached=True, is_drained=False)


def _copy(host: str) -> ReplicaStatus:
    role = "leader" if host == "a" else "follower"
    return ReplicaStatus(host, role, is_voter=True, behind=1, needs_checkpoint=False, damage="")


def _member(url: str) -> EtcdStatus:
    return EtcdStatus(
        url,
        is_reached=True,
        version="3.5.1",
        database_bytes=100,
        quota_bytes=1000,
        has_leader=True,
        is_leader=url == _URLS[0],
        alarms=(),
    )


WELL = ClusterStatus(
    cluster="holdfast",
    cluster_id="c1",
    host="a",
    hosts=[_host(name) for name in "abc"],
    shards=[ShardStatus(0, "a", 3, ["a", "b", "c"], [_copy(name) for name in "abc"])],
    etcd=[_member(url) for url in _URLS],
    problems=[],
)
NOT_REACHED = EtcdStatus("http://2", False, "", 0, 0, False, False, ())


def _zones(*zones: str) -> ClusterStatus:
    hosts = [
        replace(_host(name), zone=zone)
        for name, zone in zip("abcd"[: len(zones)], zones, strict=True)
    ]
    return replace(WELL, hosts=hosts)


def _hosts_away(*names: str) -> ClusterStatus:
    hosts = [replace(host, is_alive=host.name not in names) for host in WELL.hosts]
    return replace(WELL, hosts=hosts)


def _clock(ahead_s: int) -> ClusterStatus:
    return replace(WELL, hosts=[*WELL.hosts[:2], replace(WELL.hosts[2], clock_ahead_s=ahead_s)])


def _not_reached(name: str) -> ClusterStatus:
    hosts = [replace(host, is_reached=host.name != name) for host in WELL.hosts]
    return replace(WELL, hosts=hosts)


def _copies(**changes: object) -> ClusterStatus:
    (shard,) = WELL.shards
    copies = [*shard.replicas[:2], replace(shard.replicas[2], **changes)]
    return replace(WELL, shards=[replace(shard, replicas=copies)])


def _no_leader(**behind_s: int) -> ClusterStatus:
    (shard,) = WELL.shards
    copies = [
        replace(copy, clock_behind_s=behind_s[copy.host])
        for copy in shard.replicas
        if copy.host in behind_s
    ]
    return replace(WELL, shards=[replace(shard, leader=None, replicas=copies)])


def _etcd(*members: EtcdStatus) -> ClusterStatus:
    return replace(WELL, etcd=[*members, *WELL.etcd[len(members) :]])


FIRST, _, _ = WELL.etcd


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        (_hosts_away("b", "c"), "a majority of the hosts is away: b, c"),
        (
            _hosts_away("c"),
            "host c is away: start it soon, or `holdfast cluster remove c` if it is gone for good",
        ),
        (
            _not_reached("b"),
            "host b runs, and host a does not reach it: mend the network, or b's peer_address",
        ),
        (replace(WELL, shards=[replace(WELL.shards[0], leader=None)]), "shard 0 has no leader"),
        (
            _copies(damage="row 7"),
            "the copy of shard 0 on host c is damaged and fetches sound rows: row 7",
        ),
        (
            _copies(conflict="up to 9"),
            "the copy of shard 0 on host c has acknowledged entries that the others lost (up to "
            "9), and counts no more: keep a copy of c's data folder, then start it with "
            "an empty one",
        ),
        (
            _copies(needs_checkpoint=True),
            "the copy of shard 0 on host c is too far behind for the log and fetches a checkpoint",
        ),
        (
            _zones("one", "two", "one"),
            "zone one has 2 of 3 hosts: without it no majority is left; spread them over three "
            "zones",
        ),
        (
            _zones("one", "two", "two", "three"),
            "zone two has 2 of 4 hosts: without it no majority is left; spread them over three "
            "zones",
        ),
        (_zones("one", "", "two"), "the zone of b is not set, that of others is"),
        (_clock(600), "host c: its clock is 600 s ahead: set it"),
        (_clock(-86_400), "host c: its clock is 86400 s behind: set it"),
        (_no_leader(b=0, c=0), "shard 0 has no leader"),
        (
            _no_leader(b=13, c=-13),
            "shard 0 has no leader: hosts do not lead while their clocks are so far apart (b is 13 "
            "s behind the median, c is 13 s ahead of the median): set the wrong one",
        ),
        (_copies(is_voter=False), "the copy of shard 0 on host c does not count yet"),
        (_copies(behind=1001), "the copy of shard 0 on host c is 1001 entries behind"),
        (
            _etcd(FIRST, NOT_REACHED, replace(NOT_REACHED, endpoint="http://3")),
            "a majority of etcd is away: http://2, http://3",
        ),
        (_etcd(replace(FIRST, is_leader=False)), "etcd has no leader"),
        (_etcd(replace(FIRST, alarms=("NOSPACE",))), "etcd at http://1 raises NOSPACE"),
        (
            _etcd(replace(FIRST, database_bytes=801)),
            "the database of etcd at http://1 takes 801 of 1000 bytes: compact and defragment it",
        ),
    ],
)
def test_each_problem_is_named(status: ClusterStatus, problem: str) -> None:
    assert problems_of(status) == [problem]


@pytest.mark.parametrize(
    "status",
    [
        WELL,
        _copies(behind=1000),
        _etcd(FIRST, NOT_REACHED),
        _zones("one", "two", "three"),
        _zones("one"),
        _zones("one", "one"),
    ],
)
def test_a_cluster_that_serves_and_can_lose_no_message_has_none(status: ClusterStatus) -> None:
    assert problems_of(status) == []


def test_what_only_a_copy_in_conflict_has_is_not_lacked_by_the_others() -> None:
    sound = report_of("a-0")
    conflict = replace(report_of("c-0"), commit=17, conflict="up to 17")

    assert last_committed([sound, conflict]) == 7
    assert last_committed([replace(conflict, conflict=""), sound]) == 17
    assert last_committed([conflict]) == last_committed([]) == 0
