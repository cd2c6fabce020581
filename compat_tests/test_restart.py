"""What was acknowledged is there after an orderly stop, and after `kill -9`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from compat_tests.clients.boto3_client import Boto3Client
from compat_tests.conftest import NodeFactory
from compat_tests.facade import Members, counts, eventually, receive, receive_count, refusal
from compat_tests.node_process import NodeProcess, run_command

MANY = 2_000
Names = Callable[[], str]
End = Callable[[NodeProcess], None]


@pytest.fixture(scope="module")
def module_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A service of this module's own, on the same folder and port over all its starts."""
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


def test_deliveries_and_dead_letters_survive_kill(
    own_node: NodeProcess, client: Boto3Client, fresh_name: Names
) -> None:
    url = client.call("CreateQueue", QueueName=fresh_name())["QueueUrl"]
    client.call("SendMessage", QueueUrl=url, MessageBody="x")
    (first,) = receive(client, url, VisibilityTimeout=0)

    own_node.kill()
    own_node.start()

    (again,) = receive(client, url, VisibilityTimeout=600, AttributeNames=["All"])
    assert again["Attributes"]["ApproximateReceiveCount"] == "2"
    own_node.kill()
    own_node.start()
    handle = first["ReceiptHandle"]
    client.call("DeleteMessage", QueueUrl=url, ReceiptHandle=handle)
    assert counts(client, url) == (0, 1, 0), "a newer receive holds it"
    handle = again["ReceiptHandle"]
    client.call("DeleteMessage", QueueUrl=url, ReceiptHandle=handle)
    assert counts(client, url) == (0, 0, 0)


def test_purge_survives_kill(own_node: NodeProcess, client: Boto3Client, fresh_name: Names) -> None:
    url = client.call("CreateQueue", QueueName=fresh_name())["QueueUrl"]
    client.call("SendMessage", QueueUrl=url, MessageBody="purged")
    client.call("PurgeQueue", QueueUrl=url)
    client.call("SendMessage", QueueUrl=url, MessageBody="kept")

    own_node.kill()
    own_node.start()

    assert [message["Body"] for message in receive_count(client, url, 1)] == ["kept"]
    assert counts(client, url) == (0, 1, 0)


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


# -- undoing purges and deletions -------------------------------------------------------------------------------------


def _fill(client: Boto3Client, url: str, count: int) -> set[str]:
    bodies = [f"m{number}" for number in range(count)]
    for first in range(0, count, 10):
        batch = bodies[first : first + 10]
        entries = [{"Id": str(n), "MessageBody": body} for n, body in enumerate(batch)]
        client.call("SendMessageBatch", QueueUrl=url, Entries=entries)
    return set(bodies)


def _drain(client: Boto3Client, url: str) -> list[str]:
    bodies: list[str] = []
    while messages := client.call("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10).get(
        "Messages"
    ):
        bodies += [message["Body"] for message in messages]
        entries = [
            {"Id": str(n), "ReceiptHandle": message["ReceiptHandle"]}
            for n, message in enumerate(messages)
        ]
        assert not client.call("DeleteMessageBatch", QueueUrl=url, Entries=entries).get("Failed")
    return bodies


def _waiting(client: Boto3Client, url: str) -> int:
    return counts(client, url)[0]


def _has_begun(restore: threading.Thread, client: Boto3Client, url: str, before: int) -> bool:
    return not restore.is_alive() or _waiting(client, url) > before


def test_a_purge_survives_kill_and_is_undone_over_kills(
    own_node: NodeProcess, client: Boto3Client, fresh_name: Names
) -> None:
    name = fresh_name()
    url = client.call("CreateQueue", QueueName=name)["QueueUrl"]
    bodies = _fill(client, url, MANY)
    client.call("PurgeQueue", QueueUrl=url)
    own_node.kill()
    own_node.start()
    assert _waiting(client, url) == 0
    client.call("SendMessage", QueueUrl=url, MessageBody="after")

    for _ in range(3):
        before = _waiting(client, url)
        command = ("restore-queue", name, "--data", str(own_node.data))
        restore = threading.Thread(target=run_command, args=command)
        restore.start()
        eventually(partial(_has_begun, restore, client, url, before))
        own_node.kill()
        restore.join()
        own_node.start()
    eventually(lambda: _waiting(client, url) == MANY + 1)

    assert sorted(_drain(client, url)) == sorted([*bodies, "after"])


def test_a_deleted_queue_comes_back_after_kill_as_it_was(
    own_node: NodeProcess, client: Boto3Client, fresh_name: Names
) -> None:
    name = fresh_name() + ".fifo"
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    url = client.call("CreateQueue", QueueName=name, Attributes=attributes)["QueueUrl"]
    for number in range(20):
        client.call(
            "SendMessage", QueueUrl=url, MessageBody=str(number), MessageGroupId=str(number % 2)
        )
    client.call("DeleteQueue", QueueUrl=url)
    own_node.kill()
    own_node.start()

    said = run_command("restore-queue", name, "--data", str(own_node.data))

    assert said.returncode == 0, said.stderr
    received = _drain(client, url)
    for group in (0, 1):
        assert [body for body in received if int(body) % 2 == group] == [
            str(number) for number in range(group, 20, 2)
        ]
