"""HTTP: aiohttp's server, with a short cut for plainly formed SQS requests.

aiohttp's handler chain costs more than all the rest of a SendMessage (PERF §1), so `SqsConnection` answers a complete,
plainly formed POST synchronously from `data_received` through the same Gateway. Whatever is unusual, and everything that is
not SQS, goes aiohttp's own way, and so does the rest of that connection. Both ways write the same bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import HttpVersion11, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler, RequestPayloadError
from aiohttp.web_request import BaseRequest

from sqs_api.answers import Reply
from sqs_api.gateway import Exchange, Gateway
from sqs_api.plain_request import NotPlain, RawRequest, read_plain_request
from visibility.errors import RequestTooLarge

BODY_BYTES_MAX = 4 << 20
"""No valid request is larger: a message of 1 MiB takes three times that in form encoding."""

_AHEAD_BYTES_MAX = 64 << 10
"""What a connection may send ahead of the answer it waits for before it is not read any more."""
_METHODS = ("GET", "POST")
"""SQS knows no others; in particular a HEAD must not change anything."""
_TOO_LARGE = f"The request is larger than {BODY_BYTES_MAX} bytes."

OtherPages = Callable[[BaseRequest], Awaitable[web.StreamResponse | None]]
"""Answers requests that are not SQS's; None for those that are."""


class SqsConnection(RequestHandler):
    """One connection of a client."""

    __slots__ = ("_exchange", "_gateway", "_held_back", "_left_to_aiohttp", "_received", "_server")

    def __init__(self, server: SqsServer, gateway: Gateway, **options: Any) -> None:
        super().__init__(server, **options)
        self._server = server
        self._gateway = gateway
        self._left_to_aiohttp = False
        self._exchange: Exchange | None = None
        """The request whose answer is being waited for. Invariant: None once aiohttp reads this connection."""
        self._received = b""
        """What came and was not begun: the start of a request, or what follows the one that is under way."""
        self._held_back = False
        """Whether reading is paused: too much has come, or the client does not read its answers."""

    @property
    def source_ip(self) -> str:
        """The client's address, empty if it is not known any more."""
        return _source_ip(self.transport)

    @property
    def is_secure(self) -> bool:
        """Whether the connection is encrypted."""
        return _is_secure(self.transport)

    def data_received(self, data: bytes) -> None:
        """Answer a plain request at once; hand anything else to aiohttp."""
        if self._left_to_aiohttp:
            super().data_received(data)
            return
        if self._received:
            data = self._received + data
            self._received = b""
        if self._exchange is not None or self._held_back:
            self._received = data
            if len(data) > _AHEAD_BYTES_MAX:
                self._hold_back()
            return
        if self._server.is_stopping:
            self.force_close()
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
        if self._server.is_stopping:
            transport.write(reply.closing())
            self.force_close()
            return True
        transport.write(reply.keeping_alive())
        if self._paused:
            self._hold_back()
        elif self._received or self._held_back:
            self._loop.call_soon(self._go_on)
        return True

    def resume_writing(self) -> None:
        """The client reads its answers again."""
        super().resume_writing()
        if not self._left_to_aiohttp and self._held_back and self._exchange is None:
            self._loop.call_soon(self._go_on)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The client is gone: a long poll ends."""
        exchange, self._exchange = self._exchange, None
        self._received = b""
        super().connection_lost(exc)
        if exchange is not None:
            self._gateway.cancel(exchange)

    def close_if_idle(self) -> None:
        """End the connection unless a request of it is under way."""
        if self._exchange is None and not self._request_in_progress:
            self.force_close()

    def log_exception(self, *args: Any, **options: Any) -> None:
        """A request that aiohttp cannot read is the client's fault, and its bytes do not belong into a log."""
        if isinstance(options.get("exc_info"), HttpProcessingError | RequestPayloadError):
            return
        super().log_exception(*args, **options)

    def _hold_back(self) -> None:
        if not self._held_back and self.transport is not None:
            self._held_back = True
            self.transport.pause_reading()

    def _go_on(self) -> None:
        """Begin what came while a request was under way."""
        if self._exchange is not None or self.transport is None or self._paused:
            return
        if self._held_back:
            self._held_back = False
            self.transport.resume_reading()
        if self._received:
            self.data_received(b"")


