"""Operations on a fleet, asked for by an operator through any host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from cluster.coordination.coordination import (
    Conflict,
    Coordination,
    Done,
    Transaction,
    Unavailable,
)
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
from cluster.members.member_records import (
    CLUSTER,
    HOSTS,
    MEMBERS,
    Members,
    MembershipRefused,
    read_members,
)
from cluster.peers.process_names import process_name

_TRIES = 5
"""Attempts while others change the same records."""
Changed = TypeVar("Changed")


class Root(Coordination, Protocol):
    """All records of the fleet."""

    def below(self, folder: str) -> Coordination:
        """Those below a prefix."""


class Found(NamedTuple):
    """The records of the fleet as of one moment."""

    fleet: Fleet
    first: Members
    """Members of the first cluster."""
    of_fleet: Mapping[str, bytes]
    """The records below FLEET."""
    revisions: Mapping[str, int]
    """Of all records, below the fleet's prefix."""

    def members_of(self, cluster: int) -> Members:
        """The members of a cluster. Raises MembershipRefused."""
        if cluster == FIRST:
            return self.first
        prefix = place_of(cluster).removeprefix(FLEET) + MEMBERS
        records = self.of_fleet.items()
        return _members(
            {key.removeprefix(prefix): each for key, each in records if key.startswith(prefix)}
        )


async def add_cluster(root: Root, seen: Fleet, asked: NewCluster) -> FleetCluster:
    """Add a cluster, whose founding hosts may start then. `seen` is the fleet as this host knew it
    so far. Raises MembershipRefused."""

    def decide(read: Found) -> tuple[FleetCluster, Transaction]:
        return adding(read.fleet, read.first, _hosts_in(read), asked, read.revisions)

    return await _change(root, seen, decide)


async def set_draining(root: Root, seen: Fleet, number: int, *, is_draining: bool) -> FleetCluster:
    """Let a cluster be emptied, or not any more. Raises MembershipRefused."""

    def decide(read: Found) -> tuple[FleetCluster, Transaction]:
        founded = {
            each
            for each in read.fleet.clusters
            if each != FIRST and _founding(each) in read.of_fleet
        }
        founded |= {FIRST} if read.first.cluster is not None else set()
        return draining(read.fleet, founded, number, read.revisions, is_draining=is_draining)

    return await _change(root, seen, decide)


async def cluster_of_workers(root: Root, cluster: int, worker: int) -> FleetCluster | None:
    """The cluster of the workers with this number of a cluster's hosts, which is added if the fleet
    has none; None while that cluster has not been founded. Raises MembershipRefused."""

    def decide(read: Found) -> tuple[FleetCluster | None, Transaction | None]:
        known = read.fleet.of_workers(cluster, worker)
        members = read.members_of(cluster)
        if known is not None or members.cluster is None:
            return known, None
        hosts = tuple(process_name(host, worker) for host in sorted(members.hosts))
        asked = NewCluster("", hosts, len(members.cluster.numbers), worker, cluster)
        return adding(read.fleet, read.first, _hosts_in(read), asked, read.revisions)

    return await _change(root, Fleet({}, None), decide)


async def _change(
    root: Root, seen: Fleet, decide: Callable[[Found], tuple[Changed, Transaction | None]]
) -> Changed:
    """Make a change, unless `decide` says that there is none to make. Raises MembershipRefused."""
    for _ in range(_TRIES):
        read = await find(root)
        _check_whole(read.fleet, seen)
        changed, transaction = decide(read)
        if transaction is None:
            return changed
        outcome = await root.commit(transaction)
        if isinstance(outcome, Done):
            return changed
        if not isinstance(outcome, Conflict):
            raise MembershipRefused("etcd did not take the change in time: look at fleet status")
    raise MembershipRefused("others change the fleet all the time: try again")


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


def _founding(number: int) -> str:
    """The record, below FLEET, that a further cluster has once it is founded."""
    return f"{number}/{MEMBERS}{CLUSTER}"


def _check_whole(fleet: Fleet, seen: Fleet) -> None:
    """An etcd restored from an older state would give out numbers that shards have. Raises
    MembershipRefused."""
    if lost := sorted(seen.clusters.keys() - fleet.clusters.keys()):
        raise MembershipRefused(
            f"etcd has lost the record of cluster {lost[0]}: restore etcd's data first"
        )


def _hosts_in(read: Found) -> set[str]:
    """The names of all hosts of further clusters."""
    return {_host_in(key) for key in read.of_fleet} - {""}


def _host_in(key: str) -> str:
    """The host that a record below `fleet/` is of; empty for another record."""
    _, mark, name = key.partition(f"/{MEMBERS}{HOSTS}")
    return name if mark else ""
