"""Clients that send no more and still read: some half-close after their request."""

from __future__ import annotations

import pytest

from sqs_api.tests.serving import json_request, running, settled, until
from storage.tests.memory_store import MemoryStore
from storage.tests.on_disk import opener


@pytest.mark.parametrize(
    "ahead", [b"", json_request("ListQueues")], ids=["alone", "with another ahead"]
)
async def test_a_client_that_half_closes_reads_the_answer_it_waits_for(ahead: bytes) -> None:
    store = MemoryStore()
    async with running(open_store=opener(store)) as service:
        url = await service.make_queue()
        client = await service.connect()
        store.auto_sync = False
        await client.send(json_request("SendMessage", QueueUrl=url, MessageBody="x"), ahead)
        client.writer.write_eof()
        await settled()

        store.sync_all()

        answer = await client.answer()
        assert (answer.status, "MessageId" in answer.json) == (200, True)
        assert await client.rest() == b""
        await until(lambda: not any(server.connections for server in service.servers))


async def test_a_client_that_half_closes_is_given_no_message() -> None:
    """It looks like one that is gone, for which the message would be hidden in vain."""
    store = MemoryStore()
    async with running(open_store=opener(store)) as service:
        url = await service.make_queue()
        await service.call("SendMessage", QueueUrl=url, MessageBody="x")
        client = await service.connect()
        store.auto_sync = False
        await client.send(json_request("ReceiveMessage", QueueUrl=url))
        client.writer.write_eof()
        assert await client.rest() == b""
        store.auto_sync = True
        store.sync_all()
        await until(lambda: service.gateway.outstanding == 0)

        names = {"AttributeNames": ["ApproximateReceiveCount"], "WaitTimeSeconds": 1}
        answer = await service.call("ReceiveMessage", QueueUrl=url, **names)

        (message,) = answer["Messages"]
        assert message["Attributes"] == {"ApproximateReceiveCount": "1"}
