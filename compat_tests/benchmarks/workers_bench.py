"""Figures of several workers on one machine, for `fleet.py`.

workers  messages that two workers take on cores of their own, times those of one
hop      processor time of a request that one worker passes on to another

Server and clients share the cores of this machine, so both follow from the processor time of all
processes of a service for a message, in alternating bursts: two cores take twice as many messages
if a message costs the same. Each client is a process with connections and a queue of its own, and
the queues are led by different workers; they are measured once the connections have moved there.
Two workers and two clients are more processes than this machine has cores, and take them from each
other about once a life, which two workers on cores of their own would not meet. So they are
measured with one client after the other, too, each at its own worker.

A connection that asks for both queues in turn stays where it is, and half of its requests are
passed on; of one that has moved, none is.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import NamedTuple

import uvloop

from compat_tests.benchmarks.bench_wire import Connection, Endpoint, connect
from compat_tests.benchmarks.figures import Figure
from compat_tests.benchmarks.load import BATCH, Load
from compat_tests.benchmarks.server_cost import read_cost
from compat_tests.node_process import NodeProcess

TIMES_MIN = 1.7
HOP_US_MAX = 8.0
_CLIENTS = 2
_CONNECTIONS = 64
"""Of a client."""
_SETTLE_S, _BURST_S, _END_S = 8.0, 1.0, 10.0
_ROUNDS = 12
_NICE = 5


_Work = Callable[[Load, Connection], Awaitable[int]]


async def _send(load: Load, connection: Connection) -> int:
    await load.send(connection)
    return 1


async def _send_batch(load: Load, connection: Connection) -> int:
    await load.send_batch(connection)
    return BATCH


async def _live(load: Load, connection: Connection) -> int:
    await load.send(connection)
    deliveries = await load.receive(connection, 1)
    for delivery in deliveries:
        await load.delete(connection, delivery)
    return len(deliveries)


_WORKS: dict[str, _Work] = {"lives": _live, "sends": _send, "batches of 10": _send_batch}


class _Burst(NamedTuple):
    """A task of the clients."""

    work: str
    seconds: float
    in_turn: bool
    """Each connection asks for all queues in turn, else for that of its client."""


def _be_client(pipe: Pipe, endpoint: Endpoint, names: list[str], own: int) -> None:
    """The process of a client: does the bursts that it is told, and tells the messages of each."""

    async def serve() -> None:
        connections = await connect(endpoint, _CONNECTIONS)
        loads = [Load(name) for name in names]
        for load in loads:
            await load.create_queue(connections[0])
        while (burst := await asyncio.to_thread(pipe.recv)) is not None:
            pipe.send(await _do(burst, connections, loads, own))
        for connection in connections:
            connection.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())


async def _do(burst: _Burst, connections: list[Connection], loads: list[Load], own: int) -> int:
    until, messages, work = time.perf_counter() + burst.seconds, 0, _WORKS[burst.work]

    async def repeat(connection: Connection) -> None:
        nonlocal messages
        place = own
        while time.perf_counter() < until:
            done = await work(loads[place % len(loads)], connection)
            messages += done
            place += burst.in_turn

    await asyncio.gather(*map(repeat, connections))
    return messages


class _Service:
    """A service and its clients, which are processes of a higher priority: so it never waits for
    them."""

    def __init__(self, stack: ExitStack, workers: int) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-bench-")))
        self._node = NodeProcess(folder, "--workers", str(workers))
        stack.callback(self._node.close)
        self._node.start()
        for pid in self._node.processes():
            for task in Path(f"/proc/{pid}/task").iterdir():
                os.setpriority(os.PRIO_PROCESS, int(task.name), _NICE)
        endpoint = Endpoint("holdfast", self._node.url, self._node.credentials, self._node.pid)
        names = [f"bench-{secrets.token_hex(4)}" for _ in range(_CLIENTS)]
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_make_queues(endpoint, names))
        self._pipes: list[Pipe] = []
        context = multiprocessing.get_context("spawn")
        for own in range(_CLIENTS):
            ours, theirs = context.Pipe()
            arguments = (theirs, endpoint, names, own)
            process = context.Process(target=_be_client, args=arguments, daemon=True)
            process.start()
            self._pipes.append(ours)
            stack.callback(process.join, _END_S)
            stack.callback(ours.send, None)
        for work in _WORKS:
            self.burst(work, _SETTLE_S)

    def burst(
        self,
        work: str,
        seconds: float = _BURST_S,
        *,
        in_turn: bool = False,
        at_once: bool = True,
    ) -> float:
        """Have the clients work, all `at_once` or one after the other; returns the processor time
        of the service for a message, in microseconds."""
        before, messages = read_cost(self._node.pid).processor_seconds, 0
        for pipes in (self._pipes,) if at_once else ([each] for each in self._pipes):
            for pipe in pipes:
                pipe.send(_Burst(work, seconds, in_turn))
            messages += sum(pipe.recv() for pipe in pipes)
        return (read_cost(self._node.pid).processor_seconds - before) / messages * 1e6


async def _make_queues(endpoint: Endpoint, names: list[str]) -> None:
    """In this order, so that different workers lead them."""
    (connection,) = await connect(endpoint, 1)
    for name in names:
        await Load(name).create_queue(connection)
    connection.close()


def workers() -> list[Figure]:
    """The messages that two workers take, times those of one, of each kind of work."""
    figures = []
    with ExitStack() as stack:
        one, two = (_Service(stack, count) for count in (1, 2))
        ways: dict[str, Callable[[str], float]] = {
            "one worker": one.burst,
            "two": two.burst,
            "two, one after the other": partial(two.burst, at_once=False),
        }
        for work in _WORKS:
            found: dict[str, list[float]] = {way: [] for way in ways}
            for number in range(_ROUNDS):
                for way in list(ways) if number % 2 else reversed(ways):
                    found[way].append(ways[way](work))
            said = (f"{way} {statistics.median(each):.1f} us" for way, each in found.items())
            sys.stdout.write(f"  {work}: {', '.join(said)}\n")
            base = found.pop("one worker")
            for way, each in found.items():
                times = statistics.median(2 * a / b for a, b in zip(base, each, strict=True))
                name = f"workers: {work}{way.removeprefix('two')}"
                figures.append(Figure(name, times, "x", TIMES_MIN, at_least=True))
    return figures


def hop() -> list[Figure]:
    """The time of a send that is passed on, both workers together, beyond that of one that is
    not."""
    found: dict[bool, list[float]] = {False: [], True: []}
    with ExitStack() as stack:
        service = _Service(stack, 2)
        for number in range(2 * _ROUNDS):
            for in_turn in (False, True) if number % 2 else (True, False):
                found[in_turn].append(service.burst("sends", in_turn=in_turn))
    right, half = map(statistics.median, found.values())
    more = statistics.median(2 * (b - a) for a, b in zip(*found.values(), strict=True))
    said = f"a send that lands right {right:.1f} us, with half of them passed on {half:.1f}"
    sys.stdout.write(f"  {said} us\n")
    return [Figure("hop: a send that is passed on, beside one that is not", more, "us", HOP_US_MAX)]
