"""A service with several workers (`holdfast serve --workers N`) answers as one process does,
through whichever worker a connection lands on, and survives the death of each of its processes."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from botocore.exceptions import ConnectionClosedError

from compat_tests.clients.boto3_client import Boto3Client, connect
from compat_tests.conftest import NodeFactory
from compat_tests.facade import ClientError, Credentials, eventually, receive, receive_count
from compat_tests.node_process import NodeProcess, run_command
from compat_tests.pages import ask
from compat_tests.workers import kill_worker_of, worker_of

pytestmark = pytest.mark.slow
Names = Callable[[], str]
_CLIENTS = 12
"""Connections: that all land on one of two workers happens once in two thousand runs."""
_LONG_S = 12.0


@pytest.fixture(scope="module")
def module_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A service with two workers."""
    node = NodeProcess(tmp_path_factory.mktemp("workers"), "--workers", "2", "--aws-waits", "off")
    yield node.start()
    node.close()


@pytest.fixture
def clients(module_node: NodeProcess) -> Iterator[list[Boto3Client]]:
    """Clients with a connection each."""
    made = [Boto3Client(module_node.url, module_node.credentials) for _ in range(_CLIENTS)]
    yield made
    for client in made:
        client.close()


def _queues(client: Boto3Client, fresh_name: Names, count: int = 2) -> list[str]:
    """Queues of which one is led by each worker, as new ones go round."""
    return [client.call("CreateQueue", QueueName=fresh_name())["QueueUrl"] for _ in range(count)]


def _metrics(node: NodeProcess) -> str:
    with urlopen(f"{node.url}/_holdfast/metrics", timeout=30) as page:
        return str(page.read().decode())


def test_every_connection_reaches_every_queue(
    module_node: NodeProcess, clients: list[Boto3Client], fresh_name: Names
) -> None:
    for url in _queues(clients[0], fresh_name):
        for number, client in enumerate(clients):
            entries = [{"Id": str(i), "MessageBody": f"{number}-{i}"} for i in range(2)]
            client.call("SendMessageBatch", QueueUrl=url, Entries=entries)
        found: list[str] = []
        while got := receive(clients[len(found) % _CLIENTS], url):
            found += [message["Body"] for message in got]
            entries = [
                {"Id": str(i), "ReceiptHandle": message["ReceiptHandle"]}
                for i, message in enumerate(got)
            ]
            deleter = clients[(len(found) + 1) % _CLIENTS]
            answer = deleter.call("DeleteMessageBatch", QueueUrl=url, Entries=entries)
            assert len(answer["Successful"]) == len(got)
        assert Counter(found) == Counter(f"{n}-{i}" for n in range(_CLIENTS) for i in range(2))

    page = _metrics(module_node)
    for worker in ("0", "1"):
        assert f'holdfast_requests_total{{worker="{worker}",action="SendMessageBatch"' in page


def test_a_fifo_queue_keeps_its_order_through_all_workers(
    clients: list[Boto3Client], fresh_name: Names
) -> None:
    fifo = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    for _ in range(2):
        name = f"{fresh_name()}.fifo"
        url = clients[0].call("CreateQueue", QueueName=name, Attributes=fifo)["QueueUrl"]
        for number, client in enumerate(clients):
            for _again in range(2):  # the second is a duplicate
                client.call(
                    "SendMessage", QueueUrl=url, MessageBody=str(number), MessageGroupId="g"
                )
        found: list[str] = []
        for client in clients:
            for message in receive(client, url, 1):
                found.append(message["Body"])
                handle = message["ReceiptHandle"]
                client.call("DeleteMessage", QueueUrl=url, ReceiptHandle=handle)
        assert found == [str(number) for number in range(_CLIENTS)]


def test_a_long_poll_of_any_connection_gets_what_another_sends(
    clients: list[Boto3Client], fresh_name: Names
) -> None:
    urls = _queues(clients[0], fresh_name, 4)
    for number, url in enumerate(urls):
        got: list[str] = []

        def poll(url: str = url, number: int = number, got: list[str] = got) -> None:
            got += [each["Body"] for each in receive(clients[number], url, WaitTimeSeconds=20)]

        thread = threading.Thread(target=poll)
        thread.start()
        time.sleep(0.2)
        clients[-number - 1].call("SendMessage", QueueUrl=url, MessageBody="here")
        thread.join()
        assert got == ["here"]


def _failures(node: NodeProcess, name: str) -> dict[str, int]:
    """Dead letters by what they failed for, once all are counted."""
    _, found = ask(node.url, node.credentials, f"api/queues/{name}/failures")
    counts = {each["signs"][0]["value"]: each["messages"] for each in found["failures"]}
    return counts if found["is_exact"] else {}


