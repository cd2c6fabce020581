"""Delivery at most once at the gateway: what a client cannot get is given back, the rest is
gone."""

from __future__ import annotations

import socket
import struct

import pytest

from sqs_api.tests.serving import Service, json_request, settled, until

_ONCE = {"holdfast:delivery": "at-most-once"}
_PORTS = ("port", "aiohttp_port")


async def _a_queue(service: Service, **attributes: str) -> str:
    url = await service.make_queue(**attributes)
    await service.call("TagQueue", QueueUrl=url, Tags=_ONCE)
    await service.call("SendMessage", QueueUrl=url, MessageBody="x")
    return url


async def _counts(service: Service, url: str) -> tuple[str, str]:
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    answer = await service.call("GetQueueAttributes", QueueUrl=url, AttributeNames=names)
    return answer["Attributes"][names[0]], answer["Attributes"][names[1]]


def _lost(service: Service) -> int:
    return sum(service.counts.lost_to_clients.values())


@pytest.mark.parametrize("port", _PORTS)
async def test_what_was_written_is_gone(service: Service, port: str) -> None:
    url = await _a_queue(service)
    client = await service.connect(getattr(service, port))

    answer = await client.ask(json_request("ReceiveMessage", QueueUrl=url))
    await settled()

    assert answer.json["Messages"][0]["Body"] == "x"
    assert await _counts(service, url) == ("0", "0")
    await client.close()
    await until(lambda: service.gateway.outstanding == 0)
    assert _lost(service) == 0, "it ended as it should"


@pytest.mark.parametrize("port", _PORTS)
async def test_messages_of_a_connection_that_broke_are_counted(service: Service, port: str) -> None:
    url = await _a_queue(service)
    client = await service.connect(getattr(service, port))

    await client.ask(json_request("ReceiveMessage", QueueUrl=url))
    ends = client.writer.get_extra_info("socket")
    ends.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.writer.transport.abort()

    await until(lambda: _lost(service) == 1)


async def test_a_later_request_shows_that_the_answer_was_read(service: Service) -> None:
    url = await _a_queue(service)
    client = await service.connect()

    await client.ask(json_request("ReceiveMessage", QueueUrl=url))
    await client.ask(json_request("ReceiveMessage", QueueUrl=url))
    ends = client.writer.get_extra_info("socket")
    ends.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.writer.transport.abort()
    await until(lambda: not any(server.connections for server in service.servers))

    assert _lost(service) == 0


async def test_messages_that_cannot_be_opened_are_given_back(service: Service) -> None:
    """As after a move to a queue without a key."""
    await service.keyring.add("orders", "000000000000")
    url = await _a_queue(service, KmsMasterKeyId="orders")
    attributes = {"SqsManagedSseEnabled": "true"}
    await service.call("SetQueueAttributes", QueueUrl=url, Attributes=attributes)
    await service.keyring.set_enabled("orders", False)

    refused = await service.ask(json_request("ReceiveMessage", QueueUrl=url))
    assert refused.status == 400
    await settled()
    assert await _counts(service, url) == ("1", "0")

    await service.keyring.set_enabled("orders", True)
    answer = await service.call("ReceiveMessage", QueueUrl=url)
    assert answer["Messages"][0]["Body"] == "x"
