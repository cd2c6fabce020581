"""Operations on a fleet, asked for by an operator through any host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from cluster.coordination.coordination import Conflict, Coordination, Done, Transaction, Unavailable
from cluster.fleet.fleet_records import (
    FIRST,
    FLEET,
    Fleet,
    FleetCluster,
    NewCluster,
    adding,
    draining,
    place_of,
    read_fleet,
)
from cluster.members.member_operations import set_drained
from cluster.members.member_records import HOSTS, MEMBERS, Members, MembershipRefused, read_members
from cluster.peers.peer_settings import host_of, process_name

_TRIES = 5
"""Attempts while others change the same records."""
_Changed = TypeVar("_Changed")


class Root(Coordination, Protocol):
    """All records of the fleet."""

    def below(self, folder: str) -> Coordination:
        """Those below a prefix."""


class Found(NamedTuple):
    """The records of a fleet, as they are in etcd."""

    fleet: Fleet
    first: Members
    """The hosts of the first cluster."""
    of_fleet: Mapping[str, bytes]
    """All records below `fleet/`."""
    revisions: Mapping[str, int]
    """Revisions of these records and of those below `members/`."""

    def members_of(self, cluster: int) -> Members:
        """The hosts of a cluster. Raises MembershipRefused."""
        if cluster == FIRST:
            return self.first
        prefix = place_of(cluster).removeprefix(FLEET) + MEMBERS
        return _members(
            {
                key.removeprefix(prefix): value
                for key, value in self.of_fleet.items()
                if key.startswith(prefix)
            }
        )


async def find(root: Root) -> Found:
    """Read the records of the fleet. Raises MembershipRefused."""
    records: dict[str, dict[str, bytes]] = {}
    revisions: dict[str, int] = {}
    for prefix in (MEMBERS, FLEET):
        part = root.below(prefix)
        found = await part.read_all()
        await part.close()
        if isinstance(found, Unavailable):
            raise MembershipRefused(f"etcd cannot be read: {found.reason}")
        records[prefix] = {each.key: each.value for each in found.records}
        revisions |= {prefix + each.key: each.revision for each in found.records}
    try:
        fleet = read_fleet(records[FLEET])
    except (msgspec.MsgspecError, ValueError) as error:
        raise _unreadable(error) from error
    return Found(fleet, _members(records[MEMBERS]), records[FLEET], revisions)


def _members(records: Mapping[str, bytes]) -> Members:
    """Raises MembershipRefused."""
    try:
        return read_members(records)
    except (msgspec.MsgspecError, ValueError) as error:
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> MembershipRefused:
    return MembershipRefused(f"a record cannot be read: {error}")


async def add_cluster(root: Root, seen: Fleet, asked: NewCluster) -> FleetCluster:
    """Add a cluster, whose founding hosts may start then. `seen` is the fleet as this host knew it
    so far. Raises MembershipRefused."""

    def decide(found: Found) -> _Decided:
        check_whole(found.fleet, seen)
        return _adding(found, asked)

    return await _change(root, decide)


async def set_draining(root: Root, seen: Fleet, number: int, *, is_draining: bool) -> FleetCluster:
    """Let a cluster be emptied, or not any more. Raises MembershipRefused."""

    def decide(found: Found) -> _Decided:
        check_whole(found.fleet, seen)
        founded = {
            each for each in found.fleet.present if found.members_of(each).cluster is not None
        }
        return draining(found.fleet, founded, number, found.revisions, is_draining=is_draining)

    return await _change(root, decide)


async def cluster_of_workers(root: Root, cluster: int, worker: int) -> FleetCluster | None:
    """The cluster of the workers with this number of a cluster's hosts, which is added if the fleet
    has none; None while that cluster has not been founded. Raises MembershipRefused."""

    def decide(found: Found) -> tuple[FleetCluster | None, Transaction | None]:
        if (known := found.fleet.of_workers(cluster, worker)) is not None:
            return known, None
        members = found.members_of(cluster)
        if members.cluster is None:
            return None, None
        hosts = tuple(process_name(host, worker) for host in sorted(members.hosts))
        return _adding(found, NewCluster("", hosts, len(members.cluster.numbers), worker, cluster))

    return await _change(root, decide)


_Decided = tuple[FleetCluster, Transaction | None]
"""A cluster as it is to be; without a transaction if it is so already."""


def _adding(found: Found, asked: NewCluster) -> _Decided:
    gone = {number for number, each in found.fleet.clusters.items() if each.is_gone}
    places = tuple(place_of(number).removeprefix(FLEET) for number in gone)
    taken = {_host_in(key) for key in found.of_fleet if not key.startswith(places)} - {""}
    return adding(found.fleet, found.first, taken, asked, found.revisions)


async def _change(
    root: Root, decide: Callable[[Found], tuple[_Changed, Transaction | None]]
) -> _Changed:
    """Make a change of the fleet as it is now, and again if others were first."""
    for _ in range(_TRIES):
        changed, transaction = decide(await find(root))
        if transaction is None:
            return changed
        outcome = await root.commit(transaction)
        if isinstance(outcome, Done):
            return changed
        if not isinstance(outcome, Conflict):
            raise MembershipRefused("etcd did not take the change in time: look at fleet status")
    raise MembershipRefused("others change the fleet all the time: try again")


def check_whole(fleet: Fleet, seen: Fleet) -> None:
    """An etcd restored from an older state would give out numbers that shards have. Raises
    MembershipRefused."""
    if lost := sorted(seen.clusters.keys() - fleet.clusters.keys()):
        raise MembershipRefused(
            f"etcd has lost the record of cluster {lost[0]}: restore etcd's data first"
        )


def _host_in(key: str) -> str:
    """The host that a record below `fleet/` is of; empty for another record."""
    _, mark, name = key.partition(f"/{MEMBERS}{HOSTS}")
    return name if mark else ""


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
