"""The fleet as a plan sees it, from the catalog of a host.

Queues are looked up when a rule asks for them: a plan needs few of a hundred thousand."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial

from typing_extensions import override

from cluster.catalog.queue_view import QueueView
from cluster.fleet.plan_records import MadeChange
from cluster.fleet.plan_table import RANGE_END, Applied, Cluster, Fleet, Part, PartState, Queue
from visibility.contract.length_tags import parts_without_room
from visibility.contract.levelling_tags import keeps_whole
from visibility.contract.model import QueueDefinition
from visibility.contract.queue_parts import PARTS_MAX


class QueuesOfCatalog(Mapping[str, Queue]):
    """The queues by their ids, as text."""

    def __init__(self, view: QueueView) -> None:
        self._view = view
        self._purged = {kept.continued_as for kept in view.kept if kept.is_needed}

    @override
    def __getitem__(self, queue_id: str) -> Queue:
        found = self._view.queue_of_id(int(queue_id)) if queue_id.isdecimal() else None
        if found is None or not found.is_home:
            raise KeyError(queue_id)
        return self._queue(found)

    @override
    def __iter__(self) -> Iterator[str]:
        return (str(queue.queue_id) for queue in self._view)

    @override
    def __len__(self) -> int:
        return len(self._view)

    def _queue(self, found: QueueDefinition) -> Queue:
        settings = found.settings
        parts = tuple(
            Part(
                part.number,
                part.shard,
                PartState.OPEN if part.is_open else PartState.DRAINING,
                part.first_hash,
                part.last_hash + 1,
            )
            for part in sorted(found.parts, key=lambda part: part.number)
        )
        return Queue(
            str(found.queue_id),
            found.account,
            found.version,
            parts or (Part(found.number, found.shard, PartState.OPEN, 0, RANGE_END),),
            is_fifo=settings.fifo,
            can_split=_can_split(found),
            has_task=any(part.queue_id in self._purged for part in found.all_parts()),
            stays=_stays(found),
            home=found.part_number,
            arn=found.arn,
        )


def _can_split(queue: QueueDefinition) -> bool:
    by_group = queue.attributes.get("DeduplicationScope") == "messageGroup"
    return not _stays(queue) and (by_group or not queue.settings.fifo)


def _stays(queue: QueueDefinition) -> str:
    """The reason why the queue's tags keep it whole, whatever its parts would be; else empty."""
    own_tags, size = queue.settings.own_tags, queue.settings.maximum_message_size
    return keeps_whole(own_tags) or parts_without_room(own_tags, PARTS_MAX, size) or ""


def _ids_on(view: QueueView, shards: Collection[int]) -> Iterator[str]:
    for queue in view:
        if queue.shard in shards or any(part.shard in shards for part in queue.parts):
            yield str(queue.queue_id)


def table_of(view: QueueView, clusters: Sequence[Cluster], made: Sequence[MadeChange]) -> Fleet:
    """The fleet as it is now; the queues are those that the view shows while the plan is made."""
    return Fleet(
        clusters={cluster.name: cluster for cluster in clusters},
        queues=QueuesOfCatalog(view),
        parts=sum(view.queues_of_shard.values()),
        split=[str(queue.queue_id) for queue in view.split.values()],
        find_on=partial(_ids_on, view),
        changes=tuple(Applied(each.at_ms, each.change) for each in made),
    )
