"""The shard of a new queue: of two clusters of the account's hand, the one with fewer queues. Pure.

See `choices.py`: the queues that clusters have stand for loads where none are reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

from typing_extensions import override

from cluster.fleet.choices import KnownLoads, choose_shard
from cluster.fleet.plan_table import Cluster


class QueueCounts(KnownLoads):
    """Counts of queues instead of loads."""

    def __init__(self, clusters: Mapping[str, Cluster], queues: Mapping[int, int]) -> None:
        """`queues` are counted by shard."""
        self._clusters = clusters
        self._queues = queues

    @override
    def load(self, cluster: str) -> float:
        """Queues a shard."""
        shards = self._clusters[cluster].shards
        return sum(self.shard(shard) for shard in shards) / len(shards)

    @override
    def shard(self, shard: int) -> float:
        """Queues."""
        return self._queues.get(shard, 0)

    @override
    def has_room(self, cluster: str, asked: float) -> bool:
        return True


def shard_for(
    queue: tuple[str, str, str],
    clusters: Mapping[int, range],
    leader_of: Callable[[int], str | None],
    queues: Mapping[int, int],
    draining: AbstractSet[int] = frozenset(),
) -> int:
    """The shard of a new queue, by its account, region and name. `clusters` are the founded ones
    with their shards, `queues` are counted by shard. Those that are `draining` get none, unless all
    are so.

    A cluster of which a shard has no leader gets none, unless all are so: its ids are not known.
    """
    known = {
        str(number): Cluster(str(number), tuple(shards), 1)
        for number, shards in clusters.items()
        if number not in draining or draining >= clusters.keys()
    }
    led = {
        name
        for name, cluster in known.items()
        if all(leader_of(shard) is not None for shard in cluster.shards)
    }
    chosen = choose_shard(
        "/".join(queue),
        queue[0],
        known,
        QueueCounts(known, queues),
        lambda name: name in led or not led,
    )
    assert chosen is not None, "this process joined a founded cluster, or saw one"
    return chosen
