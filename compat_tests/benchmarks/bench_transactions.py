"""The cost of transactions: `python -m compat_tests.benchmarks.bench_transactions`.

Starts a service of two shards, and sends two messages at a time in alternating bursts: as a batch,
as a transaction in one shard, and as one over both shards, each with a token of its own as SDKs
send it. Shows the server's processor time and the latency of each call. The exit status is 1 if a
transaction costs more than its bound beside a batch.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple
from uuid import uuid4

from compat_tests.benchmarks.bench_services import beside_one
from compat_tests.benchmarks.bench_wire import Connection, Endpoint, connect
from compat_tests.benchmarks.server_cost import read_cost
from compat_tests.node_process import NodeProcess
from compat_tests.pages import ask

ONE_SHARD_MAX, TWO_SHARDS_MAX = 1.5, 6.0
"""Processor time beside that of a batch."""
_QUEUES = 8
_BODY = "x" * 100
_TOKEN = b"@token"


class Way(NamedTuple):
    """One way to send two messages."""

    name: str
    action: str
    body: bytes
    """_TOKEN in it is replaced by another one in each call."""
    most: float
    """The bound of its cost beside a batch."""


class Round(NamedTuple):
    """The cost of one burst."""

    cpu_us: float
    p50_ms: float


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--connections", type=int, default=16)
    options = parser.parse_args()
    found = beside_one(partial(_measured, options=options), "--shards", "2")
    return 0 if _report(found) else 1


async def _measured(node: NodeProcess, options: argparse.Namespace) -> dict[Way, list[Round]]:
    endpoint = Endpoint("holdfast-fsync", node.url, node.credentials, node.pid)
    connections = await connect(endpoint, options.connections)
    try:
        ways = _ways(*await _two_queues(node, connections[0]))
        found: dict[Way, list[Round]] = {way: [] for way in ways}
        for number in range(options.rounds):
            for way in ways if number % 2 == 0 else reversed(ways):
                found[way].append(await _burst(way, node.pid, connections, options.seconds))
        return found
    finally:
        for connection in connections:
            connection.close()


async def _two_queues(node: NodeProcess, connection: Connection) -> tuple[str, str]:
    """The URLs of two queues in different shards."""
    urls: dict[int, str] = {}
    for number in range(_QUEUES):
        name = f"q{number}"
        made = await connection.call("CreateQueue", json.dumps({"QueueName": name}).encode())
        _, answer = await asyncio.to_thread(
            ask, node.url, node.credentials, f"api/queues/{name}/parts"
        )
        urls[answer["parts"][0]["shard"]] = json.loads(made)["QueueUrl"]
        if len(urls) == 2:
            first, second = urls.values()
            return first, second
    raise AssertionError("all queues are in one shard")


def _ways(first: str, second: str) -> list[Way]:
    def transaction(*urls: str) -> bytes:
        sends = [{"Send": {"QueueUrl": url, "MessageBody": _BODY}} for url in urls]
        asked = {"TransactItems": sends, "ClientRequestToken": _TOKEN.decode()}
        return json.dumps(asked).encode()

    entries = [{"Id": str(number), "MessageBody": _BODY} for number in range(2)]
    batch = json.dumps({"QueueUrl": first, "Entries": entries}).encode()
    action = "Holdfast.TransactMessages"
    return [
        Way("batch of two", "SendMessageBatch", batch, 1.0),
        Way("transaction in one shard", action, transaction(first, first), ONE_SHARD_MAX),
        Way("transaction over two shards", action, transaction(first, second), TWO_SHARDS_MAX),
    ]


async def _burst(way: Way, pid: int, connections: list[Connection], seconds: float) -> Round:
    taken: list[float] = []
    until = time.perf_counter() + seconds

    async def repeat(connection: Connection) -> None:
        while (begun := time.perf_counter()) < until:
            body = way.body.replace(_TOKEN, uuid4().hex.encode())
            await connection.call(way.action, body)
            taken.append(time.perf_counter() - begun)

    before = read_cost(pid).processor_seconds
    await asyncio.gather(*map(repeat, connections))
    spent = read_cost(pid).processor_seconds - before
    return Round(spent / len(taken) * 1e6, statistics.median(taken) * 1e3)


def _report(found: dict[Way, list[Round]]) -> bool:
    """Print the medians; True if all bounds are kept."""
    is_kept = True
    batches = next(iter(found.values()))

    def median(rounds: list[Round], of: Callable[[Round], float]) -> float:
        return statistics.median(map(of, rounds))

    for way, rounds in found.items():
        ratios = [one.cpu_us / batch.cpu_us for one, batch in zip(rounds, batches, strict=True)]
        ratio = statistics.median(ratios)
        is_kept &= ratio <= way.most
        sys.stdout.write(
            f"{way.name}: {median(rounds, lambda each: each.cpu_us):.0f} us of the server, "
            f"p50 {median(rounds, lambda each: each.p50_ms):.2f} ms; "
            f"{ratio:.2f} x a batch, at most {way.most}\n"
        )
    return is_kept


if __name__ == "__main__":
    sys.exit(main())
