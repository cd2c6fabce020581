"""Running one seed of a cluster: live with faults, end well, drain, judge."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from random import Random
from string import ascii_uppercase
from typing import Any, NamedTuple, Protocol

from cluster.peers.peer_settings import CheckpointSettings
from cluster.replication import Timing
from cluster.tests.replication.host import TIMING
from cluster.tests.replication.shard_hosts import ShardCluster
from cluster.tests.replication.shard_process import Checkpointing
from cluster.tests.row_consistency import check_rows
from cluster.tests.simulation.cluster_routes import connect
from cluster.tests.simulation.cluster_simulation import ClusterSimulation
from cluster.tests.simulation.extras import drawn_extras, drawn_few, roles_of
from cluster.tests.simulation.fleet_world import Fleet, FleetSimulation
from cluster.tests.simulation.leaving import Leaving
from cluster.tests.simulation.losing import Losing
from cluster.tests.simulation.older_etcd import OlderEtcd
from cluster.tests.simulation.simulated_cluster_faults import ShardFaults
from cluster.tests.simulation.simulated_disk_faults import DiskFaults, DiskShape, drawn_disks
from cluster.tests.simulation.simulated_drain import drain
from cluster.tests.simulation.simulated_queues import Extra, define_queues
from cluster.tests.simulation.simulated_roles import Role, mixed_roles, work
from cluster.tests.simulation.simulated_run import (
    Outcome,
    end_loop,
    reporter,
    small_steps,
    told,
    watched_log,
)
from cluster.tests.simulation.simulated_worker import Machine
from cluster.tests.virtual_time import VirtualLoop
from cluster.tests.world import state_of
from compat_tests.faults.judge import judge
from storage.copies.scrub import ScrubTimes
from storage.engines.store_options import Replication, StoreOptions
from storage.tests.memory_store import MemoryStore
from visibility.rows.row_keys import ARRIVAL, DEPARTURE
from visibility.tests.invariants import check_shard

STEPS = 12
"""Steps of each client."""
_MOVABLE = (
    Extra.PARTS,
    Extra.TRANSACTIONS,
    Extra.SCHEDULES,
    Extra.BRIEF,
    Extra.ONCE,
    Extra.RANKED,
)
"""Extras all of whose queues can leave a cluster."""
APART = ("isolate", "cut off")
"""Faults by which leaders lose what no other host has."""
_PATIENCE_S = 4_000.0
_PROGRESS_S = 90.0
"""Bound for progress once nothing goes wrong any more."""


class Shape(NamedTuple):
    """Kind of a run; usually drawn from the seed."""

    often: tuple[str, ...] = ()
    """Faults that come more often than others."""
    shards: int = 1
    replication: Replication = Replication.SYNC
    disks: DiskShape | None = None
    """None if no disk is damaged, and no host needs the rows of another."""
    extras: Collection[Extra] = ()
    is_fleet: bool = False
    """Each shard is that of a cluster, and requests go through hosts of any."""
    leaves: bool = False
    """The last cluster of a fleet is emptied, and removed for good."""
    restores: bool = False
    """etcd is restored from older snapshots."""
    is_lost: bool = False
    """The last cluster of a fleet is lost, and given up."""
    has_gateway: bool = False
    """Some requests to a fleet go through a gateway whose etcd comes and goes."""

    @property
    def without(self) -> tuple[str, ...]:
        """The history of several shards is judged by one clock. A promise that is written by half
        is lost: a second host would be damaged."""
        clock = ("clock",) if self.shards > 1 else ()
        return clock if self.disks is None else (*clock, "short write")


def simulate(
    seed: int, shape: Shape | None = None, *, replication: Replication = Replication.SYNC
) -> Outcome:
    """Run one seed to its end; with a `shape` it is another history."""
    random = Random(seed)
    shape = shape or _drawn(random, replication)._replace(
        disks=drawn_disks(seed), extras=_extras(seed, replication)
    )
    machine = Machine(Random(random.getrandbits(64)), under_way_max=8, shards=shape.shards)
    machine.part_seed = seed
    timing = _timing(random)._replace(waiting_max=(8, 2, 8, 1)[seed % 4])
    if shape.replication is Replication.ASYNC:
        timing = _early_timing(timing, random)
    clusters = []
    for number in range(shape.shards):
        cluster = ShardCluster(
            Random(random.getrandbits(64)), options=_options(machine, shape), number=number
        )
        cluster.timing, cluster.thread_s_max = timing, machine.flush_s_max
        # Without damage, too: after a power cut a log may begin where its rows end.
        cluster.checkpoints = Checkpointing(CheckpointSettings(), ScrubTimes())
        clusters.append(cluster)
    if not shape.is_fleet:
        bits = random.getrandbits(64) if shape.shards > 1 else seed
        connect(clusters, machine.queues, Random(bits))
    loop = VirtualLoop()
    loop.set_exception_handler(reporter(machine.violations))
    with watched_log(machine.violations), small_steps():
        try:
            simulation, cuts = _simulation(machine, clusters, shape, random)
            define_queues(machine, simulation.history, shape.extras)
            faults = [
                ShardFaults(cluster, Random(random.getrandbits(64)), shape.often, shape.without)
                for cluster in clusters
            ]
            damage = _damage(seed, faults, shape.disks)
            chance = Random(random.getrandbits(64))
            roles = mixed_roles(chance, crosses=shape.shards > 1)
            roles += roles_of(shape.extras)
            clients = work(simulation, chance, roles, STEPS)
            seconds = random.choice((10, 20, 40))
            after = _after(shape)(simulation, chance, roles)
            try:
                loop.run_until_complete(
                    _live(simulation, faults, damage, cuts, clients, after, seconds)
                )
            except (AssertionError, TimeoutError, ExceptionGroup) as error:
                machine.violations.append(told(error))
            finally:
                end_loop(loop)
        finally:
            loop.close()
    findings = list(machine.violations)
    lost = simulation.forget_lost()
    if not findings:
        findings = judge(simulation.history, excuses_faults=True).broken()
    simulation.lines.append(f"findings: {findings}")
    lives = sum(host.lives for cluster in clusters for host in cluster.hosts.values())
    summary = simulation.history.summary()
    if shape.replication is Replication.ASYNC:
        summary += f", {lost} of {len(simulation.early)} early answers lost"
    return Outcome(findings, simulation.lines, lives, summary)


def _extras(seed: int, replication: Replication) -> frozenset[Extra]:
    """Those of a seed: with early answers only such whose work can be taken out of the history."""
    if replication is Replication.SYNC:
        return drawn_few(seed)
    return drawn_extras(seed, (Extra.OPERATOR, Extra.SOLE))


class _Trouble(Protocol):
    async def run(self, seconds: float) -> None:
        """Have faults for so long."""


def _simulation(
    machine: Machine, clusters: Sequence[ShardCluster], shape: Shape, random: Random
) -> tuple[ClusterSimulation, list[_Trouble]]:
    """The simulation, and what else has faults."""
    if not shape.is_fleet:
        return ClusterSimulation(machine, clusters), []
    fleet = Fleet(clusters, Random(random.getrandbits(64)))
    if not shape.has_gateway:
        return FleetSimulation(machine, fleet), [fleet]
    gateway = fleet.add_gateway(machine.queues, Random(f"gateway {machine.part_seed}"))
    return FleetSimulation(machine, fleet), [fleet, gateway]


def fleet_shape(seed: int) -> Shape:
    """Two clusters, and what else is drawn from the seed."""
    random = Random(f"fleet {seed}")
    return Shape(
        often=random.choice(((), APART)),
        shards=2,
        disks=drawn_disks(seed),
        extras=drawn_few(seed),
        is_fleet=True,
    )


def gateway_shape(seed: int) -> Shape:
    """A fleet with queues that are split and moved, and a gateway without etcd."""
    shape = fleet_shape(seed)
    return shape._replace(extras={*shape.extras, Extra.PARTS}, has_gateway=True)


def older_etcd_shape(seed: int) -> Shape:
    """Shards with queues that are split, and an etcd that forgets it."""
    shards = Random(f"older etcd {seed}").choice((1, 2, 3))
    return Shape(shards=shards, extras={*drawn_few(seed), Extra.PARTS}, restores=True)


def leaving_shape(seed: int) -> Shape:
    """A fleet that one cluster of two leaves."""
    shape = fleet_shape(seed)
    return shape._replace(extras=[each for each in _MOVABLE if each in shape.extras], leaves=True)


def losing_shape(seed: int) -> Shape:
    """A fleet that loses one cluster of two. Other disks stay well: a host with a new one would
    need what is lost."""
    return leaving_shape(seed)._replace(disks=None, leaves=False, is_lost=True)


def _damage(seed: int, faults: Sequence[ShardFaults], disks: DiskShape | None) -> list[DiskFaults]:
    """Faults of disks, with a source of chance of their own."""
    if disks is None:
        return []
    return [
        DiskFaults(each, disks, Random(f"disks {seed} {number}"))
        for number, each in enumerate(faults)
    ]


def _drawn(random: Random, replication: Replication) -> Shape:
    shape = Shape(shards=random.choice((1, 1, 2, 3)), replication=replication)
    if replication is Replication.SYNC:
        return shape
    return shape._replace(often=random.choice(((), APART)))


def _options(machine: Machine, shape: Shape) -> StoreOptions:
    return StoreOptions(
        segment_bytes=machine.segment_bytes,
        flush_bytes=machine.flush_bytes,
        flush_rows=machine.flush_rows,
        replication=shape.replication,
    )


def _timing(random: Random) -> Timing:
    return TIMING._replace(
        batch_bytes=random.choice((1, 2_000, 1 << 20)),
        head_start_bytes=random.choice((1_000, 1 << 20)),
        silence_s=random.choice((0.6, 1.2)),
    )


def _early_timing(timing: Timing, random: Random) -> Timing:
    """Bounds that some seeds reach."""
    return timing._replace(
        under_way_max=random.choice((8, 64)),
        under_way_bytes=random.choice((2_000, 8_000, 64 << 20)),
    )


async def _live(
    simulation: ClusterSimulation,
    faults: Sequence[ShardFaults],
    damage: Sequence[DiskFaults],
    cuts: Sequence[_Trouble],
    clients: Coroutine[Any, Any, None],
    after: Coroutine[Any, Any, None],
    seconds: float,
) -> None:
    clusters = simulation.clusters
    async with asyncio.timeout(_PATIENCE_S):
        for cluster in clusters:
            cluster.start()
        working = asyncio.create_task(clients)
        leaving = asyncio.create_task(after)
        troubles = [each.run(seconds) for each in faults] + [each.run(seconds) for each in damage]
        troubles += [each.run(seconds) for each in cuts]
        await asyncio.gather(*troubles)
        for cluster in clusters:
            _end_faults(cluster)
        for each in damage:
            await each.cluster.until(each.has_healed, _PROGRESS_S)
        await _progress(simulation)
        await working
        simulation.clients_end()
        for cluster in simulation.staying:
            for host in cluster.hosts.values():
                host.crash(is_power_loss=True)
                host.start()
        await _progress(simulation)
        await leaving
        await drain(simulation)
        for cluster in simulation.staying:
            left = (DEPARTURE,) if cuts else (ARRIVAL, DEPARTURE)  # see cluster/FLEET.md
            await cluster.until(partial(_has_forgotten, cluster, left), _PROGRESS_S)
            await cluster.alike()
            _check(cluster)


After = Callable[[ClusterSimulation, Random, Sequence[Role]], Coroutine[Any, Any, None]]


def _after(shape: Shape) -> After:
    """The fate of a cluster while the others go on."""
    if shape.restores:
        return _restore
    return _lose if shape.is_lost else _leave if shape.leaves else _nothing


async def _nothing(simulation: ClusterSimulation, random: Random, roles: Sequence[Role]) -> None:
    """No cluster leaves."""


async def _restore(simulation: ClusterSimulation, random: Random, roles: Sequence[Role]) -> None:
    """etcd is restored from older snapshots while clients work."""
    simulation.machine.queues.told = simulation.tell_parts
    await OlderEtcd(simulation, Random(random.getrandbits(64))).restore()


async def _lose(simulation: ClusterSimulation, random: Random, roles: Sequence[Role]) -> None:
    """A cluster is lost and given up, and clients go on."""
    losing = Losing(simulation, Random(random.getrandbits(64)))
    await losing.lose(simulation.clusters[-1].number)
    await work(simulation, random, roles, STEPS // 3, ascii_uppercase)


async def _leave(simulation: ClusterSimulation, random: Random, roles: Sequence[Role]) -> None:
    """A cluster leaves, and clients go on."""
    leaving = Leaving(simulation, Random(random.getrandbits(64)))
    await leaving.remove(simulation.clusters[-1].number)
    await work(simulation, random, roles, STEPS // 3, ascii_uppercase)


def _has_forgotten(cluster: ShardCluster, tables: Collection[bytes]) -> bool:
    """True if the leader has no row in these tables: it remembers no message of another shard, and
    has none for one."""
    leader = cluster.leading()
    return leader is not None and not any(key[8:9] in tables for key in leader.rows)


def _end_faults(cluster: ShardCluster) -> None:
    cluster.network.end_faults()
    cluster.coordination.end_faults()
    for host in cluster.hosts.values():
        host.end_faults()
    cluster.note("faults are over")
    cluster.is_ending = True


async def _progress(simulation: ClusterSimulation) -> None:
    """A leader must be there soon."""
    for cluster in simulation.staying:
        await cluster.until(partial(_is_led, cluster), _PROGRESS_S)


def _is_led(cluster: ShardCluster) -> bool:
    """True also for one that has left meanwhile."""
    return cluster.is_gone or cluster.leading() is not None


def _check(cluster: ShardCluster) -> None:
    """Assert that the leader's memory is sound, and that all rows are the same and agree with
    it."""
    leader = cluster.leading()
    assert leader is not None
    state = state_of(leader.shard)
    check_shard(state)
    memory = MemoryStore()
    memory.rows = leader.rows
    check_rows(memory, state)
    for host in cluster.hosts.values():
        assert host.rows == leader.rows, f"{host.name} has other rows than {leader.name}"
