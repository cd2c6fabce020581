"""EarlyWatch: early answers of a simulated host, and the Entries that they depend on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from cluster.replication.replicated_store import Proposal, ReplicatedStore
from cluster.shards.shard import Shard
from cluster.tests.world import lead_of
from storage.log import Position
from visibility.state.waiters import Ticket

if TYPE_CHECKING:
    from cluster.tests.replication.shard_hosts import ShardCluster


class Early(NamedTuple):
    """An answer that did not wait for a majority."""

    cluster: ShardCluster
    position: Position
    """The last Entry that its Turn could see."""
    is_stale: bool
    """Another host led already when it left, and it changed nothing."""

    @property
    def is_lost(self) -> bool:
        """True if that Entry was never committed; known once all hosts are alike."""
        return self.is_stale or self.cluster.committed.get(self.position.index) != self.position


class EarlyWatch:
    """Of one store, from its opening on."""

    def __init__(self, cluster: ShardCluster, store: ReplicatedStore, shard: Shard) -> None:
        self._cluster = cluster
        self._store = store
        self._shard = shard
        self._leaving: Proposal | None = None
        """The Entry whose answers leave now."""
        self._own: set[int] = set()
        """The tickets that made it."""
        self._once_synced = store.once_synced
        store.once_synced = self._watched  # type: ignore[method-assign]

    def _watched(self, done: Callable[[], None]) -> None:
        proposal, early = self._store._proposals[-1], lead_of(self._shard)._early
        assert early is not None
        own = {id(ticket) for ticket, _ in early._held[-1]}

        def leave() -> None:
            self._check(proposal)
            self._leaving, self._own = proposal, own
            done()
            self._leaving = None

        self._once_synced(leave)

    def _check(self, leaving: Proposal) -> None:
        replica, violations = self._store.replica, self._cluster.violations
        if leaving.index > replica.log.synced_index:
            violations.append(f"Entry {leaving.index} is answered before the leader has it durably")
        answered = [each for each in self._store._proposals if 0 < each.index <= leaving.index]
        if sum(len(each.body) for each in answered) > replica.timing.under_way_bytes:
            violations.append("more is answered and not committed than may be")

    def of(self, ticket: Ticket | None) -> Early:
        """The answer of this ticket, which leaves now."""
        log = self._store.replica.log
        position: Position | None = log.last
        if self._leaving is not None:
            position = log.position_at(self._leaving.index)
        assert position is not None
        is_own = self._leaving is not None and id(ticket) in self._own
        is_late = max(self._cluster.committed, default=0) > log.last_index
        return Early(self._cluster, position, is_late and not is_own)
