"""Holdfast.TransactMessages with deletes of several queues and parts, in different shards."""

from __future__ import annotations

import json
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from compat_tests.clients.boto3_client import Boto3Client, connect
from compat_tests.cluster_process import HOSTS, ClusterProcess
from compat_tests.conftest import NodeFactory
from compat_tests.facade import counts, create_fifo_queue, eventually, receive, receive_count
from compat_tests.node_process import NodeProcess
from compat_tests.pages import ask
from compat_tests.test_transactions import cancelled, delete, send, transacting

_MESSAGES = 60
_KILLS = 3
_RETRIES = {"mode": "standard", "total_max_attempts": 20}


def split(url: str, client: Boto3Client, service: NodeProcess, name: str) -> str:
    """A queue of three parts; `url` is that of a host."""
    queue = client.call("CreateQueue", QueueName=name)["QueueUrl"]
    status, said = ask(url, service.credentials, f"api/queues/{name}/parts/split", {"parts": 3})
    assert status == 200, said
    return str(queue)


class _World:
    """A service with three shards, and its clients."""

    def __init__(self, service: NodeProcess, holdfast: Any) -> None:
        self.holdfast = holdfast
        self.client = Boto3Client(service.url, service.credentials)
        self.orders = split(service.url, self.client, service, "orders")
        names = "a", "b", "c", "d", "e"
        self.queues = [self.client.call("CreateQueue", QueueName=n)["QueueUrl"] for n in names]
        self.made = self.client.call("CreateQueue", QueueName="made")["QueueUrl"]

    def received(self) -> list[dict[str, Any]]:
        """Deletes of messages of all queues, and of all parts of one."""
        for number in range(30):
            self.client.call("SendMessage", QueueUrl=self.orders, MessageBody=str(number))
        found = receive_count(self.client, self.orders, 30)
        deletes = [delete(self.orders, message) for message in found]
        for url in self.queues:
            self.client.call("SendMessage", QueueUrl=url, MessageBody="x")
            (message,) = receive(self.client, url)
            deletes.append(delete(url, message))
        return deletes

    def counted(self) -> Counter[int]:
        """The sums of visible, in flight and delayed messages of all queues but `made`."""
        sums = Counter[int]()
        for url in (self.orders, *self.queues):
            sums.update(dict(enumerate(counts(self.client, url))))
        return sums


