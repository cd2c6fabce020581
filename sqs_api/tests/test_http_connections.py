"""Connections over a loopback port: how they are kept, closed, refused and bounded."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
from typing import Any
from urllib.parse import quote_plus

import pytest

from sqs_api.gateway.exchange import Exchange
from sqs_api.http.connection import SqsConnection
from sqs_api.tests.serving import WAIT_S, Service, json_request, query_request, request_bytes, until

LIST = json_request("ListQueues")
BODY_BYTES_MAX = 7 << 20
MESSAGE_BYTES_MAX = 1 << 20
_VARYING = re.compile(
    rb"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-8[0-9a-f]{3}-[0-9a-f]{12}|Date: [^\r]*"
)

BOTH_WAYS = (
    LIST,
    query_request("ListQueues"),
    query_request("ListQueues", headers={"Accept": "application/json"}),
    query_request("CreateQueue", QueueName="q"),
    query_request("CreateQueue", QueueName="no such name"),
    query_request("GetQueueAttributes", line="POST /000000000000/q HTTP/1.1"),
    query_request("SendMessage", line="POST /000000000000/nowhere HTTP/1.1", MessageBody="x"),
    query_request("SendMessage", QueueUrl="q", MessageBody="\0"),
    query_request("ReceiveMessage", QueueUrl="q", WaitTimeSeconds="0"),
    query_request("Nothing"),
    request_bytes(b""),
    request_bytes(b"\xff%"),
    json_request("Nothing"),
    json_request("SendMessage", QueueUrl="q"),
    json_request("SendMessage", QueueUrl="//"),
    json_request("RemovePermission", QueueUrl="q", Label="nobody"),
    request_bytes(b"{", {"X-Amz-Target": "AmazonSQS.SendMessage"}),
    request_bytes(b"", {"X-Amz-Target": "\x7f"}),
    request_bytes(b"", line="POST /_holdfast HTTP/1.1"),
    request_bytes(b"", line="POST /%68ealthz HTTP/1.1"),
    request_bytes(b"", line="POST /_hold%66ast/metrics HTTP/1.1"),
    request_bytes(b"", line="POST /_holdfast/nothing HTTP/1.1"),
    request_bytes(b"", line="POST /healthz HTTP/1.1"),
    request_bytes(b"", line="POST /%zz/%ff HTTP/1.1"),
)


@pytest.mark.parametrize("request_", BOTH_WAYS, ids=range(len(BOTH_WAYS)))
async def test_both_ways_write_the_same_bytes(service: Service, request_: bytes) -> None:
    await service.make_queue()
    written = []
    for port in (service.port, service.aiohttp_port):
        client = await service.connect(port)
        await client.send(request_)
        head = await client.reader.readuntil(b"\r\n\r\n")
        size = int(re.findall(rb"Content-Length: (\d+)", head)[0])
        written.append(_VARYING.sub(b"*", head + await client.reader.readexactly(size)))

    assert written[0] == written[1]


async def test_connection_is_kept_after_answers_and_refusals(service: Service) -> None:
    client = await service.connect()

    statuses = [
        (await client.ask(request)).status
        for request in (LIST, query_request("Nothing"), LIST, request_bytes(b""), LIST)
    ]

    assert statuses == [200, 400, 200, 404, 200]


@pytest.mark.parametrize("line", ["POST / HTTP/1.0", "POST / HTTP/1.1"])
async def test_connection_ends_when_the_client_says_so(service: Service, line: str) -> None:
    client = await service.connect()

    answer = await client.ask(
        json_request("ListQueues", line=line, headers={"Connection": "close"})
    )

    assert (answer.status, answer.headers["Connection"]) == (200, "close")
    assert await client.rest() == b""


async def test_http_1_0_connection_ends_unless_kept(service: Service) -> None:
    client = await service.connect()
    answer = await client.ask(json_request("ListQueues", line="POST / HTTP/1.0"))
    assert (answer.status, answer.headers["Connection"]) == (200, "close")
    assert await client.rest() == b""

    kept = await service.connect()
    keep = {"Connection": "keep-alive"}
    for _ in range(2):
        answer = await kept.ask(json_request("ListQueues", line="POST / HTTP/1.0", headers=keep))
        assert answer.status == 200
    assert answer.headers.get("Connection", "").lower() == "keep-alive", "HTTP/1.0 needs to be told"


async def test_pages_and_refusals_tell_http_1_0_whether_the_connection_is_kept(
    service: Service,
) -> None:
    for line in ("GET /healthz HTTP/1.0", "PUT / HTTP/1.0"):
        keep = {"Connection": "keep-alive"}
        for headers, expected in (({}, "close"), (keep, "keep-alive")):
            client = await service.connect()
            answer = await client.ask(request_bytes(line=line, headers=headers))
            assert answer.headers["Connection"] == expected
            if expected == "close":
                assert await client.rest() == b""
            else:
                assert (await client.ask(LIST)).status == 200


async def test_get_is_a_query_request_and_head_is_refused(service: Service) -> None:
    client = await service.connect()
    await client.send(request_bytes(line="GET /?Action=ListQueues HTTP/1.1", length=False))
    got = await client.answer()
    await client.send(request_bytes(line="HEAD /?Action=ListQueues HTTP/1.1", length=False))
    head = await client.answer(has_body=False)

    assert b"ListQueuesResponse" in got.body
    assert (head.status, head.headers["Allow"]) == (405, "GET, POST")


async def test_short_cut_goes_on_after_aiohttp_took_over(service: Service) -> None:
    client = await service.connect()
    chunked = json_request("ListQueues").replace(
        b"Content-Length: 2", b"Transfer-Encoding: chunked"
    )

    await client.ask(LIST)
    await client.ask(chunked[:-2] + b"2\r\n{}\r\n0\r\n\r\n")

    assert (await client.ask(LIST)).json == {}


@pytest.mark.parametrize("path", ["/", "/x", "/_holdfas", "/000000000000/q/more", "/a%20b", "//"])
async def test_unknown_paths_are_refused_in_the_query_protocol(service: Service, path: str) -> None:
    answer = await service.ask(request_bytes(line=f"POST {path} HTTP/1.1"))

    assert (answer.status, answer.body) == (404, b"<UnknownOperationException/>\n")
    assert answer.headers["x-amzn-RequestId"]


async def test_half_closed_connection_counts_as_hung_up(service: Service) -> None:
    url = await service.make_queue()
    client = await service.connect()
    await client.send(json_request("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20))

    client.writer.write_eof()

    assert await client.rest() == b""
    assert service.gateway.outstanding == 0


async def test_thousand_idle_connections_do_not_matter(service: Service) -> None:
    idle = [await service.connect() for _ in range(1000)]
    await idle[0].ask(LIST)

    assert (await idle[-1].ask(LIST)).status == 200
    assert (await service.ask(LIST)).status == 200
    assert service.gateway.outstanding == 0


# -- sizes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("character", ['"', "\x7f"])
@pytest.mark.parametrize("protocol", ["json", "query"])
async def test_largest_message_passes_however_it_is_escaped(
    service: Service, character: str, protocol: str
) -> None:
    """SDKs may write a character of JSON as \\u00XX, six bytes for one."""
    url = await service.make_queue()
    if protocol == "json":
        escaped = f"\\u{ord(character):04x}" * MESSAGE_BYTES_MAX
        sent = f'{{"QueueUrl":"{url}","MessageBody":"{escaped}"}}'.encode()
        request = request_bytes(sent, {"X-Amz-Target": "AmazonSQS.SendMessage"})
    else:
        body = character * MESSAGE_BYTES_MAX
        request = query_request("SendMessage", QueueUrl=url, MessageBody=body)

    assert (await service.ask(request)).status == 200

    (message,) = (await service.call("ReceiveMessage", QueueUrl=url))["Messages"]
    assert message["Body"] == character * MESSAGE_BYTES_MAX


async def test_declared_large_body_is_refused_before_it_is_sent(service: Service) -> None:
    client = await service.connect()
    head = request_bytes(headers={"Content-Length": str(BODY_BYTES_MAX + 1)}, length=False)

    answer = await client.ask(head)

    assert answer.status == 413
    assert answer.headers["Connection"] == "close"


async def test_connection_ends_after_a_large_body_was_refused(service: Service) -> None:
    client = await service.connect()

    answer = await client.ask(request_bytes(b"x" * (BODY_BYTES_MAX + 1)))

    assert answer.status == 413
    async with asyncio.timeout(WAIT_S):
        assert await client.rest() == b""


async def test_refusal_of_a_large_body_is_an_error_of_the_protocol(service: Service) -> None:
    sent = {"X-Amz-Target": "AmazonSQS.SendMessage", "Content-Length": str(BODY_BYTES_MAX + 1)}
    answer = await service.ask(request_bytes(headers=sent, length=False))

    assert answer.status == 413
    assert "x-amzn-RequestId" in answer.headers
    assert answer.json["__type"] == "com.amazon.coral.service#RequestEntityTooLargeException"


async def test_chunked_body_is_refused_once_it_is_too_large(service: Service) -> None:
    client = await service.connect()
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    await client.send(request_bytes(headers={"Transfer-Encoding": "chunked"}, length=False))
    client.writer.write(chunk * 113)

    assert (await client.answer()).status == 413


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"1;" + b"x" * (512 << 10), 400),
        (b"1\r\n \r\n" * 110_000, 400),
        (b"40\r\n%b\r\n" % (b" " * 64) * 16_000 + b"0\r\n\r\n", 404),
    ],
    ids=["long", "many", "few enough"],
)
async def test_what_frames_chunks_is_limited(service: Service, body: bytes, status: int) -> None:
    """One connection could hold all memory of requests with it, and all others up for seconds."""
    client = await service.connect()
    head = request_bytes(headers={"Transfer-Encoding": "chunked"}, length=False)

    await client.send(head, body)

    assert (await client.answer()).status == status
    assert service.gateway.memory.held_bytes == 0


async def test_a_body_counts_for_no_head_when_the_last_request_ends_late(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client may send the next request before the loop runs the end of the last one's task."""
    url = await service.make_queue()
    sent = json_request("SendMessage", QueueUrl=url, MessageBody="x" * 200_000)
    head, _, body = sent.partition(b"\r\n\r\n")
    head = re.sub(rb"\r\nContent-Length: \d+", b"\r\nTransfer-Encoding: chunked", head)
    chunked = head + b"\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    feed, received = SqsConnection.feed_aiohttp, bytearray()

    def feed_late(connection: SqsConnection, data: bytes) -> None:
        received.extend(data)
        if len(received) == len(chunked):
            feed(connection, bytes(received[:100_000]))
            connection.request_ends()
            feed(connection, bytes(received[100_000:]))

    monkeypatch.setattr(SqsConnection, "feed_aiohttp", feed_late)

    answer = await service.ask(chunked)

    assert answer.status == 200


