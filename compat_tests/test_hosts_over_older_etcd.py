"""An etcd from before a queue was made: the next queue is another one, and has none of its
messages. One from before queues were split and moved: all their messages are served."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from compat_tests.clients.boto3_client import connect
from compat_tests.cluster_process import HOSTS, MEMBERS, ClusterProcess
from compat_tests.facade import eventually
from compat_tests.node_process import run_command

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "COMPAT_ENDPOINT" in os.environ, reason="aimed at a service that this suite did not start"
    ),
]
UNSEALED = {"SqsManagedSseEnabled": "false"}
"""The keys of sealed messages may be lost, too."""


def _client(cluster: ClusterProcess, host: str) -> Any:
    url = cluster.parts.cluster().hosts[host]
    return connect(url, cluster.credentials, retries={"total_max_attempts": 5})


def keep_snapshot(cluster: ClusterProcess) -> None:
    """Keep what etcd stores, while nothing runs."""
    for member in MEMBERS:
        shutil.copytree(cluster.data / member, cluster.data.parent / "snapshot" / member)


def restore_snapshot(cluster: ClusterProcess) -> None:
    """Let etcd store what it did then."""
    for member in MEMBERS:
        shutil.rmtree(cluster.data / member)
        shutil.copytree(cluster.data.parent / "snapshot" / member, cluster.data / member)


@pytest.fixture
def restored(tmp_path: Path) -> Iterator[ClusterProcess]:
    """A cluster over the data that etcd had before the queues `lost-...` were made."""
    first = ClusterProcess(tmp_path).start()
    _client(first, "a").create_queue(QueueName="kept")
    first.stop()
    keep_snapshot(first)

    second = ClusterProcess(tmp_path, credentials=first.credentials).start()
    client = _client(second, "a")
    for number in range(3):
        made = client.create_queue(QueueName=f"lost-{number}", Attributes=UNSEALED)["QueueUrl"]
        client.send_message(QueueUrl=made, MessageBody="an order")
    second.stop()
    restore_snapshot(second)

    configuration = tmp_path / "holdfast.toml"
    configuration.write_text('[[queues]]\nname = "declared"\n')
    third = ClusterProcess(
        tmp_path,
        credentials=first.credentials,
        variables={"HOLDFAST_CONFIG": str(configuration)},
    ).start()
    yield third
    third.close()


def test_new_queues_have_no_messages_of_those_that_etcd_does_not_know(
    restored: ClusterProcess,
) -> None:
    client = _client(restored, "b")
    names = {url.rsplit("/", 1)[1] for url in client.list_queues()["QueueUrls"]}
    assert names == {"declared", "kept"}

    for name in ("declared", "audit-0", "audit-1", "audit-2"):
        url = client.create_queue(QueueName=name)["QueueUrl"]
        assert "Messages" not in client.receive_message(QueueUrl=url, WaitTimeSeconds=1), name

    logs = [(restored.data / f"{host}.log").read_text() for host in HOSTS]
    assert any("queue_ids_raised" in log for log in logs)


def _runs(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


@contextmanager
def without_etcd(cluster: ClusterProcess) -> Iterator[None]:
    """Hosts go on, and etcd is down meanwhile."""
    parts = cluster.parts
    with parts.not_starting(cluster.pid):
        pids = {member: parts.signal(member, signal.SIGKILL) for member in MEMBERS}
        eventually(lambda: not any(map(_runs, pids.values())))
        yield
    for member, pid in pids.items():
        parts.wait_for_another(member, pid)
    parts.wait_until_all_are_ready()


SPLIT, MOVED = "split", "moved"
PARTS, MESSAGES = 3, 30


def _fleet(cluster: ClusterProcess, *words: str) -> Any:
    done = run_command("fleet", *words, "--json", "--data", str(cluster.data / "a"))
    assert done.returncode == 0 or words == ("status",), done.stderr  # 1: it names problems
    return json.loads(done.stdout)


def _send(client: Any, name: str) -> set[str]:
    """Send messages to a queue; returns their bodies."""
    url = client.get_queue_url(QueueName=name)["QueueUrl"]
    bodies = {f"{name} {number} {os.urandom(4).hex()}" for number in range(MESSAGES)}
    for body in bodies:
        client.send_message(QueueUrl=url, MessageBody=body)
    return bodies


def _served(client: Any, name: str, expected: set[str]) -> set[str]:
    """The bodies that a queue gives out; the messages are deleted."""
    url = client.get_queue_url(QueueName=name)["QueueUrl"]
    found: set[str] = set()

    def received() -> bool:
        answer = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1)
        for message in answer.get("Messages", []):
            found.add(message["Body"])
            client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return found >= expected

    eventually(received)
    return found


def _parts(cluster: ClusterProcess, name: str) -> set[tuple[int, int, str]]:
    shown = _fleet(cluster, "parts", name)["parts"]
    return {(part["number"], part["shard"], part["state"]) for part in shown}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    process = ClusterProcess(tmp_path)
    yield process.start()
    process.close()


def test_queues_that_were_split_and_moved_later_lose_no_message(cluster: ClusterProcess) -> None:
    client = _client(cluster, "a")
    for name in (SPLIT, MOVED):
        client.create_queue(QueueName=name, Attributes=UNSEALED)
    before = {name: _send(client, name) for name in (SPLIT, MOVED)}
    cluster.stop()
    keep_snapshot(cluster)

    client = _client(cluster.start(), "a")
    _fleet(cluster, "split", SPLIT, "--parts", str(PARTS))
    ((_, shard, _),) = _parts(cluster, MOVED)
    _fleet(cluster, "move", MOVED, "--shard", str((shard + 1) % 3))
    sent = {name: before[name] | _send(client, name) for name in (SPLIT, MOVED)}
    parts = {name: _parts(cluster, name) for name in (SPLIT, MOVED)}
    assert [len(each) for each in parts.values()] == [PARTS, 2]
    cluster.stop()
    restore_snapshot(cluster)

    client = _client(cluster.start(), "b")
    assert {name: _parts(cluster, name) for name in sent} == parts
    for name, bodies in sent.items():
        assert _served(client, name, bodies) == bodies
    logs = [(cluster.data / f"{host}.log").read_text() for host in HOSTS]
    assert any("parts_written_back" in log for log in logs)

    _fleet(cluster, "split", SPLIT, "--parts", str(PARTS + 1))
    bodies = _send(client, SPLIT)
    assert _served(client, SPLIT, bodies) == bodies


def test_hosts_that_go_on_while_etcd_is_restored_serve_all_messages(
    cluster: ClusterProcess,
) -> None:
    client = _client(cluster, "a")
    for name in (SPLIT, MOVED):
        client.create_queue(QueueName=name, Attributes=UNSEALED)
    before = {name: _send(client, name) for name in (SPLIT, MOVED)}
    with without_etcd(cluster):
        keep_snapshot(cluster)

    _fleet(cluster, "split", SPLIT, "--parts", str(PARTS))
    ((_, shard, _),) = _parts(cluster, MOVED)
    _fleet(cluster, "move", MOVED, "--shard", str((shard + 1) % 3))
    sent = {name: before[name] | _send(client, name) for name in (SPLIT, MOVED)}
    parts = {name: _parts(cluster, name) for name in (SPLIT, MOVED)}
    with without_etcd(cluster):
        restore_snapshot(cluster)

    eventually(lambda: {name: _parts(cluster, name) for name in sent} == parts)
    for name, bodies in sent.items():
        assert _served(client, name, bodies) == bodies
    logs = [(cluster.data / f"{host}.log").read_text() for host in HOSTS]
    assert any("parts_written_back" in log for log in logs)
    eventually(lambda: not _fleet(cluster, "status")["problems"])
    _fleet(cluster, "split", SPLIT, "--parts", str(PARTS + 1))
    bodies = _send(client, SPLIT)
    assert _served(client, SPLIT, bodies) == bodies
