"""HTTP: aiohttp's server, with a short cut for plainly formed SQS requests.

aiohttp's handler chain costs more than all the rest of a SendMessage (PERF §1), so `SqsConnection` answers a complete,
plainly formed POST synchronously from `data_received` through the same Gateway. Whatever is unusual, and everything that is
not SQS, goes aiohttp's own way, and so does the rest of that connection. Both ways write the same bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest

from sqs_api.answers import Reply
from sqs_api.gateway import Exchange, Gateway
from sqs_api.plain_request import NotPlain, RawRequest, read_plain_request

BODY_BYTES_MAX = 4 << 20
"""No valid request is larger: a message of 1 MiB takes three times that in form encoding."""

OtherPages = Callable[[BaseRequest], Awaitable[web.StreamResponse | None]]
"""Answers requests that are not SQS's; None for those that are."""


class SqsConnection(RequestHandler):
    """One connection of a client."""

    __slots__ = ("_exchange", "_gateway", "_left_to_aiohttp", "_received")

    def __init__(self, manager: web.Server, gateway: Gateway, **options: Any) -> None:
        super().__init__(manager, **options)
        self._gateway = gateway
        self._left_to_aiohttp = False
        self._exchange: Exchange | None = None
        """The request whose answer is being waited for. Invariant: None once aiohttp reads this connection."""
        self._received = b""
        """What came and was not begun: the start of a request, or what follows the one that is under way."""

    def data_received(self, data: bytes) -> None:
        """Answer a plain request at once; hand anything else to aiohttp."""
        if self._left_to_aiohttp:
            super().data_received(data)
            return
        if self._received:
            data = self._received + data
            self._received = b""
        if self._exchange is not None:
            self._received = data
            self._pause()
            return
        raw = read_plain_request(data)
        if type(raw) is RawRequest:
            self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
            exchange = self._gateway.begin(raw, self)
            if not exchange.answered:
                self._exchange = exchange
        elif raw is NotPlain.SHORT:
            self._received = data
        else:
            self._left_to_aiohttp = True
            super().data_received(data)

    def write_reply(self, reply: Reply) -> bool:
        """See `Client.write_reply`."""
        self._exchange = None
        transport = self.transport
        if transport is None or transport.is_closing():
            return False
        transport.write(reply.keeping_alive())
        if self._received:
            self._resume()
        return True

    def connection_lost(self, exc: BaseException | None) -> None:
        """The client is gone: a long poll ends."""
        exchange, self._exchange = self._exchange, None
        self._received = b""
        super().connection_lost(exc)
        if exchange is not None:
            self._gateway.cancel(exchange)

    def _pause(self) -> None:
        assert self.transport is not None
        self.transport.pause_reading()

    def _resume(self) -> None:
        """Go on with what came while a request was under way."""
        assert self.transport is not None
        self.transport.resume_reading()
        self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._received and self._exchange is None and self.transport is not None:
            self.data_received(b"")


class SqsServer(web.Server):
    """Makes an SqsConnection for each client."""

    def __init__(self, gateway: Gateway, other_pages: OtherPages) -> None:
        super().__init__(self._answer, handler_cancellation=True, access_log=None)
        self._gateway = gateway
        self._other_pages = other_pages

    def __call__(self) -> SqsConnection:
        return SqsConnection(self, self._gateway, loop=self._loop, **self._kwargs)

    async def _answer(self, request: BaseRequest) -> web.StreamResponse:
        """aiohttp's way: a request it has read the head of."""
        other = await self._other_pages(request)
        if other is not None:
            return other
        body = await _read_body(request)
        if body is None:
            return web.Response(
                status=413, text="Request entity too large", headers={"Connection": "close"}
            )
        raw = RawRequest(
            request.method.encode(),
            request.raw_path.encode("utf-8", "surrogateescape"),
            _headers(request),
            body,
        )
        client = _SlowClient(request)
        exchange = self._gateway.begin(raw, client)
        try:
            return _Written(request, await client.reply)
        except asyncio.CancelledError:
            self._gateway.cancel(exchange)
            raise


class _SlowClient:
    """A client whose answer aiohttp waits for."""

    def __init__(self, request: BaseRequest) -> None:
        self._request = request
        self.reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    def write_reply(self, reply: Reply) -> bool:
        """See `Client.write_reply`."""
        transport = self._request.transport
        if self.reply.done() or transport is None or transport.is_closing():
            return False
        self.reply.set_result(reply)
        return True


class _Written(web.StreamResponse):
    """An answer that is bytes already: aiohttp neither makes its head nor its body."""

    def __init__(self, request: BaseRequest, reply: Reply) -> None:
        super().__init__()
        self._answered = request
        self._reply = reply

    async def prepare(self, request: BaseRequest) -> None:
        """Write the answer."""
        self._keep_alive = request.keep_alive
        transport = request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client is gone")
        if self._keep_alive and request.method != "HEAD":
            transport.write(self._reply.keeping_alive())
        else:
            self._keep_alive = False
            transport.write(self._reply.closing(with_body=request.method != "HEAD"))

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing is left to write."""
        self._eof_sent = True


async def _read_body(request: BaseRequest) -> bytes | None:
    """The whole body; None, without reading further, if it is larger than any valid one."""
    if (request.content_length or 0) > BODY_BYTES_MAX:
        return None
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.content.iter_any():
        size += len(chunk)
        if size > BODY_BYTES_MAX:
            return None
        chunks.append(chunk)
    return b"".join(chunks)


def _headers(request: BaseRequest) -> dict[bytes, bytes]:
    """Lower-case names to values; a repeated header's values are joined, as HTTP and signatures read them."""
    headers: dict[bytes, bytes] = {}
    for sent_name, value in request.raw_headers:
        name = sent_name.lower()
        headers[name] = headers[name] + b"," + value if name in headers else value
    return headers
