"""Mixed traffic with faults for minutes: memory, file descriptors, threads and latency stay flat, and nothing is lost.

Standard, FIFO and fair queues, long polls, batches, dead letters and move tasks, queues that come and go, slow and broken
clients (`soak_traffic.py`); `kill -9` in the first quarter, which is the warm-up, and SIGSTOP all the time. Every few
seconds it samples the process and the latency of sends; at the end it compares the second quarter with the last one.

`python -m compat_tests.soak --minutes 20`
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from compat_tests.benchmarks.wire import Endpoint
from compat_tests.kill9 import say
from compat_tests.node_process import NodeProcess
from compat_tests.soak_traffic import Traffic

SAMPLE_SECONDS = 2.0
STOP_SECONDS_MAX = 1.0
STOPS_EVERY_SECONDS = 20.0
KILLS_EVERY_SECONDS = 8.0


class Sample(NamedTuple):
    """The process at one moment, and the latency of sends since the moment before."""

    at_s: float
    memory_mib: float
    descriptors: int
    threads: int
    p50_ms: float
    p99_ms: float
    calls: int
    """Since the start."""


class Limit(NamedTuple):
    """How much more than in the second quarter a figure may be in the last one: times and plus."""

    times: float
    plus: float


LIMITS = {
    "memory_mib": Limit(1.10, 70.0),  # 64 MiB of RocksDB's memtable fill up and empty again
    "descriptors": Limit(1.0, 15.0),
    "threads": Limit(1.0, 2.0),
    "p50_ms": Limit(1.5, 2.0),
    "p99_ms": Limit(2.0, 20.0),  # a stop of a second is in it by chance
}


def main() -> int:
    """Run from the command line; the exit status is 1 when a figure grew or something was lost."""
    parser = argparse.ArgumentParser(description="mixed traffic with faults, for minutes")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = random.randrange(2**32) if options.seed is None else options.seed
    say(f"seed {seed}")
    with tempfile.TemporaryDirectory() as folder:
        node = NodeProcess(Path(folder), "--aws-waits", "off").start()
        try:
            soak = Soak(node, options.minutes * 60, random.Random(seed))
            broken = asyncio.run(soak.run())
        finally:
            node.close()
    for line in broken[:20]:
        say(line)
    return 1 if broken else 0


class Soak:
    """One run."""

    def __init__(self, node: NodeProcess, seconds: float, chance: random.Random) -> None:
        self._node = node
        self._seconds = seconds
        self._chance = chance
        self._begun = time.monotonic()
        self._samples: list[Sample] = []
        self._kills = self._stops = 0
        endpoint = Endpoint("soaked", node.url, node.credentials, node.pid)
        self._traffic = Traffic(endpoint, chance)

    async def run(self) -> list[str]:
        """Run to the end, show the figures; every broken word in a line."""
        await self._traffic.make_queues()
        watches = [asyncio.create_task(self._break()), asyncio.create_task(self._sample())]
        await self._traffic.run(lambda: self._at_s() > self._seconds)
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        self._show()
        ledger = self._traffic.ledger
        lost = [f"acknowledged and never seen: {name}" for name in sorted(ledger.missing())]
        crashed = [] if self._node.running else [f"it ended by itself\n{self._node.log_tail()}"]
        return [*crashed, *lost, *ledger.broken, *self._grown()]

    def _at_s(self) -> float:
        return time.monotonic() - self._begun

    async def _break(self) -> None:
        """Kill in the first quarter, stop for a while all the time."""
        while True:
            warming_up = self._at_s() < self._seconds / 4
            every = KILLS_EVERY_SECONDS if warming_up else STOPS_EVERY_SECONDS
            await asyncio.sleep(every * self._chance.uniform(0.5, 1.5))
            if self._at_s() < self._seconds / 4 and self._chance.random() < 0.7:
                self._kills += 1
                await asyncio.to_thread(self._kill_and_start)
            else:
                self._stops += 1
                pid = self._node.pid
                os.kill(pid, signal.SIGSTOP)
                try:
                    await asyncio.sleep(self._chance.uniform(0.1, STOP_SECONDS_MAX))
                finally:
                    os.kill(pid, signal.SIGCONT)

    def _kill_and_start(self) -> None:
        self._node.kill()
        self._node.start()

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            latencies, self._traffic.ledger.latencies = self._traffic.ledger.latencies, []
            if len(latencies) > 10 and self._node.running:
                self._samples.append(self._measure(sorted(latencies)))

    def _measure(self, latencies: list[float]) -> Sample:
        process = Path(f"/proc/{self._node.pid}")
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        return Sample(
            at_s=self._at_s(),
            memory_mib=int(status["VmRSS"].split()[0]) / 1024,
            descriptors=len(os.listdir(process / "fd")),
            threads=int(status["Threads"]),
            p50_ms=latencies[len(latencies) // 2] * 1000,
            p99_ms=latencies[len(latencies) * 99 // 100] * 1000,
            calls=self._traffic.ledger.calls,
        )

    def _quarter(self, number: int) -> list[Sample]:
        begin = self._seconds / 4 * number
        return [each for each in self._samples if begin <= each.at_s < begin + self._seconds / 4]

    def _middle(self, number: int, figure: str) -> float:
        """The median of a figure in a quarter; of no samples, none."""
        values = [float(getattr(sample, figure)) for sample in self._quarter(number)]
        return statistics.median(values) if values else float("nan")

    def _grown(self) -> list[str]:
        grown = []
        for figure, limit in LIMITS.items():
            before, after = self._middle(1, figure), self._middle(3, figure)
            if not after <= before * limit.times + limit.plus:
                grown.append(f"{figure} grew from {before:.1f} to {after:.1f}")
        return grown

    def _show(self) -> None:
        ledger = self._traffic.ledger
        say(
            f"{self._seconds:.0f} s, {ledger.calls} calls of which {ledger.failed_calls} failed, "
            f"{self._kills} kills, {self._stops} stops; {len(ledger.sent)} sends acknowledged, "
            f"{len(ledger.received)} received, {len(ledger.deleted)} deletes counted, "
            f"{len(ledger.missing())} lost"
        )
        say("medians      " + "".join(f"{f'quarter {number + 1}':>12}" for number in range(4)))
        for figure in LIMITS:
            cells = "".join(f"{self._middle(number, figure):>12.1f}" for number in range(4))
            say(f"{figure:<13}{cells}")


if __name__ == "__main__":
    sys.exit(main())
