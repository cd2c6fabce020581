"""Figures of a fleet: `python -m compat_tests.benchmarks.fleet gateway idle polls pause workers`.

Measures what was named, in this order; the first four in two clusters of three hosts with a gateway
and etcd on this machine, as `make fleet` starts them:

gateway  start and memory of a gateway that knows 100,000 queues, with etcd and without
idle     processor time of all processes while nobody asks anything
polls    from a send to its arrival at a poll of 20 s, on a queue of 16 parts beside one of one part
pause    the longest sends to a queue that is split and shrunk under load
workers  messages that two workers of one machine take, beside one, see `workers_bench.py`
hop      processor time of a request that one worker passes on to another

The exit status is 1 if a bound below is exceeded.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from compat_tests.benchmarks.bench_wire import Connection, Endpoint, Refused, connect
from compat_tests.benchmarks.figures import Figure
from compat_tests.benchmarks.server_cost import read_cost
from compat_tests.benchmarks.workers_bench import hop, workers
from compat_tests.cluster_process import GATEWAY, MEMBERS
from compat_tests.facade import ClientError
from compat_tests.fleet_process import FleetProcess
from compat_tests.node_process import run_command

START_S_MAX, MEMORY_MIB_MAX = 10.0, 600.0
IDLE_CORES_MAX = 0.10
BEYOND_MS_MAX = 5.0
PAUSE_MS_MAX = 250.0

_QUEUES = 100_000
_AT_ONCE = 100
"""Records of a transaction; etcd takes 128."""
_SETTLED_S, _IDLE_S = 20.0, 30.0
_PARTS = 16
_SENT = 300
_ROUNDS = 5
"""Each leaves three parts that drain for ten minutes, and a queue has at most 16."""
_SENDERS = 8


# -- a gateway of many queues ----------------------------------------------------------------------


def gateway(fleet: FleetProcess) -> list[Figure]:
    """Queues are copied in etcd's records: creating them one by one would take many minutes."""
    client = fleet.client(GATEWAY)
    client.call("CreateQueue", QueueName="first", Attributes={"VisibilityTimeout": "31"})
    _copy_queues(fleet)
    last = f"copy-{_QUEUES - 2}"
    asked = {"QueueUrl": _url(fleet.parts.cluster().hosts[GATEWAY], client, "first", last)}
    _until(lambda: client.call("GetQueueAttributes", **asked), 120.0)
    table = fleet.data / GATEWAY / "records" / "catalog.table"
    _until(lambda: _assert(last.encode() in table.read_bytes()), 180.0)
    figures = _start(fleet, "with etcd", lambda: client.call("GetQueueAttributes", **asked))
    with fleet.stopped(*MEMBERS):
        figures += _start(fleet, "without", lambda: client.call("GetQueueAttributes", **asked))
    return figures


def _start(fleet: FleetProcess, how: str, ask: Callable[[], Any]) -> list[Figure]:
    pid = fleet.parts.signal(GATEWAY, signal.SIGKILL)
    fleet.parts.wait_for_another(GATEWAY, pid)
    begun, before = time.monotonic(), _etcd_seconds(fleet)
    fleet.parts.wait_until_ready(GATEWAY)
    _until(ask, 60.0)
    took_s = time.monotonic() - begun
    cost, of_etcd = read_cost(fleet.parts.cluster().processes[GATEWAY]), _etcd_seconds(fleet)
    memory = cost.resident_mib
    spent = f"{cost.processor_seconds:.1f} s of the gateway, {of_etcd - before:.1f} s of etcd"
    sys.stdout.write(f"  {how}: processor time {spent}\n")
    return [
        Figure(f"gateway, {how}: start to first answer", took_s, "s", START_S_MAX),
        Figure(f"gateway, {how}: memory", memory, "MiB", MEMORY_MIB_MAX),
    ]


def _etcd_seconds(fleet: FleetProcess) -> float:
    processes = fleet.parts.cluster().processes
    return sum(read_cost(processes[member]).processor_seconds for member in MEMBERS)


def _copy_queues(fleet: FleetProcess) -> None:
    """Write the record of the queue `first` under other names and ids."""
    start = b"holdfast/holdfast/catalog/queues/"
    (found,) = _etcd(fleet, "kv/range", {"key": _b64(start), "range_end": _b64(start[:-1] + b"0")})[
        "kvs"
    ]
    key, value = base64.b64decode(found["key"]), json.loads(base64.b64decode(found["value"]))
    first_id, prefix = int(value["queue_id"]), key.rpartition(b"/")[0]
    for begin in range(0, _QUEUES - 1, _AT_ONCE):
        puts = []
        for number in range(begin, min(begin + _AT_ONCE, _QUEUES - 1)):
            name = f"copy-{number}"
            copied = {**value, "name": name, "queue_id": first_id + 1 + number, "shard": number % 6}
            content = json.dumps(copied).encode()
            puts.append(_put(prefix + b"/" + name.encode(), content))
        last_id = str(first_id + 1 + begin + len(puts)).encode()
        puts.append(_put(b"holdfast/holdfast/catalog/ids/queue", last_id))
        _etcd(fleet, "kv/txn", {"success": puts})


