"""FleetRecords: a model of the fleet's records. It makes changes as transactions on a queue's own
record would be made, on condition of its version and of the planner's key."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from itertools import pairwise

from cluster.fleet.peaks import KnownPeaks
from cluster.fleet.plan import clean
from cluster.fleet.plan_table import (
    RANGE_END,
    Applied,
    Change,
    Cluster,
    Fleet,
    Kind,
    Part,
    PartState,
    Queue,
)


class FleetRecords:
    """Clusters, queues, changes of the last hour, and who may change them."""

    def __init__(self, clusters: Iterable[Cluster], queues: Iterable[Queue] = ()) -> None:
        self.clusters = {cluster.name: cluster for cluster in clusters}
        self.queues = {queue.queue_id: queue for queue in queues}
        self.changes: tuple[Applied, ...] = ()
        self.term = 0
        """Of the planner that took the key last; each taking is a new term."""
        self.peaks: KnownPeaks | None = None
        """Those that a planner wrote down last."""
        self.emptied: set[tuple[str, int]] = set()
        """Draining parts without messages, which wait for retries only."""
        self.parts = sum(len(queue.parts) for queue in self.queues.values())
        self.of_shard = Counter(part.shard for q in self.queues.values() for part in q.parts)
        """Parts of each shard, with unsplit queues."""
        self._on_shard: defaultdict[int, dict[str, None]] = defaultdict(dict)
        """Ids of the queues with parts on each shard, in the order in which they came."""
        for queue in self.queues.values():
            self._note_shards(queue)
        self.split = {q.queue_id for q in self.queues.values() if len(q.parts) > 1}

    def fleet(self) -> Fleet:
        """As of now. The queues are shared, so the plan is to be made at once."""
        return Fleet(
            clusters=self.clusters,
            queues=self.queues,
            parts=self.parts,
            split=self.split,
            changes=self.changes,
            find_on=self._find_on,
        )

    def _find_on(self, shards: Collection[int]) -> Iterable[str]:
        return {queue_id: None for shard in sorted(shards) for queue_id in self._on_shard[shard]}

    def _note_shards(self, queue: Queue) -> None:
        for part in queue.parts:
            self._on_shard[part.shard][queue.queue_id] = None

    def put(self, queue: Queue) -> None:
        """Make or replace a queue."""
        before = self.queues.get(queue.queue_id)
        before_parts = before.parts if before is not None else ()
        self.parts += len(queue.parts) - len(before_parts)
        self.of_shard.update(part.shard for part in queue.parts)
        self.of_shard.subtract(part.shard for part in before_parts)
        for part in before_parts:
            self._on_shard[part.shard].pop(queue.queue_id, None)
        self._note_shards(queue)
        self.queues[queue.queue_id] = queue
        if len(queue.parts) > 1:
            self.split.add(queue.queue_id)
        else:
            self.split.discard(queue.queue_id)

    def apply(
        self, change: Change, now_ms: int, term: int = 0, checks_version: bool = True
    ) -> bool:
        """Make a change if its conditions hold. `checks_version` is False for a planted bug."""
        if term != self.term:
            return False
        queue = self.queues.get(change.queue)
        if queue is None or (checks_version and queue.version != change.version):
            return False
        self.put(changed(queue, change))
        self.changes = (*self.changes, Applied(now_ms, change))
        return True

    def finish(self, queue_id: str, number: int) -> None:
        """A draining part is empty, and gone."""
        queue = self.queues[queue_id]
        part = queue.part(number)
        assert part is not None
        assert part.state is PartState.DRAINING
        self.emptied.discard((queue_id, number))
        left = tuple(each for each in queue.parts if each.number != number)
        self.put(queue._replace(parts=left, version=queue.version + 1))

    def messages(self, queue_id: str, part: Part) -> int:
        """The number that a shard reports of a draining part; 0 for an open one."""
        return int(part.state is PartState.DRAINING and (queue_id, part.number) not in self.emptied)

    def under_way(self) -> list[tuple[str, int]]:
        """Draining parts with messages."""
        return [each for each in self.draining() if each not in self.emptied]

    def draining(self) -> list[tuple[str, int]]:
        """Parts that take no messages, and are not gone."""
        return [
            (queue_id, part.number)
            for queue_id in sorted(self.split)
            for part in self.queues[queue_id].parts
            if part.state is PartState.DRAINING
        ]

    def clean(self, now_ms: int) -> None:
        """Drop the records of changes that count for nothing any more."""
        self.changes = clean(self.fleet(), now_ms).kept


def changed(queue: Queue, change: Change) -> Queue:
    """The queue after the change."""
    number = max(part.number for part in queue.parts)
    parts = [
        part._replace(state=PartState.DRAINING) if part.number in change.drains else part
        for part in queue.parts
    ]
    ranges = _ranges(queue, change)
    for offset, (shard, (low, high)) in enumerate(zip(change.opens, ranges, strict=True), 1):
        parts.append(Part(number + offset, shard, PartState.OPEN, low, high))
    return queue._replace(parts=tuple(parts), version=queue.version + 1)


def _ranges(queue: Queue, change: Change) -> list[tuple[int, int]]:
    """The hash ranges of the new parts."""
    drained = [part for part in queue.parts if part.number in change.drains]
    drained.sort(key=lambda part: change.drains.index(part.number))
    if not queue.is_fifo:
        return [(0, RANGE_END)] * len(change.opens)
    if change.kind is not Kind.MOVE:
        ends = [(place * RANGE_END) // len(change.opens) for place in range(len(change.opens) + 1)]
        return list(pairwise(ends))
    return [(min(part.low for part in drained), max(part.high for part in drained))]
