"""Operations on a fleet, asked for by an operator through any host."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, Protocol

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

_TRIES = 5
"""Attempts while others change the same records."""


class Root(Coordination, Protocol):
    """All records of the fleet."""

    def below(self, folder: str) -> Coordination:
        """Those below a prefix."""


class _Read(NamedTuple):
    """The records of the fleet as of one moment."""

    fleet: Fleet
    first: Members
    """Members of the first cluster."""
    keys: Collection[str]
    """Of the records below FLEET."""
    revisions: Mapping[str, int]
    """Of all records, below the fleet's prefix."""


async def add_cluster(root: Root, seen: Fleet, asked: NewCluster) -> FleetCluster:
    """Add a cluster, whose founding hosts may start then. `seen` is the fleet as this host knew it
    so far. Raises MembershipRefused."""

    def decide(read: _Read) -> tuple[FleetCluster, Transaction]:
        taken = {_host_in(key) for key in read.keys} - {""}
        return adding(read.fleet, read.first, taken, asked, read.revisions)

    return await _change(root, seen, decide)


async def set_draining(root: Root, seen: Fleet, number: int, *, is_draining: bool) -> FleetCluster:
    """Let a cluster be emptied, or not any more. Raises MembershipRefused."""

    def decide(read: _Read) -> tuple[FleetCluster, Transaction]:
        founded = {
            each for each in read.fleet.clusters if each != FIRST and _founding(each) in read.keys
        }
        founded |= {FIRST} if read.first.cluster is not None else set()
        return draining(read.fleet, founded, number, read.revisions, is_draining=is_draining)

    return await _change(root, seen, decide)


async def _change(
    root: Root, seen: Fleet, decide: Callable[[_Read], tuple[FleetCluster, Transaction]]
) -> FleetCluster:
    for _ in range(_TRIES):
        read = await _read(root)
        _check_whole(read.fleet, seen)
        changed, transaction = decide(read)
        outcome = await root.commit(transaction)
        if isinstance(outcome, Done):
            return changed
        if not isinstance(outcome, Conflict):
            raise MembershipRefused("etcd did not take the change in time: look at fleet status")
    raise MembershipRefused("others change the fleet all the time: try again")


async def _read(root: Root) -> _Read:
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
        fleet, members = read_fleet(records[FLEET]), read_members(records[MEMBERS])
    except (msgspec.MsgspecError, ValueError) as error:
        raise MembershipRefused(f"a record cannot be read: {error}") from error
    return _Read(fleet, members, records[FLEET].keys(), revisions)


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


def _host_in(key: str) -> str:
    """The host that a record below `fleet/` is of; empty for another record."""
    _, mark, name = key.partition(f"/{MEMBERS}{HOSTS}")
    return name if mark else ""
