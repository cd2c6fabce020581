"""Emptying: what a cluster that is being emptied still has, as the catalog shows it. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from cluster.catalog.queue_view import QueueView
from visibility.contract.model import QueueDefinition


class Left(NamedTuple):
    """All that a cluster still has."""

    parts: list[QueueDefinition]
    """The parts, and unsplit queues, on its shards; open ones before those that drain."""
    kept: int
    """Deleted or purged queues, or parts of such, whose messages it keeps."""

    @property
    def is_nothing(self) -> bool:
        """True if it can go."""
        return not self.parts and not self.kept


def left_on(view: QueueView, shards: Collection[int]) -> Left:
    """All that these shards have."""
    found = [part for part in view.all_queues() if part.shard in shards]
    found.sort(key=lambda part: (not is_open(part), part.queue_id))
    return Left(found, sum(kept.queue.shard in shards for kept in view.kept))


def is_open(part: QueueDefinition) -> bool:
    """True for a part, or an unsplit queue, that takes messages."""
    return not part.parts or part.part.is_open
