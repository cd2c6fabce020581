"""Backup, restore, verify and salvage of a service with several workers, of which one is killed in
the middle: a command that could not finish says so, and the next one has everything."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat_tests.clients.boto3_client import Boto3Client
from compat_tests.facade import eventually
from compat_tests.node_process import NodeProcess, command, environment, run_command
from compat_tests.workers import worker_of

pytestmark = pytest.mark.slow
_QUEUES = 4
_BATCHES = 20
_ATTEMPTS = 5
_AGAIN_S = 45
"""Less than the minute for which a worker holds still if nobody tells it to go on."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A service with two workers, and messages in a queue of each shard."""
    node = NodeProcess(tmp_path / "node", "--workers", "2").start()
    client = Boto3Client(node.url, node.credentials)
    for number in range(_QUEUES):
        url = client.call("CreateQueue", QueueName=f"q{number}")["QueueUrl"]
        for batch in range(_BATCHES):
            entries = [
                {"Id": f"{each}", "MessageBody": f"{batch} {each} " + "x" * 2000}
                for each in range(10)
            ]
            client.call("SendMessageBatch", QueueUrl=url, Entries=entries)
    client.close()
    yield node
    node.close()


def _stored(node: NodeProcess) -> list[int]:
    """The messages of each queue."""
    client = Boto3Client(node.url, node.credentials)
    found: list[int] = []
    for number in range(_QUEUES):
        url = client.call("GetQueueUrl", QueueName=f"q{number}")["QueueUrl"]
        asked = client.call(
            "GetQueueAttributes", QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"]
        )
        found.append(int(asked["Attributes"]["ApproximateNumberOfMessages"]))
    client.close()
    return found


def _served(tmp_path: Path, data: Path, node: NodeProcess, workers: str) -> list[int]:
    """The messages of each queue of a folder, as it serves them."""
    other = NodeProcess(
        tmp_path / f"of-{data.name}",
        "--workers",
        workers,
        data=data,
        credentials=node.credentials,
    ).start()
    try:
        return _stored(other)
    finally:
        other.close()


def test_a_backup_of_which_a_worker_is_killed_is_whole_or_says_so(
    node: NodeProcess, tmp_path: Path
) -> None:
    chance = random.Random(1)
    whole = [10 * _BATCHES] * _QUEUES
    for attempt in range(_ATTEMPTS):
        target = tmp_path / f"backup-{attempt}"
        asked = command("backup", str(target), "--data", str(node.data))
        backup = subprocess.Popen(
            asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
        )
        eventually(
            lambda backup=backup, target=target: (  # type: ignore[misc]
                target.exists() or backup.poll() is not None
            ),
        )
        time.sleep(chance.random() * 0.1)
        killed = worker_of(node, attempt % 2)
        if killed:
            os.kill(killed, signal.SIGKILL)
        _, errors = backup.communicate(timeout=120)
        restored = tmp_path / f"restored-{attempt}"
        restore = run_command("restore", str(target), "--data", str(restored))
        if backup.returncode:
            assert len(errors.strip().splitlines()) == 1, errors
        else:
            assert restore.returncode == 0, restore.stderr
        if restore.returncode == 0:  # the killed worker may have been the one that was asked only
            assert run_command("verify", str(restored)).returncode == 0
        eventually(
            lambda attempt=attempt, killed=killed: (  # type: ignore[misc]
                worker_of(node, attempt % 2) not in (0, killed)
            ),
        )

    last = tmp_path / "last"
    complete = ("backup", str(last), "--data", str(node.data), "--with-master-key")
    eventually(lambda: run_command(*complete).returncode == 0, within=_AGAIN_S)
    restored = tmp_path / "restored-last"
    assert run_command("restore", str(last), "--data", str(restored)).returncode == 0
    assert run_command("verify", str(restored)).returncode == 0
    assert _served(tmp_path, restored, node, "2") == whole
    assert _stored(node) == whole


@pytest.mark.parametrize("workers", ["2", "1"])
def test_a_folder_of_killed_workers_is_verified_and_salvaged_whole(
    node: NodeProcess, tmp_path: Path, workers: str
) -> None:
    node.kill()
    assert len(list(node.data.glob("shard-?"))) == 2
    eventually(lambda: run_command("verify", str(node.data)).returncode == 0)
    salvaged = tmp_path / "salvaged"
    done = run_command("salvage", str(node.data), "--data", str(salvaged))
    assert done.returncode == 0, done.stderr
    assert run_command("verify", str(salvaged)).returncode == 0
    assert _served(tmp_path, salvaged, node, workers) == [10 * _BATCHES] * _QUEUES
