"""Mixed traffic with faults for minutes: memory, descriptors, threads and latency must stay flat.

All lanes of the traffic run, idle long polls, and slow and broken clients; with `kill -9` in the
first quarter, which is the warm-up, and SIGSTOP all the time. It samples the process and the
latency of sends every few seconds, and at the end compares the second quarter with the last one.
Nothing may be lost.

`python -m compat_tests.faults.soak --minutes 20`
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from compat_tests.faults.drain import drain
from compat_tests.faults.judge import judge
from compat_tests.faults.kill9 import kill_and_start
from compat_tests.faults.lanes import lanes
from compat_tests.faults.retrying_caller import caller
from compat_tests.faults.run import CommandLine, endpoint_of, say, status, told
from compat_tests.faults.traffic import Lane, Traffic
from compat_tests.node_process import NodeProcess

SAMPLE_S = 2.0
STOP_S_MAX = 1.0
STOPS_EVERY_S = 20.0
KILLS_EVERY_S = 8.0
VISIBILITY_S = 30
PAUSE_S_MAX = 0.06
PARKED_POLLS = 20


class Sample(NamedTuple):
    """The process at one moment, and the latency of sends since the moment before."""

    at_s: float
    memory_mib: float
    descriptors: int
    threads: int
    p50_ms: float
    p99_ms: float


class Limit(NamedTuple):
    """Bound of a figure's last quarter relative to its second: a factor and an addend."""

    times: float
    plus: float


LIMITS = {
    "memory_mib": Limit(1.10, 70.0),  # 64 MiB of RocksDB's memtable fill up and empty again
    "descriptors": Limit(1.0, 15.0),
    "threads": Limit(1.0, 2.0),
    "p50_ms": Limit(1.5, 2.0),
    "p99_ms": Limit(2.0, 20.0),  # a stop of a second may fall into it
}


def main() -> int:
    """Run from the command line; exits with 1 if a figure grew or a promise was broken."""
    line = CommandLine("mixed traffic with faults, for minutes", rounds=0)
    line.parser.add_argument("--minutes", type=float, default=20.0)
    options = line.parse()
    with tempfile.TemporaryDirectory() as folder:
        node = NodeProcess(Path(folder), "--aws-waits", "off").start()
        try:
            soak = Soak(node, options.minutes * 60, options.seed, options.traffic)
            broken = asyncio.run(soak.run())
        finally:
            node.close()
    return status(broken)


