"""The first view of a dead-letter queue's failures: `python -m compat_tests.benchmarks.inbox`.

A node on a fresh folder gets many dead letters of a few kinds. Measured are the time until all are
counted and noted; then, after `kill -9` and after a stop, the time from the start's end to an exact
view, by request and in a browser; one id that is looked for in the browser, over a slow connection;
and a redrive of 5,000. The exit status is 1 if an exact view takes longer than its bound.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compat_tests.benchmarks.bench_wire import Connection, Endpoint, connect
from compat_tests.benchmarks.inbox_views import LATENCY_MS, find, first_view_s
from compat_tests.benchmarks.server_cost import read_cost
from compat_tests.node_process import NodeProcess
from compat_tests.pages import ask
from compat_tests.screen_sheets import ANY_KEY

EXACT_SECONDS_MAX = 2.0
_KINDS = ("TaxLookup", "CardDeclined", "NoSuchUser")
_REDRIVEN, _REDRIVES = "Redriven", 5_000
_BATCH, _CONNECTIONS = 10, 8
_QUIET_S = 10.0
_LATEST_S = 1_200.0
"""A view that is not exact by then is a fault."""
_ACCOUNT = "000000000000"


def _body(number: int, every: int) -> str:
    kind = _REDRIVEN if number % every == 0 else _KINDS[number % len(_KINDS)]
    return json.dumps({"order": number, "error": {"type": kind, "message": f"order {number}"}})


async def _fill(endpoint: Endpoint, messages: int) -> str:
    """Send them; returns the id of one that lies after two thirds of the others."""
    connections = await connect(endpoint, _CONNECTIONS)
    calls = iter(range(messages // _BATCH))
    wanted = messages // _BATCH * 2 // 3
    found = ""

    async def send(connection: Connection, calls: Iterator[int]) -> None:
        nonlocal found
        for call in calls:
            entries = [
                {
                    "Id": str(at),
                    "MessageBody": _body(call * _BATCH + at, max(1, messages // _REDRIVES)),
                }
                for at in range(_BATCH)
            ]
            content = {"QueueUrl": f"{endpoint.url}/{_ACCOUNT}/dead", "Entries": entries}
            answer = await connection.call("SendMessageBatch", json.dumps(content).encode())
            if call == wanted:
                found = json.loads(answer)["Successful"][0]["MessageId"]

    queue = {"QueueName": "dead"}
    await connections[0].call("CreateQueue", json.dumps(queue).encode())
    target = f"arn:aws:sqs:us-east-1:{_ACCOUNT}:dead"
    policy = json.dumps({"deadLetterTargetArn": target, "maxReceiveCount": 1})
    source = {"QueueName": "source", "Attributes": {"RedrivePolicy": policy}}
    await connections[0].call("CreateQueue", json.dumps(source).encode())
    await asyncio.gather(*(send(connection, calls) for connection in connections))
    for connection in connections:
        connection.close()
    return found


def _view(node: NodeProcess) -> dict[str, Any]:
    status, found = ask(node.url, node.credentials, "api/queues/dead/failures")
    assert status == 200, found
    return dict(found)


def _exact(node: NodeProcess, what: str, messages: int) -> float:
    """Seconds until a view is exact; the first one is told, too."""
    begun_s, views, first = time.perf_counter(), 0, ""
    while True:
        found = _view(node)
        views += 1
        took_s = time.perf_counter() - begun_s
        first = first or f"{found['messages']:,} of {found['stored']:,} in {took_s:.2f} s"
        if found["is_exact"] and found["messages"] == messages:
            break
        assert took_s < _LATEST_S, found
        time.sleep(0.05)
    _say(f"{what}: first view {first}, exact after {took_s:.2f} s ({views} views)")
    return took_s


def _look(node: NodeProcess, messages: int, message_id: str) -> float:
    """Look at it in a browser; returns the seconds of a view."""
    first_s, again_s = first_view_s(node.url, "dead", messages)
    _say(f"in a browser: first view {first_s:.2f} s, then {again_s:.2f} s")
    seconds, requests, looked_at = find(node.url, "dead", message_id)
    _say(
        f"an id found in {seconds:.1f} s with {requests} requests over {LATENCY_MS} ms: {looked_at}"
    )
    _say(f"{read_cost(node.pid).resident_mib:.0f} MiB")
    return again_s


def _redrive(node: NodeProcess) -> int:
    """Redrive the messages of one failure; returns their number."""
    found = _view(node)
    chosen = next(
        each for each in found["failures"] if any(_REDRIVEN in s["value"] for s in each["signs"])
    )
    filter_ = {"failure": chosen["id"]}
    content = {"filter": filter_, "destination": "source", "reason": "mended"}
    begun_s, spent = time.perf_counter(), read_cost(node.pid).processor_seconds
    page = "api/queues/dead/redrives"
    status, said = ask(node.url, node.credentials, page, content)
    assert status == 200, said
    while (redrive := ask(node.url, node.credentials, page)[1]["redrives"][0])["is_active"]:
        time.sleep(0.05)
    assert redrive["moved"] == chosen["messages"], redrive
    time.sleep(_QUIET_S)  # notes are part of the cost
    spent = read_cost(node.pid).processor_seconds - spent
    took_s = time.perf_counter() - begun_s - _QUIET_S
    _say(f"redrive of {chosen['messages']:,}: {took_s:.2f} s, {spent:.2f} s of the processor")
    return int(chosen["messages"])


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="on a disk; a temporary one by default")
    options = parser.parse_args()
    messages = options.messages
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        node = NodeProcess(Path(folder), "--auth", "open", credentials=ANY_KEY).start()
        try:
            begun_s = time.perf_counter()
            wanted = asyncio.run(_fill(Endpoint("holdfast", node.url, None, node.pid), messages))
            _say(f"{messages:,} sent in {time.perf_counter() - begun_s:.0f} s")
            _exact(node, "counted", messages)
            time.sleep(_QUIET_S + messages / 60_000)  # eight spans are noted each half second
            slowest_s = 0.0
            for what, end in (("after kill -9", node.kill), ("after a stop", node.stop)):
                end()
                begun_s = time.perf_counter()
                node.start()
                started_s = time.perf_counter() - begun_s
                _say(f"started in {started_s:.2f} s, {read_cost(node.pid).resident_mib:.0f} MiB")
                slowest_s = max(slowest_s, _exact(node, what, messages))
            slowest_s = max(slowest_s, _look(node, messages, wanted))
            messages -= _redrive(node)
            node.kill()
            node.start()
            slowest_s = max(slowest_s, _exact(node, "after kill -9", messages))
        finally:
            node.close()
    return 0 if slowest_s <= EXACT_SECONDS_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
