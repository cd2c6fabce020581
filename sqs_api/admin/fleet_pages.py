"""Answers about the fleet: its clusters and gateways, and a new cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

import msgspec

from cluster.catalog.catalog import Catalog
from cluster.fleet.fleet_operations import Root, add_cluster
from cluster.fleet.fleet_records import FIRST, ClusterState, FleetCluster, NewCluster
from cluster.fleet.fleet_status import FleetStatus, GatewayOfFleet, SeenCluster, status_of
from cluster.fleet.fleet_view import FleetView
from cluster.fleet.removing import left_on
from cluster.members.member_records import MembershipRefused
from cluster.members.membership import Membership
from cluster.peers.peer_settings import is_host_id
from cluster.peers.readiness import Leaders
from sqs_api.admin.asked import Asked
from sqs_api.admin.cluster_pages import of_member
from sqs_api.admin.routes import ADD_CLUSTER, READ_FLEET, Refused, Route


class FleetPages(NamedTuple):
    """The part that answers; a single host has none."""

    name: str
    """The fleet's name."""
    host: str
    view: FleetView
    membership: Membership
    leaders: Leaders
    catalog: Catalog
    root: Root
    unheard: Callable[[], Collection[int]]
    """See `RaisedIds`."""

    def is_of(self, number: int) -> bool:
        """True if this host, or the host that it is a worker of, is one of that cluster."""
        own = self.view.fleet.clusters.get(self.view.own)
        return number in (self.view.own, 0 if own is None else own.hosts_in)

    def hosts_of(self, number: int) -> list[str]:
        """The names of a cluster's hosts."""
        if number == self.view.own:
            return sorted(self.membership.shown.hosts)
        return self.view.hosts_of(number)

    def status(self) -> FleetStatus:
        """The present status."""
        clusters = self.view.fleet.present or self._alone()
        own = self.membership.shown
        seen = [
            SeenCluster(each, own.zones, own.alive)
            if each.number == self.view.own
            else SeenCluster(each, self.view.zones_of(each.number), self.view.alive_of(each.number))
            for each in clusters.values()
        ]
        shards = [shard for each in clusters.values() for shard in each.numbers]
        status = status_of(
            self.name,
            self.host,
            seen,
            {shard: self.leaders.leader_of(shard) for shard in shards},
            Counter(queue.shard for queue in self.catalog),
            [GatewayOfFleet(name, each.version) for name, each in self.view.gateways.items()],
        )
        status.problems.extend(self._unfinished())
        if unheard := sorted(self.unheard()):
            status.problems.append(
                f"shards {', '.join(map(str, unheard))} have not answered {self.host} yet: splits, "
                "shrinks and moves wait for them"
            )
        return status

    def _unfinished(self) -> Iterator[str]:
        """Clusters that are being given up by an operator who did not come to the end of it."""
        for each in self.view.fleet.clusters.values():
            if each.state is ClusterState.ABANDONED:
                if left := len(left_on(self.catalog, each.numbers).parts):
                    yield (
                        f"cluster {each.number} is given up, and {left} parts of queues are still "
                        f"there: `holdfast fleet abandon {each.number}` goes on"
                    )

    def _alone(self) -> dict[int, FleetCluster]:
        cluster = self.membership.shown.cluster
        shards = range(0) if cluster is None else cluster.numbers
        only = FleetCluster(
            number=FIRST,
            name="cluster-1",
            first_shard=shards.start,
            shards=len(shards),
            founders=(),
        )
        return {FIRST: only}


class AskedCluster(msgspec.Struct, forbid_unknown_fields=True):
    """A new cluster; without a name it is called by its number."""

    hosts: list[str]
    shards: int = 3
    name: str = ""


async def read_fleet(fleet: FleetPages | None, asked: Asked) -> FleetStatus:
    """Show clusters, their hosts and shards, and gateways."""
    return of_member(fleet).status()


async def new_cluster(fleet: FleetPages | None, asked: Asked, given: AskedCluster) -> FleetCluster:
    """Add a cluster to the fleet; its hosts start afterwards."""
    found = of_member(fleet)
    if not all(map(is_host_id, given.hosts)):
        raise Refused(400, "hosts: must be names of hosts, as DNS names")
    if given.name and not is_host_id(given.name):
        raise Refused(400, "name: must be lower-case letters, digits and hyphens")
    asked.noted |= {"hosts": given.hosts, "shards": given.shards}
    try:
        asked_for = NewCluster(given.name, tuple(given.hosts), given.shards)
        return await add_cluster(found.root, found.view.fleet, asked_for)
    except MembershipRefused as refusal:
        raise Refused(409, str(refusal)) from refusal


ROUTES = (
    Route("GET", "fleet", READ_FLEET, read_fleet, "fleet status"),
    Route("POST", "fleet/clusters", ADD_CLUSTER, new_cluster, "fleet add-cluster", root_only=True),
)