class Soak:
    """One run."""

    def __init__(
        self, node: NodeProcess, seconds: float, seed: int, kinds: tuple[str, ...]
    ) -> None:
        self._node = node
        self._seconds = seconds
        self._kinds = kinds
        self._begun = time.monotonic()
        self._samples: list[Sample] = []
        self._kills = self._stops = 0
        self._traffic = Traffic(
            endpoint_of(node), seed, visibility_s=VISIBILITY_S, pause_s_max=PAUSE_S_MAX
        )
        self._chance = self._traffic.draw()

    async def run(self) -> list[str]:
        """Run to the end and show the figures; returns every broken promise, one a line."""
        traffic = self._traffic
        await traffic.make_queues(self._kinds)
        begin = lanes(traffic, self._kinds)
        await traffic.run(asyncio.sleep(self._seconds), begin, self._endless())
        await drain(traffic.endpoint, traffic.history)
        verdict = judge(traffic.history)
        say(f"{self._seconds:.0f} s, {self._kills} kills, {self._stops} stops")
        say(told(traffic.history, verdict))
        self._show()
        crashed = [] if self._node.running else [f"it ended by itself\n{self._node.log_tail()}"]
        return [*crashed, *verdict.broken(), *self._grown()]

    # -- disturbances beside the traffic -----------------------------------------------------------

    def _endless(self) -> Iterator[Lane]:
        yield self._break()
        yield self._sample()
        yield self._misbehave()
        for _ in range(PARKED_POLLS):
            yield self._poll_idly()

    async def _break(self) -> None:
        """Kill in the first quarter, and pause the process all the time."""
        while True:
            is_warming_up = self._at_s() < self._seconds / 4
            every_s = KILLS_EVERY_S if is_warming_up else STOPS_EVERY_S
            await asyncio.sleep(every_s * self._chance.uniform(0.5, 1.5))
            if self._at_s() < self._seconds / 4 and self._chance.random() < 0.7:
                self._kills += 1
                await asyncio.to_thread(kill_and_start, self._node)
            else:
                self._stops += 1
                await self._stop_for_a_while()

    async def _stop_for_a_while(self) -> None:
        pid = self._node.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(self._chance.uniform(0.1, STOP_S_MAX))
        finally:
            os.kill(pid, signal.SIGCONT)

    async def _poll_idly(self) -> None:
        chance = self._traffic.draw()
        async with caller(self._traffic.endpoint, self._traffic.history) as calls:
            idle = await self._traffic.make_queue(calls, "idle")
            while True:
                await calls.receive(idle, VISIBILITY_S, wait_s=20)
                if chance.random() < 0.3:
                    calls.close()

    async def _misbehave(self) -> None:
        """Clients that are slow or silent, hang up, or speak another protocol."""
        chance = self._traffic.draw()
        parts = urlsplit(self._traffic.endpoint.url)
        head = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n"
        begun = (b"", b"POST / HT", head, head + b"x" * 50_000)
        other = (b"\x16\x03\x01" * 50, b"GET / HTTP/1.1\r\n\r\n")
        open_now: list[asyncio.StreamWriter] = []
        while True:
            with suppress(OSError):
                _, writer = await asyncio.open_connection(parts.hostname, parts.port)
                for byte in chance.choice(begun + other).splitlines(keepends=True):
                    writer.write(byte)
                    await asyncio.sleep(0.01)
                open_now.append(writer)
            if len(open_now) > 50:
                open_now.pop(chance.randrange(50)).transport.abort()
            await asyncio.sleep(0.2)

    # -- figures -----------------------------------------------------------------------------------

    def _at_s(self) -> float:
        return time.monotonic() - self._begun

    async def _sample(self) -> None:
        history = self._traffic.history
        while True:
            await asyncio.sleep(SAMPLE_S)
            latencies, history.latencies = history.latencies, []
            if len(latencies) > 10 and self._node.running:
                self._samples.append(self._measure(sorted(latencies)))

    def _measure(self, latencies: list[float]) -> Sample:
        process = Path(f"/proc/{self._node.pid}")
        status_of = (line.split(":", 1) for line in (process / "status").read_text().splitlines())
        figures = {words[0]: words[1] for words in status_of}
        return Sample(
            at_s=self._at_s(),
            memory_mib=int(figures["VmRSS"].split()[0]) / 1024,
            descriptors=len(os.listdir(process / "fd")),
            threads=int(figures["Threads"]),
            p50_ms=latencies[len(latencies) // 2] * 1000,
            p99_ms=latencies[len(latencies) * 99 // 100] * 1000,
        )

    def _median(self, quarter: int, figure: str) -> float:
        """The median of a figure in a quarter; NaN if nothing was sampled."""
        begin = self._seconds / 4 * quarter
        samples = [s for s in self._samples if begin <= s.at_s < begin + self._seconds / 4]
        values = [float(getattr(sample, figure)) for sample in samples]
        return statistics.median(values) if values else float("nan")

    def _grown(self) -> list[str]:
        grown = []
        for figure, limit in LIMITS.items():
            before, after = self._median(1, figure), self._median(3, figure)
            if not after <= before * limit.times + limit.plus:
                grown.append(f"{figure} grew from {before:.1f} to {after:.1f}")
        return grown

    def _show(self) -> None:
        say("medians      " + "".join(f"{f'quarter {number + 1}':>12}" for number in range(4)))
        for figure in LIMITS:
            cells = "".join(f"{self._median(number, figure):>12.1f}" for number in range(4))
            say(f"{figure:<13}{cells}")


if __name__ == "__main__":
    sys.exit(main())
