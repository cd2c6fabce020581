"""What was acknowledged is there after an orderly stop, and after `kill -9`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from compat_tests.clients.boto3_client import Boto3Client
from compat_tests.conftest import NodeFactory
from compat_tests.facade import Members, counts, eventually, receive, receive_count, refusal
from compat_tests.node_process import NodeProcess

End = Callable[[NodeProcess], None]


@pytest.fixture
def own_node(start_node: NodeFactory) -> NodeProcess:
    """A service of the test's own."""
    return start_node("--aws-waits", "off")


@pytest.fixture
def client(own_node: NodeProcess) -> Iterator[Boto3Client]:
    """A client that stays connected over restarts."""
    connected = Boto3Client(own_node.url, own_node.credentials)
    yield connected
    connected.close()


@pytest.mark.parametrize("end", [NodeProcess.stop, NodeProcess.kill], ids=["stop", "kill"])
def test_everything_acknowledged_survives(
    own_node: NodeProcess, client: Boto3Client, end: End
) -> None:
    given = {"VisibilityTimeout": "600"}
    made = client.call("CreateQueue", QueueName="q", Attributes=given, tags={"team": "a"})
    url = made["QueueUrl"]
    for body in ("deleted", "hidden", "waiting"):
        client.call("SendMessage", QueueUrl=url, MessageBody=body)
    client.call("SendMessage", QueueUrl=url, MessageBody="delayed", DelaySeconds=900)
    deleted, hidden = receive_count(client, url, 2, AttributeNames=["All"])
    client.call("DeleteMessage", QueueUrl=url, ReceiptHandle=deleted["ReceiptHandle"])
    dropped = client.call("CreateQueue", QueueName="dropped")["QueueUrl"]
    client.call("DeleteQueue", QueueUrl=dropped)
    before = _description(client, url)

    end(own_node)
    own_node.start()

    assert _description(client, url) == before
    assert counts(client, url) == (1, 1, 1)
    assert [message["Body"] for message in receive(client, url)] == ["waiting"]
    client.call("DeleteMessage", QueueUrl=url, ReceiptHandle=hidden["ReceiptHandle"])
    assert counts(client, url) == (0, 1, 1)
    client.call("DeleteMessage", QueueUrl=url, ReceiptHandle=deleted["ReceiptHandle"])
    assert refusal(client, "GetQueueUrl", QueueName="dropped").status == 400


def _description(client: Boto3Client, url: str) -> Members:
    found = client.call("GetQueueAttributes", QueueUrl=url, AttributeNames=["All"])["Attributes"]
    return {"Attributes": found, **client.call("ListQueueTags", QueueUrl=url)}


def test_deliveries_and_dead_letters_survive_kill(
    own_node: NodeProcess, client: Boto3Client
) -> None:
    url = client.call("CreateQueue", QueueName="q")["QueueUrl"]
    client.call("SendMessage", QueueUrl=url, MessageBody="x")
    (first,) = receive(client, url, VisibilityTimeout=0)

    own_node.kill()
    own_node.start()

    (again,) = receive(client, url, VisibilityTimeout=1, AttributeNames=["All"])
    assert again["Attributes"]["ApproximateReceiveCount"] == "2"
    own_node.kill()
    own_node.start()
    eventually(lambda: counts(client, url) == (1, 0, 0), within=3)
    handle = first["ReceiptHandle"]
    client.call("DeleteMessage", QueueUrl=url, ReceiptHandle=handle)
    assert counts(client, url) == (1, 0, 0), "a newer receive came in between"
    handle = again["ReceiptHandle"]
    client.call("DeleteMessage", QueueUrl=url, ReceiptHandle=handle)
    assert counts(client, url) == (0, 0, 0)


def test_purge_survives_kill(own_node: NodeProcess, client: Boto3Client) -> None:
    url = client.call("CreateQueue", QueueName="q")["QueueUrl"]
    client.call("SendMessage", QueueUrl=url, MessageBody="purged")
    client.call("PurgeQueue", QueueUrl=url)
    client.call("SendMessage", QueueUrl=url, MessageBody="kept")

    own_node.kill()
    own_node.start()

    assert [message["Body"] for message in receive_count(client, url, 1)] == ["kept"]
    assert counts(client, url) == (0, 1, 0)


def test_access_key_is_printed_once_and_stays_valid(
    own_node: NodeProcess, client: Boto3Client
) -> None:
    key = own_node.credentials
    assert key.secret_access_key in own_node.output()

    own_node.stop()
    own_node.start()

    assert key.secret_access_key not in own_node.output()
    assert "AWS_SECRET_ACCESS_KEY" not in own_node.output()
    assert client.call("ListQueues") == {}


def test_secret_and_body_are_not_in_the_log(own_node: NodeProcess, client: Boto3Client) -> None:
    url = client.call("CreateQueue", QueueName="q")["QueueUrl"]
    client.call("SendMessage", QueueUrl=url, MessageBody="a-body-nobody-logs")
    (got,) = receive(client, url)
    refusal(client, "DeleteMessage", QueueUrl=url, ReceiptHandle="no-such-handle")

    own_node.stop()

    log = own_node.log.read_text()
    assert own_node.credentials.secret_access_key not in log
    assert "a-body-nobody-logs" not in log
    assert got["ReceiptHandle"] not in log
    assert "no-such-handle" not in log
