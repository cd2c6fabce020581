"""Acknowledged messages survive an orderly stop and `kill -9`. `faults/` kills under traffic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from compat_tests.clients.boto3_client import Boto3Client
from compat_tests.conftest import NodeFactory
from compat_tests.facade import Members, counts, receive, receive_count, refusal
from compat_tests.node_process import NodeProcess

Names = Callable[[], str]
End = Callable[[NodeProcess], None]


@pytest.fixture(scope="module")
def module_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A separate service for this module, on the same folder and port over all its starts."""
    node = NodeProcess(tmp_path_factory.mktemp("restart"), "--aws-waits", "off")
    yield node
    node.close()


@pytest.fixture
def own_node(module_node: NodeProcess, session_node: NodeProcess | None) -> NodeProcess:
    """The service, running."""
    if session_node is None:
        pytest.skip("aimed at a service that this suite did not start")
    return module_node if module_node.running else module_node.start()


@pytest.fixture
def client(own_node: NodeProcess) -> Iterator[Boto3Client]:
    """A client that stays connected over restarts."""
    connected = Boto3Client(own_node.url, own_node.credentials)
    yield connected
    connected.close()


def test_access_key_is_printed_once_and_stays_valid(start_node: NodeFactory) -> None:
    node = start_node()
    key = node.credentials
    assert key.secret_access_key in node.output()

    node.kill()
    node.start()

    assert key.secret_access_key not in node.output()
    assert "AWS_SECRET_ACCESS_KEY" not in node.output()
    client = Boto3Client(node.url, key)
    assert client.call("ListQueues") == {}
    client.close()


def test_a_client_of_another_service_does_not_take_the_port_of_a_stopped_one(
    own_node: NodeProcess,
) -> None:
    """The ports that the system gives to clients are others; Linux says which."""
    given = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if not given.exists():
        pytest.skip("this system does not say which ports it gives to clients")
    first, last = map(int, given.read_text().split())

    assert urlsplit(own_node.url).port not in range(first, last + 1)


@pytest.mark.parametrize("end", [NodeProcess.stop, NodeProcess.kill], ids=["stop", "kill"])
def test_everything_acknowledged_survives(
    own_node: NodeProcess, client: Boto3Client, fresh_name: Names, end: End
) -> None:
    given = {"VisibilityTimeout": "600"}
    made = client.call("CreateQueue", QueueName=fresh_name(), Attributes=given, tags={"team": "a"})
    url = made["QueueUrl"]
    for body in ("deleted", "hidden", "waiting"):
        client.call("SendMessage", QueueUrl=url, MessageBody=body)
    client.call("SendMessage", QueueUrl=url, MessageBody="delayed", DelaySeconds=900)
    deleted, hidden = receive_count(client, url, 2, AttributeNames=["All"])
    client.call("DeleteMessage", QueueUrl=url, ReceiptHandle=deleted["ReceiptHandle"])
    dropped = fresh_name()
    client.call("DeleteQueue", QueueUrl=client.call("CreateQueue", QueueName=dropped)["QueueUrl"])
    before = _description(client, url)

    end(own_node)
    own_node.start()

    assert _description(client, url) == before
    assert counts(client, url) == (1, 1, 1)
    assert [message["Body"] for message in receive(client, url)] == ["waiting"]
    client.call("DeleteMessage", QueueUrl=url, ReceiptHandle=hidden["ReceiptHandle"])
    assert counts(client, url) == (0, 1, 1)
    client.call("DeleteMessage", QueueUrl=url, ReceiptHandle=deleted["ReceiptHandle"])
    assert refusal(client, "GetQueueUrl", QueueName=dropped).status == 400


def _description(client: Boto3Client, url: str) -> Members:
    found = client.call("GetQueueAttributes", QueueUrl=url, AttributeNames=["All"])["Attributes"]
    return {"Attributes": found, **client.call("ListQueueTags", QueueUrl=url)}


def test_secret_and_body_are_not_in_the_log(
    own_node: NodeProcess, client: Boto3Client, fresh_name: Names
) -> None:
    url = client.call("CreateQueue", QueueName=fresh_name())["QueueUrl"]
    client.call("SendMessage", QueueUrl=url, MessageBody="a-body-nobody-logs")
    (got,) = receive(client, url)
    refusal(client, "DeleteMessage", QueueUrl=url, ReceiptHandle="no-such-handle")

    own_node.stop()

    log = own_node.log.read_text()
    assert own_node.credentials.secret_access_key not in log
    assert "a-body-nobody-logs" not in log
    assert got["ReceiptHandle"] not in log
    assert "no-such-handle" not in log
