"""The cost of policies: `python -m compat_tests.benchmarks.policies`.

Lives of messages (send, receive, delete) in alternating bursts, in a queue without tags and in one
with a priority, limits of length and a time to live; with a priority in each message, beside an
attribute that means nothing. Then, as in `size`, a high message behind a backlog of low ones, and a
million scheduled messages: their memory, and how late they come. The exit status is 1 if a bound is
exceeded.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from functools import partial
from typing import Any, NamedTuple

from compat_tests.benchmarks import size
from compat_tests.benchmarks.bench_services import beside_one
from compat_tests.benchmarks.bench_wire import Connection, Endpoint, connect
from compat_tests.benchmarks.server_cost import read_cost
from compat_tests.node_process import NodeProcess

LIFE_MAX = 1.15
"""Processor time of a life with tags, beside one without."""
_TAGS = {
    "holdfast:priority": "weighted",
    "holdfast:max-messages": "1000000",
    "holdfast:max-bytes": "1000000000",
    "holdfast:ttl": "3600",
}
_BODY = "x" * 100
_LIFE, _OF_SIZE = "life", ("priority", "scheduled")


class _Way(NamedTuple):
    """A queue and its messages."""

    name: str
    tags: dict[str, str]
    attribute: str | None

    def send(self, url: str) -> bytes:
        """A SendMessage."""
        members: dict[str, Any] = {"QueueUrl": url, "MessageBody": _BODY}
        if self.attribute:
            value = {"DataType": "Number", "StringValue": "7"}
            members["MessageAttributes"] = {self.attribute: value}
        return json.dumps(members).encode()


_PAIRS = (
    (_Way("no tags", {}, None), _Way("tags", _TAGS, None)),
    (
        _Way("no tags, an attribute", {}, "ordinary.priority"),
        _Way("tags, a priority", _TAGS, "holdfast.priority"),
    ),
)


async def _live(connection: Connection, send: bytes, url: str) -> int:
    """Send a message, receive one and delete it; returns how many were deleted."""
    await connection.call("SendMessage", send)
    receive = json.dumps({"QueueUrl": url}).encode()
    found = json.loads(await connection.call("ReceiveMessage", receive)).get("Messages", [])
    for message in found:
        delete = {"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"]}
        await connection.call("DeleteMessage", json.dumps(delete).encode())
    return len(found)


async def _burst(
    way: _Way, url: str, pid: int, connections: list[Connection], seconds: float
) -> tuple[float, int]:
    """The processor seconds of the server, and the lives."""
    until, lives = time.perf_counter() + seconds, 0
    send = way.send(url)

    async def repeat(connection: Connection) -> None:
        nonlocal lives
        while time.perf_counter() < until:
            lived = await _live(connection, send, url)
            lives += lived

    before = read_cost(pid).processor_seconds
    await asyncio.gather(*map(repeat, connections))
    return read_cost(pid).processor_seconds - before, lives


async def _lives(node: NodeProcess, options: argparse.Namespace) -> dict[str, float]:
    """The processor time of a life in all bursts of a way, in microseconds."""
    endpoint = Endpoint("holdfast", node.url, node.credentials, node.pid)
    connections = await connect(endpoint, options.connections)
    ways = [way for pair in _PAIRS for way in pair]
    urls = {}
    for number, way in enumerate(ways):
        members = json.dumps({"QueueName": f"q{number}", "tags": way.tags}).encode()
        urls[way.name] = json.loads(await connections[0].call("CreateQueue", members))["QueueUrl"]
    seconds = dict.fromkeys(urls, 0.0)
    lives = dict.fromkeys(urls, 0)
    for number in range(options.rounds):
        for way in ways if number % 2 == 0 else reversed(ways):
            name = way.name
            spent, lived = await _burst(way, urls[name], node.pid, connections, options.seconds)
            seconds[name] += spent
            lives[name] += lived
    for connection in connections:
        connection.close()
    return {name: seconds[name] / lives[name] * 1e6 for name in urls}


def _life_is_kept(options: argparse.Namespace) -> bool:
    """Measure lives and print them; True if they are within their bound."""
    found = beside_one(partial(_lives, options=options), "--durability", options.durability)
    is_kept = True
    for plain, tagged in _PAIRS:
        ratio = found[tagged.name] / found[plain.name]
        is_kept &= ratio <= LIFE_MAX
        sys.stdout.write(
            f"life: {plain.name} {found[plain.name]:.0f} us of the server, "
            f"{tagged.name} {found[tagged.name]:.0f} us: {ratio:.2f} x, "
            f"at most {LIFE_MAX}\n"
        )
        sys.stdout.flush()
    return is_kept


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("cases", nargs="*", default=[_LIFE, *_OF_SIZE])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--durability", default="os")
    parser.add_argument("--low", type=int, default=10_000_000, help="low messages of the backlog")
    options = parser.parse_args()
    is_kept = _LIFE not in options.cases or _life_is_kept(options)
    of_size = [case for case in _OF_SIZE if case in options.cases]
    is_kept &= not of_size or size.are_kept(of_size, [options.low], options.durability)
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