def _put(key: bytes, value: bytes) -> dict[str, Any]:
    return {"requestPut": {"key": _b64(key), "value": _b64(value)}}


def _b64(text: bytes) -> str:
    return base64.b64encode(text).decode()


def _etcd(fleet: FleetProcess, page: str, asked: dict[str, Any]) -> Any:
    url = f"{fleet.parts.etcd_url(MEMBERS[0])}/v3/{page}"
    request = Request(url, json.dumps(asked).encode())
    with urlopen(request, timeout=30, context=fleet.parts.etcd_tls()) as answer:
        return json.load(answer)


def _url(host: str, client: Any, known: str, name: str) -> str:
    url = str(client.call("GetQueueUrl", QueueName=known)["QueueUrl"])
    return f"{url.rpartition('/')[0]}/{name}"


def _until(ask: Callable[[], Any], seconds: float) -> Any:
    """Ask until it is answered."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return ask()
        except (ClientError, AssertionError, OSError):
            if time.monotonic() > deadline:
                raise
        time.sleep(0.02)


def _assert(is_so: bool) -> None:
    assert is_so


# -- nothing to do ---------------------------------------------------------------------------------


def idle(fleet: FleetProcess) -> list[Figure]:
    """All processes together, the launcher, etcd and the balancer among them."""
    time.sleep(_SETTLED_S)
    before = _seconds_of(fleet)
    time.sleep(_IDLE_S)
    after = _seconds_of(fleet)
    for name in sorted(after):
        spent = 100 * (after[name] - before[name]) / _IDLE_S
        sys.stdout.write(f"  {name}: {spent:.2f} % of a core\n")
    cores = (sum(after.values()) - sum(before.values())) / _IDLE_S
    return [Figure("idle: all processes", 100 * cores, "% of a core", 100 * IDLE_CORES_MAX)]


def _seconds_of(fleet: FleetProcess) -> dict[str, float]:
    named = {
        name: read_cost(pid).processor_seconds
        for name, pid in fleet.parts.cluster().processes.items()
    }
    whole = read_cost(fleet.pid).processor_seconds
    return {**named, "launcher": whole - sum(named.values())}


# -- polls and pauses ------------------------------------------------------------------------------


def polls(fleet: FleetProcess) -> list[Figure]:
    """Both queues in turn, so that both meet the same load of the machine."""
    endpoint = _endpoint(fleet)
    one, many = (_made(fleet, name) for name in ("one", "many"))
    _resize(fleet, "split", "many", _PARTS)
    found = asyncio.run(_polled(endpoint, (one, many)))
    p50 = [1000 * statistics.median(found[url]) for url in (one, many)]
    sys.stdout.write(f"  one part {p50[0]:.1f} ms, {_PARTS} parts {p50[1]:.1f} ms\n")
    name = f"polls: {_PARTS} parts beyond one, p50"
    return [Figure(name, p50[1] - p50[0], "ms", BEYOND_MS_MAX)]


async def _polled(endpoint: Endpoint, urls: tuple[str, str]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {url: [] for url in urls}
    poller, sender = await connect(endpoint, 2)
    for number in range(_SENT):
        url = urls[number % 2]
        asked = {"QueueUrl": url, "WaitTimeSeconds": 20, "VisibilityTimeout": 300}
        waiting = asyncio.create_task(_call(poller, "ReceiveMessage", asked))
        await asyncio.sleep(0.1)
        begun = time.monotonic()
        await _call(sender, "SendMessage", {"QueueUrl": url, "MessageBody": "x"})
        (message,) = (await waiting)["Messages"]
        found[url].append(time.monotonic() - begun)
        handle = message["ReceiptHandle"]
        await _call(sender, "DeleteMessage", {"QueueUrl": url, "ReceiptHandle": handle})
    return found


def pause(fleet: FleetProcess) -> list[Figure]:
    """Sends at each moment of a split or a shrink, without repeats by the client."""
    endpoint, url = _endpoint(fleet), _made(fleet, "hot")
    return asyncio.run(_paused(fleet, endpoint, url))


async def _paused(fleet: FleetProcess, endpoint: Endpoint, url: str) -> list[Figure]:
    taken: list[tuple[float, float]] = []
    failed: list[str] = []
    changes: list[tuple[float, float]] = []
    is_over = asyncio.Event()

    async def send(connection: Connection) -> None:
        while not is_over.is_set():
            begun = time.monotonic()
            try:
                await _call(connection, "SendMessage", {"QueueUrl": url, "MessageBody": "x"})
            except (Refused, OSError) as error:
                failed.append(str(error))
            taken.append((begun, time.monotonic()))
            await asyncio.sleep(0.01)

    async def take(connection: Connection) -> None:
        asked = {"QueueUrl": url, "MaxNumberOfMessages": 10, "WaitTimeSeconds": 1}
        while not is_over.is_set():
            found = (await _call(connection, "ReceiveMessage", asked)).get("Messages", [])
            entries = [
                {"Id": str(n), "ReceiptHandle": each["ReceiptHandle"]}
                for n, each in enumerate(found)
            ]
            if entries:
                await _call(connection, "DeleteMessageBatch", {"QueueUrl": url, "Entries": entries})

    connections = await connect(endpoint, _SENDERS + 4)
    tasks = [asyncio.create_task(send(each)) for each in connections[:_SENDERS]]
    tasks += [asyncio.create_task(take(each)) for each in connections[_SENDERS:]]
    for _ in range(_ROUNDS):
        for action, count in (("split", 4), ("shrink", 1)):
            begun = time.monotonic()
            await asyncio.to_thread(_resize, fleet, action, "hot", count)
            await asyncio.sleep(1.0)
            changes.append((begun, time.monotonic()))
    is_over.set()
    await asyncio.gather(*tasks)
    within = sorted(
        1000 * (ended - begun)
        for begun, ended in taken
        if any(begun < last and ended > first for first, last in changes)
    )
    slow = within[int(len(within) * 0.999)]
    said = f"p50 {within[len(within) // 2]:.1f} ms, greatest {within[-1]:.1f} ms"
    sys.stdout.write(f"  {len(within)} sends in {len(changes)} changes, {said}\n")
    sys.stdout.writelines(f"  {line}\n" for line in failed[:5])
    return [
        Figure("pause: a send, p99.9", slow, "ms", PAUSE_MS_MAX),
        Figure("pause: failed sends", float(len(failed)), "", 0.0),
    ]


def _endpoint(fleet: FleetProcess) -> Endpoint:
    return Endpoint("holdfast", fleet.url, fleet.credentials, None)


def _made(fleet: FleetProcess, name: str) -> str:
    return str(fleet.client(GATEWAY).call("CreateQueue", QueueName=name)["QueueUrl"])


def _resize(fleet: FleetProcess, action: str, queue: str, parts: int) -> None:
    words = ("fleet", action, queue, "--parts", str(parts), "--data", str(fleet.data / "a"))
    done = run_command(*words)
    assert done.returncode == 0, done.stderr


async def _call(connection: Connection, action: str, members: dict[str, Any]) -> dict[str, Any]:
    answer = await connection.call(action, json.dumps(members).encode())
    found: dict[str, Any] = json.loads(answer) if answer else {}
    return found


# -- command line ----------------------------------------------------------------------------------


def main() -> int:
    """Run from the command line; exits with 1 if a bound is exceeded."""
    parser = argparse.ArgumentParser(description="figures of a fleet on this machine")
    parser.add_argument("measured", nargs="*", help=f"some of {', '.join(MEASURED)}; else all")
    asked = parser.parse_args().measured or list(MEASURED)
    if not set(asked) <= MEASURED.keys():
        parser.error(f"there are {', '.join(MEASURED)}")
    figures: list[Figure] = []
    for name, measure in MEASURED.items():
        if name in asked:
            figures += measure()
    sys.stdout.writelines(f"{each}\n" for each in figures)
    return 0 if all(each.is_kept for each in figures) else 1


def _in_a_fleet(measure: Callable[[FleetProcess], list[Figure]]) -> list[Figure]:
    """In a new one: what one measurement leaves would be the load of the next."""
    with tempfile.TemporaryDirectory() as folder:
        fleet = FleetProcess(Path(folder), "--aws-waits", "off")
        try:
            return measure(fleet.start())
        finally:
            with suppress(AssertionError):
                fleet.stop()
            fleet.close()


MEASURED: dict[str, Callable[[], list[Figure]]] = {
    "gateway": partial(_in_a_fleet, gateway),
    "idle": partial(_in_a_fleet, idle),
    "polls": partial(_in_a_fleet, polls),
    "pause": partial(_in_a_fleet, pause),
    "workers": workers,
    "hop": hop,
}

if __name__ == "__main__":
    sys.exit(main())
