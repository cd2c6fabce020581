"""The archive of three hosts: any host is asked, the leader writes, and a failover repeats
nothing."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compat_tests import pages
from compat_tests.clients.boto3_client import Boto3Client
from compat_tests.cluster_process import HOSTS, ClusterProcess

pytestmark = pytest.mark.slow


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def cluster(tmp_path: Path, lake: Path) -> Iterator[ClusterProcess]:
    variables = {
        "HOLDFAST_SHARDS": "1",
        "HOLDFAST_LAKE": str(lake),
        "HOLDFAST_ARCHIVE_SEAL_S": "3600",
        "HOLDFAST_SNAPSHOT_EVERY_S": "0",
    }
    process = ClusterProcess(tmp_path / "cluster", variables=variables).start()
    yield process
    process.close()


def _shard(cluster: ClusterProcess, host: str, page: str, content: object = None) -> Any:
    """The one shard's part of a page of the archive, asked of this host."""
    url = cluster.parts.cluster().hosts[host]
    status, answer = pages.ask(url, cluster.credentials, page, content)
    assert status == 200, answer
    (shard,) = answer["shards"]
    return shard


def _batch(cluster: ClusterProcess, host: str) -> int:
    """Bring what waits to the lake by asking this host."""
    return int(_shard(cluster, host, "archive/seal", {})["batch"])


def _archive(cluster: ClusterProcess, host: str, queue: str) -> None:
    """Send a message, and delete it, which hands it to the archive."""
    client = Boto3Client(cluster.parts.cluster().hosts[host], cluster.credentials)
    url = client.call("CreateQueue", QueueName=queue, tags={"holdfast:archive": "all"})["QueueUrl"]
    client.call("SendMessage", QueueUrl=url, MessageBody="x")
    (message,) = client.call("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=5)["Messages"]
    client.call("DeleteMessage", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    client.close()


def _found(cluster: ClusterProcess, host: str, queue: str) -> str:
    """The place of the one message that this host finds in the archive."""
    url = cluster.parts.cluster().hosts[host]
    status, page = pages.ask(url, cluster.credentials, f"api/archive/{queue}/messages")
    assert status == 200, page
    (message,) = page["messages"]
    return str(message["place"])


def _replayed(cluster: ClusterProcess, host: str, queue: str) -> int:
    """The copies that this host sends of all archived messages."""
    url, path = cluster.parts.cluster().hosts[host], f"api/archive/{queue}/replays"
    status, step = pages.ask(url, cluster.credentials, path, {"filter": {}})
    assert status == 200, step
    return len(step["copies"])


def _segments(lake: Path) -> dict[str, tuple[int, int]]:
    """The segments in the lake, with inode and time of change: both tell if one was replaced."""
    found = {file.name: file.stat() for file in lake.glob("segments/*/shard-0/*")}
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in found.items()}


def _waiting(cluster: ClusterProcess, host: str) -> Any:
    shard = _shard(cluster, host, "archive")
    return shard["source"], shard["sealed"], shard["messages"]


def test_any_host_is_asked_and_no_segment_is_written_twice(
    cluster: ClusterProcess, lake: Path
) -> None:
    _archive(cluster, "a", "before")
    assert [_batch(cluster, host) for host in HOSTS] == [1, 1, 1]
    before = _segments(lake)
    assert len(before) == 1
    shown = [_waiting(cluster, host) for host in HOSTS]
    assert shown == [(shown[0][0], 1, 1)] * 3
    places = {_found(cluster, host, "before") for host in HOSTS}
    assert len(places) == 1
    assert [_replayed(cluster, host, "before") for host in HOSTS] == [1, 1, 1]

    killed = cluster.parts.leader()
    others = tuple(host for host in HOSTS if host != killed)
    with cluster.parts.not_starting(cluster.pid):
        pid = cluster.parts.signal(killed, signal.SIGKILL)
        _archive(cluster, others[0], "after")  # held until another host leads
        assert [_batch(cluster, host) for host in others] == [2, 2]
        assert cluster.parts.leader() in others
    after = _segments(lake)
    assert len(after) == 2
    assert before.items() <= after.items()
    cluster.parts.wait_for_another(killed, pid)
    cluster.parts.wait_until_ready(killed)
    assert _batch(cluster, killed) == 2
    assert _segments(lake) == after
