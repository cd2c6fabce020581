"""Signed consumers that ask for large messages and read nothing: the memory of the service, and its
other clients."""

from __future__ import annotations

import json
import socket
import sys
import time
from contextlib import ExitStack
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from compat_tests.clients.boto3_client import connect
from compat_tests.clients.raw import JSON, RawClient
from compat_tests.conftest import NodeFactory
from compat_tests.facade import eventually

CONSUMERS = 40
MIB = 1 << 20
_LOST = "holdfast_queue_messages_lost_to_clients_total{"
GROWTH_MAX = 96 * MIB
"""Beside the share of one user, 2 MiB, the process reads and encodes one answer at a time. Without
a bound the consumers' answers took 700 MiB."""


def _receive(raw: RawClient, url: str) -> bytes:
    """A signed request for ten messages, which stay visible."""
    members = {"QueueUrl": url, "MaxNumberOfMessages": 10, "VisibilityTimeout": 0}
    body = json.dumps(members).encode()
    headers = {
        "Host": urlsplit(raw.url).netloc,
        "Content-Type": JSON,
        "Content-Length": str(len(body)),
        "X-Amz-Target": "AmazonSQS.ReceiveMessage",
    }
    signed = raw.signed_headers("POST", raw.url + "/", headers, body)
    lines = "".join(f"{name}: {value}\r\n" for name, value in signed.items())
    return f"POST / HTTP/1.1\r\n{lines}\r\n".encode() + body


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads another process's memory, as on Linux")
def test_consumers_that_do_not_read_take_little_memory_and_others_are_served(
    start_node: NodeFactory,
) -> None:
    node = start_node("--request-memory-bytes", str(8 * MIB))
    client = connect(node.url, node.credentials)
    large = client.create_queue(QueueName="large")["QueueUrl"]
    small = client.create_queue(QueueName="small")["QueueUrl"]
    for _ in range(20):
        client.send_message(QueueUrl=large, MessageBody="x" * 1_000_000)
    request = _receive(RawClient(node.url, node.credentials), large)
    address = ("127.0.0.1", int(node.url.rsplit(":", 1)[1]))
    before = node.memory

    with ExitStack() as stack:
        for _ in range(CONSUMERS):
            consumer = stack.enter_context(socket.create_connection(address, timeout=30))
            consumer.sendall(request * 5)
        highest = before
        ends = time.monotonic() + 4
        while time.monotonic() < ends:
            client.send_message(QueueUrl=small, MessageBody="x")
            (message,) = client.receive_message(QueueUrl=small, WaitTimeSeconds=5)["Messages"]
            client.delete_message(QueueUrl=small, ReceiptHandle=message["ReceiptHandle"])
            highest = max(highest, node.memory)

    assert highest - before < GROWTH_MAX
    received = client.receive_message(QueueUrl=large, MaxNumberOfMessages=10)["Messages"]
    assert len(received[0]["Body"]) == 1_000_000


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_what_is_delivered_at_most_once_is_read_or_counted_as_lost(
    start_node: NodeFactory, workers: str
) -> None:
    """Consumers that read nothing and go away."""
    node = start_node("--workers", workers)
    client = connect(node.url, node.credentials)
    tags = {"holdfast:delivery": "at-most-once"}
    url = client.create_queue(QueueName="once", tags=tags)["QueueUrl"]
    sent = {f"{number}-" + "x" * 900_000 for number in range(24)}
    for body in sent:
        client.send_message(QueueUrl=url, MessageBody=body)
    request = _receive(RawClient(node.url, node.credentials), url)
    address = ("127.0.0.1", int(node.url.rsplit(":", 1)[1]))
    with ExitStack() as stack:
        for _ in range(4):
            consumer = stack.enter_context(socket.create_connection(address, timeout=30))
            consumer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            consumer.sendall(request)
        time.sleep(1.0)
    read: list[str] = []

    def lost() -> int:
        with urlopen(f"{node.url}/_holdfast/metrics", timeout=30) as page:
            lines = page.read().decode().splitlines()
        return sum(int(float(line.split()[-1])) for line in lines if line.startswith(_LOST))

    def are_all_there() -> bool:
        found = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10)
        read.extend(message["Body"] for message in found.get("Messages", []))
        return len(read) + lost() >= len(sent)

    eventually(are_all_there)
    assert len(read) == len(set(read)), "none twice"
    assert {*read} <= sent
    assert 0 < lost() == len(sent) - len(read)


@pytest.mark.slow
def test_times_of_messages_hold_while_consumers_read_nothing(start_node: NodeFactory) -> None:
    """Schedules, times to live and the order by the sender's clock."""
    node = start_node()
    client = connect(node.url, node.credentials)
    now_ms = int(time.time() * 1000)
    kinds: dict[str, tuple[dict[str, str], str, int]] = {
        "later": ({"deliver-at": "on"}, "deliver-at", now_ms + 15_000),
        "brief": ({"ttl": "600"}, "ttl", 15),
        "ordered": ({"order": "sender-clock", "order-window": "15000"}, "sent-at", now_ms),
    }
    urls = {}
    for name, (tags, attribute, value) in kinds.items():
        own = {f"holdfast:{key}": each for key, each in tags.items()}
        urls[name] = url = client.create_queue(QueueName=name, tags=own)["QueueUrl"]
        for number in range(10):
            at = value - number * (name == "ordered")
            kind = {"DataType": "Number", "StringValue": str(at)}
            body = f"{number}-" + "x" * 900_000
            attributes = {f"holdfast.{attribute}": kind}
            client.send_message(QueueUrl=url, MessageBody=body, MessageAttributes=attributes)
    raw = RawClient(node.url, node.credentials)
    address = ("127.0.0.1", int(node.url.rsplit(":", 1)[1]))
    found: dict[str, list[str]] = {}
    with ExitStack() as stack:
        for url in [*urls.values()] * 2:
            consumer = stack.enter_context(socket.create_connection(address, timeout=30))
            consumer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            consumer.sendall(_receive(raw, url))
        time.sleep(16.0)
        for name, url in urls.items():
            found[name] = []
            while some := client.receive_message(
                QueueUrl=url, MaxNumberOfMessages=1, WaitTimeSeconds=1
            ).get("Messages"):
                found[name] += [message["Body"].partition("-")[0] for message in some]

    numbers = [*map(str, range(10))]
    assert sorted(found["later"]) == numbers
    assert found["brief"] == []
    assert found["ordered"] == numbers[::-1]
