"""The fleet as the plan sees it: clusters, queues with their parts, and the last changes. Pure.

Plain frozen values, so that a plan is a function of them, of the loads and of the clock. They hold
no more of the records than a plan needs.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import msgspec

from cluster.fleet.reasons import Reason

RANGE_END = 1 << 64
"""Hashes of FIFO groups are below it."""


class PartState(enum.Enum):
    """A part that is gone is not in the table."""

    OPEN = "open"
    DRAINING = "draining"


class Part(NamedTuple):
    """The share of a queue that one shard keeps."""

    number: int
    """Rises with each part of the queue, and is never used again."""
    shard: int
    state: PartState = PartState.OPEN
    low: int = 0
    high: int = RANGE_END
    """A part of a FIFO queue has the groups with hashes from `low` up to `high`."""

    def overlaps(self, other: Part) -> bool:
        """True if a group may have been in both parts of a FIFO queue."""
        return self.low < other.high and other.low < self.high


class Queue(NamedTuple):
    """A queue and where its parts are."""

    queue_id: str
    account: str
    version: int
    """Rises with each change; a change is valid for the version that it was computed from."""
    parts: tuple[Part, ...]
    """By number."""
    is_fifo: bool = False
    can_split: bool = True
    """False for a queue that stays whole."""
    has_task: bool = False
    """A move task, a redrive or a restore reads it, or a purge keeps messages of it."""
    stays: str = ""
    """The reason why its parts cannot move; empty if they can."""
    home: int | None = None
    """Number of the part that cannot be drained; None if each can."""
    arn: str = ""

    @property
    def name(self) -> str:
        """Its name, which stays when its id changes: its ARN if it has one."""
        return self.arn or self.queue_id

    @property
    def open_parts(self) -> tuple[Part, ...]:
        """The parts that take messages."""
        return tuple(part for part in self.parts if part.state is PartState.OPEN)

    def part(self, number: int) -> Part | None:
        """The part of this number, None if it is gone."""
        return next((part for part in self.parts if part.number == number), None)


class Cluster(NamedTuple):
    """Hosts that keep the same shards."""

    name: str
    shards: tuple[int, ...]
    hosts: int = 3
    zone: str = ""
    """Its zone, or any text that clusters with a common fate share."""
    is_draining: bool = False
    """An operator empties it."""
    zones: tuple[str, ...] = ()
    """The zone of each host, empty if it is not known. All of them vote for each shard."""


class Kind(enum.Enum):
    """The changes that a plan can make."""

    SPLIT = "split"
    SHRINK = "shrink"
    MOVE = "move"


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """New parts, and parts that are drained into them.

    A split or a shrink of a FIFO queue drains all its parts, and the new ones share out its groups;
    the new parts of a standard queue are beside the present ones.
    """

    kind: Kind
    reason: Reason
    account: str
    queue: str = ""
    """The queue's id."""
    version: int = 0
    """The version of the queue that the change was computed from."""
    drains: tuple[int, ...] = ()
    """Numbers of the parts to drain."""
    leaves: tuple[int, ...] = ()
    """The shard of each of them."""
    opens: tuple[int, ...] = ()
    """Shards of the new parts."""
    taken: tuple[float, ...] = ()
    """The share of a loop that each shard of `leaves` is expected to lose."""
    given: tuple[float, ...] = ()
    """The share of a loop that each shard of `opens` is expected to get."""

    @property
    def parts(self) -> int:
        """Parts that it changes, for budgets."""
        return max(len(self.drains), len(self.opens))


class Applied(NamedTuple):
    """A change that was made."""

    at_ms: int
    change: Change


@dataclass(frozen=True)
class Fleet:
    """All records that a plan reads, as of one moment."""

    clusters: Mapping[str, Cluster]
    queues: Mapping[str, Queue]
    parts: int
    """The number of all parts."""
    split: Collection[str] = ()
    """Ids of the queues with several parts."""
    changes: tuple[Applied, ...] = ()
    """Those of the last hour, and older ones with parts that still drain; the oldest first."""
    find_on: Callable[[Collection[int]], Iterable[str]] | None = None
    """Finds the ids of the queues with parts on shards, faster than a look at each queue."""

    @cached_property
    def cluster_of(self) -> dict[int, str]:
        """The cluster of each shard."""
        return {
            shard: cluster.name for cluster in self.clusters.values() for shard in cluster.shards
        }

    def name_of(self, queue_id: str) -> str:
        """The name of the queue of this id; of one that is not there the id."""
        queue = self.queues.get(queue_id)
        return queue.name if queue is not None else queue_id

    def queues_on(self, shards: Collection[int]) -> Iterator[Queue]:
        """The queues with an open part on these shards."""
        found = self.queues if self.find_on is None else self.find_on(shards)
        for queue_id in found:
            queue = self.queues[queue_id]
            if any(part.shard in shards for part in queue.open_parts):
                yield queue

    @cached_property
    def last_changes(self) -> dict[str, list[Applied]]:
        """The changes of each queue."""
        by: dict[str, list[Applied]] = {}
        for applied in self.changes:
            by.setdefault(applied.change.queue, []).append(applied)
        return by
