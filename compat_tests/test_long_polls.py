"""Many long polls at once, and polls whose client has gone."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from compat_tests.clients.raw import FORM, RawClient
from compat_tests.facade import Client, Credentials, counts, eventually, receive
from compat_tests.node_process import NodeProcess

LIBRARIES = Path(sys.prefix) / "aioboto3"
POLLS = 200


@pytest.mark.slow
def test_two_hundred_polls_get_a_message_each(
    endpoint: str, credentials: Credentials, current: Client, queue: str
) -> None:
    if not LIBRARIES.exists():
        assert "CI" not in os.environ, "aioboto3 is not installed"
        pytest.skip("aioboto3 is not installed: `make test` installs it")
    worker = Path(__file__).parent / "clients" / "aioboto3_worker.py"
    key = credentials
    arguments = [endpoint, key.access_key_id, key.secret_access_key, key.region, queue, str(POLLS)]

    done = subprocess.run(
        [sys.executable, "-P", str(worker), *arguments],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(LIBRARIES)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["early"] == 0
    assert len(set(found["sent"])) == POLLS
    assert sorted(found["received"]) == sorted(found["sent"])
    assert counts(current, queue) == (0, 0, 0)


def until_waiting(session_node: NodeProcess | None, polls: int) -> None:
    """Return when this number of long polls wait; another service does not say so."""
    if session_node is None:
        time.sleep(0.3)
        return

    def are_waiting() -> bool:
        with urlopen(f"{session_node.url}/_holdfast/metrics") as answer:
            return f"\nholdfast_long_polls {float(polls)}\n" in answer.read().decode()

    eventually(are_waiting)


def hang_up(raw: RawClient, session_node: NodeProcess | None, queue: str, polls: int) -> None:
    """Start long polls on bare sockets and close them while they wait."""
    body = f"Action=ReceiveMessage&Version=2012-11-05&WaitTimeSeconds=20&QueueUrl={queue}".encode()
    parts = urlsplit(raw.url)
    assert parts.hostname is not None
    sockets = []
    for _ in range(polls):
        headers = raw.signed_headers("POST", raw.url + "/", {"Content-Type": FORM}, body)
        lines = [f"{name}: {value}" for name, value in headers.items() if name != "Content-Length"]
        head = ["POST / HTTP/1.1", f"Host: {parts.netloc}", *lines, f"Content-Length: {len(body)}"]
        connection = socket.create_connection((parts.hostname, parts.port or 80), timeout=30)
        connection.sendall("\r\n".join([*head, "", ""]).encode() + body)
        sockets.append(connection)
    until_waiting(session_node, polls)
    for connection in sockets:
        connection.close()
    until_waiting(session_node, 0)


def test_poller_that_hung_up_takes_no_message(
    raw: RawClient, session_node: NodeProcess | None, current: Client, queue: str
) -> None:
    hang_up(raw, session_node, queue, 20)

    current.call("SendMessage", QueueUrl=queue, MessageBody="x")

    (got,) = receive(current, queue, WaitTimeSeconds=20, AttributeNames=["ApproximateReceiveCount"])
    assert got["Attributes"]["ApproximateReceiveCount"] == "1"


def test_living_poll_gets_the_message_behind_a_hung_up_one(
    raw: RawClient, session_node: NodeProcess | None, current: Client, queue: str
) -> None:
    hang_up(raw, session_node, queue, 1)
    current.call("SendMessage", QueueUrl=queue, MessageBody="x", DelaySeconds=1)

    (got,) = receive(current, queue, WaitTimeSeconds=20)

    assert got["Body"] == "x"
