"""The records of a fleet's backup, and the order in which a restored fleet is founded."""

from __future__ import annotations

import msgspec
import pytest

from cluster.coordination.coordination import Record
from cluster.fleet.copied_fleet import check_backup, copied_of_fleet, put_by, shards_in
from cluster.fleet.fleet_records import FleetCluster
from cluster.members.member_records import MembershipRefused
from storage.copies.manifest import NO_FLEET, PartOfFleet


def _cluster(number: int, *founders: str) -> bytes:
    shards = 3 * (number - 1)
    return msgspec.json.encode(
        FleetCluster(
            number=number, name=f"c{number}", first_shard=shards, shards=3, founders=founders
        )
    )


RECORDS = {
    "catalog/queues/1/r/q": b"queue",
    "keyring/root": b"key",
    "members/formats": b"2",
    "members/cluster": b"old",
    "fleet/next": b"[3,6]",
    "fleet/backup": b"an earlier one",
    "fleet/clusters/1": _cluster(1),
    "fleet/clusters/2": _cluster(2, "d", "e"),
    "fleet/2/members/formats": b"1",
    "fleet/2/members/hosts/d": b"host",
    "fleet/gateways/g": b"gateway",
}


def _copied(part: PartOfFleet) -> dict[str, bytes]:
    return copied_of_fleet([Record(key, value, 1) for key, value in RECORDS.items()], part)


def test_a_cluster_by_itself_has_no_records_of_a_fleet() -> None:
    assert sorted(_copied(NO_FLEET)) == ["catalog/queues/1/r/q", "keyring/root", "members/formats"]


def test_each_part_has_the_fleet_without_hosts_and_names_the_backup() -> None:
    copied = _copied(PartOfFleet("new", 2))

    assert copied["fleet/backup"] == b"new"
    assert copied["fleet/next"] == RECORDS["fleet/next"]
    assert copied["fleet/clusters/2"] == _cluster(2)
    assert shards_in(copied) == [range(3), range(3, 6)]
    assert not [key for key in copied if "/hosts/" in key or "gateways" in key]
    assert put_by(copied, 2) == {"members/formats": b"1"}
    assert put_by(copied, 1) == copied


def test_other_clusters_wait_for_the_first_one_of_the_same_backup() -> None:
    copied = _copied(PartOfFleet("new", 2))

    assert not check_backup(copied, {}, 2)
    assert check_backup(copied, {"backup": b"new"}, 2)
    with pytest.raises(MembershipRefused, match="cluster 2 was restored from another backup"):
        check_backup(copied, {"backup": b"another"}, 2)
