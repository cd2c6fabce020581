"""Running one seed of a cluster: live with faults, end well, drain, judge."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any, NamedTuple

from cluster.replication import Timing
from cluster.tests.consistency import check_rows
from cluster.tests.replication.host import TIMING
from cluster.tests.replication.shard_hosts import ShardCluster
from cluster.tests.simulation.cluster_faults import ShardFaults
from cluster.tests.simulation.cluster_simulation import ClusterSimulation
from cluster.tests.simulation.drain import drain
from cluster.tests.simulation.queues import define_queues
from cluster.tests.simulation.roles import mixed_roles, work
from cluster.tests.simulation.run import Outcome, end_loop, reporter, told, watched_log
from cluster.tests.simulation.worker import Machine
from cluster.tests.virtual_time import VirtualLoop
from compat_tests.faults.judge import judge
from storage.engines.durable import StoreOptions
from storage.engines.memory import MemoryStore
from visibility.state.invariants import check_shard

STEPS = 12
"""Steps of each client."""
_PATIENCE_S = 1_000.0
_PROGRESS_S = 90.0
"""Bound for progress once nothing goes wrong any more."""


class Shape(NamedTuple):
    """Kind of a run; usually drawn from the seed."""

    often: tuple[str, ...] = ()
    """Faults that come more often than others."""


def simulate(seed: int, shape: Shape | None = None) -> Outcome:
    """Run one seed to its end; with a `shape` it is another history."""
    random = Random(seed)
    machine = Machine(Random(random.getrandbits(64)), under_way_max=8)
    cluster = ShardCluster(Random(random.getrandbits(64)), options=_options(machine))
    cluster.timing = _timing(random)
    cluster.thread_s_max = machine.flush_s_max
    loop = VirtualLoop()
    loop.set_exception_handler(reporter(machine.violations))
    with watched_log(machine.violations):
        try:
            simulation = ClusterSimulation(machine, cluster)
            define_queues(machine, simulation.history)
            often = () if shape is None else shape.often
            faults = ShardFaults(cluster, Random(random.getrandbits(64)), often)
            chance = Random(random.getrandbits(64))
            clients = work(simulation, chance, mixed_roles(chance), STEPS)
            seconds = random.choice((10, 20, 40))
            try:
                loop.run_until_complete(_live(simulation, faults, clients, seconds))
            except (AssertionError, TimeoutError, ExceptionGroup) as error:
                machine.violations.append(told(error))
            finally:
                end_loop(loop)
        finally:
            loop.close()
    findings = list(machine.violations)
    if not findings:
        findings = judge(simulation.history, excuses_faults=True).broken()
    simulation.lines.append(f"findings: {findings}")
    lives = sum(host.lives for host in cluster.hosts.values())
    return Outcome(findings, simulation.lines, lives, simulation.history.summary())


def _options(machine: Machine) -> StoreOptions:
    return StoreOptions(
        segment_bytes=machine.segment_bytes,
        flush_bytes=machine.flush_bytes,
        flush_rows=machine.flush_rows,
    )


def _timing(random: Random) -> Timing:
    return TIMING._replace(
        batch_bytes=random.choice((1, 2_000, 1 << 20)),
        head_start_bytes=random.choice((1_000, 1 << 20)),
        silence_s=random.choice((0.6, 1.2)),
    )


async def _live(
    simulation: ClusterSimulation,
    faults: ShardFaults,
    clients: Coroutine[Any, Any, None],
    seconds: float,
) -> None:
    cluster = simulation.cluster
    async with asyncio.timeout(_PATIENCE_S):
        cluster.start()
        working = asyncio.create_task(clients)
        await faults.run(seconds)
        _end_faults(cluster)
        await _progress(simulation)
        await working
        for host in cluster.hosts.values():
            host.crash(is_power_loss=True)
            host.start()
        await _progress(simulation)
        await drain(simulation)
        await cluster.alike()
        _check(cluster)


def _end_faults(cluster: ShardCluster) -> None:
    cluster.network.end_faults()
    cluster.coordination.end_faults()
    for host in cluster.hosts.values():
        host.end_faults()
    cluster.note("faults are over")
    cluster.is_ending = True


async def _progress(simulation: ClusterSimulation) -> None:
    """A leader must be there soon."""
    await simulation.cluster.until(lambda: simulation.cluster.leading() is not None, _PROGRESS_S)


def _check(cluster: ShardCluster) -> None:
    """Assert that the leader's memory is sound, and that all rows are the same and agree with
    it."""
    leader = cluster.leading()
    assert leader is not None
    state = leader.shard._state
    check_shard(state)
    memory = MemoryStore()
    memory.rows = leader.rows
    check_rows(memory, state)
    for host in cluster.hosts.values():
        assert host.rows == leader.rows, f"{host.name} has other rows than {leader.name}"
