"""A cluster of three hosts under boto3 load, with one fault after another: `python -m
compat_tests.faults.cluster_faults --rounds 20`.

Kills, stops longer than a lease, rolling restarts, the loss of etcd's leader, of all hosts at once,
a flipped bit on one host, power losses and full disks (`--faults power,full`), and partitions.
boto3 has its default retries: a call that fails in spite of them is a broken promise, like a
message that is lost, comes back or is out of order. Shows for each fault the longest time without
an acknowledged send.

With `--fleet` there are two clusters and a gateway. A standard and a FIFO queue are split and
shrunk all the time, a cluster is emptied, the host that plans is killed, half of the callers speak
the query protocol, and one cluster stops as a whole: only calls on its queues may fail. With
`--workers N` each host has several workers, one of which is killed at times.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import ExitStack, asynccontextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import NamedTuple

from compat_tests.benchmarks.bench_wire import Endpoint
from compat_tests.cluster_process import GATEWAY, HOSTS, MEMBERS, ClusterFolder, ClusterProcess
from compat_tests.facade import eventually
from compat_tests.faults.disk_faults import take_all_space
from compat_tests.faults.drain import drain
from compat_tests.faults.evidence import keep_folders, write_evidence
from compat_tests.faults.fault_history import History
from compat_tests.faults.fleet_faults import (
    RESIZED,
    Emptying,
    Hosts,
    Resizing,
    Work,
    consumers,
    planner_of,
    stop_cluster,
    wait_for,
)
from compat_tests.faults.folder_damage import damage
from compat_tests.faults.gaps import Moment, table, told_of
from compat_tests.faults.judge import judge
from compat_tests.faults.lanes import KINDS, lanes
from compat_tests.faults.live_bytes import APART, live_bytes
from compat_tests.faults.loop_disk import LoopDisk
from compat_tests.faults.loop_disk import why_not as why_no_disk
from compat_tests.faults.partitions import Machines, machines, why_not
from compat_tests.faults.power_loss import interrupt
from compat_tests.faults.run import CommandLine, Result, endpoint_of, say, status, told
from compat_tests.faults.sdk import protocols
from compat_tests.faults.traffic import Traffic
from compat_tests.fleet_process import FleetProcess
from compat_tests.node_process import children_of, freeze, wait_until_gone
from compat_tests.workers import worker_in

FILE_SYSTEM = "ext4"
_DISK_BYTES = 2 << 30
"""Of a sparse file. A host keeps up to 256 MiB of its log for others."""
_ON_DISKS = "each machine would keep the disks of the others mounted"
CALM_S = 3.0
"""Time between the end of a fault and the next one, in which every queue is sent to."""
_CALM_AFTER_OUTAGE_S = 8.0
"""So that no process ends within 10 s of its start: it would be started again ever later."""


class Run(NamedTuple):
    """The means of a fault."""

    cluster: ClusterProcess
    parts: ClusterFolder
    chance: random.Random
    hosts: tuple[str, ...]
    """Hosts that a fault may hit."""
    stop_s: float
    """Longer than a lease."""
    machines: Machines | None
    """None where there are no namespaces."""
    disks: dict[str, LoopDisk] | None
    """The disk of each host; None without one of the faults DISK_FAULTS."""
    evidence: Path | None
    """A folder for the traces of a broken promise."""
    endpoint: Endpoint
    history: History
    emptying: Emptying | None = None
    """A cluster of a fleet is emptied."""


Strike = Callable[[Run], str]
"""Returns what it hit."""


# -- faults ----------------------------------------------------------------------------------------


def _drawn(run: Run) -> str:
    """A host to hit: in half of the cases the one that leads."""
    leader = run.parts.leader(run.chance.choice((1, 2)) if run.parts.is_fleet else 1)
    is_meant = leader in run.hosts and run.chance.random() < 0.5
    return leader if is_meant else run.chance.choice(run.hosts)


def kill_host(run: Run) -> str:
    """Kill a host at once."""
    return _kill(run, [_drawn(run)])


def kill_worker(run: Run) -> str:
    """Kill a worker of a host, which its supervisor replaces."""
    host = run.chance.choice(run.parts.hosts)
    folders = (run.parts.data / host, *sorted((run.parts.data / host).glob("worker-*")))
    data = run.chance.choice(folders)

    def worker() -> int:
        """A host of which a worker ends before all are ready ends, too, and is started anew."""
        return worker_in(data, run.parts.cluster().processes[host])

    killed = worker()
    if killed:  # else it just starts
        os.kill(killed, signal.SIGKILL)
    eventually(lambda: worker() not in (0, killed))
    run.parts.wait_until_ready(host)
    return str(data.relative_to(run.parts.data))


def kill_all(run: Run) -> str:
    """Kill all hosts at once, and etcd with them."""
    return _kill(run, [*run.parts.hosts, *MEMBERS])


def stop_one_cluster(run: Run) -> str:
    """Stop all hosts of one cluster of a fleet; its queues are away, others are not."""
    moving = {*RESIZED.values()} | (set() if run.emptying is None else run.emptying.moving)
    return stop_cluster(_hosts_of(run), run.history, run.stop_s, moving)


def _hosts_of(run: Run) -> Hosts:
    return Hosts(run.endpoint, run.parts)


def kill_planner(run: Run) -> str:
    """Kill the host that plans: another one takes its key."""
    return _kill(run, [planner_of(_hosts_of(run))])


def lose_power(run: Run) -> str:
    """Cut the power of all hosts at once: what was not synced is gone. Members of etcd are killed
    only: this is about the hosts."""
    assert run.disks is not None
    with run.parts.not_starting(run.cluster.pid):
        for name in (*HOSTS, *MEMBERS):  # else a sync under way may be reported as done
            freeze(run.parts.cluster().processes[name])
        for disk in run.disks.values():
            disk.cut_power(run.chance)
        pids = {name: run.parts.signal(name, signal.SIGKILL) for name in (*HOSTS, *MEMBERS)}
        for pid in pids.values():
            wait_until_gone(pid)
        for disk in run.disks.values():
            disk.unmount()
            disk.mount()
    return _wait(run, pids)


def flip_a_bit(run: Run) -> str:
    """Kill a host, flip a bit of its rows or its log, and let it start and heal."""
    host = _drawn(run)
    while host == GATEWAY:  # it has no rows
        host = _drawn(run)
    with run.parts.not_starting(run.cluster.pid):
        pid = run.parts.signal(host, signal.SIGSTOP)
        for each in (*children_of(pid), pid):  # workers would go on for a moment
            os.kill(each, signal.SIGKILL)
            wait_until_gone(each)
        spans = live_bytes(run.parts.data / host, is_closed=False)
        kind = run.chance.choice(sorted(spans.keys() - APART))
        damage(run.parts.data / host, spans, run.chance, kind, "flip")
    _wait(run, {host: pid})
    run.parts.wait_until_healthy(run.cluster.credentials)
    return f"{host} ({kind})"


def fill_disk(run: Run) -> str:
    """Leave a host no byte of its disk for a while."""
    assert run.disks is not None
    host = _drawn(run)
    take_all_space(run.disks[host].mounted_at, run.stop_s)
    run.parts.wait_until_ready(host)
    return host


def kill_etcd_leader(run: Run) -> str:
    """Kill the leader of etcd."""
    return _kill(run, [run.parts.etcd_leader()])


def kill_host_and_etcd_leader(run: Run) -> str:
    """Kill a host, and with it the leader of etcd."""
    return _kill(run, [_drawn(run), run.parts.etcd_leader()])


def stop_host(run: Run) -> str:
    """Stop a host for longer than its leases, then let it go on."""
    host = _drawn(run)
    pid = run.parts.signal(host, signal.SIGSTOP)
    try:
        time.sleep(run.stop_s)
    finally:
        run.parts.signal(host, signal.SIGCONT)
    assert run.parts.cluster().processes[host] == pid, f"{host} ended while it was stopped"
    run.parts.wait_until_ready(host)
    return host


def roll(run: Run) -> str:
    """Restart one host after the other, as an upgrade does."""
    return " ".join(_end(run, [host], signal.SIGTERM) for host in run.hosts)


def _kill(run: Run, names: list[str]) -> str:
    return _end(run, names, signal.SIGKILL)


def _end(run: Run, names: list[str], number: signal.Signals) -> str:
    return _wait(run, {name: run.parts.signal(name, number) for name in names})


def _wait(run: Run, pids: dict[str, int]) -> str:
    """Wait until others took the place of these processes."""
    for name, pid in pids.items():
        run.parts.wait_for_another(name, pid)
    for name in sorted(pids, reverse=True):  # etcd first
        run.parts.wait_until_ready(name)
    return " ".join(pids)


def cut_off(run: Run) -> str:
    """Cut all links of a machine with a host and a member of etcd."""
    return _cut(run, Machines.cut_off)


def cut_from_others(run: Run) -> str:
    """Cut a machine from the others, while clients still reach it."""
    return _cut(run, Machines.cut_from_others)


def cut_outgoing(run: Run) -> str:
    """Lose what a machine sends to the others, but not what they send to it."""
    return _cut(run, Machines.cut_outgoing)


def _cut(run: Run, cut: Callable[[Machines, str], None]) -> str:
    assert run.machines is not None
    host = run.chance.choice(HOSTS) if run.parts.is_fleet else _drawn(run)
    cut(run.machines, host)
    try:
        time.sleep(run.stop_s)
    finally:
        run.machines.heal(host)
    run.parts.wait_until_ready(host)
    return host


FAULTS: dict[str, Strike] = {
    "kill": kill_host,
    "worker": kill_worker,
    "stop": stop_host,
    "etcd": kill_etcd_leader,
    "both": kill_host_and_etcd_leader,
    "roll": roll,
    "flip": flip_a_bit,
    "all": kill_all,
    "power": lose_power,
    "full": fill_disk,
}
CUTS: dict[str, Strike] = {
    "cut": cut_off,
    "cut-others": cut_from_others,
    "cut-one-way": cut_outgoing,
}
DISK_FAULTS = ("power", "full")
"""They need a disk for each host, beside which there are no partitions."""
FLEET_FAULTS: dict[str, Strike] = {"cluster": stop_one_cluster, "manager": kill_planner}
WORKER_FAULTS = ("worker",)
"""They need hosts with several workers."""
OUTAGES = ("all", "power")
"""No host is there to answer."""


# -- one run ---------------------------------------------------------------------------------------


def strike_and_judge(
    run: Run,
    faults: Iterable[str],
    *,
    seed: int,
    kinds: tuple[str, ...] = KINDS,
    changes: int = 0,
) -> Result:
    """Apply the traffic and the faults to a running cluster, and judge. In a fleet the traffic goes
    on until each queue that is split and shrunk has so many changes."""
    traffic = Traffic(run.endpoint, seed, has_parts=run.parts.is_fleet)
    run = run._replace(history=traffic.history)
    works: list[Work] = []
    if run.parts.is_fleet:
        resized = [kind for kind in RESIZED if kind in kinds]
        emptying = Emptying(_hosts_of(run), traffic.history)
        works += [
            Resizing(_hosts_of(run), traffic.draw(), kind, emptying, changes) for kind in resized
        ]
        works.append(emptying)
        run = run._replace(emptying=emptying)
    moments = asyncio.run(_apply(run, traffic, list(faults), kinds, works))
    verdict = judge(traffic.history)
    lines = [f"{len(moments)} faults; {told(traffic.history, verdict)}"]
    lines += [work.told() for work in works]
    if works:
        lines.append(f"by {' and '.join(run.endpoint.protocols)}")
    lines += table(traffic.history, moments)
    if verdict.broken() and run.evidence is not None:
        names = verdict.missing + [each.name for each in verdict.violations]
        write_evidence(run.evidence, traffic.history, names, verdict.broken())
    refused = [line for work in works for line in work.refused]
    return Result("\n".join(lines), [*verdict.broken(), *refused])


def _leaders(run: Run) -> str:
    """The host that leads the shard, and the member that leads etcd."""
    return f"{run.parts.leader()} {run.parts.etcd_leader()}"


async def _apply(
    run: Run,
    traffic: Traffic,
    faults: list[str],
    kinds: tuple[str, ...],
    works: list[Work],
) -> list[Moment]:
    moments: list[Moment] = []
    errors = traffic.history.faults

    async def strike() -> None:
        await asyncio.sleep(CALM_S)
        for name in faults:
            led = await asyncio.to_thread(_leaders, run)
            begun, noted = time.monotonic(), len(errors)
            hit = await asyncio.to_thread((FAULTS | CUTS | FLEET_FAULTS)[name], run)
            await asyncio.to_thread(run.parts.wait_until_all_are_ready)
            moments.append(Moment(name, begun, time.monotonic(), os.getloadavg()[0], hit, led))
            await asyncio.sleep(_CALM_AFTER_OUTAGE_S if name in OUTAGES else CALM_S)
            say(told_of(traffic.history, moments[-1]))
            if name in OUTAGES:
                del errors[noted:]
        await asyncio.to_thread(wait_for, works)

    await traffic.make_queues(kinds)
    more = consumers(traffic, kinds) if works else []
    async with _worked(works):
        await traffic.run(strike(), [*lanes(traffic, kinds), *more])
    await drain(traffic.endpoint, traffic.history)
    return moments


@asynccontextmanager
async def _worked(works: list[Work]) -> AsyncIterator[None]:
    """Changes of the fleet meanwhile."""
    running = [asyncio.create_task(asyncio.to_thread(work.run)) for work in works]
    try:
        yield
    finally:
        for work in works:
            work.is_ending = True
        await asyncio.gather(*running)


# -- command line ----------------------------------------------------------------------------------


def main() -> int:
    """Run from the command line; exits with 1 if a promise was broken."""
    options = _options()
    signal.signal(signal.SIGTERM, interrupt)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        wants_disks = not {*DISK_FAULTS}.isdisjoint(options.faults)
        has_disks = wants_disks and _can("faults of disks", why_no_disk(FILE_SYSTEM))
        disks = _disks(stack, folder) if has_disks else None
        has_machines = _can("partitions", _ON_DISKS if has_disks else why_not())
        made = stack.enter_context(machines()) if has_machines else None
        cluster = (FleetProcess if options.fleet else ClusterProcess)(
            folder,
            *(made.options() if made is not None else ()),
            *(("--workers", str(options.workers)) if options.workers > 1 else ()),
            variables={"HOLDFAST_AWS_WAITS": "off"},
        )
        stack.callback(cluster.close)
        cluster.start()
        hosts, chance = _hosts(cluster.parts), random.Random(options.seed)
        run = Run(
            cluster,
            cluster.parts,
            chance,
            hosts,
            options.stop_s,
            made,
            disks,
            options.evidence,
            endpoint_of(cluster)._replace(
                by_sdk=True, protocols=protocols() if options.fleet else ("json",)
            ),
            History(),
        )
        possible = [name for name in options.faults if _is_possible(run, name)]
        faults = list(islice(cycle(possible), options.rounds))
        result = strike_and_judge(
            run, faults, seed=options.seed, kinds=options.traffic, changes=options.changes
        )
        cluster.stop()
        if result.broken and options.evidence is not None:
            keep_folders(folder, options.evidence)
    say(result.summary)
    return status(result.broken)


def _options() -> argparse.Namespace:
    line = CommandLine("a cluster under boto3 load, with faults", rounds=20)
    names = [*FAULTS, *CUTS, *FLEET_FAULTS]
    line.parser.add_argument("--fleet", action="store_true", help="two clusters and a gateway")
    line.parser.add_argument(
        "--changes",
        type=int,
        default=20,
        help="of each queue of a fleet that is split and shrunk, at least; those of a FIFO queue "
        "take more than ten minutes, in which parts that closed are kept",
    )
    line.parser.add_argument("--workers", type=int, default=1, help="of each host")
    line.parser.add_argument(
        "--faults",
        type=lambda text: tuple(text.split(",")),
        default=tuple(name for name in names if name not in DISK_FAULTS),
        help=f"some of {','.join(names)}; rounds go through them in turn",
    )
    line.parser.add_argument("--evidence", type=Path, help="folder for traces of what was broken")
    line.parser.add_argument("--stop-s", type=float, default=15.0, help="length of stops and cuts")
    options = line.parse()
    if not set(options.faults) <= set(names):
        line.parser.error(f"faults are some of {','.join(names)}")
    if options.workers == 1:
        options.faults = tuple(name for name in options.faults if name not in WORKER_FAULTS)
    if options.fleet:
        options.faults = tuple(name for name in options.faults if name not in DISK_FAULTS)
    else:
        options.faults = tuple(name for name in options.faults if name not in FLEET_FAULTS)
    return options


def _can(what: str, reason: str | None) -> bool:
    if reason is not None:
        say(f"skipped: {what}, since {reason}")
    return reason is None


def _disks(stack: ExitStack, folder: Path) -> dict[str, LoopDisk]:
    """A disk for each host."""
    made = {}
    for host in HOSTS:
        disk = LoopDisk(folder / f"disk-{host}", FILE_SYSTEM, image_bytes=_DISK_BYTES)
        made[host] = stack.enter_context(disk)
        (disk.mounted_at / host).mkdir(mode=0o700)
        link = folder / "data" / host
        link.parent.mkdir(mode=0o700, exist_ok=True)
        link.symlink_to(disk.mounted_at / host)
    return made


def _hosts(parts: ClusterFolder) -> tuple[str, ...]:
    """The hosts that faults may hit."""
    hosts = parts.hosts_behind_the_endpoint()
    for host in sorted({*parts.hosts} - {*hosts}):
        say(f"skipped: faults of host {host}, which is the endpoint, since there is no haproxy")
    return hosts


def _is_possible(run: Run, fault: str) -> bool:
    if fault in CUTS:
        return run.machines is not None
    if fault in DISK_FAULTS and run.disks is None:
        return False
    return fault not in OUTAGES or run.hosts == run.parts.hosts


if __name__ == "__main__":
    sys.exit(main())
