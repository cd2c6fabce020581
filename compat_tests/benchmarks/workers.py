"""Figures of several workers on one machine, for `fleet.py`.

workers  messages that two workers take on cores of their own, times those of one
hop      processor time of a request that one worker passes on to another

Server and clients share the cores of this machine, so both follow from the processor time of all
processes of a service for a message, in alternating bursts: two cores take twice as many messages
if a message costs the same. Each client has connections and a queue of its own, and the queues are
led by different workers; they are measured once the connections have moved to these.

A connection that asks for both queues in turn stays where it is, and half of its requests are
passed on; of one that has moved, none is.
"""

from __future__ import annotations

import asyncio
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import uvloop

from compat_tests.benchmarks.figures import Figure
from compat_tests.benchmarks.load import BATCH, Load
from compat_tests.benchmarks.server_cost import read_cost
from compat_tests.benchmarks.wire import Connection, Endpoint, connect
from compat_tests.node_process import NodeProcess

TIMES_MIN = 1.7
HOP_US_MAX = 8.0
_CLIENTS = 2
_CONNECTIONS = 64
"""Of a client."""
_SETTLE_S, _BURST_S = 8.0, 1.0
_ROUNDS = 12


class _Client(NamedTuple):
    load: Load
    connections: list[Connection]


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


class _Service:
    """A service and its clients."""

    def __init__(self, stack: ExitStack, workers: int) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-bench-")))
        self._node = NodeProcess(folder, "--workers", str(workers))
        stack.callback(self._node.close)
        self._node.start()
        self.clients: list[_Client] = []

    async def open(self) -> None:
        """Make the clients, and let their connections move."""
        endpoint = Endpoint("holdfast", self._node.url, self._node.credentials, self._node.pid)
        for _ in range(_CLIENTS):
            load = Load(f"bench-{secrets.token_hex(4)}")
            connections = await connect(endpoint, _CONNECTIONS)
            await load.create_queue(connections[0])
            self.clients.append(_Client(load, connections))
        for work in _WORKS.values():
            await self.burst(work, _SETTLE_S)

    async def burst(
        self, work: _Work, seconds: float = _BURST_S, *, in_turn: bool = False
    ) -> float:
        """Work on all connections, each with the queue of its client, or with all queues in turn;
        returns the processor time for a message, in microseconds."""
        loads = [client.load for client in self.clients]
        until, messages = time.perf_counter() + seconds, 0

        async def repeat(place: int, connection: Connection) -> None:
            nonlocal messages
            while time.perf_counter() < until:
                done = await work(loads[place % len(loads)], connection)
                messages += done
                place += in_turn

        before = read_cost(self._node.pid).processor_seconds
        await asyncio.gather(
            *(
                repeat(place, connection)
                for place, client in enumerate(self.clients)
                for connection in client.connections
            )
        )
        return (read_cost(self._node.pid).processor_seconds - before) / messages * 1e6

    def close(self) -> None:
        """Close the connections."""
        for client in self.clients:
            for connection in client.connections:
                connection.close()


def _run(measured: Callable[[ExitStack], Awaitable[list[Figure]]]) -> list[Figure]:
    async def run() -> list[Figure]:
        with ExitStack() as stack:
            return await measured(stack)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


async def _workers(stack: ExitStack) -> list[Figure]:
    services = [_Service(stack, count) for count in (1, 2)]
    for service in services:
        await service.open()
        stack.callback(service.close)
    figures = []
    for name, work in _WORKS.items():
        found: list[list[float]] = [[], []]
        for number in range(_ROUNDS):
            for each in (0, 1) if number % 2 else (1, 0):
                found[each].append(await services[each].burst(work))
        one, two = map(statistics.median, found)
        times = [2 * a / b for a, b in zip(*found, strict=True)]
        sys.stdout.write(f"  {name}: one worker {one:.1f} us, two {two:.1f} us\n")
        figure = Figure(f"workers: {name}", statistics.median(times), "x", TIMES_MIN, at_least=True)
        figures.append(figure)
    return figures


async def _hop(stack: ExitStack) -> list[Figure]:
    service = _Service(stack, 2)
    await service.open()
    stack.callback(service.close)
    found: dict[bool, list[float]] = {False: [], True: []}
    for number in range(2 * _ROUNDS):
        for in_turn in (False, True) if number % 2 else (True, False):
            found[in_turn].append(await service.burst(_send, in_turn=in_turn))
    right, half = map(statistics.median, found.values())
    more = statistics.median(2 * (b - a) for a, b in zip(*found.values(), strict=True))
    said = f"a send that lands right {right:.1f} us, with half of them passed on {half:.1f}"
    sys.stdout.write(f"  {said} us\n")
    return [Figure("hop: a send that is passed on, beside one that is not", more, "us", HOP_US_MAX)]


workers = partial(_run, _workers)
hop = partial(_run, _hop)