def test_dead_letters_and_changes_of_queues_cross_workers(
    module_node: NodeProcess, clients: list[Boto3Client], fresh_name: Names
) -> None:
    dead, source = _queues(clients[0], fresh_name)
    arn = clients[1].call("GetQueueAttributes", QueueUrl=dead, AttributeNames=["QueueArn"])
    policy = f'{{"deadLetterTargetArn":"{arn["Attributes"]["QueueArn"]}","maxReceiveCount":"1"}}'
    clients[2].call("SetQueueAttributes", QueueUrl=source, Attributes={"RedrivePolicy": policy})
    clients[3].call("SendMessage", QueueUrl=source, MessageBody="spent")
    receive_count(clients[4], source, 1, VisibilityTimeout=0)

    assert receive(clients[5], source) == []
    name = dead.rpartition("/")[2]
    for _ in range(6):  # each on a connection of its own
        eventually(lambda: _failures(module_node, name) == {"spent": 1})
    (got,) = receive_count(clients[6], dead, 1)
    assert got["Body"] == "spent"

    clients[7].call("PurgeQueue", QueueUrl=dead)
    numbers = clients[8].call("GetQueueAttributes", QueueUrl=dead, AttributeNames=["All"])
    assert numbers["Attributes"]["ApproximateNumberOfMessagesNotVisible"] == "0"
    clients[9].call("DeleteQueue", QueueUrl=source)
    for client in clients:
        assert source not in client.call("ListQueues").get("QueueUrls", [])


def test_pages_and_commands_answer_for_all_workers(
    module_node: NodeProcess, clients: list[Boto3Client], fresh_name: Names, tmp_path: Path
) -> None:
    urls = _queues(clients[0], fresh_name)
    names = [url.rpartition("/")[2] for url in urls]
    for number, client in enumerate(clients):
        client.call("SendMessage", QueueUrl=urls[number % 2], MessageBody="m")
    data = ("--data", str(module_node.data))

    shown = run_command("metrics", *data).stdout
    for name in names:
        line = next(
            line
            for line in shown.splitlines()
            if line.startswith("holdfast_queue_messages_visible{") and f'"{name}"' in line
        )
        assert line.endswith(f" {_CLIENTS / 2}")
    for _ in range(6):  # each on a connection of its own
        status, page = ask(module_node.url, module_node.credentials, "api/queues")
        seen = {queue["name"]: queue["visible"] for queue in page["queues"]}
        assert (status, [seen[name] for name in names]) == (200, [_CLIENTS // 2] * 2)
        with urlopen(f"{module_node.url}/_holdfast/console/", timeout=30) as console:
            assert console.status == 200
    used = run_command("usage", *data).stdout.splitlines()
    sends = [int(line.split()[3]) for name in names for line in used if f":{name} " in line]
    assert sends == [_CLIENTS // 2] * 2
    for number in range(6):
        made = tmp_path / f"backup-{number}"
        assert run_command("backup", str(made), *data).returncode == 0
    restored = tmp_path / "restored"
    assert run_command("restore", str(made), "--data", str(restored)).returncode == 0
    assert run_command("verify", str(restored)).returncode == 0
    audit = (module_node.data / "audit.log").read_text()
    assert all(f'"{name}"' in audit for name in names)
    assert audit.count('"event": "started"') == 1


def _answered(node: NodeProcess, action: str) -> dict[str, float]:
    """Requests that each worker answered a client."""
    page = _metrics(node)
    found: dict[str, float] = {}
    for worker in ("0", "1"):
        begin = f'holdfast_requests_total{{worker="{worker}",action="{action}"'
        lines = [line for line in page.splitlines() if line.startswith(begin)]
        found[worker] = sum(float(line.rpartition(" ")[2]) for line in lines)
    return found


def test_a_connection_moves_to_the_worker_of_its_queue(
    module_node: NodeProcess, fresh_name: Names
) -> None:
    client = Boto3Client(module_node.url, module_node.credentials)
    urls = _queues(client, fresh_name)
    sent = Counter[str]()

    def taken_by(url: str) -> list[str]:
        """The workers that took the last requests of many."""
        for _ in range(100):
            client.call("SendMessage", QueueUrl=url, MessageBody=str(sent[url]))
            sent[url] += 1
        before = _answered(module_node, "SendMessage")
        client.call("SendMessage", QueueUrl=url, MessageBody=str(sent[url]))
        sent[url] += 1
        after = _answered(module_node, "SendMessage")
        return [worker for worker in after if after[worker] > before[worker]]

    eventually(lambda: taken_by(urls[0]) != taken_by(urls[1]))
    for url in urls:
        found: set[str] = set()
        while got := receive(client, url):
            found |= {message["Body"] for message in got}
        assert found == {str(number) for number in range(sent[url])}
    client.close()


# -- the ends of processes -------------------------------------------------------------------------


class _Traffic:
    """Sends to and receives from queues, with the retries of boto3's default."""

    def __init__(self, node: NodeProcess, urls: list[str]) -> None:
        self._node = node
        self._urls = urls
        self._ends = threading.Event()
        self.sent: list[set[str]] = [set() for _ in urls]
        self.received: list[list[str]] = [[] for _ in urls]
        self.errors: list[str] = []
        work = [(each, number) for number in range(len(urls)) for each in (self._send, self._get)]
        self._threads = [
            threading.Thread(target=self._run, args=(each, number)) for each, number in work
        ]

    def _run(self, work: Callable[[object, int], None], number: int) -> None:
        # A worker that starts on a busy machine takes longer than clients wait by default.
        patient = {"retries": {"mode": "standard"}, "read_timeout": 180}
        client = connect(self._node.url, self._node.credentials, **patient)
        try:
            while not self._ends.is_set():
                work(client, number)
        except Exception as error:
            self.errors.append(repr(error))
        finally:
            client.close()

    def _send(self, client: Any, number: int) -> None:
        body = str(len(self.sent[number]))
        group = {"MessageGroupId": "g", "MessageDeduplicationId": body}
        is_fifo = self._urls[number].endswith(".fifo")
        client.send_message(
            QueueUrl=self._urls[number], MessageBody=body, **(group if is_fifo else {})
        )
        self.sent[number].add(body)

    def _get(self, client: Any, number: int) -> None:
        url = self._urls[number]
        got = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1)
        for message in got.get("Messages", []):
            self.received[number].append(message["Body"])
            client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])

    def __enter__(self) -> _Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def judge(self, client: Boto3Client) -> None:
        """Nothing acknowledged is lost, and FIFO queues are in order."""
        assert self.errors == []
        for number, url in enumerate(self._urls):

            def is_complete(number: int = number, url: str = url) -> bool:
                for message in receive(client, url, WaitTimeSeconds=1):
                    self.received[number].append(message["Body"])
                    handle = message["ReceiptHandle"]
                    client.call("DeleteMessage", QueueUrl=url, ReceiptHandle=handle)
                return self.sent[number] <= set(self.received[number])

            eventually(is_complete)
            if url.endswith(".fifo"):
                first = list(dict.fromkeys(self.received[number]))
                assert first == sorted(first, key=int)


