"""From boto3 through the lake and the table and back to boto3, by the commands of the guide."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from compat_tests.clients.boto3_client import Boto3Client
from compat_tests.conftest import NodeFactory
from compat_tests.facade import counts, eventually, receive
from compat_tests.lake_files import segments, waiting
from compat_tests.node_process import QUICK_JAVA, NodeProcess, command, environment
from compat_tests.test_archive import ATTRIBUTES, options, shown_attributes, used

pytestmark = pytest.mark.slow

_JOB_S = 240
RATE = 4
"""Messages of a replay that is killed, in a second and in a request."""
MINUTES = pytest.mark.skipif(
    "COMPAT_MINUTES" not in os.environ, reason="takes 62 s: set COMPAT_MINUTES"
)


def start(node: NodeProcess, *arguments: str) -> subprocess.Popen[str]:
    """Start a job, with the credentials of the service."""
    variables = {
        "AWS_ACCESS_KEY_ID": node.credentials.access_key_id,
        "AWS_SECRET_ACCESS_KEY": node.credentials.secret_access_key,
        "AWS_DEFAULT_REGION": node.credentials.region,
        "JDK_JAVA_OPTIONS": QUICK_JAVA,
    }
    return subprocess.Popen(
        command("jobs", *arguments, "--data", str(node.data), "--master", "local[2,4]"),
        env={**environment(), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def job(node: NodeProcess, *arguments: str) -> str:
    """The final message of a job, which must succeed."""
    process = start(node, *arguments)
    try:
        output, error = process.communicate(timeout=_JOB_S)
    finally:
        process.kill()
    assert process.returncode == 0, error
    assert output.count("\n") == 1
    return output


def kill_when(process: subprocess.Popen[str], reached: Callable[[], bool]) -> None:
    """End a job without warning when it has come to this point."""
    try:
        eventually(lambda: reached() or process.poll() is not None, within=_JOB_S)
        assert process.poll() is None, process.communicate()
    finally:
        process.kill()
        process.communicate()


def table(lake: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(str(lake / "archive")).to_pyarrow_table().to_pylist()
    return found


def test_what_was_deleted_is_in_the_table_once_and_comes_back_by_a_replay(
    start_node: NodeFactory, tmp_path: Path
) -> None:
    """The replay is killed without warning, and goes on by the command that started it."""
    lake = tmp_path / "lake"
    node = start_node(*options(lake))
    bodies = [f"body {number:02}" for number in range(32)]
    url = used(node, *bodies)
    client = Boto3Client(node.url, node.credentials)

    said = job(node, "archive", "--lake", str(lake))

    assert said.startswith("archive: 32 messages ")
    rows = table(lake)
    assert sorted(row["body"] for row in rows) == bodies
    assert all(shown_attributes(row) == ATTRIBUTES for row in rows)
    assert len({row["message_id"] for row in rows}) == len(bodies)
    assert (waiting(node)["messages"], segments(lake)) == (0, [])
    node.kill()
    node.start()
    assert waiting(node)["messages"] == 0

    chosen = f"body > 'body 01' and queue = '{url.rsplit('/', 1)[1]}'"
    replay = ("replay", "--lake", str(lake), "--queue", "q", "--where", chosen)
    killed = start(node, *replay, "--rate", str(RATE))
    kill_when(killed, lambda: counts(client, url)[0] > RATE)  # the first request is recorded
    said = job(node, *replay)

    found = re.fullmatch(r"replay: (\d+) sent to q, 0 refused, (\d+) sent before, 0 sealed\n", said)
    assert found, said
    sent, before = map(int, found.groups())
    assert RATE <= before < sent + before == 30
    back = []
    while messages := receive(client, url, MessageAttributeNames=["All"]):
        back += messages
    client.close()
    assert {message["Body"] for message in back} == {*bodies[2:]}
    assert 30 <= len(back) <= 30 + RATE, "at most the request in flight comes twice"
    assert all(message["MessageAttributes"] == ATTRIBUTES for message in back)


@MINUTES
def test_what_expired_is_in_the_table_once_by_the_schedule_of_the_service(
    start_node: NodeFactory, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    node = start_node("--lake", str(lake), "--archive-seal-s", "1", "--archive-every", "10s")
    client = Boto3Client(node.url, node.credentials)
    for name, attributes in (("q", {}), ("q.fifo", {"FifoQueue": "true"})):
        url = client.call(
            "CreateQueue",
            QueueName=name,
            Attributes={"MessageRetentionPeriod": "60", **attributes},
        )["QueueUrl"]
        for number in range(30):
            group = {"MessageGroupId": "g", "MessageDeduplicationId": str(number)}
            client.call(
                "SendMessage",
                QueueUrl=url,
                MessageBody=str(number),
                **(group if attributes else {}),
            )
    client.close()

    eventually(lambda: (lake / "archive").is_dir() and len(table(lake)) == 60, within=180)
    eventually(lambda: waiting(node)["messages"] == 0)

    found = Counter((row["queue"], row["reason"], row["body"]) for row in table(lake))
    assert set(found.values()) == {1}
    assert len(found) == 60
    assert {reason for _, reason, _ in found} == {"expired"}