@pytest.mark.parametrize("sent_as", ["json", "form", "escaped form", "chunked"])
async def test_message_of_one_mebibyte_is_accepted(service: Service, sent_as: str) -> None:
    url = await service.make_queue()
    text = "%" * (1 << 20)
    if sent_as == "json":
        request = json_request("SendMessage", QueueUrl=url, MessageBody=text)
    else:
        body = f"Action=SendMessage&QueueUrl={quote_plus(url)}&MessageBody=".encode()
        body += b"%25" * (1 << 20) if sent_as != "form" else b"a" * (1 << 20)
        request = request_bytes(body)
        if sent_as == "chunked":
            head = request_bytes(headers={"Transfer-Encoding": "chunked"}, length=False)
            request = head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)

    answer = await service.ask(request)

    assert answer.status == 200, answer.body[:200]
    (message,) = (await service.call("ReceiveMessage", QueueUrl=url))["Messages"]
    assert message["Body"] == text or sent_as == "form"


@pytest.mark.parametrize("port", ["port", "aiohttp_port"])
async def test_client_that_does_not_read_its_answers_is_not_read_any_more(
    service: Service, port: str
) -> None:
    url = await service.make_queue(VisibilityTimeout="0")
    await service.call("SendMessage", QueueUrl=url, MessageBody="x" * 200_000)
    client = await service.connect(getattr(service, port))
    sock: socket.socket = client.writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    receive = json_request("ReceiveMessage", QueueUrl=url)

    for _ in range(200):
        client.writer.write(receive)
        await asyncio.sleep(0.001)

    ends = [end for server in service.servers for end in server.connections]
    held = max(end.transport.get_write_buffer_size() for end in ends if end.transport)
    assert held < 8 << 20, f"{held >> 20} MiB of answers wait for one client"


