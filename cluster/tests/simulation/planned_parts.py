"""The manager in a simulated fleet: its rules on one queue, with loads that are made up, and its
changes as they are made and undone in life. Each cluster has one shard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from cluster.fleet.catalog_table import QueuesOfCatalog
from cluster.fleet.load_history import LoadHistory
from cluster.fleet.loads import REPORT_MS, HostLoad, PartLoad, ShardLoad
from cluster.fleet.plan import plan
from cluster.fleet.plan_table import Change, Cluster, Fleet
from visibility.contract.model import QueueDefinition
from visibility.contract.outcomes import PartReading

if TYPE_CHECKING:
    from cluster.tests.simulation.known_parts import KnownParts

_ASKED = 0.7
"""The share of a loop that is asked of each part."""
_HOSTS = 3
_REPORTS = 6


def planned_split(
    view: KnownParts, queue: QueueDefinition, readings: Mapping[int, PartReading], shards: int
) -> Change | None:
    """The change that the rules want of a queue whose open parts are all hot; None if they refuse
    it."""
    clusters = {
        str(n): Cluster(str(n), (n,), _HOSTS, is_draining=n in view.draining) for n in range(shards)
    }
    queues = QueuesOfCatalog(cast(Any, view))
    own = [str(queue.queue_id)]
    fleet = Fleet(clusters, queues, len(readings), own, find_on=lambda shards: own)
    history = LoadHistory()
    now_ms = 0
    for _ in range(_REPORTS):
        now_ms += REPORT_MS
        loads = [_load(queue, number, readings) for number in range(shards)]
        reports = [
            HostLoad(
                host=f"{load.shard}-{host}",
                cluster=str(load.shard),
                at_ms=now_ms,
                loop=load.asked / _HOSTS,
                shards=(load,) if host == 0 else (),
            )
            for load in loads
            for host in range(_HOSTS)
        ]
        history.observe(clusters, reports, now_ms)
    wanted = plan(fleet, history, now_ms + 60_000).changes
    return wanted[0] if wanted else None


def _load(queue: QueueDefinition, shard: int, readings: Mapping[int, PartReading]) -> ShardLoad:
    parts = tuple(
        PartLoad(
            str(queue.queue_id),
            part.part_number,
            _ASKED if not part.parts or part.part.is_open else 0.0,
            messages=readings[part.queue_id].messages,
        )
        for part in queue.all_parts()
        if part.shard == shard
    )
    return ShardLoad(shard, sum(part.asked for part in parts), parts=parts)