@pytest.fixture
def world(
    start_node: NodeFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[_World]:
    service = start_node("--shards", "3", "--aws-waits", "off")
    found = _World(service, transacting(service.url, service.credentials, tmp_path, monkeypatch))
    yield found
    found.client.close()


def test_messages_of_all_parts_and_queues_are_consumed_at_once(world: _World) -> None:
    deletes = world.received()
    token = {"ClientRequestToken": "token"}

    first = world.holdfast.transact_messages(
        TransactItems=[*deletes, send(world.made, "made")], **token
    )

    eventually(lambda: world.counted() == {0: 0, 1: 0, 2: 0})
    again = world.holdfast.transact_messages(
        TransactItems=[*deletes, send(world.made, "made")], **token
    )
    assert again["Results"] == first["Results"]
    assert cancelled(world.holdfast, *deletes[:1], send(world.made, "x")) == [
        "TransactionConflict",
        "None",
    ]
    assert [each["Body"] for each in receive(world.client, world.made)] == ["made"]


def test_one_stale_handle_leaves_all_as_it_was(world: _World) -> None:
    deletes = world.received()
    stale = deletes[7]["Delete"]
    world.client.call("DeleteMessage", **stale)
    before = world.counted()

    codes = cancelled(world.holdfast, *deletes, send(world.made, "made"))

    assert codes[7] == "TransactionConflict"
    assert set(codes) == {"TransactionConflict", "None"}
    eventually(lambda: world.counted() == before)
    del deletes[7]

    def are_deleted() -> bool:
        with suppress(world.holdfast.exceptions.TransactionCanceledException):
            world.holdfast.transact_messages(TransactItems=[*deletes, send(world.made, "made")])
            return True
        return False

    assert are_deleted()
    eventually(lambda: world.counted() == {0: 0, 1: 0, 2: 0})
    assert counts(world.client, world.made) == (1, 0, 0)


def test_groups_of_several_queues_go_on(world: _World) -> None:
    urls = [create_fifo_queue(world.client, f"fifo-{number}") for number in range(5)]
    deletes = []
    for url in urls:
        for body in ("1", "2"):
            world.client.call(
                "SendMessage",
                QueueUrl=url,
                MessageBody=body,
                MessageGroupId="g",
                MessageDeduplicationId=body,
            )
        (message,) = receive(world.client, url, 1)
        deletes.append(delete(url, message))

    world.holdfast.transact_messages(TransactItems=deletes)

    for url in urls:
        (message,) = receive_count(world.client, url, 1)
        assert message["Body"] == "2"


# -- kills -----------------------------------------------------------------------------------------


def _consume(
    service: NodeProcess, holdfast: Any, sources: list[str], made: str, failures: list[str]
) -> None:
    """Consume a message of each source, and tell which they were, until there are none."""
    client = connect(service.url, service.credentials, retries=_RETRIES)
    empty = 0
    try:
        while empty < 3:
            deletes, bodies = [], []
            for url in sources:
                found = client.receive_message(
                    QueueUrl=url, WaitTimeSeconds=1, VisibilityTimeout=4, MaxNumberOfMessages=1
                )
                for message in found.get("Messages", ()):
                    deletes.append(delete(url, message))
                    bodies.append(message["Body"])
            empty = 0 if deletes else empty + 1
            if deletes:
                with suppress(holdfast.exceptions.TransactionCanceledException):
                    holdfast.transact_messages(
                        TransactItems=[*deletes, send(made, json.dumps(bodies))]
                    )
    except Exception as error:  # the test shows it
        failures.append(repr(error))
    finally:
        client.close()


def _each_is_consumed_once(
    service: NodeProcess, holdfast: Any, orders: str, kill: Callable[[], None]
) -> None:
    """Have messages of three queues consumed, three by three, while hosts are killed."""
    client = Boto3Client(service.url, service.credentials)
    names = "bills", "notes", "made"
    bills, notes, made = (client.call("CreateQueue", QueueName=n)["QueueUrl"] for n in names)
    sources = [orders, bills, notes]
    expected = Counter[str]()
    for url in sources:
        for number in range(_MESSAGES):
            body = f"{url[-5:]} {number}"
            client.call("SendMessage", QueueUrl=url, MessageBody=body)
            expected[body] += 1
    failures: list[str] = []
    workers = [
        threading.Thread(target=_consume, args=(service, holdfast, sources, made, failures))
        for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    for _ in range(_KILLS):
        kill()
    for worker in workers:
        worker.join()

    assert not failures
    consumed = Counter[str]()
    while found := receive(client, made, WaitTimeSeconds=2, VisibilityTimeout=600):
        for message in found:
            consumed.update(json.loads(message["Body"]))
    assert consumed == expected
    for url in sources:
        eventually(lambda url=url: counts(client, url) == (0, 0, 0))  # type: ignore[misc]
    client.close()


@pytest.mark.slow
def test_kills_make_no_half_transaction_of_several_shards(
    start_node: NodeFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = start_node("--shards", "3", "--aws-waits", "off")
    holdfast = transacting(service.url, service.credentials, tmp_path, monkeypatch)
    client = Boto3Client(service.url, service.credentials)
    orders = split(service.url, client, service, "orders")
    client.close()

    def kill() -> None:
        service.kill()
        service.start()

    _each_is_consumed_once(service, holdfast, orders, kill)


@pytest.mark.slow
def test_failovers_make_no_half_transaction_of_several_shards(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = ClusterProcess(tmp_path_factory.mktemp("cluster"), "--aws-waits", "off")
    service.start()
    try:
        holdfast = transacting(service.url, service.credentials, tmp_path, monkeypatch)
        service.parts.wait_until_healthy(service.credentials)
        client = Boto3Client(service.url, service.credentials)
        orders = split(service.parts.cluster().hosts["a"], client, service, "orders")
        client.close()
        hosts = iter(HOSTS)

        def kill() -> None:
            host = next(hosts)
            pid = service.parts.signal(host, signal.SIGKILL)
            service.parts.wait_for_another(host, pid)
            service.parts.wait_until_ready(host)

        _each_is_consumed_once(service, holdfast, orders, kill)
    finally:
        service.close()
