"""The cost of open consoles: `python -m compat_tests.benchmarks.consoles`.

Lives of messages (send, receive, delete) in alternating bursts: while three tabs of a browser show
the queues, the failures of a dead-letter queue, and its messages, and while none does. What is
compared is the processor time of the server for a life; it answers the tabs in the same time. The
exit status is 1 above the bound.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from compat_tests.benchmarks.bench_wire import Connection, Endpoint, connect
from compat_tests.benchmarks.policies import live
from compat_tests.benchmarks.server_cost import read_cost
from compat_tests.chromium import Tab, running
from compat_tests.console_world import make_dead_letters, sqs
from compat_tests.node_process import NodeProcess

LIFE_MAX = 1.05
_PLACES = ("/queues", "/queues/orders-dead", "/queues/orders-dead/messages")
_URL = "/000000000000/lived"


async def _burst(endpoint: Endpoint, connections: int, seconds: float) -> float:
    """Processor seconds of the server for a life."""
    assert endpoint.pid is not None
    opened = await connect(endpoint, connections)
    until, lives = time.perf_counter() + seconds, 0
    url = f"{endpoint.url}{_URL}"
    send = json.dumps({"QueueUrl": url, "MessageBody": "x" * 100}).encode()

    async def repeat(connection: Connection) -> None:
        nonlocal lives
        while time.perf_counter() < until:
            lived = await live(connection, send, url)
            lives += lived

    before = read_cost(endpoint.pid).processor_seconds
    await asyncio.gather(*map(repeat, opened))
    spent = read_cost(endpoint.pid).processor_seconds - before
    for connection in opened:
        connection.close()
    return spent / lives


def _pairs(node: NodeProcess, browser: Any, options: argparse.Namespace) -> list[float]:
    """The cost of a life with consoles, to that without, pair by pair."""
    endpoint = Endpoint("holdfast", node.url, None, node.pid)
    tabs = [Tab(browser, node.url) for _ in _PLACES]
    ratios = []
    with ThreadPoolExecutor(1) as apart:  # Playwright has this thread's event loop

        def life() -> float:
            burst = _burst(endpoint, options.connections, options.seconds)
            return apart.submit(asyncio.run, burst).result()

        for number in range(options.pairs + 1):
            costs = {}
            for are_open in (True, False) if number % 2 else (False, True):
                for tab, place in zip(tabs, _PLACES, strict=True):
                    if are_open:
                        tab.go(place)
                        tab.settle()
                    else:
                        tab.page.goto("about:blank")
                costs[are_open] = life()
            if number:  # the first warms up
                ratios.append(costs[True] / costs[False])
                sys.stdout.write(
                    f"{costs[True] * 1e6:.0f} us a life beside consoles, "
                    f"{costs[False] * 1e6:.0f} us without: {ratios[-1]:.2f} x\n"
                )
                sys.stdout.flush()
    return ratios


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--connections", type=int, default=16)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running() as browser:
        node = NodeProcess(Path(folder), "--auth", "open", "--durability", "os").start()
        try:
            client = sqs(node)
            client.create_queue(QueueName="lived")
            bodies = [json.dumps({"error": {"type": f"Kind{at % 4}"}}) for at in range(40)]
            make_dead_letters(client, "orders", *bodies)
            ratio = statistics.median(_pairs(node, browser, options))
        finally:
            node.close()
    sys.stdout.write(f"median {ratio:.3f} x, at most {LIFE_MAX}\n")
    return 0 if ratio <= LIFE_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
