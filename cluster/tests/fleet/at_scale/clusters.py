"""Clusters: models of hosts that report what is asked of the shards they lead, or are lost."""

from __future__ import annotations

import random
from heapq import nlargest

from cluster.fleet.load_meter import USUAL
from cluster.fleet.loads import HostLoad, PartLoad, ShardLoad
from cluster.fleet.plan_table import Cluster
from cluster.tests.fleet.at_scale.scale_traffic import SAID_FROM, Traffic
from cluster.tests.fleet.made_fleet_records import FleetRecords

FOLLOWING = 0.15
"""A follower's share of the loop time that a request takes its leader."""
SLOW = 3.0
"""A sync of a slow cluster takes so many times as long."""
_REPORTED = 8
"""Parts that a shard reports besides those of split queues."""


class ClusterModel:
    """Hosts, and the leaders of shards among them."""

    def __init__(self, cluster: Cluster, chance: random.Random) -> None:
        self.cluster = cluster
        self._chance = chance
        self.alive = set(range(cluster.hosts))
        self.leader = {shard: n % cluster.hosts for n, shard in enumerate(cluster.shards)}
        self.led_since_ms = dict.fromkeys(cluster.shards, 0)
        self.asked: dict[int, float] = {}
        self.whole = 0.0
        """The load of parts that are hot and cannot be split."""
        self.slow_until_ms = 0
        self._usual = 1.0
        """The usual time of a sync, as hosts hold it: it follows that of now."""
        self.down_since_ms = 0
        """The time at which it lost its majority, 0 while it has one."""

    def lose(self, host: int, now_ms: int) -> None:
        """A host dies: others lead its shards."""
        self.alive.discard(host)
        self._elect(now_ms)

    def heal(self, host: int, now_ms: int) -> None:
        """It is back, and leads again."""
        self.alive.add(host)
        self._elect(now_ms)

    @property
    def serves(self) -> bool:
        """True while a majority of its hosts is there."""
        return 2 * len(self.alive) > self.cluster.hosts

    @property
    def load(self) -> float:
        """The share of its hosts' loops that is asked, without a bound."""
        return _of_hosts(sum(self.asked.values()), len(self.alive))

    @property
    def load_that_can_be_split(self) -> float:
        """The same without parts that are hot and stay whole."""
        return _of_hosts(sum(self.asked.values()) - self.whole, len(self.alive))

    @property
    def share(self) -> float:
        """The load that can be split, with all hosts: a cluster that has lost one heals itself,
        and nothing moves meanwhile."""
        return _of_hosts(sum(self.asked.values()) - self.whole, self.cluster.hosts)

    def _elect(self, now_ms: int) -> None:
        self.down_since_ms = 0 if self.serves else self.down_since_ms or now_ms
        hosts = sorted(self.alive)
        for number, shard in enumerate(self.cluster.shards):
            if hosts and self.leader[shard] != (leader := hosts[number % len(hosts)]):
                self.leader[shard] = leader
                self.led_since_ms[shard] = now_ms

    def reports(
        self, at_ms: int, parts: dict[int, list[PartLoad]], served: bool = False
    ) -> list[HostLoad]:
        """Of all hosts that are alive, while there is a majority of them; planted: a slow
        one reports what it served, and nothing of its latency."""
        if not self.serves:
            return []
        is_slow = at_ms < self.slow_until_ms
        sync = SLOW if is_slow else 1.0
        self._usual += USUAL * (sync - self._usual)
        latency = sync / self._usual
        asked = dict.fromkeys(self.alive, 0.0)
        led: dict[int, list[ShardLoad]] = {host: [] for host in self.alive}
        for shard, leader in self.leader.items():
            load = self.asked.get(shard, 0.0)
            for host in self.alive:
                asked[host] += load if host == leader else FOLLOWING * load
            of_shard, seen = tuple(parts.get(shard, ())), latency
            if served and is_slow:
                of_shard, seen = tuple(p._replace(asked=p.asked / 10) for p in of_shard), 1.0
            since_ms = self.led_since_ms[shard]
            led[leader].append(ShardLoad(shard, load, since_ms, seen, parts=of_shard))
        return [
            HostLoad(
                host=f"{self.cluster.name}/{host}",
                cluster=self.cluster.name,
                at_ms=at_ms,
                loop=min(1.0, asked[host]),
                shards=tuple(led[host]),
            )
            for host in sorted(self.alive)
        ]


class Clusters:
    """All of them, with the loads that the traffic gives them."""

    def __init__(self, records: FleetRecords, traffic: Traffic, chance: random.Random) -> None:
        self._records = records
        self._traffic = traffic
        self._chance = chance
        self.models: dict[str, ClusterModel] = {}
        self.parts: dict[int, list[PartLoad]] = {}
        """Those that shards report."""
        for cluster in records.clusters.values():
            self.add(cluster)

    def add(self, cluster: Cluster) -> None:
        """A cluster more."""
        self.models[cluster.name] = ClusterModel(cluster, self._chance)

    def measure(self) -> None:
        """Compute what is asked of all shards now."""
        asked = {shard: 0.0 for model in self.models.values() for shard in model.cluster.shards}
        busiest: dict[int, list[tuple[float, str, int, float]]] = {shard: [] for shard in asked}
        told: dict[int, list[PartLoad]] = {}
        whole = dict.fromkeys(asked, 0.0)
        queues = self._records.queues
        of_queue = self._traffic.of_queue
        for queue_id, traffic in self._traffic.followed.items():
            queue = traffic.queue
            if len(queue.parts) == 1:
                (part,), load, group = queue.parts, of_queue(traffic), traffic.group
                asked[part.shard] += load
                if load >= SAID_FROM:
                    busiest[part.shard].append((load, queue_id, part.number, group))
                if load >= 0.3 and (not queue.can_split or group > 0.6):
                    whole[part.shard] += load
                continue
            for part, load, group in self._traffic.of_parts(queue, traffic):
                asked[part.shard] += load
                report = PartLoad(queue_id, part.number, load, group)
                told.setdefault(part.shard, []).append(report)
                if load >= 0.3 and (not queue.can_split or group > 0.6):
                    whole[part.shard] += load
        for queue_id, number in self._records.draining():
            closed = queues[queue_id].part(number)
            assert closed is not None
            messages = self._records.messages(queue_id, closed)
            report = PartLoad(queue_id, number, 0.0, messages=messages)
            told.setdefault(closed.shard, []).append(report)
        for model in self.models.values():
            for shard in model.cluster.shards:
                model.asked[shard] = asked[shard] + self._traffic.others(shard)
            model.whole = sum(whole[shard] for shard in model.cluster.shards)
        self.parts = {
            shard: [
                *(
                    PartLoad(queue_id, number, load, group)
                    for load, queue_id, number, group in nlargest(_REPORTED, found)
                ),
                *told.get(shard, ()),
            ]
            for shard, found in busiest.items()
        }

    def reports(self, at_ms: int, served: bool = False) -> list[HostLoad]:
        """As of the last measure."""
        return [
            report
            for model in self.models.values()
            for report in model.reports(at_ms, self.parts, served)
        ]


def _of_hosts(asked: float, hosts: int) -> float:
    """The mean share of the loops of so many hosts, of which one leads what is asked."""
    return asked * (1 + FOLLOWING * (hosts - 1)) / hosts if hosts else 0.0
