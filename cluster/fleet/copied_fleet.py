"""The records of a fleet in the parts of its backup.

All parts have the queues, users, keys and clusters. The first cluster of a restored fleet writes
them into its etcd; the others wait for that, and bring only their formats. Each part names the
whole backup, so that no cluster is founded beside those of another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from cluster.catalog.record_codec import CatalogUnreadable
from cluster.coordination.coordination import Record
from cluster.fleet.fleet_records import CLUSTERS, FIRST, FLEET, NEXT, FleetCluster, place_of
from cluster.members.copied_records import FORMATS_KEY, copied
from cluster.members.member_records import MembershipRefused
from storage.copies.manifest import PartOfFleet

BACKUP = "backup"
"""The backup that the fleet was restored from."""


def copied_of_fleet(records: Iterable[Record], part: PartOfFleet) -> dict[str, bytes]:
    """The records to copy, among all those of a fleet. Clusters have no founding hosts in them:
    those of the restored fleet may have other names."""
    found = {each.key: each.value for each in records}
    kept = copied(Record(key, value, 1) for key, value in found.items())
    if not part.fleet:
        return kept
    kept[FLEET + NEXT] = found[FLEET + NEXT]
    kept[FLEET + BACKUP] = part.fleet.encode()
    own = place_of(part.number) + FORMATS_KEY
    if own in found:
        kept[own] = found[own]
    for key, value in found.items():
        if key.startswith(FLEET + CLUSTERS):
            cluster = msgspec.json.decode(value, type=FleetCluster)
            kept[key] = msgspec.json.encode(msgspec.structs.replace(cluster, founders=()))
    return kept


def put_by(records: Mapping[str, bytes], number: int) -> dict[str, bytes]:
    """Those that the founders of a cluster put back, below the prefix of its own records."""
    if number == FIRST:
        return dict(records)
    place = place_of(number)
    return {key.removeprefix(place): each for key, each in records.items() if key.startswith(place)}


def check_backup(records: Mapping[str, bytes], fleet: Mapping[str, bytes], number: int) -> bool:
    """True if the first cluster of a restored fleet has written these `records` of a part; `fleet`
    are the present ones, below FLEET. Raises MembershipRefused if they are of another backup."""
    own, there = records.get(FLEET + BACKUP), fleet.get(BACKUP)
    if there is None:
        return False
    if own != there:
        raise MembershipRefused(
            f"the data folder of cluster {number} was restored from another backup than the fleet "
            "was: restore parts of one backup on all clusters"
        )
    return True


def shards_in(records: Mapping[str, bytes]) -> list[range]:
    """The shards of each cluster of the fleet that these records are of, without removed ones; none
    of a cluster by itself. Raises CatalogUnreadable."""
    found = records.items()
    try:
        clusters = [
            msgspec.json.decode(value, type=FleetCluster)
            for key, value in found
            if key.startswith(FLEET + CLUSTERS)
        ]
    except msgspec.MsgspecError as error:
        raise CatalogUnreadable(f"the record of a cluster cannot be read: {error}") from error
    return [each.numbers for each in clusters if not each.is_gone]
