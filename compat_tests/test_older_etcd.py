"""An etcd from before a queue was made: the next queue is another one, and has none of its
messages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compat_tests.clients.boto3_client import connect
from compat_tests.cluster_process import HOSTS, MEMBERS, ClusterProcess

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


@pytest.fixture
def restored(tmp_path: Path) -> Iterator[ClusterProcess]:
    """A cluster over the data that etcd had before the queues `lost-...` were made."""
    first = ClusterProcess(tmp_path).start()
    _client(first, "a").create_queue(QueueName="kept")
    first.stop()
    snapshot = tmp_path / "snapshot"
    for member in MEMBERS:
        shutil.copytree(first.data / member, snapshot / member)

    second = ClusterProcess(tmp_path, credentials=first.credentials).start()
    client = _client(second, "a")
    for number in range(3):
        made = client.create_queue(QueueName=f"lost-{number}", Attributes=UNSEALED)["QueueUrl"]
        client.send_message(QueueUrl=made, MessageBody="an order")
    second.stop()
    for member in MEMBERS:
        shutil.rmtree(first.data / member)
        shutil.copytree(snapshot / member, first.data / member)

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
