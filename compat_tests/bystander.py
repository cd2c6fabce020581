"""A client with a queue of its own, in a separate process, that measures the latency of its
calls."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time
from contextlib import suppress
from multiprocessing.connection import Connection as Pipe
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import NamedTuple

from compat_tests.benchmarks.bench_wire import Connection, Endpoint, connect

PAUSE_SECONDS = 0.004


class Waits(NamedTuple):
    """Its measurements, in seconds, in order of time."""

    whole: list[float]
    """From a call to its answer."""

    own: list[float]
    """The same without the time in which server or client was ready to run but the machine was
    busy."""


class Bystander:
    """Sends, receives and deletes, one call at a time, until it is stopped."""

    def __init__(self, endpoint: Endpoint, queue_url: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._end: Event = context.Event()
        self._report, theirs = context.Pipe()
        arguments = (endpoint, queue_url, self._end, theirs)
        self._process = context.Process(target=_main, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def finish(self) -> Waits:
        """Stop it and return its measurements. Raises EOFError if it died."""
        self._end.set()
        waits: Waits = self._report.recv()
        self._process.join(60)
        return waits


def _main(endpoint: Endpoint, queue_url: str, end: Event, report: Pipe) -> None:
    report.send(asyncio.run(_watch(endpoint, queue_url, end)))
    report.close()


async def _watch(endpoint: Endpoint, queue_url: str, end: Event) -> Waits:
    (connection,) = await connect(endpoint, 1)
    waits = Waits([], [])
    calls = _Calls(connection, waits, endpoint.pid)
    while not end.is_set():
        await calls.call("SendMessage", {"QueueUrl": queue_url, "MessageBody": "bystander"})
        answer = await calls.call("ReceiveMessage", {"QueueUrl": queue_url})
        for message in json.loads(answer).get("Messages", []):
            handle = message["ReceiptHandle"]
            await calls.call("DeleteMessage", {"QueueUrl": queue_url, "ReceiptHandle": handle})
        await asyncio.sleep(PAUSE_SECONDS)
    connection.close()
    return waits


class _Calls:
    def __init__(self, connection: Connection, waits: Waits, server: int | None) -> None:
        self._connection = connection
        self._waits = waits
        self._watched = ["self"] if server is None else ["self", str(server)]

    async def call(self, action: str, members: dict[str, str]) -> bytes:
        body = json.dumps(members).encode()
        held_up = self._held_up_s()
        begun = time.perf_counter()
        answer = await self._connection.call(action, body)
        taken = time.perf_counter() - begun
        self._waits.whole.append(taken)
        self._waits.own.append(max(0.0, taken - (self._held_up_s() - held_up)))
        return answer

    def _held_up_s(self) -> float:
        """Seconds for which the two processes' main threads have waited for a processor; 0 if
        unknown."""
        total = 0
        for process in self._watched:
            with suppress(OSError):
                total += int(Path(f"/proc/{process}/schedstat").read_text().split()[1])
        return total / 1e9
