"""A cluster that is emptied and leaves a simulated fleet for good, amid the faults and work of the
others: its hosts are switched off, with all that they have."""

from __future__ import annotations

import asyncio
from random import Random

from cluster.fleet.fleet_records import ClusterState, FleetCluster
from cluster.fleet.removing import ShardLeft, reason_to_stay
from cluster.tests.simulation.cluster_simulation import ClusterSimulation
from cluster.tests.simulation.resizing import Resizer
from visibility.contract.queue_parts import PARTS_MAX

_ROUNDS_MAX = 120
_ROUND_S = 10.0


class Leaving(Resizer):
    """The operator of a fleet."""

    def __init__(self, simulation: ClusterSimulation, random: Random) -> None:
        super().__init__(simulation, "leaving", random)
        self._fleet = simulation

    async def remove(self, shard: int) -> None:
        """Empty the cluster of a shard, and switch it off as soon as nothing speaks against it."""
        known = self._fleet.machine.queues
        await asyncio.sleep(self.random.uniform(0, 20))
        known.draining = frozenset({shard})
        why = "nothing was asked"
        for _ in range(_ROUNDS_MAX):
            for name in self.all_queues:
                await self._move_off(name, shard)
                await self.look(name, sends=True)
            why = self._reason_against(shard)
            if not why:
                break
            await asyncio.sleep(self.random.uniform(0, _ROUND_S))
        if why:
            self._fleet.machine.violations.append(f"the cluster cannot leave: {why}")
            return
        known.removed_at_ms[shard] = 1
        self._fleet.note(f"the cluster of shard {shard} leaves")
        self._fleet.switch_off(shard)

    async def _move_off(self, name: str, shard: int) -> None:
        for part in self.queue(name).all_parts():
            if part.shard == shard and (not part.parts or part.part.is_open):
                queue = self.queue(name)
                readings = await self.known(queue)
                if readings is not None and len(readings) < PARTS_MAX:
                    await self.move_part(queue, part, self.random.choice(self.shards), readings)

    def _reason_against(self, shard: int) -> str:
        """As the operator is told it, from what the shards' leaders say; they may be wrong while
        anything goes wrong."""
        if not all(cluster.is_ending for cluster in self._fleet.clusters):
            return "faults are not over"
        leaders = (cluster.leading() for cluster in self._fleet.clusters)
        found = [
            ShardLeft(
                host.cluster.number,
                sum(each.stored for each in host.shard.counters().values()),
                0,
                tuple(host.shard.departs_to()),
            )
            for host in leaders
            if host is not None
        ]
        leaves = FleetCluster(
            number=shard + 1,
            name="leaves",
            first_shard=shard,
            shards=1,
            founders=(),
            state=ClusterState.DRAINING,
        )
        asked = range(len(self._fleet.clusters))
        return reason_to_stay([leaves], self._fleet.machine.queues, found, asked)  # type: ignore[arg-type]
