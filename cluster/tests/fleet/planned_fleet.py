"""A fleet with a manager in each host, for tests: two clusters of one host, on a model of etcd."""

from __future__ import annotations

from typing import Any

from cluster.catalog.catalog import Catalog
from cluster.catalog.queue_rules import Waits
from cluster.clock import SystemEntropy
from cluster.fleet.load_meter import Counters, Figures
from cluster.fleet.load_records import LoadBoard
from cluster.fleet.loads import HostLoad, PartLoad, ShardLoad
from cluster.fleet.plan_records import MANAGER, PlanRecords
from cluster.fleet.plan_table import Change, Cluster
from cluster.fleet.planner_key import PlannerHolder, PlannerKey
from cluster.fleet.planning import Parts, Planning
from cluster.fleet.steps import Steps
from cluster.members.host_lease import HostLease
from cluster.tests.catalog_file import owner
from cluster.tests.catalogs import opened_catalog
from cluster.tests.coordinations import Hosts, simulated_hosts
from cluster.tests.fleet.fleets import START_MS
from cluster.tests.planned_hosts import ChoosingHosts
from visibility.contract.model import QueueDefinition
from visibility.contract.outcomes import PartReading

CLUSTERS = [Cluster("1", (0, 1, 2), 1), Cluster("2", (3, 4, 5), 1)]


class Answering:
    """The way to shards; each part has so many `messages`, of which some are `in_flight`."""

    def __init__(self) -> None:
        self.messages = 1
        self.in_flight = 0
        self.asked = 0

    async def ask(self, request: Any) -> PartReading:
        self.asked += 1
        return PartReading(0, 0, 5, 1, self.in_flight, 0, self.messages, "")


class Metered:
    """A report of given loads."""

    def __init__(self, host: Process) -> None:
        self._host = host

    def report(self, counters: Counters, figures: Figures) -> HostLoad:
        host = self._host
        return HostLoad(
            host=host.name,
            cluster=host.cluster.name,
            at_ms=host.world.now_ms,
            loop=0.3,
            shards=tuple(
                ShardLoad(
                    shard,
                    0.1,
                    parts=tuple(part for part, at in host.world.loads.items() if at == shard),
                )
                for shard in host.cluster.shards
            ),
        )


class Process:
    """A host: the only one of its cluster, so it leads all shards of it."""

    def __init__(self, world: World, name: str, cluster: Cluster) -> None:
        self.world, self.name, self.cluster = world, name, cluster
        self.root = world.hosts.host()
        self.router = Answering()
        self.lease = HostLease(self.root)
        self.catalog: Catalog
        self.manager: Planning
        self.steps: Steps

    async def begin(self) -> Process:
        self.catalog = await opened_catalog(
            self.root.below("catalog/"),
            entropy=SystemEntropy(),
            shards=range(6),
            waits=Waits(0, 0),
            others=ChoosingHosts(lambda view, name: [0]),
        )
        router: Any = self.router
        meter: Any = Metered(self)
        below = self.root.below(MANAGER)
        self.steps = Steps(
            self.root, self.catalog, router, lambda: self.world.now_ms, SystemEntropy().bits128
        )
        self.manager = Planning(
            Parts(
                PlanRecords(below),
                LoadBoard(below, self.lease),
                PlannerKey(below, self.lease, PlannerHolder(self.name, f"id-{self.name}")),
                meter,
                self.steps,
                self.catalog,
                lambda: self.world.clusters,
                lambda: Counters(0, 0, 0, 0, 0),
                lambda: Figures(0, 0, 0, 0),
                lambda: self.world.now_ms,
            )
        )
        return self


class World:
    """Two clusters of one host each."""

    def __init__(self) -> None:
        self.hosts: Hosts = simulated_hosts()
        self.now_ms = START_MS
        self.loads: dict[PartLoad, int] = {}
        self.clusters = CLUSTERS
        self.a: Process
        self.b: Process

    async def begin(self) -> World:
        self.a = await Process(self, "a", CLUSTERS[0]).begin()
        self.b = await Process(self, "b", CLUSTERS[1]).begin()
        return self

    async def ticks(self, count: int, *processes: Process) -> None:
        for _ in range(count):
            self.now_ms += 10_000
            for process in processes or (self.a, self.b):
                await process.manager.tick()

    async def hot_queue(self, name: str = "hot") -> QueueDefinition:
        by_group = {"FifoQueue": "true", "DeduplicationScope": "messageGroup"}
        queue = await self.a.catalog.create_queue(
            owner(name), by_group if name.endswith(".fifo") else {}, {}
        )
        await self.b.catalog.shown(self.a.catalog.revision)
        self.loads[PartLoad(str(queue.queue_id), 0, 0.7)] = queue.shard
        return queue

    async def now(self, queue: QueueDefinition) -> QueueDefinition:
        """The queue as both hosts see it, once they see all."""
        for process in (self.a, self.b):
            assert await process.catalog.caught_up()
        found = self.b.catalog.queue_of_id(queue.queue_id)
        assert found is not None
        return found

    async def home_of(self, queue: QueueDefinition) -> QueueDefinition:
        """The queue of this name, as both hosts see it, once they see all."""
        for process in (self.a, self.b):
            assert await process.catalog.caught_up()
        return self.b.catalog.queue(queue.account, queue.region, queue.name)


async def only_change(process: Process) -> Change:
    """The change of its last plan."""
    plan = process.manager.shown.plan
    assert plan is not None
    (change,) = plan.changes
    return change
