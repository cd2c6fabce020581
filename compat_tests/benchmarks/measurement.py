"""One run: a fresh queue on an endpoint, a scenario's load on it, a measured window, and the check
of the account."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from statistics import mean

import msgspec

from compat_tests.benchmarks.bench_wire import Connection, Endpoint, Refused, connect
from compat_tests.benchmarks.load import Load, Tally
from compat_tests.benchmarks.scenarios import SCENARIOS, Scenario, drain
from compat_tests.benchmarks.server_cost import Cost, read_cost

_WARM_UP_SECONDS = 0.5
_CHECKING_CONNECTIONS = 32
_GRACE_SECONDS = 60.0  # on top of the expected duration of a run
_SLOWEST_PER_SECOND = 500.0  # messages checked; a slower server fails by the time limit

_FAILURES = (Refused, OSError, msgspec.DecodeError, ValueError, TimeoutError)
"""Possible faults of a server. The first one ends the work of its connection."""


class Measurement(msgspec.Struct, frozen=True):
    """The figures of one run. Those that could not be measured are NaN, which JSON writes as
    null."""

    scenario: str
    connections: int
    endpoint: str
    seconds: float
    messages_per_second: float
    """A message counts once: when it is sent, or when it is deleted in scenarios that delete."""

    latency_of: str
    p50_ms: float
    p99_ms: float
    cpu_us_per_message: float
    follower_cpu_us_per_message: float
    """The mean of the hosts that copy what the server stores."""

    resident_mib: float
    client_busy: float
    """The share of one processor that the client used. Near 1, the client is the bottleneck."""

    errors: int
    duplicates: int
    lost: int | None
    """Messages acknowledged and never received. None: the queue could not be emptied, so it is
    unknown."""

    actions: dict[str, dict[str, float]]
    """For each action and each other timing: count, p50_ms and p99_ms."""

    complaints: list[str]
    """The first few errors."""

    @property
    def correct(self) -> bool:
        """True when nothing was refused and no acknowledged message was lost."""
        return self.errors == 0 and self.lost == 0


async def measure(
    name: str, endpoint: Endpoint, connections: int, *, seconds: float
) -> Measurement:
    """Run the scenario once."""
    load = Load(f"bench-{name}-{secrets.token_hex(4)}", SCENARIOS[name].groups)
    run = _Run(SCENARIOS[name], endpoint, load)
    try:
        async with asyncio.timeout(seconds + _GRACE_SECONDS):
            await run.play(connections, seconds)
    except _FAILURES as failure:
        load.errors.append(repr(failure))
    if endpoint.is_static:
        return _conclude(name, endpoint, connections, load, run.window, lost=0)
    errors_before = len(load.errors)
    try:
        async with asyncio.timeout(_GRACE_SECONDS + len(load.acknowledged) / _SLOWEST_PER_SECOND):
            await run.check()
    except _FAILURES as failure:
        load.errors.append(repr(failure))
    checked = len(load.errors) == errors_before
    lost = load.lost if checked or not load.lost else None
    return _conclude(name, endpoint, connections, load, run.window, lost=lost)


class _Run:
    """The phases of a run, in order: `play`, `check`."""

    def __init__(self, scenario: Scenario, endpoint: Endpoint, load: Load) -> None:
        self.window = _Window(endpoint)
        self._scenario = scenario
        self._endpoint = endpoint
        self._load = load

    async def play(self, connections: int, seconds: float) -> None:
        """Apply the load, and measure a window of it."""
        load, window = self._load, self.window
        opened = await connect(self._endpoint, connections)
        tasks: list[asyncio.Task[None]] = []
        try:
            if not self._endpoint.is_static:
                await load.create_queue(opened[0])
            tasks = self._start(self._scenario.work, opened)
            await asyncio.sleep(_WARM_UP_SECONDS)
            window.begin(load)
            await asyncio.sleep(seconds)
            window.end(load)
            load.running = False
            await asyncio.gather(*tasks)
        finally:
            await _close(opened, tasks)

    async def check(self) -> None:
        """Receive the messages that the load left in the queue, so that losses show."""
        opened = await connect(self._endpoint, _CHECKING_CONNECTIONS)
        tasks = self._start(drain, opened)
        try:
            await asyncio.gather(*tasks)
        finally:
            await _close(opened, tasks)

    def _start(
        self,
        work: Callable[[Load, Connection, int], Awaitable[None]],
        connections: Sequence[Connection],
    ) -> list[asyncio.Task[None]]:
        async def guarded(connection: Connection, lane: int) -> None:
            try:
                await work(self._load, connection, lane)
            except _FAILURES as failure:
                self._load.errors.append(f"connection {lane}: {failure!r}")

        return [asyncio.create_task(guarded(each, lane)) for lane, each in enumerate(connections)]


class _Window:
    """The measured part of a run."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.tally = Tally()
        self.seconds = math.nan
        self.server_seconds = math.nan
        self.follower_seconds = math.nan
        self.client_seconds = math.nan
        self.resident_mib = math.nan
        self._pid = endpoint.pid
        self._followers = endpoint.followers

    def begin(self, load: Load) -> None:
        """Count from now."""
        load.tally = self.tally = Tally()
        self._cost = self._read()
        self._follower_began = self._follower_mean()
        self._client_began = time.process_time()
        self._began = time.perf_counter()

    def end(self, load: Load) -> None:
        """Count until now."""
        self.seconds = time.perf_counter() - self._began
        self.client_seconds = time.process_time() - self._client_began
        cost = self._read()
        self.follower_seconds = self._follower_mean() - self._follower_began
        load.tally = Tally()
        if cost is not None and self._cost is not None:
            self.server_seconds = cost.processor_seconds - self._cost.processor_seconds
            self.resident_mib = cost.resident_mib

    def _read(self) -> Cost | None:
        """The server's cost so far, None if it is not measured."""
        return None if self._pid is None else read_cost(self._pid)

    def _follower_mean(self) -> float:
        seconds = [read_cost(pid).processor_seconds for pid in self._followers]
        return mean(seconds) if seconds else math.nan


async def _close(connections: Sequence[Connection], tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for connection in connections:
        connection.close()


def _conclude(
    name: str,
    endpoint: Endpoint,
    connections: int,
    load: Load,
    window: _Window,
    *,
    lost: int | None,
) -> Measurement:
    tally = window.tally
    scenario = SCENARIOS[name]
    return Measurement(
        scenario=name,
        connections=connections,
        endpoint=endpoint.name,
        seconds=window.seconds,
        messages_per_second=_ratio(tally.messages, window.seconds),
        latency_of=scenario.latency_of,
        p50_ms=tally.quantile_ms(scenario.latency_of, 0.5),
        p99_ms=tally.quantile_ms(scenario.latency_of, 0.99),
        cpu_us_per_message=_ratio(1e6 * window.server_seconds, tally.messages),
        follower_cpu_us_per_message=_ratio(1e6 * window.follower_seconds, tally.messages),
        resident_mib=window.resident_mib,
        client_busy=_ratio(window.client_seconds, window.seconds),
        errors=len(load.errors),
        duplicates=load.duplicates,
        lost=lost,
        actions={
            each: {
                "count": len(durations),
                "p50_ms": tally.quantile_ms(each, 0.5),
                "p99_ms": tally.quantile_ms(each, 0.99),
            }
            for each, durations in list(tally.seconds.items())
        },
        complaints=load.errors[:3],
    )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
