"""Operations on a fleet, asked for by an operator through any host."""

from __future__ import annotations

from typing import Protocol

import msgspec

from cluster.coordination.coordination import Conflict, Coordination, Done, Unavailable
from cluster.fleet.fleet_records import FLEET, Fleet, FleetCluster, NewCluster, adding, read_fleet
from cluster.members.member_records import (
    HOSTS,
    MEMBERS,
    MembershipRefused,
    read_members,
)

_TRIES = 5
"""Attempts while others change the same records."""


class Root(Coordination, Protocol):
    """All records of the fleet."""

    def below(self, folder: str) -> Coordination:
        """Those below a prefix."""


async def add_cluster(root: Root, seen: Fleet, asked: NewCluster) -> FleetCluster:
    """Add a cluster, whose founding hosts may start then. `seen` is the fleet as this host knew it
    so far. Raises MembershipRefused."""
    for _ in range(_TRIES):
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
        _check_whole(fleet, seen)
        taken = {_host_in(key) for key in records[FLEET]} - {""}
        new, transaction = adding(fleet, members, taken, asked, revisions)
        outcome = await root.commit(transaction)
        if isinstance(outcome, Done):
            return new
        if not isinstance(outcome, Conflict):
            raise MembershipRefused("etcd did not take the change in time: look at fleet status")
    raise MembershipRefused("others change the fleet all the time: try again")


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
