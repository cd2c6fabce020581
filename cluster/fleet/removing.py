"""Removing: an emptied cluster leaves its fleet for good.

Its record says so, and its hosts, which watch that, stop and do not start again. Numbers of
clusters and shards are not given out twice, so what names one names it for ever.

The transaction is one on the catalog: it marks the shards as removed there, and skips a queue id.
So it holds only if no queue or part was made since the shards were asked, and a creation that was
decided before is decided again behind it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import NamedTuple

import msgspec

from cluster.catalog import queue_rules
from cluster.catalog.catalog import Catalog
from cluster.catalog.catalog_records import LAST_ID, PREFIX
from cluster.catalog.queue_rules import Commit, Decision
from cluster.catalog.queue_view import QueueView
from cluster.coordination.coordination import Conflict, Coordination, Outcome, Transaction
from cluster.fleet.fleet_operations import Found, Root, check_whole, find
from cluster.fleet.fleet_records import CLUSTERS, FIRST, FLEET, ClusterState, Fleet, FleetCluster
from cluster.members.member_records import MembershipRefused
from visibility.contract.errors import ServiceUnavailable
from visibility.contract.model import QueueDefinition

TRIES = 5
"""Attempts while others make queues, or change the same records."""


class ShardLeft(msgspec.Struct, frozen=True):
    """Messages that a shard has, as its leader says."""

    shard: int
    messages: int
    waiting: int
    """Messages that wait for the archive."""
    departs_to: tuple[int, ...]
    """Shards for which messages are in its outbox."""


AskShards = Callable[[], Awaitable[Sequence[ShardLeft]]]
"""Asks the leaders of all shards of the fleet; those that do not answer are left out."""


class ChangedMeanwhile(Exception):
    """Something that was read has changed."""


class Left(NamedTuple):
    """All that a cluster still has."""

    parts: list[QueueDefinition]
    """The parts, and unsplit queues, on its shards; open ones before those that drain."""
    kept: int
    """Deleted or purged queues, or parts of such, whose messages it keeps."""


def left_on(view: QueueView, shards: Collection[int]) -> Left:
    """All that these shards have."""
    found = [part for part in view.all_queues() if part.shard in shards]
    found.sort(key=lambda part: (not is_open(part), part.queue_id))
    return Left(found, sum(kept.queue.shard in shards for kept in view.kept))


def is_open(part: QueueDefinition) -> bool:
    """True for a part, or an unsplit queue, that takes messages."""
    return not part.parts or part.part.is_open


def together(fleet: Fleet, number: int) -> list[FleetCluster]:
    """A cluster that can be removed, with those of its hosts' further workers. Raises
    MembershipRefused."""
    cluster = fleet.clusters.get(number)
    if cluster is None:
        raise MembershipRefused(f"the fleet has no cluster {number}, or only one")
    if number == FIRST:
        raise MembershipRefused(
            "cluster 1 stays: the records of the fleet are those of cluster 1, it runs the jobs of "
            "the archive, and a restored fleet begins with it"
        )
    if cluster.workers_of:
        raise MembershipRefused(
            f"cluster {number} is one of workers of the hosts of cluster {cluster.workers_of}, and "
            "goes with that one"
        )
    workers = [each for each in fleet.present.values() if each.workers_of == number]
    return [cluster, *workers]


def reason_to_stay(
    clusters: Iterable[FleetCluster],
    catalog: QueueView,
    found: Iterable[ShardLeft],
    asked: Collection[int],
) -> str:
    """The reason why these clusters cannot be removed now, empty if they can. `found` are the
    shards that answered, of those that were `asked`: all of founded clusters."""
    leaving = {shard for each in clusters for shard in each.numbers}
    for cluster in clusters:
        if cluster.state is not ClusterState.DRAINING:
            number = cluster.number
            return (
                f"cluster {number} takes queues: `holdfast fleet drain-cluster {number}` empties it"
            )
        if reason := _queues_left(cluster, catalog):
            return reason
    said = {each.shard: each for each in found}
    if silent := sorted({*asked} - said.keys()):
        return (
            f"the leader of shard {silent[0]} does not say what it has: try again once it answers"
        )
    reasons = (_left(each, leaving) for each in said.values())
    return next(filter(None, reasons), "")


def _queues_left(cluster: FleetCluster, catalog: QueueView) -> str:
    left = left_on(catalog, cluster.numbers)
    if left.parts:
        return (
            f"cluster {cluster.number} has {len(left.parts)} parts of queues, one of queue "
            f"{left.parts[0].name}: `holdfast fleet status` says what they wait for"
        )
    if left.kept:
        return (
            f"cluster {cluster.number} keeps {left.kept} deleted or purged queues that can be "
            "restored: it can go when the time for that is over"
        )
    return ""


def _left(found: ShardLeft, leaving: set[int]) -> str:
    shard = found.shard
    if shard not in leaving:
        if towards := leaving.intersection(found.departs_to):
            return f"messages of shard {shard} are on their way to shard {min(towards)}: try again"
        return ""
    if found.messages:
        return f"shard {shard} still has {found.messages} messages: try again"
    if found.departs_to:
        return f"messages of shard {shard} are on their way to other shards: try again"
    if found.waiting:
        return (
            f"{found.waiting} messages of shard {shard} wait for the archive: the next run of its "
            "job takes them"
        )
    return ""


class Removal(NamedTuple):
    """Removes clusters, with what a host has for that."""

    root: Root
    """All records of the fleet."""
    catalog: Catalog
    ask_shards: AskShards
    now_ms: Callable[[], int]

    async def reason_against(self, number: int) -> str:
        """The reason why a cluster cannot be removed now, empty if it can."""
        try:
            found = await find(self.root)
            clusters = together(found.fleet, number)
        except MembershipRefused as refusal:
            return str(refusal)
        return await self._reason(found, clusters)

    async def _reason(self, found: Found, clusters: Sequence[FleetCluster]) -> str:
        said, shards = await self.ask_shards(), founded_shards(found)
        return reason_to_stay(clusters, self.catalog, said, shards)

    async def remove(self, seen: Fleet, number: int) -> FleetCluster:
        """Remove an emptied cluster; of one that is removed nothing is left to do. `seen` is the
        fleet as this host knew it so far. Raises MembershipRefused, ServiceUnavailable."""
        for _ in range(TRIES):
            try:
                return await self._try(seen, number)
            except ChangedMeanwhile:
                continue
        raise MembershipRefused("queues are made or changed all the time: try again")

    async def _try(self, seen: Fleet, number: int) -> FleetCluster:
        found = await find(self.root)
        check_whole(found.fleet, seen)
        clusters = together(found.fleet, number)
        if clusters[0].state is ClusterState.REMOVED:
            return clusters[0]
        check_none_is_gone(clusters)
        if not await self.catalog.caught_up():
            raise ServiceUnavailable()
        last_id = self.catalog.revision_of(LAST_ID)
        if reason := await self._reason(found, clusters):
            raise MembershipRefused(reason)
        state = ClusterState.REMOVED
        await mark_gone(self.root, self.catalog, found, clusters, state, last_id, self.now_ms())
        return msgspec.structs.replace(clusters[0], state=state)


def check_none_is_gone(clusters: Sequence[FleetCluster]) -> None:
    """Raises MembershipRefused for a cluster that has left the fleet in another way."""
    if clusters[0].is_gone:
        raise MembershipRefused(f"cluster {clusters[0].number} {clusters[0].gone_as}")


async def mark_gone(
    root: Coordination,
    catalog: Catalog,
    found: Found,
    clusters: Sequence[FleetCluster],
    state: ClusterState,
    last_id: int,
    now_ms: int,
) -> None:
    """Have clusters leave the fleet, if their records are as `found`, and no queue or part was made
    since the record of the last id had the revision `last_id`. Raises ChangedMeanwhile,
    ServiceUnavailable."""
    shards = [shard for each in clusters for shard in each.numbers]
    records = {
        f"{FLEET}{CLUSTERS}{each.number}": msgspec.structs.replace(each, state=state)
        for each in clusters
    }
    commit = _committing(
        root,
        {key: found.revisions.get(key, 0) for key in records},
        {key: msgspec.json.encode(each) for key, each in records.items()},
    )

    def decide() -> Decision:
        if catalog.revision_of(LAST_ID) != last_id:
            raise ChangedMeanwhile
        decision = queue_rules.remove_shards(catalog, shards, now_ms)
        return decision._replace(commit=commit)

    await catalog.remove_shards(decide)


def founded_shards(found: Found) -> set[int]:
    """The shards of the clusters of a fleet whose hosts have started. Raises MembershipRefused."""
    return {
        shard
        for number, each in found.fleet.present.items()
        if found.members_of(number).cluster is not None
        for shard in each.numbers
    }


def _committing(root: Coordination, also: dict[str, int], changes: dict[str, bytes]) -> Commit:
    async def commit(of_catalog: Transaction) -> Outcome:
        conditions = {PREFIX + name: at for name, at in of_catalog.conditions.items()}
        values = {PREFIX + name: value for name, value in of_catalog.changes.items()}
        outcome = await root.commit(Transaction(conditions | also, values | changes))
        if isinstance(outcome, Conflict):
            raise ChangedMeanwhile
        return outcome

    return commit
