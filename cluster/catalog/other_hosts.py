"""OtherHosts: what a catalog asks of the other hosts that change its records."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cluster.catalog.catalog_records import QueueName
from cluster.catalog.queue_view import QueueView


class OtherHosts:
    """As it is, there are none."""

    is_shared = False
    """True if others change queues, too."""
    may_lack_ids = False
    """True if the records may be older than the shards, so that ids which they lack are in use."""

    async def spread(self, revision: int) -> None:
        """Wait until the others show a revision, for a bounded time."""

    async def ids_raised(self, shard: int) -> None:
        """Wait until the ids of queues on this shard, and all others of its cluster, count as
        issued. Raises ServiceUnavailable."""

    async def all_heard(self) -> None:
        """Wait until the leader of each shard has written back the later parts that it knows (rule
        52). Raises ServiceUnavailable."""

    def choose(self, view: QueueView, name: QueueName) -> Sequence[int] | None:
        """The shards that a new queue of this name may be placed on, one after the other; None for
        all of the service."""
        return None

    def draining_shards(self) -> Collection[int]:
        """Shards that get no new queues."""
        return ()


NO_OTHERS = OtherHosts()
