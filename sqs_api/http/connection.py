"""HTTP: aiohttp's server, with a short cut for plainly formed SQS requests.

aiohttp's handler chain costs more than all the rest of a SendMessage (PERF §1), so `SqsConnection` answers a complete,
plainly formed POST synchronously from `data_received` through the same Gateway. Whatever is unusual, and everything that is
not SQS, goes aiohttp's own way, and so does the rest of that connection. Both ways write the same bytes.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

from aiohttp import HttpVersion10, HttpVersion11, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError
from aiohttp.web_request import BaseRequest

from sqs_api.gateway.gateway import Exchange, Gateway
from sqs_api.http.fallback import LastClient, SlowClient, Written, headers_of, read_body
from sqs_api.http.origins import AllowedOrigins
from sqs_api.http.proxies import Origin, TrustedProxies, source_address
from sqs_api.http.shedding import (
    ListenerCounters,
    ListenerLimits,
    Refused,
    RequestMemory,
    TooLarge,
)
from sqs_api.http.timeouts import BoundedConnection
from sqs_api.protocol.reply import HeaderLines, closing
from sqs_api.protocol.request import NotPlain, read_plain_request
from visibility.contract.errors import RequestTooLarge, ServiceUnavailable

_AHEAD_BYTES_MAX = 64 << 10
"""What a connection may send ahead of the answer it waits for before it is not read any more."""
_COUNTED_BYTES_MIN = 16 << 10
"""Smaller requests are not counted in the request memory, so that they do not pay for it."""
_HEAD_LOOKED_AT = 8000
"""Bytes in which the protocol and the origin of a refused request are looked for."""
_NAMES = (b"x-amz-target", b"origin")
"""Headers that the refusal of an unread request depends on."""
_OF_A_REFUSAL = re.compile(rb"(?<=\r\n)(%b):[ \t]*([^\r\n]*)" % b"|".join(_NAMES), re.IGNORECASE)
_NO_MEMORY = "Too many large requests are being received. Try again later."
_SWEPT_AT_ONCE = 1000
"""About a millisecond's; then other work gets its turn."""
_LINGER_S = 2
"""How long a client whose body is dropped may take to read why; it hangs up when it has."""
_LARGE_BYTES = 256 << 10
_METHODS = ("GET", "POST")
"""SQS knows no others; in particular a HEAD must not change anything."""
_VERSIONS = (HttpVersion10, HttpVersion11)

OtherPages = Callable[[BaseRequest], Awaitable[web.StreamResponse | None]]
"""Answers requests that are not SQS's; None for those that are."""


