"""The services of the comparison: processes on loopback with their files in a temporary folder."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from compat_tests.benchmarks import elasticmq, goaws, static_answer
from compat_tests.benchmarks.bench_wire import Endpoint
from compat_tests.cluster_process import HOSTS, ClusterProcess
from compat_tests.facade import Credentials
from compat_tests.node_process import NodeProcess, environment
from compat_tests.ports import free_ports

T = TypeVar("T")

HOLDFAST = {
    "holdfast-fsync": ("--durability", "fsync"),
    "holdfast-fsync-again": ("--durability", "fsync"),
    "holdfast-fsync-python": ("--durability", "fsync"),
    "holdfast-os": ("--durability", "os"),
    "holdfast-memory": ("--durability", "memory"),
    "holdfast-fsync-open": ("--durability", "fsync", "--auth", "open"),
    "holdfast-os-open": ("--durability", "os", "--auth", "open"),
    "holdfast-memory-open": ("--durability", "memory", "--auth", "open"),
}
"""The second is the first once more: their ratio is the machine's noise. The third runs without the
native module."""
ELASTICMQ = ("elasticmq", "elasticmq-h2")
"""In memory, and with its storage of messages, an H2 database."""

CLUSTER = "holdfast-cluster"
"""Three hosts and etcd with one shard; clients ask the host that leads it."""

SERVICES = (*HOLDFAST, "goaws", *ELASTICMQ, *static_answer.SERVERS, "moto")
"""The services of a full comparison; the hosts of a cluster would disturb the others."""

_START_SECONDS = 60.0
_STOP_SECONDS = 10.0
_MOTO_CREDENTIALS = Credentials("any", "any", "us-east-1")
"""Moto checks no signature, but reads from it which AWS service the request is for."""


@contextmanager
def running(names: Sequence[str]) -> Iterator[list[Endpoint]]:
    """Start the services; leave out those that this machine cannot run, with a message."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-bench-")))
        endpoints = []
        for name in names:
            start = _cluster if name == CLUSTER else _holdfast if name in HOLDFAST else _peer
            try:
                endpoints.append(stack.enter_context(start(name, folder / name)))
            except elasticmq.NotHere as reason:
                print(f"{name} is left out: {reason}", file=sys.stderr, flush=True)
        yield endpoints


def beside_one(measured: Callable[[NodeProcess], Coroutine[Any, Any, T]], *arguments: str) -> T:
    """Start a Holdfast with these arguments on a folder of its own, and measure it."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        node = NodeProcess(Path(folder) / "data", *arguments)
        try:
            node.start()
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                found = runner.run(measured(node))
            node.stop()
        finally:
            node.close()
    return found


@contextmanager
def _cluster(name: str, folder: Path) -> Iterator[Endpoint]:
    process = ClusterProcess(folder, variables={"HOLDFAST_SHARDS": "1"})
    try:
        process.start()
        process.parts.wait_until_healthy(process.credentials)
        leader, found = process.parts.leader(), process.parts.cluster()
        followers = tuple(found.processes[host] for host in HOSTS if host != leader)
        url, pid = found.hosts[leader], found.processes[leader]
        yield Endpoint(name, url, process.credentials, pid, followers=followers)
        process.stop()
    finally:
        process.close()


@contextmanager
def _holdfast(name: str, folder: Path) -> Iterator[Endpoint]:
    variables = {"HOLDFAST_NATIVE": "off"} if name.endswith("-python") else None
    node = NodeProcess(folder, *HOLDFAST[name], variables=variables)
    try:
        node.start()
        credentials = None if "open" in HOLDFAST[name] else node.credentials
        yield Endpoint(name, node.url, credentials, node.pid)
        node.stop()
    finally:
        node.close()


@contextmanager
def _peer(name: str, folder: Path) -> Iterator[Endpoint]:
    folder.mkdir()
    (port,) = free_ports(1)
    command, variables = _command(name, port, folder)
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, env=environment() | variables, stdout=log, stderr=log)
    try:
        _wait_until_open(port, process)
        credentials = _MOTO_CREDENTIALS if name == "moto" else None
        is_static = name in static_answer.SERVERS
        url = f"http://127.0.0.1:{port}"
        protocols = (goaws.PROTOCOL,) if name == "goaws" else ("json",)
        yield Endpoint(
            name, url, credentials, process.pid, protocols=protocols, is_static=is_static
        )
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End it by a signal on which it ends its own processes, too."""
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _command(name: str, port: int, folder: Path) -> tuple[list[str], dict[str, str]]:
    """The command that starts a service on this port, and its variables. Raises NotHere."""
    if name in static_answer.SERVERS:
        return static_answer.command(name, port), static_answer.variables()
    if name == "goaws":
        return goaws.command(folder, port), {}
    return _moto(port) if name == "moto" else _elasticmq(port, folder, name), {}


def _moto(port: int) -> list[str]:
    return [sys.executable, "-m", "moto.server", "--port", str(port)]


def _elasticmq(port: int, folder: Path, name: str) -> list[str]:
    settings = {
        "rest-sqs.bind-hostname": "127.0.0.1",
        "rest-sqs.bind-port": str(port),
        "node-address.host": "127.0.0.1",
        "node-address.port": str(port),
    }
    if name == "elasticmq-h2":
        settings["messages-storage.enabled"] = "true"
        settings["messages-storage.uri"] = f"jdbc:h2:{folder / 'messages'}"
    return elasticmq.command(settings)


def _wait_until_open(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"it did not start: {process.args!r}")
