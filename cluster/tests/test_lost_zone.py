"""A fleet whose clusters have a host in each of three zones, on simulated time: a zone is lost
while clients work."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random

import pytest

from cluster.tests.replication.shard_hosts import ShardCluster
from cluster.tests.simulation.fleet_world import Fleet, FleetSimulation
from cluster.tests.simulation.simulated_drain import drain
from cluster.tests.simulation.simulated_queues import define_queues
from cluster.tests.simulation.simulated_roles import mixed_roles, work
from cluster.tests.simulation.simulated_run import end_loop, small_steps
from cluster.tests.simulation.simulated_worker import Machine
from cluster.tests.virtual_time import VirtualLoop
from compat_tests.faults.judge import judge

pytestmark = pytest.mark.slow
FAILOVER_S = 10.0
"""A lease, an election and what a new leader replays."""
STEPS = 12
_WAIT_S = 1_000.0


async def lose_a_zone(simulation: FleetSimulation, zone: int, chance: Random) -> None:
    """One host of each cluster is gone at the same moment, until the clients have done their
    work."""
    for cluster in simulation.clusters:
        cluster.start()
    for cluster in simulation.clusters:
        await cluster.until(partial(_is_led, cluster), FAILOVER_S)
    roles = mixed_roles(chance, crosses=True)
    working = asyncio.create_task(work(simulation, chance, roles, STEPS))
    await asyncio.sleep(chance.uniform(0.5, 3))
    lost = [list(cluster.hosts.values())[zone] for cluster in simulation.clusters]
    for host in lost:
        host.crash(is_power_loss=True)
    for cluster in simulation.clusters:
        await cluster.until(partial(_is_led, cluster), FAILOVER_S)
    async with asyncio.timeout(_WAIT_S):
        await working
    assert not any(host.is_up for host in lost), "the work was done without them"
    for host in lost:
        host.start()
    async with asyncio.timeout(_WAIT_S):
        await drain(simulation)
        for cluster in simulation.clusters:
            await cluster.alike()


def _is_led(cluster: ShardCluster) -> bool:
    return cluster.leading() is not None


@pytest.mark.parametrize("zone", range(3))
def test_a_lost_zone_costs_a_failover_in_each_cluster(zone: int) -> None:
    random = Random(f"zone {zone}")
    machine = Machine(Random(random.getrandbits(64)), under_way_max=8, shards=2)
    clusters = [ShardCluster(Random(random.getrandbits(64)), number=number) for number in (0, 1)]
    fleet = Fleet(clusters, Random(random.getrandbits(64)))
    simulation = FleetSimulation(machine, fleet)
    loop = VirtualLoop()
    with small_steps():
        try:
            define_queues(machine, simulation.history, has_sole=False)
            loop.run_until_complete(lose_a_zone(simulation, zone, random))
        finally:
            end_loop(loop)
            loop.close()
    assert machine.violations == []
    assert judge(simulation.history, excuses_faults=True).broken() == []
