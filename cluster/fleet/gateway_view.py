"""The leaders and the readiness of a gateway, which has no shards and no cluster."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from typing_extensions import override

from cluster.fleet.fleet_view import FleetView
from cluster.peers.peer_settings import Channel
from cluster.peers.readiness import Leaders
from cluster.peers.transport import Transport


class GatewayLeaders(Leaders):
    """See `Leaders`. Where the leader that the view shows is not reached, another host of its
    cluster is asked, which knows better: the view may be hours old."""

    def __init__(self, fleet: FleetView, transport: Transport) -> None:
        self._fleet = fleet
        self._transport = transport
        self._turn = count()

    @override
    def leader_of(self, shard: int) -> str | None:
        leader = self._fleet.leader_of(shard)
        if leader is not None and self._reaches(leader):
            return leader
        reached = [host for host in self._fleet.hosts_that_may_lead(shard) if self._reaches(host)]
        return reached[next(self._turn) % len(reached)] if reached else leader

    @override
    def subscribe(self, on_change: Callable[[int], None]) -> None:
        self._fleet.subscribe(on_change)

    def _reaches(self, host: str) -> bool:
        return self._transport.link(host, Channel.REQUESTS) is not None


class GatewayReadiness:
    """A gateway takes requests while one cluster answers: others may be away for hours."""

    def __init__(self, fleet: FleetView, transport: Transport) -> None:
        self._fleet = fleet
        self._transport = transport

    @property
    def is_ready(self) -> bool:
        """True if a host of some cluster is connected; else they are being connected."""
        reached = [
            self._transport.link(host, Channel.REQUESTS) is not None
            for host in self._fleet.all_hosts()
        ]
        return any(reached)
