"""The folders of all hosts of a cluster are put back from older copies, beside etcd as it is."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from compat_tests.clients.boto3_client import connect
from compat_tests.cluster_process import HOSTS, ClusterProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "COMPAT_ENDPOINT" in os.environ, reason="aimed at a service that this suite did not start"
    ),
]


def test_hosts_without_their_member_file_go_on_from_the_copies(tmp_path: Path) -> None:
    """The runbook's way, where such copies are all that is left. With the file they refuse."""
    first = ClusterProcess(tmp_path).start()
    client = connect(first.url, first.credentials)
    url = client.create_queue(QueueName="orders")["QueueUrl"]
    client.send_message(QueueUrl=url, MessageBody="in the copies")
    first.stop()
    for host in HOSTS:
        shutil.copytree(first.data / host, tmp_path / "copies" / host)

    later = ClusterProcess(tmp_path, credentials=first.credentials).start()
    client = connect(later.url, first.credentials)
    url = client.get_queue_url(QueueName="orders")["QueueUrl"]
    client.send_message(QueueUrl=url, MessageBody="not in them")
    client.create_queue(QueueName="made-since")
    later.stop()
    for host in HOSTS:
        shutil.rmtree(first.data / host)
        shutil.copytree(tmp_path / "copies" / host, first.data / host)
        (first.data / host / "member.json").unlink()

    again = ClusterProcess(tmp_path, credentials=first.credentials).start()
    try:
        again.parts.wait_until_healthy(first.credentials)
        client = connect(again.url, first.credentials)
        url = client.get_queue_url(QueueName="orders")["QueueUrl"]
        (message,) = client.receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]
        assert message["Body"] == "in the copies"
        url = client.get_queue_url(QueueName="made-since")["QueueUrl"]
        client.send_message(QueueUrl=url, MessageBody="new")
        (message,) = client.receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]
        assert message["Body"] == "new"
    finally:
        again.close()
