"""LoadMeter: this host's report of its load, made each ten seconds from counters that are there
anyhow.

The loop's time is divided by what was decided here: a request costs the host that reads it, and the
one that decides it, which may be another. The parts of a shard share its time as they do in a
sample of its Turns. Refused and empty requests are decided, too, so they count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from cluster.catalog.catalog import Catalog
from cluster.fleet.load_records import reported_parts
from cluster.fleet.loads import HostLoad, PartLoad, ShardLoad
from cluster.shards.router import Router
from cluster.shards.shard import Shard
from cluster.shards.turn_sample import QueueShare

USUAL = 0.05
"""Weight of a window in what is usual."""
_SYNCS_MIN = 20
"""Syncs of a window that say how long one takes now."""


class Counters(NamedTuple):
    """Counters of this process, since its start."""

    at_s: float
    """Monotonic time."""
    loop_s: float
    """Processor time of the loop's thread."""
    requests: int
    """Requests of clients that were answered here."""
    sync_s: float
    """Time of syncs, of all logs together."""
    syncs: int


class Figures(NamedTuple):
    """Figures of this host as they are now."""

    disk_used: int
    disk_size: int
    connections: int
    connections_max: int


class LoadMeter:
    """The first call only begins."""

    def __init__(
        self, host: str, cluster: str, router: Router, catalog: Catalog, now_ms: Callable[[], int]
    ) -> None:
        self._host = host
        self._cluster = cluster
        self._router = router
        self._catalog = catalog
        self._now_ms = now_ms
        self._before: Counters | None = None
        self._decided: dict[int, int] = {}
        """Requests that each shard decided, up to the last report."""
        self._usual_sync_s = 0.0

    def report(self, counters: Counters, figures: Figures) -> HostLoad | None:
        """The load since the last call; None if there was none, or no time has passed."""
        before, self._before = self._before, counters
        shards = list(self._router.shards.values())
        samples = {shard.number: shard.take_sample() for shard in shards}
        decided = {each.number: self._decided_by(each) for each in shards}
        window_s = counters.at_s - before.at_s if before is not None else 0.0
        if before is None or window_s <= 0:
            return None
        loop = min(1.0, (counters.loop_s - before.loop_s) / window_s)
        handled = counters.requests - before.requests + sum(decided.values())
        latency = self._latency(counters, before)
        return HostLoad(
            host=self._host,
            cluster=self._cluster,
            at_ms=self._now_ms(),
            loop=loop,
            sync=min(1.0, (counters.sync_s - before.sync_s) / window_s / max(1, len(shards))),
            disk_used=figures.disk_used,
            disk_size=figures.disk_size,
            connections=figures.connections,
            connections_max=figures.connections_max,
            shards=tuple(
                self._of_shard(
                    shard,
                    loop * decided[shard.number] / handled if handled else 0.0,
                    samples[shard.number],
                    latency,
                )
                for shard in shards
                if shard.ready
            ),
        )

    def _decided_by(self, shard: Shard) -> int:
        """Requests that it decided since the last call."""
        total = int(shard.report().turn_requests.total)
        before = self._decided.get(shard.number, total)
        self._decided[shard.number] = total
        return max(0, total - before)

    def _latency(self, counters: Counters, before: Counters) -> float:
        """The time of a sync, divided by the usual one."""
        syncs = counters.syncs - before.syncs
        if syncs < _SYNCS_MIN:
            return 1.0
        sync_s = (counters.sync_s - before.sync_s) / syncs
        usual_s = self._usual_sync_s or sync_s
        self._usual_sync_s = usual_s + USUAL * (sync_s - usual_s)
        return sync_s / usual_s if usual_s else 1.0

    def _of_shard(
        self, shard: Shard, asked: float, sample: Mapping[int, QueueShare], latency: float
    ) -> ShardLoad:
        total_s = sum(share.seconds for share in sample.values())
        split = {
            part.queue_id
            for queue in self._catalog.split.values()
            for part in queue.parts
            if part.shard == shard.number
        }
        found: dict[int, PartLoad] = {}
        for queue_id in sample.keys() | split:
            queue = self._catalog.queue_of_id(queue_id)
            if queue is None or queue.shard != shard.number:
                continue
            share = sample.get(queue_id)
            whole = queue.parts[0].queue_id if queue.parts else queue_id
            found[queue_id] = PartLoad(
                str(whole),
                queue.part_number,
                asked * share.seconds / total_s if share is not None and total_s else 0.0,
                share.top_group if share is not None else 0.0,
            )
        wholes = frozenset(found[queue_id].queue for queue_id in split & found.keys())
        kept = {*reported_parts(found.values(), wholes)}
        named = {queue_id: load for queue_id, load in found.items() if load in kept}
        stored = {each.queue_id: each.stored for each in shard.queues(named)}
        return ShardLoad(
            shard.number,
            asked,
            led_since_ms=shard.report().loaded_at_ms,
            latency=latency,
            parts=tuple(
                load._replace(messages=stored.get(queue_id, 0))
                for queue_id, load in sorted(named.items())
            ),
        )