class SqsConnection(BoundedConnection):
    """One connection of a client."""

    __slots__ = (
        "_exchange",
        "_gateway",
        "_held_back",
        "_held_bytes",
        "_left_to_aiohttp",
        "_received",
        "discards",
        "is_secure",
        "origin_of",
        "source_ip",
    )

    def __init__(self, server: SqsServer, gateway: Gateway, **options: Any) -> None:
        super().__init__(server, **options)
        self._gateway = gateway
        self._left_to_aiohttp = False
        self._exchange: Exchange | None = None
        """The request whose answer is being waited for. Invariant: None once aiohttp reads this connection."""
        self._received = b""
        """What came and was not begun: the start of a request, or what follows the one that is under way."""
        self._held_back = False
        """Whether reading is paused: too much has come, or the client does not read its answers."""
        self._held_bytes = 0
        """What this connection took of the request memory."""
        self.discards = False
        """Whether what still comes is dropped: the last answer was written."""
        self.source_ip = ""
        self.is_secure = False
        """Of the request under way, as `source_ip`. Behind no trusted proxy these are the connection's."""
        self.origin_of: Callable[[dict[bytes, bytes]], Origin] | None = None
        """Where a request with these headers came from; None if the peer is no trusted proxy."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See who it is."""
        super().connection_made(transport)
        server = self._server
        self.source_ip = source_address(transport.get_extra_info("peername"))
        self.is_secure = transport.get_extra_info("sslcontext") is not None
        if server.proxies.trusts(self.source_ip):
            direct = Origin(self.source_ip, self.is_secure)
            self.origin_of = partial(server.proxies.origin, direct)

    def data_received(self, data: bytes) -> None:
        """Answer a plain request at once; hand anything else to aiohttp."""
        if self._left_to_aiohttp:
            if self._take_memory_for(data):
                self.feed_aiohttp(data)
            return
        begun_at = 0
        if self._received:
            data = self._received + data
            self._received = b""
            begun_at, self._begun_at = self._begun_at, 0
        size = len(data)
        if self._exchange is not None or self._held_back:
            self._received = data
            if size > _AHEAD_BYTES_MAX:
                self._hold_back()
            return
        if self._server.is_stopping:
            self.force_close()
            return
        if size > _COUNTED_BYTES_MIN:
            if not self._server.memory.take(size - self._held_bytes):
                self._refuse_body(data)
                return
            self._held_bytes = size
        read = read_plain_request(data)
        if type(read) is tuple:
            target, headers, body = read
            if self.origin_of is not None:
                self.source_ip, self.is_secure = self.origin_of(headers)
            exchange = self._gateway.begin(self, b"POST", target, headers, body)
            if not exchange.answered:
                self._exchange = exchange
        elif read is NotPlain.SHORT:
            self._received = data
            self._begun_at = begun_at or self._server.seconds
            self._begun_bytes = size
        else:
            self._leave_to_aiohttp(data, begun_at)

    def write_reply(self, written: bytes) -> bool:
        """See `Client.write_reply`."""
        self._exchange = None
        self._active_at = self._server.seconds
        if self._held_bytes:
            self._give_memory_back()
        transport = self.transport
        if transport is None or transport.is_closing():
            return False
        if self._server.is_stopping:
            transport.write(closing(written))
            self.force_close()
            return True
        transport.write(written)
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
        self._give_memory_back()
        super().connection_lost(exc)
        if exchange is not None:
            self._gateway.cancel(exchange)

    def _is_our_turn(self) -> bool:
        return self._exchange is not None or super()._is_our_turn()

    def _may_have_answer(self) -> bool:
        return self.discards or super()._may_have_answer()

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

    def _take_memory_for(self, data: bytes) -> bool:
        """Whether aiohttp may be given what came. Small requests always are: their number is bounded."""
        if self.discards:
            return False
        if self._request is None and self._is_in_body():
            return True  # it was answered already, and aiohttp drops the rest
        if self._server.memory.take(len(data)):
            self._held_bytes += len(data)
            return True
        if len(data) + (self._begun_bytes if self._begun_at else 0) <= _COUNTED_BYTES_MIN:
            return True
        self._refuse_body(data)
        return False

    def _give_memory_back(self) -> None:
        self._server.memory.give_back(self._held_bytes)
        self._held_bytes = 0

    def _refuse_body(self, data: bytes) -> None:
        """Answer at once that there is no memory, whoever reads this connection, and drop what still comes.

        It is read on for a while: the answer would be lost with a connection that is closed before the client has sent
        everything.
        """
        self._server.counters.refused[Refused.MEMORY] += 1
        self._give_memory_back()
        self._left_to_aiohttp = self.discards = True
        self._begun_at = self._begun_at or self._server.seconds
        if self._is_our_turn():  # it is the request behind one that is not answered
            self.force_close()
            return
        if self._request is None:
            found = _OF_A_REFUSAL.findall(data[:_HEAD_LOOKED_AT])
        else:
            found = [line for line in self._request.raw_headers if line[0].lower() in _NAMES]
            self._request.content.feed_eof()  # who waits for it shall forget it
        headers = {name.lower(): value for name, value in found}
        unavailable = ServiceUnavailable(_NO_MEMORY)
        self._gateway.refuse_unread(LastClient(self), b"POST", b"/", headers, unavailable)

    def request_ends(self) -> None:
        """See `BoundedConnection`."""
        super().request_ends()
        self._give_memory_back()

    def take_no_short_cut(self) -> None:
        """Let aiohttp handle the connection from its first request on."""
        self._left_to_aiohttp = True

    def _leave_to_aiohttp(self, data: bytes, begun_at: int) -> None:
        """From here on, aiohttp reads this connection."""
        self._left_to_aiohttp = True
        self._give_memory_back()
        self._begun_at = begun_at
        self._begun_bytes = 0
        self.data_received(data)


