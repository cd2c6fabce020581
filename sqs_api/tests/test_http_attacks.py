"""Attacks on request framing: each gets one answer, executes at most one operation, never hangs.

The table has the answers to each attack, in order, and the number of messages it sends. Everything
runs over a real socket, with and without the short cut; the connections' seconds pass quickly, so
that every wait ends.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
import pytest_asyncio

from sqs_api.http.http_limits import ListenerLimits
from sqs_api.tests.listening import Port, listening
from sqs_api.tests.serving import (
    WAIT_S,
    Client,
    Service,
    json_request,
    request_bytes,
    running,
    settled,
)

SEND = json_request("SendMessage", QueueUrl="q", MessageBody="x")
LIMITS = ListenerLimits(request_timeout_s=5, idle_timeout_s=5)
HEAD, _, BODY = SEND.partition(b"\r\n\r\n")
PLAIN = HEAD[: HEAD.index(b"\r\nContent-Length")]
"""The head without a length."""
LENGTH = b"Content-Length: %d" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked"
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)


def _with(*lines: bytes, body: bytes = BODY) -> bytes:
    """A SendMessage with these header lines more."""
    return b"\r\n".join([PLAIN, *lines, b"", b""]) + body


class Attack(NamedTuple):
    """The bytes of an attack and their outcome."""

    sent: bytes
    statuses: tuple[int, ...]
    messages: int = 0


ATTACKS = {
    # The end of a body.
    "length and chunked": Attack(_with(LENGTH, CHUNKED, body=CHUNKS), (400,)),
    "chunked and length": Attack(_with(CHUNKED, LENGTH, body=CHUNKS), (400,)),
    "chunked hides a request": Attack(
        _with(b"Content-Length: 5", CHUNKED, body=b"0\r\n\r\n" + SEND), (400,)
    ),
    "two encodings": Attack(_with(CHUNKED, CHUNKED, body=CHUNKS), (400,)),
    "chunked is not last": Attack(
        _with(b"Transfer-Encoding: chunked, identity", body=CHUNKS), (400,)
    ),
    "a compressed body": Attack(_with(b"Transfer-Encoding: gzip, chunked", body=CHUNKS), (501,)),
    "unknown encoding": Attack(_with(b"Transfer-Encoding: xchunked", body=CHUNKS), (400,)),
    "compressed chunks": Attack(_with(b"Transfer-Encoding: gzip, chunked", body=CHUNKS), (501,)),
    "compressed in a line before": Attack(
        _with(b"Transfer-Encoding: gzip", CHUNKED, body=CHUNKS), (400,)
    ),
    "compressed chunks for a page": Attack(
        b"GET /healthz HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n" + CHUNKS,
        (501,),
    ),
    "encoding of HTTP/1.0": Attack(
        _with(CHUNKED, body=CHUNKS).replace(b"HTTP/1.1", b"HTTP/1.0"), (400,)
    ),
    "encoding behind a space": Attack(_with(b"Transfer-Encoding : chunked", body=CHUNKS), (400,)),
    "encoding behind a tab": Attack(_with(b"Transfer-Encoding:\tchunked", body=CHUNKS), (200,), 1),
    "encoding behind a vertical tab": Attack(
        _with(b"Transfer-Encoding: \x0bchunked", body=CHUNKS), (400,)
    ),
    "encoding in quotes": Attack(_with(b'Transfer-Encoding: "chunked"', body=CHUNKS), (400,)),
    "two lengths": Attack(_with(LENGTH, b"Content-Length: 1"), (400,)),
    "the same length twice": Attack(_with(LENGTH, LENGTH), (400,)),
    "a list of lengths": Attack(_with(LENGTH + b", %d" % len(BODY)), (400,)),
    "negative length": Attack(_with(b"Content-Length: -1"), (400,)),
    "signed length": Attack(_with(b"Content-Length: +%d" % len(BODY)), (400,)),
    "hexadecimal length": Attack(_with(b"Content-Length: 0x10"), (400,)),
    "length with underscore": Attack(_with(b"Content-Length: 4_0"), (400,)),
    "length in other digits": Attack(_with("Content-Length: \u0664".encode()), (400,)),
    "huge length": Attack(_with(b"Content-Length: 99999999999999999999999"), (400,)),
    "length of 4 GiB": Attack(_with(b"Content-Length: 4294967300"), (413,)),
    "empty length": Attack(_with(b"Content-Length: "), (400,)),
    "length too long": Attack(_with(b"Content-Length: 4000000"), ()),
    "length too short": Attack(_with(b"Content-Length: 5"), (400,)),
    "no length": Attack(_with(), (400,)),
    # Chunks.
    "chunk extension": Attack(
        _with(CHUNKED, body=CHUNKS.replace(b"\r\n", b";a=b\r\n", 1)), (200,), 1
    ),
    "line break in a chunk extension": Attack(
        _with(CHUNKED, body=CHUNKS.replace(b"\r\n", b";a=\nb\r\n", 1)), (400,)
    ),
    "negative chunk": Attack(_with(CHUNKED, body=b"-1\r\n"), (400,)),
    "huge chunk": Attack(_with(CHUNKED, body=b"fffffffffffffffffff\r\n"), (400,)),
    "large chunk": Attack(_with(CHUNKED, body=b"ffffffff\r\n" + b"x" * 1000), ()),
    "chunk size with prefix": Attack(_with(CHUNKED, body=b"0x5\r\n"), (400,)),
    "chunk ends early": Attack(_with(CHUNKED, body=b"2\r\n{}x0\r\n\r\n"), (400,)),
    "chunk with bare line feeds": Attack(
        _with(CHUNKED, body=CHUNKS.replace(b"\r\n", b"\n")), (400,)
    ),
    "trailer": Attack(
        _with(CHUNKED, body=CHUNKS[:-2] + b"X-Amz-Target: AmazonSQS.PurgeQueue\r\n\r\n"), (200,), 1
    ),
    "trailer with a length": Attack(
        _with(CHUNKED, body=CHUNKS[:-2] + b"Content-Length: 500\r\n\r\n"), (400,)
    ),
    "trailers without end": Attack(_with(CHUNKED, body=CHUNKS[:-2] + b"X: y\r\n" * 20_000), (400,)),
    # Header lines.
    "folded line": Attack(_with(b"X-Fold: a\r\n b", LENGTH), (400,)),
    "folded length": Attack(_with(b"Content-Length:\r\n %d" % len(BODY)), (400,)),
    "bare line feeds": Attack(SEND.replace(b"\r\n", b"\n"), (400,)),
    "bare line feed in a value": Attack(_with(b"X: a\nContent-Length: 0", LENGTH), (400,)),
    "bare carriage return in a value": Attack(_with(b"X: a\rContent-Length: 0", LENGTH), (400,)),
    "carriage returns at the end": Attack(_with(b"X: a\r", LENGTH), (400,)),
    "NUL in a value": Attack(_with(b"X: a\0b", LENGTH), (400,)),
    "NUL in a name": Attack(_with(b"X\0: a", LENGTH), (400,)),
    "control in a value": Attack(_with(b"X: a\x01b", LENGTH), (400,)),
    "space before the colon": Attack(_with(b"Content-Length : %d" % len(BODY)), (400,)),
    "space before the name": Attack(_with(b" Content-Length: 0", LENGTH), (400,)),
    "empty name": Attack(_with(b": a", LENGTH), (400,)),
    "no colon": Attack(_with(b"Content-Length", LENGTH), (400,)),
    "name with a slash": Attack(_with(b"X/Y: a", LENGTH), (400,)),
    "long line": Attack(_with(b"X: " + b"a" * 10_000, LENGTH), (400,)),
    "long name": Attack(_with(b"X" * 10_000 + b": a", LENGTH), (400,)),
    "101 lines": Attack(_with(*(b"X-%d: a" % n for n in range(101 - 5)), LENGTH), (200,), 1),
    "200 lines": Attack(_with(*(b"X-%d: a" % n for n in range(200)), LENGTH), (400,)),
    "20,000 lines": Attack(_with(*(b"X: a" for _ in range(20_000)), LENGTH), (400,)),
    "no host": Attack(SEND.replace(b"Host: localhost:9324\r\n", b""), (400,)),
    "two hosts": Attack(_with(b"Host: other", LENGTH), (400,)),
    # Request lines.
    "HTTP/1.0": Attack(SEND.replace(b"HTTP/1.1", b"HTTP/1.0"), (200,), 1),
    "health by HTTP/1.0": Attack(b"GET /healthz HTTP/1.0\r\n\r\n", (200,)),
    "method by HTTP/1.0": Attack(b"PUT / HTTP/1.0\r\n\r\n", (405,)),
    "HTTP/0.9": Attack(b"GET /?Action=ListQueues\r\n\r\n", (400,)),
    "HTTP/1.2": Attack(SEND.replace(b"HTTP/1.1", b"HTTP/1.2"), (400,)),
    "HTTP/2.0": Attack(SEND.replace(b"HTTP/1.1", b"HTTP/2.0"), (400,)),
    "HTTP/1.1 in lower case": Attack(SEND.replace(b"HTTP/1.1", b"http/1.1"), (400,)),
    "preface of HTTP/2": Attack(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (400,)),
    "TLS": Attack(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 500, (400,)),
    "absolute target": Attack(SEND.replace(b"POST /", b"POST http://other/"), (200,), 1),
    "CONNECT": Attack(b"CONNECT other:443 HTTP/1.1\r\nHost: other:443\r\n\r\n", (405,)),
    "OPTIONS *": Attack(b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", (405,)),
    "POST *": Attack(SEND.replace(b"POST /", b"POST *"), (400,)),
    "TRACE": Attack(b"TRACE / HTTP/1.1\r\nHost: h\r\nX: secret\r\n\r\n", (405,)),
    "PUT": Attack(SEND.replace(b"POST", b"PUT", 1), (405,)),
    "method in lower case": Attack(SEND.replace(b"POST", b"post", 1), (400,)),
    "two spaces": Attack(SEND.replace(b"POST /", b"POST  /"), (200,), 1),
    "space in the target": Attack(SEND.replace(b"POST /", b"POST / x"), (400,)),
    "tab in the request line": Attack(SEND.replace(b"POST /", b"POST\t/"), (400,)),
    "NUL in the target": Attack(SEND.replace(b"POST /", b"POST /\0"), (400,)),
    "long target": Attack(SEND.replace(b"POST /", b"POST /" + b"a" * 70_000), (400,)),
    "line breaks first": Attack(b"\r\n\r\n" + SEND, (200,), 1),
    "nonsense": Attack(bytes(range(256)) * 4, (400,)),
    # The protocol.
    "Upgrade to HTTP/2": Attack(
        _with(
            b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMA", LENGTH
        ),
        (200,),
        1,
    ),
    "Upgrade to websocket": Attack(
        _with(
            b"Connection: Upgrade",
            b"Upgrade: websocket",
            b"Sec-WebSocket-Version: 13",
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
            LENGTH,
        ),
        (200,),
        1,
    ),
    "Expect": Attack(_with(b"Expect: 100-continue", LENGTH), (100, 200), 1),
    "Expect by HTTP/1.0": Attack(
        _with(b"Expect: 100-continue", LENGTH).replace(b"HTTP/1.1", b"HTTP/1.0"), (200,), 1
    ),
    "Expect something else": Attack(_with(b"Expect: 200-ok", LENGTH), (200,), 1),
    "hop-by-hop length": Attack(_with(b"Connection: Content-Length, close", LENGTH), (200,), 1),
    # More than one request.
    "two requests": Attack(SEND + SEND, (200, 200), 2),
    "second is malformed": Attack(SEND + b"POST / HTTP/1.1\r\nbroken\r\n\r\n", (400,)),
    "second has two lengths": Attack(SEND + _with(LENGTH, b"Content-Length: 1"), (400,)),
    "second hides in a GET's body": Attack(
        request_bytes(SEND, {"Connection": "keep-alive"}, line="GET /healthz HTTP/1.1"), (200,)
    ),
    "second hides in an unread body": Attack(request_bytes(SEND, line="PUT / HTTP/1.1"), (405,)),
    "after the last one": Attack(_with(b"Connection: close", LENGTH) + SEND, (400,)),
    "a hundred requests": Attack(SEND * 100, (200,) * 100, 100),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def attacked() -> AsyncIterator[Service]:
    """One service for all attacks, with the queue `q`."""
    async with running() as started:
        await started.make_queue()
        yield started


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("with_short_cut", [True, False], ids=["short cut", "aiohttp"])
@pytest.mark.parametrize("name", ATTACKS)
async def test_attack_is_answered_as_the_table_says(
    attacked: Service, name: str, with_short_cut: bool
) -> None:
    attack = ATTACKS[name]
    before = await _messages(attacked)

    async with listening(attacked, limits=LIMITS, with_short_cut=with_short_cut) as port:
        client = await port.connect()
        client.writer.write(attack.sent)
        await _until_at_rest(port, client)
        async with asyncio.timeout(WAIT_S):
            while port.counters.connections:
                await port.pass_seconds(1)
        answers = await client.rest()

    assert _statuses(answers) == attack.statuses
    assert await _messages(attacked) - before == attack.messages
    assert attacked.gateway.outstanding == 0


async def _messages(service: Service) -> int:
    """The number of messages in the queue."""
    name = "ApproximateNumberOfMessages"
    answer = await service.call("GetQueueAttributes", QueueUrl="q", AttributeNames=[name])
    return int(answer["Attributes"][name])


async def _until_at_rest(port: Port, client: Client) -> None:
    """Until everything was read and answered that will be."""
    rounds = 0
    async with asyncio.timeout(WAIT_S):
        while rounds < 5:
            is_busy = client.writer.transport.get_write_buffer_size() or not port.has_read_all
            rounds = 0 if is_busy else rounds + 1
            await settled(2)


def _statuses(answers: bytes) -> tuple[int, ...]:
    """The statuses of all answers, which must fill the bytes and be of HTTP/1.1."""
    statuses: list[int] = []
    while answers:
        head, end, answers = answers.partition(b"\r\n\r\n")
        assert end, f"not an answer: {head[:100]!r}"
        assert head.startswith(b"HTTP/1.1 ")
        statuses.append(int(head.split(b" ")[1]))
        length = re.search(rb"\r\nContent-Length: (\d+)", head)
        answers = answers[int(length[1]) if length else 0 :]
    return tuple(statuses)
