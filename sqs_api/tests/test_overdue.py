"""Slow, silent, endless and greedy clients are cut off, and no others.

Seconds pass on command.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from sqs_api.http.http_limits import ListenerLimits, Refused, TimedOut, TooLarge
from sqs_api.tests.listening import Port, listening
from sqs_api.tests.serving import Client, Service, json_request, request_bytes, settled, until

MIB = 1 << 20
LIST = json_request("ListQueues")
LIMITS = ListenerLimits(
    request_timeout_s=20,
    idle_timeout_s=120,
    client_bytes_per_s_min=1000,
)
WAYS = pytest.mark.parametrize("with_short_cut", [True, False], ids=["short cut", "aiohttp"])

PARTS = {
    "head": b"POST / HTTP/1.1\r\nHost:",
    "head without a line": b"POST /",
    "body": request_bytes(b"", {"Content-Length": "10"}, length=False) + b"12345",
    "chunked body": request_bytes(b"", {"Transfer-Encoding": "chunked"}, length=False) + b"ff\r\n1",
}


async def _parted(port: Port, part: bytes) -> Client:
    """A connection over which part of a request has come."""
    client = await port.connect()
    assert (await client.ask(LIST)).status == 200
    await client.send(part)
    await settled()
    return client


@WAYS
@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
async def test_request_that_does_not_go_on_is_cut(
    service: Service, part: bytes, with_short_cut: bool
) -> None:
    async with listening(service, limits=LIMITS, with_short_cut=with_short_cut) as port:
        client = await _parted(port, part)

        await port.pass_seconds(20)
        assert port.counters.connections == 1
        await port.pass_seconds(1)

        assert await client.rest() in (b"", _TIMEOUT)
        await until(lambda: port.counters.connections == 0)
        assert port.counters.timeouts[TimedOut.REQUEST] == 1


_TIMEOUT = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


@WAYS
@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
async def test_a_byte_now_and_then_does_not_gain_time(
    service: Service, part: bytes, with_short_cut: bool
) -> None:
    async with listening(service, limits=LIMITS, with_short_cut=with_short_cut) as port:
        client = await _parted(port, part)

        for _ in range(21):
            await client.send(b"" if part == PARTS["body"] else b"1")
            await port.pass_seconds(1)

        await until(lambda: port.counters.connections == 0)
        assert port.counters.timeouts[TimedOut.REQUEST] == 1


@WAYS
async def test_body_that_comes_slowly_but_steadily_is_served(
    service: Service, with_short_cut: bool
) -> None:
    url = await service.make_queue()
    request = json_request("SendMessage", QueueUrl=url, MessageBody="x" * 100_000)
    async with listening(service, limits=LIMITS, with_short_cut=with_short_cut) as port:
        client = await port.connect()

        for start in range(0, len(request), 1000):
            await client.send(request[start : start + 1000])
            await until(lambda: port.has_read_all)
            await port.pass_seconds(1)

        assert (await client.answer()).status == 200
        assert port.counters.timeouts[TimedOut.REQUEST] == 0


@WAYS
async def test_idle_connection_ends_and_a_waiting_one_does_not(
    service: Service, with_short_cut: bool
) -> None:
    url = await service.make_queue()
    poll = json_request("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20)
    async with listening(service, limits=LIMITS, with_short_cut=with_short_cut) as port:
        idle, poller = [await port.connect() for _ in range(2)]
        await idle.ask(LIST)
        await poller.send(poll)
        await until(lambda: service.gateway.outstanding == 1)

        await port.pass_seconds(120)
        assert port.counters.connections == 2
        await port.pass_seconds(1)

        assert await idle.rest() == b""
        assert port.counters.timeouts[TimedOut.IDLE] == 1
        await port.pass_seconds(500)
        await service.call("SendMessage", QueueUrl=url, MessageBody="x")
        assert (await poller.answer()).json["Messages"][0]["Body"] == "x"
        await port.pass_seconds(120)
        assert (await poller.ask(LIST)).status == 200, "the wait counted as idle"


@WAYS
async def test_connection_without_a_request_ends_sooner(
    service: Service, with_short_cut: bool
) -> None:
    async with listening(service, limits=LIMITS, with_short_cut=with_short_cut) as port:
        silent, late = await port.connect(), await port.connect()
        await until(lambda: port.counters.connections == 2)

        await port.pass_seconds(20)
        assert (await late.ask(LIST)).status == 200
        await port.pass_seconds(1)

        assert await silent.rest() == b""
        assert port.counters.timeouts[TimedOut.IDLE] == 1
        await port.pass_seconds(100)
        assert (await late.ask(LIST)).status == 200


@WAYS
@pytest.mark.parametrize("reads", [False, True], ids=["never reads", "reads slowly"])
async def test_client_that_does_not_read_its_answers_is_cut(
    service: Service, with_short_cut: bool, reads: bool
) -> None:
    url = await service.make_queue(VisibilityTimeout="0")
    await service.call("SendMessage", QueueUrl=url, MessageBody="x" * 900_000)
    receive = json_request("ReceiveMessage", QueueUrl=url)
    async with listening(service, limits=LIMITS, with_short_cut=with_short_cut) as port:
        client = await port.connect()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        (connection,) = port.server.connections
        client.writer.write(receive * 12)  # more than the system takes for the client
        await _until_stuck(connection)

        sock = socket.socket(fileno=client.writer.get_extra_info("socket").fileno())
        for _ in range(45):
            if reads:
                await _read_some(sock, 100_000)
            await port.pass_seconds(1)
        sock.detach()

        if reads:
            assert port.counters.timeouts[TimedOut.ANSWER] == 0
        else:
            await until(lambda: port.counters.connections == 0)
            assert port.counters.timeouts[TimedOut.ANSWER] == 1


async def _until_stuck(connection: Any) -> None:
    """Return when a connection sends no more, since its client reads nothing."""
    before, now = -1, 0
    while now != before or not connection.writing_paused:
        await asyncio.sleep(0.02)
        before, now = now, connection.transport.get_write_buffer_size()


async def _read_some(sock: socket.socket, size: int) -> None:
    while size > 0:
        try:
            size -= len(sock.recv(size))
        except BlockingIOError:
            await asyncio.sleep(0.001)


async def test_refused_client_that_does_not_read_is_cut_too(service: Service) -> None:
    async with listening(service, limits=LIMITS) as port:
        client = await port.connect()
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        (connection,) = port.server.connections
        assert connection.transport is not None
        connection.transport.write(b"x" * (4 << 20))
        connection.force_close()

        await port.pass_seconds(23)

        await until(lambda: port.counters.connections == 0)
        assert port.counters.timeouts[TimedOut.ANSWER] == 1


@WAYS
async def test_head_without_end_is_refused(service: Service, with_short_cut: bool) -> None:
    line = b"X-%d: " + b"x" * 8000 + b"\r\n"
    async with listening(service, limits=LIMITS, with_short_cut=with_short_cut) as port:
        client = await port.connect()
        await client.send(b"POST / HTTP/1.1\r\n", *(line % number for number in range(10)))
        await settled()
        assert port.counters.too_large[TooLarge.HEAD] == 0
        await client.send(line % 10)

        answer = await client.answer()

        assert answer.status == 431
        assert await client.rest() == b""
        assert port.counters.too_large[TooLarge.HEAD] == 1


# -- memory ----------------------------------------------------------------------------------------


def _begun_body(size: int, sent: int, **headers: str) -> bytes:
    return request_bytes(b"", {"Content-Length": str(size), **headers}, length=False) + b"x" * sent


@WAYS
async def test_flood_of_bodies_gets_503_and_small_requests_go_on(
    service: Service, with_short_cut: bool
) -> None:
    sizes = [200_000] * 5 if with_short_cut else [900_000]
    async with listening(
        service, limits=LIMITS, memory_bytes=MIB, with_short_cut=with_short_cut
    ) as port:
        holders = [await port.connect() for _ in sizes]
        for holder, size in zip(holders, sizes, strict=True):
            await holder.send(_begun_body(size, size - 1))
        await until(lambda: port.server.memory.held_bytes > 850_000)

        refused = await (await port.connect()).ask(
            _begun_body(250_000, 249_999, **{"X-Amz-Target": "AmazonSQS.SendMessage"})
        )

        assert (refused.status, refused.headers["Connection"]) == (503, "close")
        assert refused.json["__type"].endswith("#ServiceUnavailableException")
        assert port.counters.refused[Refused.MEMORY] == 1
        form = {
            "X-Amz-Target": "AmazonSQSv20121105.SendMessage",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        for accept, kind in (("*/*", "text/xml"), ("application/json", "application/json")):
            begun = _begun_body(250_000, 249_999, Accept=accept, **form)
            refused = await (await port.connect()).ask(begun)
            assert (refused.status, refused.headers["Content-Type"]) == (503, kind)
        assert (await (await port.connect()).ask(LIST)).status == 200
        assert port.server.memory.held_bytes <= 1 << 20
        await holders[0].send(b"x")
        assert (await holders[0].answer()).status in (400, 404), "its body was held, and read"
        for holder in holders:
            await holder.close()
        await until(lambda: port.server.memory.held_bytes == 0)


@WAYS
async def test_memory_is_held_until_the_answer(service: Service, with_short_cut: bool) -> None:
    url = await service.make_queue()
    async with listening(
        service, limits=LIMITS, memory_bytes=MIB, with_short_cut=with_short_cut
    ) as port:
        client = await port.connect()
        padding: dict[str, Any] = {"X": "x" * 60_000}
        for _ in range(30):
            answer = await client.ask(json_request("ListQueues", **padding))
            assert answer.status == 200
        assert port.server.memory.held_bytes == 0
        await client.send(
            json_request("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20, **padding)
        )
        await until(lambda: service.gateway.outstanding == 1)
        assert port.server.memory.held_bytes >= 60_000

        await client.close()

        await until(lambda: port.server.memory.held_bytes == 0)


@pytest.mark.parametrize(
    "answered", [b"PUT / HTTP/1.1", b"POST / HTTP/1.1"], ids=["wrong method", "too large"]
)
async def test_answered_request_is_not_refused_again_for_its_body(
    service: Service, answered: bytes
) -> None:
    """The body of a request that was answered without it is dropped, and holds no memory."""
    size = 8_000_000 if answered.startswith(b"POST") else 3_000_000
    async with listening(service, limits=LIMITS, memory_bytes=MIB) as port:
        client = await port.connect()
        head = request_bytes(
            b"", {"Content-Length": str(size)}, line=answered.decode(), length=False
        )

        status = (await client.ask(head)).status
        for _ in range(size // 100_000):
            await client.send(b"x" * 100_000)

        assert status in (405, 413)
        assert port.server.memory.held_bytes < 100_000
        if status == 413:
            assert await client.rest() == b""
        else:
            assert (await client.ask(LIST)).status == 200


async def test_flood_behind_a_request_that_waits_ends_the_connection(service: Service) -> None:
    url = await service.make_queue()
    poll = json_request("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20)
    async with listening(service, limits=LIMITS, memory_bytes=MIB, with_short_cut=False) as port:
        client = await port.connect()
        await client.send(poll)
        await until(lambda: service.gateway.outstanding == 1)
        holder = await port.connect()
        await holder.send(_begun_body(1_000_000, 990_000))
        await until(lambda: port.server.memory.held_bytes > 990_000)

        await client.send(_begun_body(200_000, 100_000))

        assert await client.rest() == b""
        await until(lambda: service.gateway.outstanding == 0)
        await holder.close()
        await until(lambda: port.server.memory.held_bytes == 0)
