"""A graceful stop refuses new requests, finishes running ones and ends long polls early."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sqs_api import node as node_module
from sqs_api.node import start_node
from sqs_api.settings.config import AuthMode, Settings
from sqs_api.tests.serving import WAIT_S, Client, json_request, request_bytes, until
from storage.engines.store_options import Durability

LIST = json_request("ListQueues")
SEND = json_request("SendMessage", QueueUrl="q", MessageBody="x")
POLL = json_request("ReceiveMessage", QueueUrl="q", WaitTimeSeconds=20)


class Served:
    """A whole node with one queue, and its clients."""

    def __init__(self, folder: Path) -> None:
        self._settings = Settings(
            port=0, data=folder, auth=AuthMode.OPEN, durability=Durability.FSYNC
        )
        self.clients: list[Client] = []

    async def start(self) -> None:
        """Start, or start again."""
        self.node = await start_node(self._settings)
        self.port = int(self.node.address.rsplit(":", 1)[1])

    async def connect(self) -> Client:
        """A new connection."""
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        self.clients.append(client)
        return client


@pytest_asyncio.fixture
async def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    """A node with the queue `q`.

    The test stops it, and waits less than the node would for requests that do not end.
    """
    monkeypatch.setattr(node_module, "STOP_S", 100 * WAIT_S)
    service = Served(tmp_path / "data")
    await service.start()
    client = await service.connect()
    assert (await client.ask(json_request("CreateQueue", QueueName="q"))).status == 200
    yield service
    for each in service.clients:
        await each.close()


async def test_long_polls_end_with_an_empty_200(served: Served) -> None:
    pollers = [await served.connect() for _ in range(4)]
    for number, poller in enumerate(pollers):
        chunked = POLL.replace(b"Content-Length: ", b"Expect: nothing\r\nContent-Length: ")
        await poller.send(chunked if number % 2 else POLL)
    await until(lambda: served.node.worker.gateway.outstanding == 4)

    async with asyncio.timeout(WAIT_S):
        await served.node.stop()

    for poller in pollers:
        answer = await poller.answer()
        assert (answer.status, answer.json) == (200, {})
        assert await poller.rest() == b""


async def test_stop_with_idle_connections_takes_no_time(served: Served) -> None:
    idle = [await served.connect() for _ in range(50)]
    await idle[0].ask(LIST)

    async with asyncio.timeout(WAIT_S):
        await served.node.stop()


async def test_stop_does_not_wait_for_a_half_sent_request(served: Served) -> None:
    for part in (
        SEND[:20],
        SEND[:-1],
        request_bytes(headers={"Transfer-Encoding": "chunked"}, length=False),
    ):
        await (await served.connect()).send(part)

    async with asyncio.timeout(WAIT_S):
        await served.node.stop()


async def test_new_connections_are_refused_after_a_stop(served: Served) -> None:
    await served.node.stop()

    refused = False
    try:
        await served.connect()
    except ConnectionRefusedError:
        refused = True
    assert refused


async def _send_until_closed(client: Client) -> tuple[int, int]:
    """The numbers of acknowledged and of refused sends."""
    acknowledged = refused = 0
    try:
        while True:
            client.writer.write(SEND)
            answer = await client.answer()
            acknowledged += answer.status == 200
            refused += answer.status != 200
    except (asyncio.IncompleteReadError, ConnectionError):
        return acknowledged, refused


async def test_stop_under_load_answers_every_request_it_began(served: Served) -> None:
    senders = [asyncio.create_task(_send_until_closed(await served.connect())) for _ in range(48)]
    await until(lambda: sum(served.node.owner.accounting.requests().values()) > 200)

    async with asyncio.timeout(WAIT_S):
        await served.node.stop()
    counts = [await sender for sender in senders]

    assert sum(refused for _, refused in counts) == 0
    await served.start()
    attributes = json_request("GetQueueAttributes", QueueUrl="q", AttributeNames=["All"])
    answer = await (await served.connect()).ask(attributes)
    stored = int(answer.json["Attributes"]["ApproximateNumberOfMessages"])
    await served.node.stop()
    assert stored == sum(acknowledged for acknowledged, _ in counts)


async def test_acknowledged_message_is_there_after_a_stop(served: Served) -> None:
    client = await served.connect()
    sent = await client.ask(SEND)
    await served.node.stop()

    await served.start()
    received = await (await served.connect()).ask(json_request("ReceiveMessage", QueueUrl="q"))
    await served.node.stop()

    assert received.json["Messages"][0]["MessageId"] == sent.json["MessageId"]
    assert re.fullmatch("[0-9a-f-]{36}", sent.json["MessageId"])
