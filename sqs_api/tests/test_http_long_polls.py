"""Long polls over connections: pollers that hang up swallow nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from sqs_api.tests.serving import (
    Client,
    Service,
    json_request,
    query_request,
    running,
    settled,
    until,
)
from storage.engines.store import Done, StoreFailed
from storage.tests.memory_store import MemoryStore
from storage.tests.on_disk import opener

_COUNT = "ApproximateReceiveCount"
PORTS = ("port", "aiohttp_port")


def _poll(url: str, seconds: int = 20) -> bytes:
    return json_request("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=seconds)


async def _parked(service: Service, port: str, url: str) -> Client:
    """A connection whose long poll waits."""
    before = service.gateway.outstanding
    client = await service.connect(getattr(service, port))
    await client.send(_poll(url))
    await until(lambda: service.gateway.outstanding == before + 1)
    await settled()
    return client


async def _receive(service: Service, url: str) -> list[dict[str, Any]]:
    names = {"AttributeNames": [_COUNT]}
    answer = await service.call("ReceiveMessage", QueueUrl=url, **names)
    messages: list[dict[str, Any]] = answer.get("Messages", [])
    return messages


@pytest.mark.parametrize("port", PORTS)
async def test_send_wakes_the_poll(service: Service, port: str) -> None:
    url = await service.make_queue()
    client = await _parked(service, port, url)

    await service.call("SendMessage", QueueUrl=url, MessageBody="x")

    assert (await client.answer()).json["Messages"][0]["Body"] == "x"


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("how", ["close", "half-close", "reset"])
async def test_poller_that_hung_up_swallows_no_message(
    service: Service, port: str, how: str
) -> None:
    url = await service.make_queue()
    client = await _parked(service, port, url)

    if how == "close":
        await client.close()
    elif how == "half-close":
        client.writer.write_eof()
    else:
        client.writer.transport.abort()
    await until(lambda: service.gateway.outstanding == 0)
    await service.call("SendMessage", QueueUrl=url, MessageBody="x")

    (message,) = await _receive(service, url)
    assert message["Attributes"][_COUNT] == "1"


class _Store(MemoryStore):
    """A store that signals when answers are about to go out, and when they are out."""

    before: Callable[[], None] | None = None
    after: Callable[[], None] | None = None

    def sync(self, done: Done) -> None:
        """See `Store.sync`. Each of the two is called once."""

        def told(failure: StoreFailed | None) -> None:
            if self.before is not None:
                before, self.before = self.before, None
                before()
            done(failure)
            if self.after is not None:
                after, self.after = self.after, None
                after()

        super().sync(told)


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_message_whose_answer_meets_the_end_of_the_connection_goes_to_the_next(
    port: str, moment: str
) -> None:
    store = _Store()
    async with running(open_store=opener(store)) as service:
        url = await service.make_queue()
        client = await _parked(service, port, url)
        (end,) = (end for server in service.servers for end in server.connections if end.transport)

        assert end.transport is not None
        setattr(store, moment, end.transport.abort)
        await service.call("SendMessage", QueueUrl=url, MessageBody="x")

        if await client.rest() == b"":  # else it was out in time
            (message,) = await _receive(service, url)
            assert message["Attributes"][_COUNT] == "1"
        assert service.gateway.outstanding == 0


async def test_message_of_a_purged_queue_whose_poller_is_gone_goes_to_the_next() -> None:
    """The purge gave the queue another id while the poll waited: the message is returned under that
    id."""
    store = _Store()
    async with running(open_store=opener(store)) as service:
        url = await service.make_queue()
        await service.call("SendMessage", QueueUrl=url, MessageBody="purged")
        assert len(await _receive(service, url)) == 1
        client = await _parked(service, "port", url)
        (end,) = (end for server in service.servers for end in server.connections if end.transport)
        await service.call("PurgeQueue", QueueUrl=url)
        await settled()

        assert end.transport is not None
        store.before = end.transport.abort
        await service.call("SendMessage", QueueUrl=url, MessageBody="x")

        assert await client.rest() == b""
        (message,) = await _receive(service, url)
        assert message["Attributes"][_COUNT] == "1"


@pytest.mark.parametrize("port", PORTS)
async def test_requests_behind_a_poll_are_answered_after_it(service: Service, port: str) -> None:
    url = await service.make_queue()
    client = await _parked(service, port, url)
    await client.send(json_request("ListQueues"), query_request("ListQueues"))

    await service.call("SendMessage", QueueUrl=url, MessageBody="x")

    assert (await client.answer()).json["Messages"][0]["Body"] == "x"
    assert (await client.answer()).json == {"QueueUrls": [url]}
    assert url.encode() in (await client.answer()).body


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("behind", [json_request("ListQueues"), b"no request\r\n\r\n"])
async def test_poller_that_pipelined_and_hung_up_swallows_no_message(
    service: Service, port: str, behind: bytes
) -> None:
    url = await service.make_queue()
    client = await _parked(service, port, url)
    await client.send(behind)
    await client.close()
    await asyncio.sleep(0.01)  # no event shows that the server did not notice

    await service.call("SendMessage", QueueUrl=url, MessageBody="x")

    assert len(await _receive(service, url)) == 1


async def test_bytes_behind_a_poll_are_bounded(service: Service) -> None:
    url = await service.make_queue()
    client = await _parked(service, "port", url)

    client.writer.write(json_request("ListQueues") * 100_000)
    await asyncio.sleep(0.05)

    (end,) = [end for end in service.connections if end.transport is not None]
    assert len(end._received) < 1 << 20
    client.writer.transport.abort()


async def test_hundred_polls_are_served_in_order_of_arrival(service: Service) -> None:
    url = await service.make_queue()
    clients = [await _parked(service, PORTS[i % 2], url) for i in range(100)]

    for number in range(0, 100, 10):
        entries = [{"Id": str(i), "MessageBody": str(number + i)} for i in range(10)]
        await service.call("SendMessageBatch", QueueUrl=url, Entries=entries)
    bodies = [(await client.answer()).json["Messages"][0]["Body"] for client in clients]

    # A receive takes one message unless it asks for more.
    assert bodies == [str(number) for number in range(100)]


@pytest.mark.slow
async def test_wait_ends_with_an_empty_answer(service: Service) -> None:
    url = await service.make_queue()

    answer = await service.ask(_poll(url, 1))

    assert (answer.status, answer.json) == (200, {})


@pytest.mark.parametrize("port", PORTS)
async def test_polls_above_the_limit_are_throttled_when_there_is_nothing(port: str) -> None:
    async with running(waiting_polls_max=2) as service:
        url = await service.make_queue(VisibilityTimeout="0")
        lazy = await service.make_queue("lazy", ReceiveMessageWaitTimeSeconds="20")
        pollers = [await _parked(service, port, url) for _ in range(2)]

        for poll in (_poll(url), json_request("ReceiveMessage", QueueUrl=lazy)):
            answer = await service.ask(poll)
            assert (answer.status, answer.json["__type"].partition("#")[2]) == (
                403,
                "RequestThrottled",
            )
        assert service.gateway.receives.polls_not_waited == 2
        assert await _receive(service, url) == [], "a receive that does not wait"
        await service.call("SendMessage", QueueUrl=url, MessageBody="x")
        for poller in pollers:
            await poller.answer()

        for _ in range(2):
            await _parked(service, port, lazy)
        assert (await service.ask(_poll(url))).json["Messages"][0]["Body"] == "x"
