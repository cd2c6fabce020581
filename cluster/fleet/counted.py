"""Counted: loads as reported, with what was assigned since. Pure.

Reports are up to thirty seconds late. Who trusts them alone sends everything to the cluster that
was the emptiest, until its next report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cluster.fleet.load_history import LoadHistory
from cluster.fleet.plan_table import Change, Fleet, PartState, Queue
from cluster.fleet.thresholds import ASSIGN_BELOW, STOP_AT
from visibility.contract.queue_parts import PARTS_MAX


class Counted:
    """The loads of clusters and shards as one plan sees them; its own changes are added."""

    def __init__(self, fleet: Fleet, history: LoadHistory, now_ms: int) -> None:
        self._fleet = fleet
        self._history = history
        self._clusters = {name: util.load for name, util in history.utilisation.items()}
        self._loops = {name: util.loop for name, util in history.utilisation.items()}
        self._shards = {number: shard.asked for number, shard in history.shards.items()}
        self.leaving: Counter[str] = Counter()
        """Parts under way from each cluster: closed, with messages."""
        self.coming: Counter[str] = Counter()
        """Parts under way to each cluster."""
        for at_ms, change in fleet.changes:
            self._count_transfers(change, at_ms)
            self._count_load(change, at_ms)

    def load(self, cluster: str) -> float:
        """The load of a cluster; one that never reported is full."""
        return self._clusters.get(cluster, 1.0)

    def shard(self, shard: int) -> float:
        """The share of a loop that is asked of a shard."""
        return self._shards.get(shard, 0.0)

    def share(self, cluster: str, asked: float) -> float:
        """The load that this share of one loop is to a cluster."""
        return asked / self._history.loops.get(cluster, 1)

    def has_room(self, cluster: str, asked: float, most: float = STOP_AT) -> bool:
        """True if a cluster may take a new part that asks for this share of a loop, and stay below
        a load."""
        return (
            cluster not in self._history.full
            and cluster not in self._history.silent_since_ms
            and self.load(cluster) + self.share(cluster, asked) < most
        )

    def room(self, cluster: str, asked: float, most: float) -> int:
        """The number of new parts that a cluster could take, each of which asks for this share of
        a loop, and stay below a load."""
        share = self.share(cluster, asked)
        return int((most - self.load(cluster)) / share) if share > 0 else PARTS_MAX

    def is_low(self, cluster: str, asked: float) -> bool:
        """True if a cluster may be given load that others have too much of."""
        after = self.load(cluster) + self.share(cluster, asked)
        return self.has_room(cluster, asked) and after < ASSIGN_BELOW

    def add(self, change: Change) -> None:
        """Count a change of this plan."""
        self._move_load(change, change.opens, change.leaves)
        self._add_transfers(change, change.leaves if change.drains else ())

    def shift(self, shards: Sequence[int], asked: Sequence[float]) -> None:
        """Count these shares of a loop more on shards, or less."""
        for shard, each in zip(shards, asked, strict=True):
            self._change_load(shard, each)

    def _count_transfers(self, change: Change, at_ms: int) -> None:
        queue = self._fleet.queues.get(change.queue)
        if queue is not None:
            drained = zip(change.drains, change.leaves, strict=False)
            leaves = [shard for n, shard in drained if self._is_under_way(queue, n, at_ms)]
            self._add_transfers(change, leaves)

    def _is_under_way(self, queue: Queue, number: int, closed_ms: int) -> bool:
        """True while a closed part has messages. Without any it only waits for retries of the last
        sends, and costs nothing."""
        part = queue.part(number)
        if part is None or part.state is not PartState.DRAINING:
            return False
        seen = self._history.parts.get((queue.queue_id, number))
        is_emptied = (
            seen is not None
            and seen.shard == part.shard
            and seen.at_ms - self._history.window_ms >= closed_ms
            and not seen.last.messages
        )
        return not is_emptied

    def _add_transfers(self, change: Change, leaves: Sequence[int]) -> None:
        cluster_of = self._fleet.cluster_of
        self.leaving.update(cluster_of.get(shard, "") for shard in leaves)
        if leaves:
            self.coming.update({cluster_of.get(shard, "") for shard in change.opens})

    def _count_load(self, change: Change, at_ms: int) -> None:
        """A report counts what was assigned before its window began."""
        reported, window_ms = self._history.shard_ms, self._history.window_ms
        self._move_load(
            change,
            [s if at_ms > reported.get(s, 0) - window_ms else None for s in change.opens],
            [s if at_ms > reported.get(s, 0) - window_ms else None for s in change.leaves],
        )

    def _move_load(
        self, change: Change, opens: Sequence[int | None], leaves: Sequence[int | None]
    ) -> None:
        for shard, asked in zip(opens, change.given, strict=True):
            self._change_load(shard, asked)
        for shard, asked in zip(leaves, change.taken, strict=True):
            self._change_load(shard, -asked)

    def _change_load(self, shard: int | None, asked: float) -> None:
        """Change the load of a shard and its cluster; None for one whose report has it already."""
        if shard is None:
            return
        self._shards[shard] = max(0.0, self._shards.get(shard, 0.0) + asked)
        cluster = self._fleet.cluster_of.get(shard, "")
        if cluster in self._loops:
            share = self.share(cluster, asked)
            self._loops[cluster] = max(0.0, self._loops[cluster] + share)
            others = max(self._history.utilisation[cluster][1:])
            self._clusters[cluster] = max(self._loops[cluster], others)