class SqsServer(web.Server):
    """Makes an SqsConnection for each client."""

    def __init__(
        self,
        gateway: Gateway,
        other_pages: OtherPages,
        limits: ListenerLimits | None = None,
        proxies: TrustedProxies | None = None,
        origins: AllowedOrigins | None = None,
    ) -> None:
        # A body is signed as it was sent, so it is not unpacked here.
        super().__init__(
            self._answer, handler_cancellation=True, access_log=None, auto_decompress=False
        )
        self._one_large = asyncio.Lock()
        """Hashing and decoding a large body takes milliseconds: one at a time, with others in between."""
        self._gateway = gateway
        self._other_pages = other_pages
        self.limits = limits or ListenerLimits()
        self.proxies = proxies or TrustedProxies()
        self._origins = origins or AllowedOrigins()
        self.counters = ListenerCounters()
        self.memory = RequestMemory(self.limits.request_memory_bytes)
        self.seconds = 1
        """Counted by `sweep`. A pause of this process does not pass for one of its clients."""
        self.is_stopping = False

    def __call__(self) -> SqsConnection:
        """The protocol of a new connection."""
        return SqsConnection(self, self._gateway, loop=self._loop, **self._kwargs)

    async def sweep(self) -> None:
        """Hang up on clients that let us wait; to be called once a second."""
        self.seconds += 1
        for number, (connection, transport) in enumerate(list(self._connections.items()), 1):
            cast(SqsConnection, connection).end_if_overdue(transport)
            if number % _SWEPT_AT_ONCE == 0:
                await asyncio.sleep(0)

    def begin_to_stop(self) -> None:
        """Begin no more requests: idle connections end now, the others with the answer they wait for."""
        self.is_stopping = True
        for connection in self.connections:
            if isinstance(connection, SqsConnection):
                connection.close_if_idle()

    def _make_request(self, *parts: Any) -> BaseRequest:
        request = super()._make_request(*parts)
        cast(SqsConnection, request.protocol).request_begins(request)
        return request

    async def _answer(self, request: BaseRequest) -> web.StreamResponse:
        """aiohttp's way: a request it has read the head of."""
        connection = cast(SqsConnection, request.protocol)
        try:
            return await self._answer_from(connection, request)
        finally:
            connection.request_ends()

    async def _answer_from(
        self, connection: SqsConnection, request: BaseRequest
    ) -> web.StreamResponse:
        client = SlowClient(request, connection, self)
        if connection.discards:
            return await _lingering(client)
        if request.version not in _VERSIONS:
            return _last_answer(400)  # a fault of the client: 505 would say it was ours
        if request.version == HttpVersion10 and "Transfer-Encoding" in request.headers:
            return _last_answer(400)  # a proxy of that version sees another end of the body
        headers = headers_of(request)
        if connection.origin_of is not None:
            client.source_ip, client.is_secure = connection.origin_of(headers)
            scheme = "https" if client.is_secure else "http"
            request = request.clone(remote=client.source_ip, scheme=scheme)
        other = await self._other_pages(request)
        if other is not None:
            return other
        if request.method not in _METHODS:
            return self._answer_other_method(request, headers)
        return await self._answer_sqs(client, request, headers)

    def _answer_other_method(
        self, request: BaseRequest, headers: dict[bytes, bytes]
    ) -> web.Response:
        if request.method == "OPTIONS":
            letting = self._origins.headers_of_preflight(headers)
            if letting:
                return web.Response(status=204, headers=_as_text(letting))
        letting = self._origins.headers_of_answer(headers)
        return web.Response(status=405, headers={"Allow": ", ".join(_METHODS), **_as_text(letting)})

    async def _answer_sqs(
        self, client: SlowClient, request: BaseRequest, headers: dict[bytes, bytes]
    ) -> web.StreamResponse:
        method = request.method.encode()
        target = request.raw_path.encode("utf-8", "surrogateescape")
        body = await read_body(request)
        if client.connection.discards:
            del body
            return await _lingering(client)
        if isinstance(body, RequestPayloadError):
            return _last_answer(400)
        if isinstance(body, RequestTooLarge):
            self.counters.too_large[TooLarge.BODY] += 1
            client.keep_alive = False
            self._gateway.refuse_unread(client, method, target, headers, body)
            return Written(client)
        client.connection.request_is_read()
        if len(body) > _LARGE_BYTES:
            async with self._one_large:
                await asyncio.sleep(0)  # whoever waits meanwhile comes first
                exchange = self._gateway.begin(client, method, target, headers, body)
        else:
            exchange = self._gateway.begin(client, method, target, headers, body)
        try:
            await client.written
        except asyncio.CancelledError:
            self._gateway.cancel(exchange)
            raise
        return Written(client)


def _as_text(headers: HeaderLines) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in headers}


def _last_answer(status: int) -> web.Response:
    answer = web.Response(status=status)
    answer.force_close()
    return answer


async def _lingering(client: SlowClient) -> Written:
    """Nothing more is written: what the client needs to know was. It shall have the time to read it."""
    client.keep_alive = False
    await asyncio.sleep(_LINGER_S)
    return Written(client)
