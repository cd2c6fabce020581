"""A FIFO queue that is split over three shards and shrunk again, under load of several groups."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import Any

import pytest

from compat_tests.clients.boto3_client import Boto3Client
from compat_tests.conftest import NodeFactory
from compat_tests.facade import counts, eventually, receive
from compat_tests.node_process import NodeProcess, run_command
from compat_tests.pages import ask
from compat_tests.test_queue_parts import fleet

_GROUPS = 12
_ROUNDS = 2
_ROUND_S = 1.0
_IN_PARTS = {
    "FifoQueue": "true",
    "DeduplicationScope": "messageGroup",
    "FifoThroughputLimit": "perMessageGroupId",
}


@pytest.fixture
def service(start_node: NodeFactory) -> NodeProcess:
    return start_node("--shards", "3", "--aws-waits", "off")


def create(client: Boto3Client, **attributes: str) -> str:
    attributes = {**_IN_PARTS, **attributes}
    url: str = client.call("CreateQueue", QueueName="q.fifo", Attributes=attributes)["QueueUrl"]
    return url


def send(client: Boto3Client, url: str, group: str, *bodies: str) -> list[dict[str, Any]]:
    """Send to one group, as a batch if there are several; the body is the deduplication id."""
    if len(bodies) == 1:
        return [
            client.call(
                "SendMessage",
                QueueUrl=url,
                MessageBody=bodies[0],
                MessageGroupId=group,
                MessageDeduplicationId=bodies[0],
            )
        ]
    entries = [
        {"Id": body, "MessageBody": body, "MessageGroupId": group, "MessageDeduplicationId": body}
        for body in bodies
    ]
    answer = client.call("SendMessageBatch", QueueUrl=url, Entries=entries)
    assert not answer.get("Failed"), answer
    found: list[dict[str, Any]] = answer["Successful"]
    return found


def replaced(service: NodeProcess, count: int, verb: str) -> None:
    """Have this many open parts, once those before have been given all messages."""

    def is_done() -> bool:
        page, content = f"api/queues/q.fifo/parts/{verb}", {"parts": count}
        status, said = ask(service.url, service.credentials, page, content)
        assert status == 200 or "is still given the messages of part" in said["error"], said
        return status == 200

    eventually(is_done)
    parts = fleet(service, "parts", "q.fifo")["parts"]
    assert sum(part["state"] == "open" for part in parts) == count


class Load:
    """Clients that send to groups in order, and others that receive and delete."""

    def __init__(self, service: NodeProcess, url: str) -> None:
        self._service = service
        self._url = url
        self.sent: dict[str, list[str]] = defaultdict(list)
        self.numbers: dict[str, list[int]] = defaultdict(list)
        """Sequence numbers as the senders were told."""
        self.received: dict[str, list[str]] = defaultdict(list)
        self.failures: list[str] = []
        self._ended = threading.Event()
        groups = [f"g{number}" for number in range(_GROUPS)]
        self._threads = [
            threading.Thread(target=self._guarded, args=(self._send, groups[place::3]))
            for place in range(3)
        ]
        self._threads += [
            threading.Thread(target=self._guarded, args=(self._consume, wait_s))
            for wait_s in (0, 2, 20)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Send no more, and wait until all is received."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _guarded(self, work: Any, given: Any) -> None:
        client = Boto3Client(self._service.url, self._service.credentials)
        try:
            work(client, given)
        except Exception as error:  # the test shows it
            self.failures.append(repr(error))
        client.close()

    def _send(self, client: Boto3Client, groups: list[str]) -> None:
        number = 0
        while not self._ended.is_set():
            number += 1
            group = groups[number % len(groups)]
            bodies = [f"{group}_{number}-{place}" for place in range(3 if number % 2 else 1)]
            answers = send(client, self._url, group, *bodies)
            self.sent[group] += bodies
            self.numbers[group] += [int(each["SequenceNumber"]) for each in answers]
            if number % 7 == 0:  # a repetition is a duplicate, in whatever part
                again = send(client, self._url, group, *bodies)
                told = [each["MessageId"] for each in again]
                assert told == [each["MessageId"] for each in answers]
            time.sleep(0.01)

    def _consume(self, client: Boto3Client, wait_s: int) -> None:
        while not self._ended.is_set() or self._is_behind:
            patience_s = 1 if self._ended.is_set() else wait_s
            found = receive(client, self._url, WaitTimeSeconds=patience_s)
            for each in found:  # before the delete, which lets the next of the group go
                self.received[each["Body"].split("_")[0]].append(each["Body"])
            for each in found:
                handle = each["ReceiptHandle"]
                client.call("DeleteMessage", QueueUrl=self._url, ReceiptHandle=handle)

    @property
    def _is_behind(self) -> bool:
        """True while messages of these senders were not received; others may be in the queue."""
        received = self.received
        return not self.failures and any(
            len(sent) > len(received.get(group, ())) for group, sent in list(self.sent.items())
        )


@pytest.mark.slow
def test_groups_stay_in_order_while_their_queue_is_split_and_shrunk(service: NodeProcess) -> None:
    client = Boto3Client(service.url, service.credentials)
    url = create(client)
    load = Load(service, url)
    for _ in range(_ROUNDS):
        replaced(service, 4, "split")
        time.sleep(_ROUND_S)
        replaced(service, 1, "shrink")
        time.sleep(_ROUND_S)
    load.end()

    assert load.failures == []
    assert dict(load.received) == dict(load.sent), "each message once, each group in order"
    for numbers in load.numbers.values():
        assert numbers == sorted(numbers)
    assert counts(client, url) == (0, 0, 0)


@pytest.mark.slow
def test_a_split_fifo_queue_is_one_queue(service: NodeProcess) -> None:
    client = Boto3Client(service.url, service.credentials)
    url = create(client)
    groups = [f"g{number}" for number in range(20)]
    first = {group: send(client, url, group, f"{group}_1")[0] for group in groups}
    (held,) = receive(client, url, 1)
    fleet(service, "split", "q.fifo", "--parts", "3")
    for group in groups:
        (again,) = send(client, url, group, f"{group}_1")
        assert again["MessageId"] == first[group]["MessageId"], "sent before the split"
        assert again["SequenceNumber"] == first[group]["SequenceNumber"]
        send(client, url, group, f"{group}_2")
    assert counts(client, url) == (39, 1, 0)

    service.kill()
    service.start()
    client.call("DeleteMessage", QueueUrl=url, ReceiptHandle=held["ReceiptHandle"])
    bodies: dict[str, list[str]] = defaultdict(list)
    while sum(map(len, bodies.values())) < 2 * len(groups) - 1:
        for each in receive(client, url, WaitTimeSeconds=2):
            bodies[each["Body"].split("_")[0]].append(each["Body"])
            client.call("DeleteMessage", QueueUrl=url, ReceiptHandle=each["ReceiptHandle"])
    gone = held["Body"].split("_")[0]
    assert bodies.pop(gone) == [f"{gone}_2"]
    assert dict(bodies) == {
        group: [f"{group}_1", f"{group}_2"] for group in groups if group != gone
    }


@pytest.mark.slow
def test_a_receive_attempt_is_repeated_at_the_part_that_knows_it(service: NodeProcess) -> None:
    client = Boto3Client(service.url, service.credentials)
    url = create(client)
    fleet(service, "split", "q.fifo", "--parts", "4")
    for number in range(40):
        send(client, url, f"g{number}", f"g{number}_1")
    for attempt in "abc":
        first, second = (
            receive(client, url, 2, ReceiveRequestAttemptId=attempt, WaitTimeSeconds=2)
            for _ in range(2)
        )
        assert first
        assert [each["MessageId"] for each in first] == [each["MessageId"] for each in second]


@pytest.mark.slow
def test_a_queue_that_deduplicates_over_its_groups_stays_whole(service: NodeProcess) -> None:
    client = Boto3Client(service.url, service.credentials)
    client.call("CreateQueue", QueueName="q.fifo", Attributes={"FifoQueue": "true"})
    done = run_command("fleet", "split", "q.fifo", "--parts", "2", "--data", str(service.data))

    assert done.returncode != 0
    assert "DeduplicationScope messageGroup" in done.stderr
