"""One run: traffic on a service, a repeated fault, and the judgement; the drivers' command line."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from compat_tests.benchmarks.bench_wire import Endpoint
from compat_tests.faults.drain import drain
from compat_tests.faults.fault_history import History
from compat_tests.faults.judge import Verdict, judge, summary
from compat_tests.faults.lanes import KINDS, lanes
from compat_tests.faults.traffic import Traffic
from compat_tests.node_process import NodeProcess

SHOWN = 60


class Fault(NamedTuple):
    """A way to harm a service in the middle of its work; afterwards it serves again."""

    strike: Callable[[NodeProcess], None]
    excuses_faults: bool = False
    """True if the service may answer with errors of its own meanwhile, as it must when its disk
    fails."""


class Result(NamedTuple):
    """The end of a run."""

    summary: str
    broken: list[str]
    """Every violation, one a line."""


def say(text: str) -> None:
    """Show a line now."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def run(
    node: NodeProcess, fault: Fault, *, rounds: int, seed: int, kinds: tuple[str, ...] = KINDS
) -> Result:
    """Start the service, apply the traffic, strike `rounds` times at random moments, and judge."""
    node.start()
    traffic = Traffic(endpoint_of(node), seed)
    slowest: list[float] = [0.0]
    asyncio.run(_run(node, fault, traffic, rounds, kinds, slowest))
    verdict = judge(traffic.history, excuses_faults=fault.excuses_faults)
    return Result(
        f"{rounds} faults, the slowest over after {max(slowest):.2f} s; "
        f"{told(traffic.history, verdict)}",
        verdict.broken(),
    )


async def _run(
    node: NodeProcess,
    fault: Fault,
    traffic: Traffic,
    rounds: int,
    kinds: tuple[str, ...],
    slowest: list[float],
) -> None:
    moments = traffic.draw()

    async def strike() -> None:
        for _ in range(rounds):
            await asyncio.sleep(moments.uniform(0.3, 2.0))
            begun = time.monotonic()
            await asyncio.to_thread(fault.strike, node)
            slowest.append(time.monotonic() - begun)
        await asyncio.sleep(0.5)

    await traffic.make_queues(kinds)
    await traffic.run(strike(), lanes(traffic, kinds))
    await drain(traffic.endpoint, traffic.history)


def endpoint_of(node: NodeProcess) -> Endpoint:
    """The service as the traffic's clients see it."""
    return Endpoint("holdfast", node.url, node.credentials, node.pid)


def told(history: History, verdict: Verdict) -> str:
    """Amounts and findings in one line."""
    return f"{history.summary()}; {summary(verdict)}"


class CommandLine:
    """The common options of the drivers."""

    def __init__(self, description: str, rounds: int) -> None:
        self.parser = argparse.ArgumentParser(description=description)
        self.parser.add_argument("--rounds", type=int, default=rounds, help="faults in all")
        self.parser.add_argument("--seed", type=int, default=random.randrange(2**32))
        self.parser.add_argument(
            "--traffic",
            type=lambda text: tuple(text.split(",")),
            default=KINDS,
            help=f"some of {','.join(KINDS)}",
        )

    def parse(self) -> argparse.Namespace:
        """The options; shows the seed."""
        options = self.parser.parse_args()
        if not set(options.traffic) <= set(KINDS):
            self.parser.error(f"traffic is some of {','.join(KINDS)}")
        say(f"seed {options.seed}")
        return options


def status(broken: list[str]) -> int:
    """Show the violations; returns the exit status."""
    for line in broken[:SHOWN]:
        say(line)
    return 1 if broken else 0
