"""FleetShards: the shards of all clusters, as a process of the fleet sees them."""

from __future__ import annotations

from asyncio import Future, get_running_loop
from collections.abc import Awaitable, Callable, Collection, Sequence
from itertools import chain

from typing_extensions import override

from cluster.catalog.catalog import Catalog
from cluster.catalog.catalog_records import QueueName
from cluster.catalog.other_hosts import OtherHosts
from cluster.catalog.queue_view import QueueView
from cluster.fleet.fleet_view import FleetView
from cluster.fleet.new_queues import shard_for
from cluster.peers.forwarding import PeerRouter
from cluster.shards.issued_ids import RaisedIds


class FleetShards(OtherHosts):
    """Call `routed` before queues change."""

    is_shared = may_lack_ids = True

    def __init__(
        self,
        fleet: FleetView,
        leader_of: Callable[[int], str | None],
        own: range | None = None,
        spread: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        """`own` are those of this host's cluster, None for a gateway. Without `spread` nobody is
        waited for."""
        self._fleet = fleet
        self._leader_of = leader_of
        self._own = own
        self._spread = spread
        self._ids: Future[RaisedIds] = get_running_loop().create_future()

    def routed(self, router: PeerRouter, catalog: Catalog) -> None:
        """Ask shards over this router from now on."""
        self._ids.set_result(RaisedIds(router.ask_leader, lambda: catalog.times_restored))

    @property
    def clusters(self) -> dict[int, range]:
        """The shards of all founded clusters, by number."""
        own = {} if self._own is None else {self._fleet.own: self._own}
        return self._fleet.founded | own

    def lender(self) -> str | None:
        """The leader of the lowest shard, which lends rates to all doors; None while there is
        none."""
        shards = self._shards()
        return self._leader_of(min(shards)) if shards else None

    def _shards(self) -> list[int]:
        return list(chain.from_iterable(self.clusters.values()))

    async def hear(self) -> None:
        """Ask the shards that have not answered yet; the router is known."""
        await self._ids.result().ask_all(self._shards())

    def unheard(self) -> set[int]:
        """The shards that parts cannot be changed for want of; the router is known."""
        return self._ids.result().unheard(self._shards())

    @override
    async def spread(self, revision: int) -> None:
        if self._spread is not None:
            await self._spread(revision)

    @override
    async def ids_raised(self, shard: int) -> None:
        of_fleet = (numbers for numbers in self.clusters.values() if shard in numbers)
        await (await self._ids).wait(next(of_fleet, (shard,)))

    @override
    async def all_heard(self) -> None:
        await (await self._ids).wait_for_all(self._shards())

    @override
    def choose(self, view: QueueView, name: QueueName) -> Sequence[int] | None:
        """All shards of a host's only cluster, else one of a cluster of the account's hand."""
        clusters = self.clusters
        if self._own is not None and len(clusters) == 1:
            return None
        draining = self._fleet.fleet.draining
        return [shard_for(name, clusters, self._leader_of, view.queues_of_shard, draining)]

    @override
    def draining_shards(self) -> Collection[int]:
        return self._fleet.fleet.draining_shards
