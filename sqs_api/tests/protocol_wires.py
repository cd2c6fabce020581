"""Connections without sockets: the test decides the result of each read, byte by byte if it
likes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sqs_api.gateway.client import Client
from sqs_api.gateway.exchange import Exchange
from sqs_api.gateway.gateway import Gateway
from sqs_api.gateway.request_memory import RequestMemory
from sqs_api.http.connection import SqsConnection
from sqs_api.http.server import SqsServer
from sqs_api.protocol.reply import reply
from sqs_api.tests.serving import AiohttpServer

_DATE = re.compile(rb"\r\nDate: [^\r]*\r\n")
_QUIET_ROUNDS = 8
"""aiohttp's way from a read to an answer takes six rounds of the event loop."""


class Wire(asyncio.Transport):
    """The server's end of a connection."""

    def __init__(self, connection: asyncio.Protocol) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.is_paused = False
        self._connection = connection
        self._is_closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self._is_closing, "written after close"
        self.written.append(bytes(data))

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def is_reading(self) -> bool:
        return not self.is_paused

    def get_write_buffer_size(self) -> int:
        return 0


class RawRequest(NamedTuple):
    """A request as the gateway got it."""

    method: bytes
    target: bytes
    headers: Mapping[bytes, bytes]
    body: bytes


class Outcome(NamedTuple):
    """The outcome of a connection's reads."""

    written: bytes
    """Everything the server wrote, without the dates."""
    seen: tuple[RawRequest, ...]
    """The requests as the gateway got them."""
    is_closed: bool
    short_cuts: int
    """Number of requests that took the short cut. Not compared."""

    def same_as(self, other: Outcome) -> bool:
        """True if client and gateway cannot distinguish the two."""
        return self[:3] == other[:3]


class EchoGateway(Gateway):
    """Echoes every request, headers in order, so that different readings look different."""

    def __init__(self) -> None:
        self.seen: list[RawRequest] = []
        self.short_cuts = 0
        self.outstanding = 0
        self.memory = RequestMemory(256 << 20)
        self.is_answering = True
        self.waiting: list[Exchange] = []

    def begin(
        self,
        client: Client,
        method: bytes,
        target: bytes,
        headers: Mapping[bytes, bytes],
        body: bytes,
    ) -> Exchange:
        raw = RawRequest(method, target, dict(headers), body)
        self.seen.append(raw)
        self.short_cuts += isinstance(client, SqsConnection)
        exchange = Exchange(self, client, str(len(self.seen)), 0.0, len(body))
        exchange.operation = raw  # type: ignore[assignment]  # what `answer` echoes
        if self.is_answering:
            self.answer(exchange)
        else:
            self.waiting.append(exchange)
        return exchange

    def answer(self, exchange: Exchange) -> bool:
        """Echo the request."""
        exchange.answered = True
        body = repr(exchange.operation).encode()
        written = reply(200, b"text/plain", exchange.request_id, b"now", body)
        return exchange.client.write_reply(written)

    def cancel(self, exchange: Exchange) -> None:
        if exchange in self.waiting:
            self.waiting.remove(exchange)


async def no_other_pages(request: object) -> None:
    """Every path is SQS's."""


class Line:
    """One connection to an EchoGateway."""

    def __init__(self, make_server: Callable[..., SqsServer]) -> None:
        self.gateway = EchoGateway()
        self.server = make_server(self.gateway, no_other_pages)
        self.connection: Any = self.server()
        self.wire = Wire(self.connection)
        self.connection.connection_made(self.wire)

    async def feed(self, reads: Sequence[bytes]) -> None:
        """Have the server read; data that it does not want yet waits."""
        for data in reads:
            await self.quiet()
            if self.wire.is_closing() or self.wire.is_paused:
                break
            if data:
                self.connection.data_received(data)
        await self.quiet()

    async def quiet(self) -> None:
        """Wait until nothing happens any more."""
        rounds = 0
        seen = (-1, False)
        while rounds < _QUIET_ROUNDS:
            await asyncio.sleep(0)
            now = (len(self.wire.written), self.wire.is_closing())
            rounds = rounds + 1 if now == seen else 0
            seen = now

    async def outcome(self) -> Outcome:
        """The outcome; ends the connection."""
        is_closed = self.wire.is_closing()
        written = _DATE.sub(b"\r\nDate: now\r\n", b"".join(self.wire.written))
        seen = tuple(self.gateway.seen)
        await self.hang_up()
        return Outcome(written, seen, is_closed, self.gateway.short_cuts)

    async def hang_up(self) -> None:
        """The client goes away."""
        self.wire.close()
        await self.quiet()


async def outcome_of(make_server: Callable[..., SqsServer], reads: Sequence[bytes]) -> Outcome:
    """The outcome of these reads on a new connection."""
    line = Line(make_server)
    await line.feed(reads)
    return await line.outcome()


async def both(reads: Sequence[bytes]) -> tuple[Outcome, Outcome]:
    """The outcomes of these reads with the short cut and with aiohttp alone."""
    return await outcome_of(SqsServer, reads), await outcome_of(AiohttpServer, reads)


async def merged_by_the_short_cut(reads: Sequence[bytes], quick: Outcome) -> bool:
    """True if aiohttp answers like the short cut once TCP has merged some of the reads into one.

    The short cut keeps the start of a request and hands it on together with the bytes that follow.
    """
    for first in range(len(reads)):
        for end in range(first + 2, len(reads) + 1):
            merged = [*reads[:first], b"".join(reads[first:end]), *reads[end:]]
            if quick.same_as(await outcome_of(AiohttpServer, merged)):
                return True
    return False