class SqsServer(web.Server):
    """Makes an SqsConnection for each client."""

    def __init__(self, gateway: Gateway, other_pages: OtherPages) -> None:
        # A body is signed as it was sent, so it is not unpacked here.
        super().__init__(
            self._answer, handler_cancellation=True, access_log=None, auto_decompress=False
        )
        self._gateway = gateway
        self._other_pages = other_pages
        self.is_stopping = False

    def __call__(self) -> SqsConnection:
        """The protocol of a new connection."""
        return SqsConnection(self, self._gateway, loop=self._loop, **self._kwargs)

    def begin_to_stop(self) -> None:
        """Begin no more requests: idle connections end now, the others with the answer they wait for."""
        self.is_stopping = True
        for connection in self.connections:
            if isinstance(connection, SqsConnection):
                connection.close_if_idle()

    async def _answer(self, request: BaseRequest) -> web.StreamResponse:
        """aiohttp's way: a request it has read the head of."""
        other = await self._other_pages(request)
        if other is not None:
            return other
        if request.method not in _METHODS:
            return web.Response(status=405, headers={"Allow": ", ".join(_METHODS)})
        client = _SlowClient(request, self)
        target = request.raw_path.encode("utf-8", "surrogateescape")
        head = RawRequest(request.method.encode(), target, _headers(request), b"")
        body = await _read_body(request)
        if body is None:
            client.keep_alive = False
            self._gateway.refuse_unread(client, head, RequestTooLarge(_TOO_LARGE))
            return _Written(client)
        exchange = self._gateway.begin(RawRequest(head.method, target, head.headers, body), client)
        try:
            await client.written
        except asyncio.CancelledError:
            self._gateway.cancel(exchange)
            raise
        return _Written(client)


class _SlowClient:
    """A client whose answer aiohttp waits for."""

    def __init__(self, request: BaseRequest, server: SqsServer) -> None:
        self.keep_alive = request.keep_alive
        self._request = request
        self._server = server
        self.written: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def source_ip(self) -> str:
        """See `Sender.source_ip`."""
        return _source_ip(self._request.transport)

    @property
    def is_secure(self) -> bool:
        """See `Sender.is_secure`."""
        return _is_secure(self._request.transport)

    def write_reply(self, reply: Reply) -> bool:
        """See `Client.write_reply`."""
        transport = self._request.transport
        if self.written.done() or transport is None or transport.is_closing():
            return False
        if self._server.is_stopping:
            self.keep_alive = False
        if not self.keep_alive:
            transport.write(reply.closing())
        elif self._request.version < HttpVersion11:
            transport.write(reply.with_header(b"Connection", b"keep-alive").keeping_alive())
        else:
            transport.write(reply.keeping_alive())
        self.written.set_result(None)
        return True


class _Written(web.StreamResponse):
    """An answer that was written already: aiohttp makes neither its head nor its body."""

    def __init__(self, client: _SlowClient) -> None:
        super().__init__()
        self._keep_alive = client.keep_alive

    async def prepare(self, request: BaseRequest) -> None:
        """Wait until the client has read enough of what was written."""
        await request.writer.drain()

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing is left to write."""
        self._eof_sent = True


async def _read_body(request: BaseRequest) -> bytes | None:
    """The whole body; None, without reading further, if it is larger than any valid one."""
    if (request.content_length or 0) > BODY_BYTES_MAX:
        return None
    if request.headers.get("Expect", "").lower() == "100-continue" and request.transport:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
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


def _source_ip(transport: asyncio.BaseTransport | None) -> str:
    peer = None if transport is None else transport.get_extra_info("peername")
    return str(peer[0]) if peer else ""


def _is_secure(transport: asyncio.BaseTransport | None) -> bool:
    return transport is not None and transport.get_extra_info("sslcontext") is not None