# -- malformed -------------------------------------------------------------------------------------

MALFORMED = {
    "chunk size": (b"Transfer-Encoding: chunked", b"zz\r\n\r\n"),
    "chunk end": (b"Transfer-Encoding: chunked", b"1\r\nabc\r\n"),
    "gzip": (b"Content-Encoding: gzip\r\nContent-Length: 7", b"no gzip"),
    "two lengths": (b"Content-Length: 1\r\nContent-Length: 2", b"ab"),
    "length and chunked": (b"Content-Length: 1\r\nTransfer-Encoding: chunked", b"0\r\n\r\n"),
    "header line": (b"no colon", b""),
}


@pytest.mark.parametrize("kind", MALFORMED)
async def test_malformed_request_is_the_clients_fault(
    service: Service, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    header, body = MALFORMED[kind]
    caplog.set_level(logging.CRITICAL, "aiohttp.server")

    answer = await service.ask(b"POST / HTTP/1.1\r\nHost: h\r\n" + header + b"\r\n\r\n" + body)

    assert 400 <= answer.status < 500


@pytest.mark.parametrize("port", ["port", "aiohttp_port"])
async def test_body_that_turns_out_malformed_is_refused_at_once(
    service: Service, port: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = await service.connect(getattr(service, port))
    await client.send(request_bytes(b"", {"Transfer-Encoding": "chunked"}, length=False))

    await client.send(b"5\r\nhush!", b"hush\r\n0\r\n\r\n")

    assert (await client.answer()).status == 400
    assert await client.rest() == b""
    assert "hush" not in caplog.text


@pytest.mark.parametrize(
    "request_",
    [
        request_bytes(b'{"MessageBody": "hush"}', headers={"Content-Length": "0"}, length=False),
        request_bytes(headers={"Content-Length": "0\r\nAuthorization hush"}, length=False),
        LIST + b"POST /hush HTTP/1.1\r\nAuthorization hush\r\n\r\n",
    ],
    ids=("too short a length", "header line", "second request"),
)
async def test_malformed_request_puts_nothing_of_it_into_the_log(
    service: Service, request_: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    client = await service.connect()

    await client.send(request_)
    await client.rest()

    assert "hush" not in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_malformed_request_is_not_sent_back(service: Service) -> None:
    client = await service.connect()

    client.writer.write(b" " * 100_000)

    answer = await client.answer()
    assert answer.status == 400
    assert len(answer.body) < 1000


async def test_client_that_expects_100_continue_is_told_to_go_on(service: Service) -> None:
    client = await service.connect()
    head, _, body = json_request("ListQueues", headers={"Expect": "100-continue"}).partition(
        b"\r\n\r\n"
    )
    await client.send(head + b"\r\n\r\n")

    async with asyncio.timeout(WAIT_S):
        line = await client.reader.readuntil(b"\r\n\r\n")
    assert line.startswith(b"HTTP/1.1 100 ")
    await client.send(body)

    assert (await client.answer()).json == {}


async def test_a_client_of_http_1_0_is_not_sent_100_continue(service: Service) -> None:
    client = await service.connect()
    headers = {"Expect": "100-continue", "Connection": "keep-alive"}

    answer = await client.ask(json_request("ListQueues", line="POST / HTTP/1.0", headers=headers))

    assert (answer.status, answer.json) == (200, {})


async def test_queue_url_cannot_carry_header_lines(service: Service) -> None:
    host = "h\r\nX-Injected: y"
    body = json.dumps({"QueueName": "q"}).encode()
    request = request_bytes(body, {"X-Amz-Target": "AmazonSQS.CreateQueue"})

    answer = await service.ask(request.replace(b"localhost:9324", host.encode()))

    assert answer.json["QueueUrl"] == "http://h/000000000000/q"
    assert "X-Injected" not in answer.headers


async def test_abandoned_requests_leave_nothing_outstanding(service: Service) -> None:
    url = await service.make_queue()
    receive = json_request("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20)
    for data in (receive, receive[:-3], receive[:40], b"\r\n", receive + receive):
        for port in (service.port, service.aiohttp_port):
            client = await service.connect(port)
            await client.send(data)
            await client.close()

    await until(lambda: service.gateway.outstanding == 0)
    async with asyncio.timeout(WAIT_S):
        await service.gateway.drain()


async def test_large_bodies_are_begun_one_at_a_time_with_others_in_between(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = await service.make_queue()
    begin = service.gateway.begin
    rounds: list[int] = []
    passed = 0

    async def count_rounds() -> None:
        nonlocal passed
        while True:
            passed += 1
            await asyncio.sleep(0)

    def begin_and_note(client: Any, *request: Any) -> Exchange:
        if len(request[-1]) > 300_000:
            rounds.append(passed)
        return begin(client, *request)

    monkeypatch.setattr(service.gateway, "begin", begin_and_note)
    counting = asyncio.create_task(count_rounds())
    large = json_request("SendMessage", QueueUrl=url, MessageBody="x" * 400_000)
    answers = await asyncio.gather(*(service.ask(large) for _ in range(8)))
    counting.cancel()

    assert [answer.status for answer in answers] == [200] * 8
    assert len(set(rounds)) == 8
