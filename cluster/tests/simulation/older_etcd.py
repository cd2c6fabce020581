"""An operator who restores etcd from an older snapshot while queues are split, moved and shrunk.

All hosts are stopped for that, as the runbook says, or all go on. The older records name the parts
that queues had then; attributes, tags and purges stay, since an older etcd may undo those. Gateways
are stopped with the hosts: they hold requests until all shards have leaders.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from cluster.catalog.catalog_records import QueueName, name_of
from cluster.tests.replication.shard_hosts import ShardCluster
from cluster.tests.simulation.cluster_simulation import ClusterSimulation
from cluster.tests.simulation.known_parts import KnownParts
from visibility.contract.model import QueueDefinition

RESTORES = 3
_LOOK_S = 0.05


class Snapshot(NamedTuple):
    """The parts of all queues at a time."""

    queues: dict[QueueName, QueueDefinition]
    purged: frozenset[int]
    issued: int


class OlderEtcd:
    """See above."""

    def __init__(self, simulation: ClusterSimulation, random: Random) -> None:
        self._simulation = simulation
        self._known: KnownParts = simulation.machine.queues
        self._random = random
        self._log = simulation.clusters[0]
        self._asking: set[asyncio.Task[None]] = set()
        for cluster in simulation.clusters:
            cluster.leads = self._heard_by(cluster)

    async def restore(self) -> None:
        """Restore it three times; the snapshot is up to some seconds old."""
        for _ in range(RESTORES):
            await asyncio.sleep(self._random.uniform(0.5, 4))
            snapshot = self._taken()
            await asyncio.sleep(self._random.uniform(0.2, 8))
            self._restore(snapshot)
            await self._log.until(lambda: not self._known.unheard, 600.0)

    def _taken(self) -> Snapshot:
        queues = {name_of(queue): queue for queue in self._known.all_queues() if queue.is_home}
        return Snapshot(queues, frozenset(self._known.purged), self._known.highest_queue_id)

    def _restore(self, snapshot: Snapshot) -> None:
        hosts = [each for cluster in self._simulation.clusters for each in cluster.hosts.values()]
        go_on = self._random.random() < 0.5
        ran = [host for host in hosts if host.is_up and not go_on]
        is_power_loss = self._random.random() < 0.5
        for host in ran:
            host.crash(is_power_loss=is_power_loss)
        queues = snapshot.queues.values()
        names = [each.name for each in queues if self._known.set_back(each, snapshot.purged)]
        self._known.issued = snapshot.issued
        self._known.unheard = {each.number for each in self._simulation.clusters}
        self._known.are_gateways_new = not go_on
        self._log.note(f"etcd is restored from before changes of {names}, hosts go on: {go_on}")
        for host in ran:
            host.start()
        for cluster in self._simulation.clusters if go_on else ():
            cluster.etcd_went_back()
            self._asking.add(asyncio.create_task(self._hear(cluster)))

    async def _hear(self, cluster: ShardCluster) -> None:
        """Ask the leader of a shard whether it knows all, as gateways do."""
        while cluster.number in self._known.unheard:
            leader = cluster.leading()
            if leader is not None and await leader.shard.knows_all() and leader.leads:
                self._known.unheard.discard(cluster.number)
            await asyncio.sleep(_LOOK_S)

    def _heard_by(self, cluster: ShardCluster) -> Callable[[], object]:
        before = cluster.leads

        def leads() -> None:
            self._known.unheard.discard(cluster.number)
            before()

        return leads
