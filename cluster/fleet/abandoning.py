"""Abandoning: a cluster whose disks are lost for good is given up, and its queues answer again.

First the record of the cluster says so, with the same transaction as a removal: from then on a host
of it that comes back stops, and no queue comes to its shards. Then each queue gives up its parts
there, one transaction each (`catalog/lost_parts.py`). Whoever does this may die: the operator asks
again, and the rest is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from cluster.catalog.catalog import Catalog
from cluster.catalog.catalog_records import LAST_ID, name_of
from cluster.coordination.coordination import Coordination
from cluster.fleet.depths import ShardDepth, read_depths
from cluster.fleet.fleet_operations import Found, Root, check_whole, find
from cluster.fleet.fleet_records import ClusterState, Fleet, FleetCluster
from cluster.fleet.removing import (
    TRIES,
    AskShards,
    ChangedMeanwhile,
    check_none_is_gone,
    left_on,
    mark_gone,
    together,
)
from cluster.members.member_records import MembershipRefused
from visibility.contract.errors import ServiceUnavailable


class LostQueue(msgspec.Struct, frozen=True):
    """A queue that gave up parts. `messages` are those that they had at `at_ms`, as far as it was
    published: null if the shard never said so."""

    queue: str
    account: str
    parts: int
    messages: int | None
    at_ms: int | None


class GivenUp(NamedTuple):
    """A cluster that was given up, with the queues that this step looked at."""

    cluster: FleetCluster
    queues: list[LostQueue]
    left: int
    """Queues that still have parts there: ask again."""


class Abandoning(NamedTuple):
    """Gives up clusters, with what a host has for that."""

    root: Root
    """All records of the fleet."""
    depths: Coordination
    """Those below DEPTHS."""
    catalog: Catalog
    ask_shards: AskShards
    now_ms: Callable[[], int]

    async def abandon(
        self, seen: Fleet, number: int, confirmed: str, go_on: Callable[[], bool]
    ) -> GivenUp:
        """Give up a cluster, whose name is `confirmed`, or go on with that while `go_on` is true.
        `seen` is the fleet as this host knew it so far. Raises MembershipRefused,
        ServiceUnavailable."""
        for _ in range(TRIES):
            try:
                clusters = await self._marked(seen, number, confirmed)
            except ChangedMeanwhile:
                continue
            return await self._give_up(clusters, go_on)
        raise MembershipRefused("queues are made or changed all the time: try again")

    async def _marked(self, seen: Fleet, number: int, confirmed: str) -> Sequence[FleetCluster]:
        found = await find(self.root)
        check_whole(found.fleet, seen)
        clusters = together(found.fleet, number)
        if clusters[0].state is ClusterState.ABANDONED:
            return [
                each
                for each in found.fleet.clusters.values()
                if each.state is ClusterState.ABANDONED and number in (each.number, each.workers_of)
            ]
        check_none_is_gone(clusters)
        if confirmed != clusters[0].name:
            raise MembershipRefused(
                f"to give up all messages of cluster {number}, confirm its name, {clusters[0].name}"
            )
        if not await self.catalog.caught_up():
            raise ServiceUnavailable()
        last_id = self.catalog.revision_of(LAST_ID)
        await self._check_lost(found, clusters)
        await mark_gone(
            self.root, self.catalog, found, clusters, ClusterState.ABANDONED, last_id, self.now_ms()
        )
        return clusters

    async def _check_lost(self, found: Found, clusters: Sequence[FleetCluster]) -> None:
        numbers = {each.number for each in clusters}
        others = {
            number
            for number in found.fleet.present.keys() - numbers - found.fleet.draining
            if found.members_of(number).cluster is not None
        }
        if not others:
            raise MembershipRefused("no other cluster could take the queues")
        for each in clusters:
            if running := sorted(found.members_of(each.number).alive):
                raise MembershipRefused(
                    f"host {running[0]} of cluster {each.number} is running: a cluster is given up "
                    "only when nothing of it answers"
                )
        shards = {shard for each in clusters for shard in each.numbers}
        said = {each.shard for each in await self.ask_shards()}
        if answering := sorted(said & shards):
            raise MembershipRefused(
                f"shard {answering[0]} answers: a cluster is given up only when nothing of it does"
            )

    async def _give_up(
        self, clusters: Sequence[FleetCluster], go_on: Callable[[], bool]
    ) -> GivenUp:
        shards = {shard for each in clusters for shard in each.numbers}
        depths = await read_depths(self.depths, shards)
        names = list(dict.fromkeys(map(name_of, left_on(self.catalog, shards).parts)))
        lost: list[LostQueue] = []
        for name in names:
            if not go_on():
                break
            queue = self.catalog.find(name)
            if queue is None:
                continue
            parts = [part for part in queue.all_parts() if part.shard in shards]
            await self.catalog.give_up_parts(queue, shards)
            known = [_depth(depths, part.shard, part.queue_id) for part in parts]
            is_known = None not in known
            lost.append(
                LostQueue(
                    queue.name,
                    queue.account,
                    len(parts),
                    sum(each or 0 for each in known) if is_known else None,
                    min(depths[part.shard].at_ms for part in parts) if is_known else None,
                )
            )
        await self.catalog.end_kept(shards)
        return GivenUp(clusters[0], lost, len(names) - len(lost))


def _depth(depths: dict[int, ShardDepth], shard: int, queue_id: int) -> int | None:
    """The messages of a part; None if its shard never told, or told only of deeper queues."""
    found = depths.get(shard)
    if found is None:
        return None
    return found.queues.get(queue_id, None if found.others else 0)
