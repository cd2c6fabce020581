"""The status of a fleet, as one process sees it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from cluster.fleet.fleet_records import FleetCluster
from cluster.members.removal import zone_problems


class HostOfFleet(msgspec.Struct, frozen=True):
    """A host of a cluster; one that founds it may not have started yet."""

    name: str
    is_alive: bool
    zone: str = ""
    """Empty if it is not known."""


class ShardOfFleet(msgspec.Struct, frozen=True):
    """A shard."""

    shard: int
    leader: str | None
    queues: int


class ClusterOfFleet(msgspec.Struct, frozen=True):
    """A cluster."""

    number: int
    name: str
    state: str
    """`open`, or `draining` while it is being emptied."""
    hosts: list[HostOfFleet]
    shards: list[ShardOfFleet]


class GatewayOfFleet(msgspec.Struct, frozen=True):
    """A gateway that runs."""

    name: str
    version: str


class FleetStatus(msgspec.Struct, frozen=True):
    """The status of a fleet."""

    fleet: str
    host: str
    """The process that was asked."""
    clusters: list[ClusterOfFleet]
    gateways: list[GatewayOfFleet]
    problems: list[str]
    """Reasons why the fleet needs an operator, one line each."""


class SeenCluster(NamedTuple):
    """A cluster with what is known of its hosts."""

    cluster: FleetCluster
    hosts: Mapping[str, str]
    """The zone of each host by its name."""
    alive: Collection[str]


def status_of(
    fleet: str,
    host: str,
    clusters: Sequence[SeenCluster],
    leaders: Mapping[int, str | None],
    queues: Mapping[int, int],
    gateways: Sequence[GatewayOfFleet],
) -> FleetStatus:
    """The status; `leaders` and `queues` are by shard."""
    shown = [
        ClusterOfFleet(
            seen.cluster.number,
            seen.cluster.name,
            seen.cluster.state.value,
            [
                HostOfFleet(name, name in seen.alive, seen.hosts.get(name, ""))
                for name in sorted({*seen.hosts, *seen.cluster.founders})
            ],
            [
                ShardOfFleet(shard, leaders.get(shard), queues.get(shard, 0))
                for shard in seen.cluster.numbers
            ],
        )
        for seen in clusters
    ]
    problems = [problem for cluster in shown for problem in _problems(cluster)]
    return FleetStatus(fleet, host, shown, list(gateways), problems)


def _problems(cluster: ClusterOfFleet) -> list[str]:
    found = [
        f"cluster {cluster.number}: host {host.name} is away"
        for host in cluster.hosts
        if not host.is_alive
    ]
    found += [
        f"cluster {cluster.number}: no host leads shard {shard.shard}, which has "
        f"{shard.queues} queues"
        for shard in cluster.shards
        if shard.leader is None
    ]
    zones = zone_problems({host.name: host.zone for host in cluster.hosts})
    return found + [f"cluster {cluster.number}: {problem}" for problem in zones]
