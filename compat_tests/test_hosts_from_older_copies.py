"""The folders of all hosts of a cluster are put back from older copies, beside etcd as it is."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from compat_tests.clients.boto3_client import connect
from compat_tests.cluster_process import HOSTS, ClusterProcess
from compat_tests.facade import eventually
from compat_tests.node_process import NodeProcess, run_command

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "COMPAT_ENDPOINT" in os.environ, reason="aimed at a service that this suite did not start"
    ),
]


LOST = ("not in them", "nor this one", "nor the last one")


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


def test_entries_that_only_one_host_still_has_are_read_and_given_up(tmp_path: Path) -> None:
    """The runbook's way: two hosts were put back from older copies while the third was away."""
    *others, kept = HOSTS
    cluster = ClusterProcess(tmp_path).start()
    try:
        folder, key = cluster.data, cluster.credentials
        asked = ("--data", str(folder / others[0]))
        _lose_entries(cluster, others, kept, tmp_path)

        told = f"on host {kept} has acknowledged entries that the others lost"
        eventually(lambda: told in run_command("cluster", "status", *asked).stdout)
        waited = run_command("cluster", "wait", kept, "--timeout", "5s", *asked)
        assert "its copy has entries that the others lost" in waited.stdout
        assert run_command("cluster", "status", *asked).returncode == 1

        with cluster.parts.not_starting(cluster.pid):
            cluster.parts.signal(kept, signal.SIGKILL)
            shutil.move(folder / kept, tmp_path / "away")
            (folder / kept).mkdir()
        _done("cluster", "wait", kept, *asked)
        cluster.parts.wait_until_healthy(key)
        _done("backup", str(tmp_path / "backup"), *asked)
        master_key = ("--master-key-file", str(tmp_path / "master.key"))
        shutil.copy(folder / "master.key", tmp_path / "master.key")
    finally:
        cluster.close()

    records = tmp_path / "records"
    _done("restore", str(tmp_path / "backup"), "--single", *master_key, "--data", str(records))
    shutil.copy(records / "records.sqlite", tmp_path / "away" / "records.sqlite")
    _done("salvage", str(tmp_path / "away"), "--data", str(tmp_path / "new"))
    alone = NodeProcess(tmp_path, *master_key, data=tmp_path / "new", credentials=key).start()
    try:
        client = connect(alone.url, key)
        url = client.get_queue_url(QueueName="orders")["QueueUrl"]
        found = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=5)
        assert {each["Body"] for each in found["Messages"]} == {"in the copies", *LOST}
    finally:
        alone.close()


def _lose_entries(cluster: ClusterProcess, others: list[str], kept: str, copies: Path) -> None:
    """Have all hosts acknowledge messages that then only one has, which was away meanwhile."""
    folder, parts = cluster.data, cluster.parts
    client = connect(cluster.url, cluster.credentials)
    url = client.create_queue(QueueName="orders")["QueueUrl"]
    client.send_message(QueueUrl=url, MessageBody="in the copies")
    parts.wait_until_healthy(cluster.credentials)
    for host in others:
        pid = parts.signal(host, signal.SIGSTOP)
        shutil.copytree(folder / host, copies / host)
        os.kill(pid, signal.SIGCONT)
    parts.wait_until_all_are_ready()
    for body in LOST:  # each tells the hosts that those before are committed
        client.send_message(QueueUrl=url, MessageBody=body)
    parts.wait_until_healthy(cluster.credentials)  # the third has them, too
    with parts.not_starting(cluster.pid):
        for host in HOSTS:
            parts.signal(host, signal.SIGKILL)
        for host in others:
            shutil.rmtree(folder / host)
            shutil.move(copies / host, folder / host)
        shutil.move(folder / kept, copies / kept)
        (folder / kept).write_text("in the way of a start")
    for host in others:
        parts.wait_until_ready(host)
    client = connect(parts.cluster().hosts[others[0]], cluster.credentials)
    client.send_message(QueueUrl=url, MessageBody="sent since")
    (folder / kept).unlink()
    shutil.move(copies / kept, folder / kept)


def _done(*arguments: str) -> None:
    """Run a command that succeeds."""
    done = run_command(*arguments)
    assert done.returncode == 0, done.stderr
