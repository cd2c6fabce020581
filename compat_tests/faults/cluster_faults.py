"""A cluster of three hosts under boto3 load, with one fault after another: `python -m
compat_tests.faults.cluster_faults --rounds 20`.

Kills, stops longer than a lease, rolling restarts, the loss of etcd's leader, of all hosts at once,
and partitions. boto3 has its default retries: a call that fails in spite of them is a broken
promise, like a message that is lost, comes back or is out of order. Shows for each kind of fault
the longest time without an acknowledged send to some queue.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import cycle, islice, pairwise
from pathlib import Path
from typing import NamedTuple

from compat_tests.cluster_process import HOSTS, MEMBERS, ClusterFolder, ClusterProcess
from compat_tests.faults.drain import drain
from compat_tests.faults.history import History, Outcome
from compat_tests.faults.judge import judge
from compat_tests.faults.lanes import KINDS, lanes
from compat_tests.faults.partitions import Machines, machines, why_not
from compat_tests.faults.run import CommandLine, Result, endpoint_of, say, status, told
from compat_tests.faults.traffic import Traffic

CALM_S = 5.0
"""Time between the end of a fault and the next one, in which every queue is sent to."""


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


class Moment(NamedTuple):
    """One fault, from its beginning until all processes were ready again."""

    fault: str
    begun: float
    ended: float


Strike = Callable[[Run], None]


# -- faults ----------------------------------------------------------------------------------------


def kill_host(run: Run) -> None:
    """Kill a host at once."""
    _kill(run, [run.chance.choice(run.hosts)])


def kill_all(run: Run) -> None:
    """Kill all hosts at once, and etcd with them."""
    _kill(run, [*HOSTS, *MEMBERS])


def kill_etcd_leader(run: Run) -> None:
    """Kill the leader of etcd."""
    _kill(run, [run.parts.etcd_leader()])


def kill_host_and_etcd_leader(run: Run) -> None:
    """Kill a host, and with it the leader of etcd."""
    _kill(run, [run.chance.choice(run.hosts), run.parts.etcd_leader()])


def stop_host(run: Run) -> None:
    """Stop a host for longer than its leases, then let it go on."""
    host = run.chance.choice(run.hosts)
    pid = run.parts.signal(host, signal.SIGSTOP)
    try:
        time.sleep(run.stop_s)
    finally:
        run.parts.signal(host, signal.SIGCONT)
    assert run.parts.cluster().processes[host] == pid, f"{host} ended while it was stopped"
    run.parts.wait_until_ready(host)


def roll(run: Run) -> None:
    """Restart one host after the other, as an upgrade does."""
    for host in run.hosts:
        _end(run, [host], signal.SIGTERM)


def _kill(run: Run, names: list[str]) -> None:
    _end(run, names, signal.SIGKILL)


def _end(run: Run, names: list[str], number: signal.Signals) -> None:
    pids = {name: run.parts.signal(name, number) for name in names}
    for name, pid in pids.items():
        run.parts.wait_for_another(name, pid)
    for name in sorted(names, reverse=True):  # etcd first
        run.parts.wait_until_ready(name)


def cut_off(run: Run) -> None:
    """Cut all links of a machine with a host and a member of etcd."""
    _cut(run, Machines.cut_off)


def cut_from_others(run: Run) -> None:
    """Cut a machine from the others, while clients still reach it."""
    _cut(run, Machines.cut_from_others)


def cut_outgoing(run: Run) -> None:
    """Lose what a machine sends to the others, but not what they send to it."""
    _cut(run, Machines.cut_outgoing)


def _cut(run: Run, cut: Callable[[Machines, str], None]) -> None:
    assert run.machines is not None
    host = run.chance.choice(run.hosts)
    cut(run.machines, host)
    try:
        time.sleep(run.stop_s)
    finally:
        run.machines.heal(host)
    run.parts.wait_until_ready(host)


FAULTS: dict[str, Strike] = {
    "kill": kill_host,
    "stop": stop_host,
    "etcd": kill_etcd_leader,
    "both": kill_host_and_etcd_leader,
    "roll": roll,
    "all": kill_all,
}
CUTS: dict[str, Strike] = {
    "cut": cut_off,
    "cut-others": cut_from_others,
    "cut-one-way": cut_outgoing,
}


# -- one run ---------------------------------------------------------------------------------------


def strike_and_judge(
    run: Run, faults: Iterable[str], *, seed: int, kinds: tuple[str, ...] = KINDS
) -> Result:
    """Apply the traffic and the faults to a running cluster, and judge."""
    endpoint = endpoint_of(run.cluster)._replace(by_sdk=True)
    traffic = Traffic(endpoint, seed)
    moments = asyncio.run(_apply(run, traffic, list(faults), kinds))
    verdict = judge(traffic.history)
    lines = [f"{len(moments)} faults; {told(traffic.history, verdict)}"]
    for name, gap in _pauses(traffic.history, moments).items():
        times = sum(moment.fault == name for moment in moments)
        lines.append(
            f"{name} ({times} times): at most {gap.seconds:.2f} s without a send to {gap.queue}"
        )
    return Result("\n".join(lines), verdict.broken())


async def _apply(
    run: Run, traffic: Traffic, faults: list[str], kinds: tuple[str, ...]
) -> list[Moment]:
    moments: list[Moment] = []
    errors = traffic.history.faults

    async def strike() -> None:
        await asyncio.sleep(CALM_S)
        for name in faults:
            begun, noted = time.monotonic(), len(errors)
            await asyncio.to_thread((FAULTS | CUTS)[name], run)
            moments.append(Moment(name, begun, time.monotonic()))
            await asyncio.sleep(CALM_S)
            if name == "all":
                del errors[noted:]  # no host was there to answer

    await traffic.make_queues(kinds)
    await traffic.run(strike(), lanes(traffic, kinds))
    await drain(traffic.endpoint, traffic.history)
    return moments


class Pause(NamedTuple):
    """A time in which no send to a queue was acknowledged."""

    seconds: float
    queue: str


def _pauses(history: History, moments: list[Moment]) -> dict[str, Pause]:
    """The longest pause that began in each kind of fault, for queues that are always sent to."""
    ends: dict[str, list[float]] = defaultdict(list)
    for send in history.sends:
        if send.outcome is Outcome.DONE and not send.queue.startswith("passing"):
            ends[send.queue].append(send.ended)
    longest: dict[str, Pause] = {}
    for moment in moments:
        found = [
            Pause(after - before, queue)
            for queue, times in ends.items()
            for before, after in pairwise(sorted(times))
            if before < moment.ended and after > moment.begun
        ]
        found.append(longest.get(moment.fault, Pause(0.0, "any queue")))
        longest[moment.fault] = max(found)
    return longest


# -- command line ----------------------------------------------------------------------------------


def main() -> int:
    """Run from the command line; exits with 1 if a promise was broken."""
    line = CommandLine("a cluster under boto3 load, with faults", rounds=20)
    names = [*FAULTS, *CUTS]
    line.parser.add_argument(
        "--faults",
        type=lambda text: tuple(text.split(",")),
        default=tuple(names),
        help=f"some of {','.join(names)}; rounds go through them in turn",
    )
    line.parser.add_argument("--stop-s", type=float, default=15.0, help="length of stops and cuts")
    options = line.parse()
    if not set(options.faults) <= set(names):
        line.parser.error(f"faults are some of {','.join(names)}")
    reason = why_not()
    if reason is not None:
        say(f"skipped: partitions, since {reason}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        made = stack.enter_context(machines()) if reason is None else None
        cluster = ClusterProcess(
            folder,
            *(made.options() if made is not None else ()),
            variables={"HOLDFAST_AWS_WAITS": "off"},
        )
        stack.callback(cluster.close)
        cluster.start(seconds=120)
        hosts, chance = _hosts(cluster.parts), random.Random(options.seed)
        run = Run(cluster, cluster.parts, chance, hosts, options.stop_s, made)
        possible = [name for name in options.faults if _is_possible(run, name)]
        faults = list(islice(cycle(possible), options.rounds))
        result = strike_and_judge(run, faults, seed=options.seed, kinds=options.traffic)
        cluster.stop()
    say(result.summary)
    return status(result.broken)


def _hosts(parts: ClusterFolder) -> tuple[str, ...]:
    """The hosts that faults may hit."""
    hosts = parts.hosts_behind_the_endpoint()
    for host in sorted({*HOSTS} - {*hosts}):
        say(f"skipped: faults of host {host}, which is the endpoint, since there is no haproxy")
    return hosts


def _is_possible(run: Run, fault: str) -> bool:
    if fault in CUTS:
        return run.machines is not None
    return fault != "all" or run.hosts == HOSTS


if __name__ == "__main__":
    sys.exit(main())
