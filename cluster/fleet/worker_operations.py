"""Operations on a host with all its workers, asked for by an operator through any of them."""

from __future__ import annotations

from cluster.fleet.fleet_operations import Root, find
from cluster.fleet.fleet_records import Fleet, place_of
from cluster.members.member_operations import set_drained
from cluster.members.member_records import MEMBERS, MembershipRefused
from cluster.peers.process_names import host_of


async def set_host_drained(root: Root, cluster: int, name: str, *, is_drained: bool) -> None:
    """Mark a host, or one worker, as one that leads nothing, or take the mark away. It belongs to
    a cluster with this number, or its workers do. Raises MembershipRefused."""
    found = await find(root)
    processes = [
        (number, each)
        for number in _clusters_of(found.fleet, cluster)
        for each in sorted(found.members_of(number).hosts)
        if name in (each, host_of(each))
    ]
    if not processes:
        raise MembershipRefused(f"there is no host {name}")
    for number, each in processes:
        records = root.below(place_of(number) + MEMBERS)
        try:
            await set_drained(records, each, is_drained=is_drained)
        finally:
            await records.close()


def _clusters_of(fleet: Fleet, cluster: int) -> list[int]:
    """The numbers of the clusters of the same machines."""
    own = fleet.clusters.get(cluster)
    hosts_in = cluster if own is None else own.hosts_in
    beside = {each.number for each in fleet.present.values() if each.hosts_in == hosts_in}
    return sorted(beside | {hosts_in})
