"""The scenarios: the work of one connection until the load stops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from compat_tests.benchmarks.bench_wire import Connection
from compat_tests.benchmarks.load import BATCH, SEND_TO_ARRIVAL, Load

RECEIVERS = 8  # of the long polls
SENDS_PER_SECOND = 500  # to the long polls
GROUPS = 1_000
_POLL_SECONDS = 20
_LIFE = "life"
_EMPTY_MAX = 200  # empty receives in a row before a drain gives up; the check judges the rest
_EMPTY_REST_SECONDS = 0.005


class Scenario(NamedTuple):
    """One kind of load."""

    work: Callable[[Load, Connection, int], Awaitable[None]]
    """Runs on every connection; the last argument numbers the connections from 0."""

    title: str
    """The name of the work in the table of results."""

    latency_of: str
    """The action whose latency the table shows."""

    connections: tuple[int, ...] = (32,)
    """Numbers of connections; a separate run for each."""

    fixed: bool = False
    """The command line does not change the number of connections."""

    groups: int = 0
    """Message groups of the FIFO queue; 0: the queue is a standard one."""


async def _send(load: Load, connection: Connection, lane: int) -> None:
    while load.running:
        await load.send(connection)
        load.tally.messages += 1


async def _send_batch(load: Load, connection: Connection, lane: int) -> None:
    while load.running:
        await load.send_batch(connection)
        load.tally.messages += BATCH


async def _live_single(load: Load, connection: Connection, lane: int) -> None:
    while load.running:
        begin = time.perf_counter()
        await load.send(connection)
        for delivery in await load.receive(connection, 1):
            await load.delete(connection, delivery)
            load.tally.messages += 1
        load.tally.seconds[_LIFE].append(time.perf_counter() - begin)


async def _live_in_batches(load: Load, connection: Connection, lane: int) -> None:
    while load.running:
        begin = time.perf_counter()
        await load.send_batch(connection)
        deliveries = await load.receive(connection, BATCH)
        if deliveries:
            await load.delete_batch(connection, deliveries)
            load.tally.messages += len(deliveries)
        load.tally.seconds[_LIFE].append(time.perf_counter() - begin)


async def _poll_long(load: Load, connection: Connection, lane: int) -> None:
    """The first connection sends at a steady rate, the others wait for messages."""
    if lane == 0:
        await _send_steadily(load, connection)
        return
    while load.running:
        for delivery in await load.receive(connection, 1, wait_seconds=_POLL_SECONDS):
            await load.delete(connection, delivery)
            load.tally.messages += 1


async def _send_steadily(load: Load, connection: Connection) -> None:
    due = time.perf_counter()
    while load.running:
        await load.send(connection)
        due += 1 / SENDS_PER_SECOND
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
    for _ in range(RECEIVERS):  # one farewell each, so that no poll keeps waiting
        await load.send(connection)


async def drain(load: Load, connection: Connection, lane: int) -> None:
    """Receive and delete until every acknowledged message has arrived, or no more arrive."""
    empty = 0
    while len(load.received) < len(load.acknowledged) and empty < _EMPTY_MAX:
        deliveries = await load.receive(connection, BATCH)
        if deliveries:
            await load.delete_batch(connection, deliveries)
            load.tally.messages += len(deliveries)
            empty = 0
        else:
            empty += 1
            await asyncio.sleep(_EMPTY_REST_SECONDS)


SCENARIOS = {
    "send": Scenario(_send, "SendMessage", "SendMessage", connections=(32, 256, 1)),
    "sendbatch10": Scenario(_send_batch, "SendMessageBatch of 10", "SendMessageBatch"),
    "life-single": Scenario(_live_single, "send, receive, delete", _LIFE),
    "life-batch": Scenario(_live_in_batches, "the same, in batches of 10", _LIFE),
    "life-fifo": Scenario(_live_single, f"the same, FIFO, {GROUPS:,} groups", _LIFE, groups=GROUPS),
    "long-poll": Scenario(
        _poll_long,
        f"long polls, {SENDS_PER_SECOND} sends a second",
        SEND_TO_ARRIVAL,
        connections=(1 + RECEIVERS,),
        fixed=True,
    ),
}
