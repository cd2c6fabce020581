"""Readiness: a host of a cluster takes requests while it can have them decided, or soon will.

A balancer must not take all hosts away while a shard's next leader is found: they hold requests
meanwhile. It must take away a host that is cut off from the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Protocol

from cluster.peers.peer_settings import Channel
from cluster.peers.transport import Transport


class Leaders(Protocol):
    """The leader of each shard, as far as this host knows."""

    def leader_of(self, shard: int) -> str | None:
        """The host that leads it, None while there is none."""

    def subscribe(self, on_change: Callable[[int], None]) -> None:
        """Call back with each shard whose leader changed, on the event loop."""


class Ready(Protocol):
    """Says whether this process takes requests."""

    @property
    def is_ready(self) -> bool:
        """True if it can have them decided, or soon will."""


class Readiness:
    """Answers balancers."""

    def __init__(
        self,
        transport: Transport,
        leaders: Leaders,
        shards: Iterable[int],
        hold_s: float,
        monotonic_s: Callable[[], float],
    ) -> None:
        """`shards` are those of this host, whose leaders count; other clusters' do not. `hold_s` is
        the time for which requests are held."""
        self._shards = frozenset(shards)
        self._transport = transport
        self._leaders = leaders
        self._hold_s = hold_s
        self._monotonic_s = monotonic_s
        self._lacking_since_s = {
            shard: -inf for shard in self._shards if leaders.leader_of(shard) is None
        }
        leaders.subscribe(self._leader_changed)

    @property
    def is_ready(self) -> bool:
        """True if most hosts are connected, and each shard has a leader or had one just now."""
        begun_s = self._monotonic_s() - self._hold_s
        return self._is_connected() and all(
            since_s > begun_s for since_s in self._lacking_since_s.values()
        )

    def _is_connected(self) -> bool:
        """True if this host and those with a connection to it are a majority."""
        peers = self._transport.peers
        links = (self._transport.link(peer, Channel.REQUESTS) for peer in peers)
        reached = sum(link is not None for link in links)
        return 2 * (reached + 1) > len(peers) + 1

    def _leader_changed(self, shard: int) -> None:
        if shard not in self._shards:
            return
        if self._leaders.leader_of(shard) is not None:
            self._lacking_since_s.pop(shard, None)
        else:
            self._lacking_since_s.setdefault(shard, self._monotonic_s())
