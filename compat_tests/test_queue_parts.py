"""A queue that is split over three shards, shrunk again and moved: its clients and its operator."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from typing import Any, Protocol

import pytest

from compat_tests.clients.boto3_client import Boto3Client
from compat_tests.conftest import NodeFactory
from compat_tests.facade import PATIENCE_S, Credentials, counts, eventually, receive, receive_count
from compat_tests.node_process import NodeProcess, run_command
from compat_tests.pages import ask

_ROUNDS = 3
_ROUND_S = 1.0


@pytest.fixture
def service(start_node: NodeFactory) -> NodeProcess:
    return start_node("--shards", "3", "--aws-waits", "off")


def fleet(service: NodeProcess, *arguments: str) -> dict[str, Any]:
    done = run_command("fleet", *arguments, "--json", "--data", str(service.data))
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def parts_now(service: NodeProcess) -> list[dict[str, Any]]:
    """The parts that `fleet parts` shows, without starting a command."""
    status, found = ask(service.url, service.credentials, "api/queues/q/parts")
    assert status == 200, found
    parts: list[dict[str, Any]] = found["parts"]
    return parts


def is_whole(service: NodeProcess) -> bool:
    return len(parts_now(service)) == 1


class Served(Protocol):
    """A service as clients need it."""

    @property
    def url(self) -> str:
        """Its address."""

    @property
    def credentials(self) -> Credentials:
        """The key that they sign with."""


class Load:
    """Clients that send to a queue, receive from it and delete."""

    def __init__(self, service: Served, url: str, *, pause_s: float = 0.02) -> None:
        """Each sender pauses after a send, and who does not poll after a receive of nothing."""
        self._service = service
        self._url = url
        self._pause_s = pause_s
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.failures: list[str] = []
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(name,)) for name in "ab"]
        self._threads += [
            threading.Thread(target=self._consume, args=(wait_s,)) for wait_s in (0, 2, 20)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Send no more, and wait until all is received."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _send(self, name: str) -> None:
        client, number = Boto3Client(self._service.url, self._service.credentials), 0
        while not self._ended.is_set():
            number += 1
            bodies = [f"{name}-{number}-{place}" for place in range(10 if number % 3 else 1)]
            entries = [{"Id": body, "MessageBody": body} for body in bodies]
            try:
                if len(entries) == 1:
                    client.call("SendMessage", QueueUrl=self._url, MessageBody=bodies[0])
                else:
                    answer = client.call("SendMessageBatch", QueueUrl=self._url, Entries=entries)
                    assert not answer.get("Failed"), answer
            except Exception as error:  # the test shows it
                self.failures.append(repr(error))
                return
            self.sent.update(bodies)
            time.sleep(self._pause_s)
        client.close()

    def _consume(self, wait_s: int) -> None:
        client = Boto3Client(self._service.url, self._service.credentials)
        while not self._ended.is_set() or self.sent.total() > self.received.total():
            try:
                found = receive(client, self._url, WaitTimeSeconds=min(wait_s, self._patience_s))
                if len(found) == 1:
                    handle = found[0]["ReceiptHandle"]
                    client.call("DeleteMessage", QueueUrl=self._url, ReceiptHandle=handle)
                elif found:
                    entries = [
                        {"Id": str(place), "ReceiptHandle": each["ReceiptHandle"]}
                        for place, each in enumerate(found)
                    ]
                    answer = client.call("DeleteMessageBatch", QueueUrl=self._url, Entries=entries)
                    assert not answer.get("Failed"), answer
            except Exception as error:  # the test shows it
                self.failures.append(repr(error))
                return
            self.received.update(each["Body"] for each in found)
            if not (found or wait_s):
                time.sleep(self._pause_s)
        client.close()

    @property
    def _patience_s(self) -> int:
        return 1 if self._ended.is_set() else 20


def check_unnoticed(service: NodeProcess, load: Load) -> None:
    """No call failed, each message was there once, and the queue has one part in the end."""
    assert load.failures == []
    assert load.received == load.sent, "each message once"
    eventually(lambda: is_whole(service))


@pytest.mark.slow
def test_no_client_notices_that_a_queue_is_split_and_shrunk(service: NodeProcess) -> None:
    client = Boto3Client(service.url, service.credentials)
    url = client.call("CreateQueue", QueueName="q")["QueueUrl"]
    load = Load(service, url)
    for _ in range(_ROUNDS):
        split = fleet(service, "split", "q", "--parts", "4")["parts"]
        assert sum(part["state"] == "open" for part in split) == 4
        assert {part["shard"] for part in split} == {0, 1, 2}
        time.sleep(_ROUND_S)
        fleet(service, "shrink", "q")
        time.sleep(_ROUND_S)
    load.end()

    check_unnoticed(service, load)
    assert counts(client, url) == (0, 0, 0)


@pytest.mark.slow
def test_no_client_notices_that_a_queue_moves(service: NodeProcess) -> None:
    client = Boto3Client(service.url, service.credentials)
    url = client.call("CreateQueue", QueueName="q")["QueueUrl"]
    load = Load(service, url)
    for _ in range(_ROUNDS):
        (home,) = (part for part in fleet(service, "parts", "q")["parts"] if part["home"])
        to = (home["shard"] + 1) % 3
        moved = fleet(service, "move", "q", "--shard", str(to))["parts"]
        assert [part["shard"] for part in moved if part["state"] == "open"] == [to]
        time.sleep(_ROUND_S)
    load.end()

    check_unnoticed(service, load)
    assert counts(client, url) == (0, 0, 0)


@pytest.mark.slow
def test_messages_of_a_queue_that_moves_stay_what_they_are(service: NodeProcess) -> None:
    client = Boto3Client(service.url, service.credentials)
    url = client.call("CreateQueue", QueueName="q")["QueueUrl"]
    entries = [{"Id": f"e{number}", "MessageBody": str(number)} for number in range(10)]
    for _ in range(5):
        client.call("SendMessageBatch", QueueUrl=url, Entries=entries)
    early = receive_count(client, url, 50, VisibilityTimeout=5)
    eventually(lambda: counts(client, url) == (50, 0, 0))
    held = receive_count(client, url, 10, VisibilityTimeout=600)
    (home,) = fleet(service, "parts", "q")["parts"]
    for step in (1, 2):  # what is on its way moves on
        fleet(service, "move", "q", "--shard", str((home["shard"] + step) % 3))
    service.kill()
    service.start()

    assert counts(client, url) == (40, 10, 0)
    (*_, open_part) = (part for part in fleet(service, "parts", "q")["parts"] if part["home"])
    assert open_part["shard"] == (home["shard"] + 2) % 3
    eventually(lambda: sum(p["visible"] for p in parts_now(service)[1:]) == 0)
    by_id = {each["MessageId"]: each["ReceiptHandle"] for each in early}
    taken = {each["MessageId"] for each in held}
    for message_id in taken:  # in flight where they were
        handle = next(each["ReceiptHandle"] for each in held if each["MessageId"] == message_id)
        client.call("DeleteMessage", QueueUrl=url, ReceiptHandle=handle)
    for message_id in sorted(by_id.keys() - taken)[:20]:  # by handles of before both moves
        client.call("DeleteMessage", QueueUrl=url, ReceiptHandle=by_id[message_id])
    assert counts(client, url) == (20, 0, 0)
    names = ["ApproximateReceiveCount", "SentTimestamp"]
    found = receive_count(client, url, 20, MessageSystemAttributeNames=names)
    assert {each["MessageId"] for each in found} == set(sorted(by_id.keys() - taken)[20:])
    assert {each["Attributes"]["ApproximateReceiveCount"] for each in found} == {"2"}
    assert receive(client, url) == []
    eventually(lambda: is_whole(service))


@pytest.mark.slow
def test_a_split_queue_is_one_queue(service: NodeProcess) -> None:
    client = Boto3Client(service.url, service.credentials)
    url = client.call("CreateQueue", QueueName="q")["QueueUrl"]
    client.call("SendMessage", QueueUrl=url, MessageBody="before")
    fleet(service, "split", "q", "--parts", "3")
    for number in range(30):
        client.call("SendMessage", QueueUrl=url, MessageBody=str(number))
    shown = fleet(service, "parts", "q")["parts"]
    assert all(part["visible"] for part in shown), "sends go to all parts"
    assert counts(client, url) == (31, 0, 0)

    found = receive_count(client, url, 31)
    assert len({each["Body"] for each in found}) == 31
    assert counts(client, url) == (0, 31, 0)
    entries = [
        {"Id": str(place), "ReceiptHandle": each["ReceiptHandle"], "VisibilityTimeout": 0}
        for place, each in enumerate(found[:10])
    ]
    answer = client.call("ChangeMessageVisibilityBatch", QueueUrl=url, Entries=entries)
    assert [each["Id"] for each in answer["Successful"]] == [each["Id"] for each in entries]
    assert counts(client, url) == (10, 21, 0)

    service.kill()
    service.start()
    assert counts(client, url) == (10, 21, 0), "after a kill"
    client.call("PurgeQueue", QueueUrl=url)
    assert counts(client, url) == (0, 0, 0)
    assert receive(client, url) == []
    client.call("SendMessage", QueueUrl=url, MessageBody="after")
    client.call("DeleteQueue", QueueUrl=url)
    done = run_command("restore-queue", "q", "--data", str(service.data))
    assert done.returncode == 0, done.stderr
    assert counts(client, url) == (1, 0, 0)


@pytest.mark.slow
def test_a_poll_that_began_before_the_split_gets_what_is_sent_to_any_part(
    service: NodeProcess,
) -> None:
    client = Boto3Client(service.url, service.credentials)
    url = client.call("CreateQueue", QueueName="q")["QueueUrl"]
    found: list[str] = []

    def poll() -> None:
        other = Boto3Client(service.url, service.credentials)
        for _ in range(20):
            for each in receive(other, url, 1, WaitTimeSeconds=20):
                found.append(each["Body"])
                handle = each["ReceiptHandle"]
                other.call("DeleteMessage", QueueUrl=url, ReceiptHandle=handle)
        other.close()

    thread = threading.Thread(target=poll)
    thread.start()
    time.sleep(0.5)
    fleet(service, "split", "q", "--parts", "3")
    for number in range(20):
        client.call("SendMessage", QueueUrl=url, MessageBody=str(number))
    thread.join(PATIENCE_S)

    assert not thread.is_alive()
    assert sorted(found) == sorted(map(str, range(20)))


@pytest.mark.slow
def test_what_is_not_done_for_split_queues_is_refused(service: NodeProcess) -> None:
    client = Boto3Client(service.url, service.credentials)
    letters = client.call("CreateQueue", QueueName="q")["QueueUrl"]
    arn = client.call("GetQueueAttributes", QueueUrl=letters, AttributeNames=["QueueArn"])
    policy = {"deadLetterTargetArn": arn["Attributes"]["QueueArn"], "maxReceiveCount": 1}
    source = client.call(
        "CreateQueue", QueueName="source", Attributes={"RedrivePolicy": json.dumps(policy)}
    )["QueueUrl"]
    fleet(service, "split", "q", "--parts", "2")
    fleet(service, "split", "source", "--parts", "2")
    client.call("SendMessage", QueueUrl=source, MessageBody="spent")
    receive_count(client, source, 1, VisibilityTimeout=0)
    assert receive(client, source, WaitTimeSeconds=1) == []
    eventually(lambda: counts(client, letters) == (1, 0, 0))

    done = run_command("messages", "browse", "q", "--json", "--data", str(service.data))
    assert done.returncode == 0, done.stderr
    assert [each["body"] for each in json.loads(done.stdout)["messages"]] == ["spent"]
    client.call("StartMessageMoveTask", SourceArn=arn["Attributes"]["QueueArn"])
    assert receive(client, source, WaitTimeSeconds=10)[0]["Body"] == "spent"
    client.call("CreateQueue", QueueName="q.fifo", Attributes={"FifoQueue": "true"})
    done = run_command("fleet", "split", "q.fifo", "--parts", "2", "--data", str(service.data))
    assert done.returncode != 0
    assert "FIFO" in done.stderr


def failures(service: NodeProcess) -> tuple[int, list[int], bool]:
    """Counted messages, those of each failure, and whether all are counted."""
    found = ask(service.url, service.credentials, "api/queues/q/failures")[1]
    counts = [each["messages"] for each in found["failures"]]
    return found["messages"], counts, found["is_exact"]


@pytest.mark.slow
def test_dead_letters_come_to_all_parts_while_some_close(service: NodeProcess) -> None:
    client = Boto3Client(service.url, service.credentials)
    letters = client.call("CreateQueue", QueueName="q")["QueueUrl"]
    arn = client.call("GetQueueAttributes", QueueUrl=letters, AttributeNames=["QueueArn"])
    policy = {"deadLetterTargetArn": arn["Attributes"]["QueueArn"], "maxReceiveCount": 1}
    source = client.call(
        "CreateQueue", QueueName="source", Attributes={"RedrivePolicy": json.dumps(policy)}
    )["QueueUrl"]
    fleet(service, "split", "source", "--parts", "3")
    for parts in (4, 1, 4):
        fleet(service, "split" if parts > 1 else "shrink", "q", "--parts", str(parts))
        for _ in range(4):
            entries = [{"Id": f"e{n}", "MessageBody": "spent"} for n in range(10)]
            client.call("SendMessageBatch", QueueUrl=source, Entries=entries)
        receive_count(client, source, 40, VisibilityTimeout=0)
        assert receive(client, source, WaitTimeSeconds=1) == []

    eventually(lambda: counts(client, letters) == (120, 0, 0))
    eventually(lambda: failures(service) == (120, [120], True))
    shown = fleet(service, "parts", "q")["parts"]
    # Each step draws a part, so that one may be left out by chance.
    assert sum(part["visible"] > 0 for part in shown if part["state"] == "open") > 1
    found = receive_count(client, letters, 120)
    assert len({each["MessageId"] for each in found}) == 120
    assert {each["Body"] for each in found} == {"spent"}