def _mixed_queues(client: Boto3Client) -> list[str]:
    """Two of each kind, led by both workers. A receive whose answer is lost with its worker hides
    messages for ten seconds."""
    given = {"VisibilityTimeout": "10"}
    fifo = {**given, "FifoQueue": "true"}
    made = [("a", given), ("b", given), ("a.fifo", fifo), ("b.fifo", fifo)]
    return [
        client.call("CreateQueue", QueueName=name, Attributes=attributes)["QueueUrl"]
        for name, attributes in made
    ]


def test_a_killed_worker_is_replaced_and_no_call_fails(start_node: NodeFactory) -> None:
    node = start_node("--workers", "2")
    client = Boto3Client(node.url, node.credentials)
    with _Traffic(node, _mixed_queues(client)) as traffic:
        for shard in (0, 1, 0):
            time.sleep(1.0)
            kill_worker_of(node, shard)
        time.sleep(1.0)
    traffic.judge(client)
    client.close()
    node.stop()


def test_requests_wait_for_a_worker_that_is_away_for_long(start_node: NodeFactory) -> None:
    """On a busy machine the second kill in a row meets no process that is ready."""
    node = start_node("--workers", "2")
    clients = [Boto3Client(node.url, node.credentials) for _ in range(_CLIENTS)]
    urls = [clients[0].call("CreateQueue", QueueName=name)["QueueUrl"] for name in "ab"]
    outcomes: list[str] = []

    def send(client: Boto3Client) -> None:
        try:
            for url in urls:  # of both workers
                client.call("SendMessage", QueueUrl=url, MessageBody="x")
            outcomes.append("sent")
        except ConnectionClosedError:  # it was one of the killed worker's
            outcomes.append("closed")
        except ClientError as error:
            outcomes.append(error.code)

    for client in clients:
        send(client)
    outcomes.clear()
    killed = worker_of(node, 0)
    os.kill(node.pid, signal.SIGSTOP)
    os.kill(killed, signal.SIGKILL)
    threads = [threading.Thread(target=send, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    time.sleep(_LONG_S)
    os.kill(node.pid, signal.SIGCONT)
    for thread in threads:
        thread.join()
    assert set(outcomes) <= {"sent", "closed"}
    assert "sent" in outcomes
    for client in clients:
        client.close()
    node.stop()


def test_workers_end_with_their_supervisor_and_its_successor_has_everything(
    start_node: NodeFactory,
) -> None:
    node = start_node("--workers", "2")
    client = Boto3Client(node.url, node.credentials)
    urls = _mixed_queues(client)
    for url in urls:
        group = {"MessageGroupId": "g", "MessageDeduplicationId": "1"}
        given = group if url.endswith(".fifo") else {}
        client.call("SendMessage", QueueUrl=url, MessageBody="kept", **given)
    workers = node.processes()
    node.kill()
    node.start()

    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    for url in urls:
        (got,) = receive_count(client, url, 1)
        assert got["Body"] == "kept"
    client.close()
    node.stop()


def test_a_second_supervisor_does_not_run_beside_the_first(
    start_node: NodeFactory, tmp_path: Path
) -> None:
    node = start_node("--workers", "2")
    port = node.url.rpartition(":")[2]

    same_data = run_command("serve", "--workers", "2", "--port", "0", "--data", str(node.data))
    same_port = run_command(
        "serve", "--workers", "2", "--port", port, "--data", str(tmp_path / "other")
    )
    alone = run_command("serve", "--port", "0", "--data", str(node.data))

    assert same_data.returncode == same_port.returncode == alone.returncode == 1
    assert "is in use by process" in same_data.stderr
    assert "Address already in use" in same_port.stderr
    assert "is in use by process" in alone.stderr


def test_a_folder_serves_with_any_number_of_workers(tmp_path: Path) -> None:
    credentials: Credentials | None = None
    for number, workers in enumerate(("1", "2", "4", "1")):
        node = NodeProcess(
            tmp_path / workers,
            "--workers",
            workers,
            data=tmp_path / "data",
            credentials=credentials,
        ).start()
        credentials = node.credentials
        client = Boto3Client(node.url, credentials)
        for each in range(number):
            url = client.call("GetQueueUrl", QueueName=f"q{each}")["QueueUrl"]
            (got,) = receive_count(client, url, 1, VisibilityTimeout=0)
            assert got["Body"] == f"of {each}"
        url = client.call("CreateQueue", QueueName=f"q{number}")["QueueUrl"]
        client.call("SendMessage", QueueUrl=url, MessageBody=f"of {number}")
        client.close()
        node.stop()
    shards = sorted(path.name for path in (tmp_path / "data").glob("shard-?"))
    assert shards == [f"shard-{number}" for number in range(4)]
    assert run_command("verify", str(tmp_path / "data")).returncode == 0


def test_a_stop_ends_long_polls_and_all_processes(start_node: NodeFactory) -> None:
    node = start_node("--workers", "2")
    clients = [Boto3Client(node.url, node.credentials) for _ in range(4)]
    urls = [
        clients[0].call("CreateQueue", QueueName=f"q{number}")["QueueUrl"] for number in range(4)
    ]
    answers: list[object] = []
    polls = [
        threading.Thread(
            target=lambda client=client, url=url: answers.append(
                receive(client, url, WaitTimeSeconds=20)
            )
        )
        for client, url in zip(clients, urls, strict=True)
    ]
    for poll in polls:
        poll.start()
    time.sleep(0.5)
    workers = node.processes()

    node.stop(seconds=15)

    for poll in polls:
        poll.join()
    assert answers == [[]] * 4
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


def test_settings_that_do_not_go_with_workers_are_refused(tmp_path: Path) -> None:
    def refused(*options: str) -> str:
        ended = run_command("serve", "--data", str(tmp_path / "data"), *options)
        assert ended.returncode == 2
        return ended.stderr

    assert "workers: must be a number from 1 to 16" in refused("--workers", "17")
    assert "fsync" in refused("--workers", "2", "--durability", "os")


def test_a_rate_is_one_of_all_workers_and_one_connection_may_use_it_up(tmp_path: Path) -> None:
    """Worker 0 lends; a worker that begins may let its share pass until it has heard."""
    node = NodeProcess(tmp_path, "--workers", "2", "--account-rate", "20/hour").start()
    clients = [Boto3Client(node.url, node.credentials) for _ in range(_CLIENTS)]

    def passes(client: Boto3Client) -> bool:
        try:
            client.call("ListQueues")
        except ClientError as error:
            if error.code != "RequestThrottled":
                raise
            return False
        return True

    passed = 0

    def is_used_up() -> bool:
        nonlocal passed
        passed += passes(clients[0])
        return passed >= 20

    try:
        eventually(is_used_up)
        assert not passes(clients[0])
        assert sum(map(passes, clients)) <= 10, "the share of the other worker"
        eventually(lambda: sum(map(passes, clients)) == 0)
    finally:
        for client in clients:
            client.close()
        node.close()
