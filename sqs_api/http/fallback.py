"""Fallback: requests that aiohttp reads, with replies written past aiohttp's own machinery."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import cast

from aiohttp import HttpVersion10, HttpVersion11, web
from aiohttp.web_protocol import RequestPayloadError
from aiohttp.web_request import BaseRequest
from typing_extensions import override

from sqs_api.gateway.exchange import Exchange
from sqs_api.gateway.gateway import Gateway
from sqs_api.http.connection import SqsConnection
from sqs_api.http.http_limits import BODY_BYTES_MAX, ServerState, TooLarge
from sqs_api.protocol.reply import HeaderLines, closing, with_connection
from sqs_api.settings.origins import AllowedOrigins
from visibility.contract.errors import InvalidRequest, RequestTooLarge

_TOO_LARGE = f"The request is larger than {BODY_BYTES_MAX} bytes."
_NO_ROOM = "Too many large answers wait to be read. Try again later."
_LARGE_BYTES = 256 << 10
_LINGER_S = 2
"""Time for a client whose body is dropped to read the reason; it hangs up when it has."""
_SCHEME_AND_HOST = re.compile(r"https?://[^/?]*", re.IGNORECASE)
_METHODS = ("GET", "POST")
"""SQS knows no others; in particular a HEAD must not change anything."""
_VERSIONS = (HttpVersion10, HttpVersion11)
_ENCODED = (
    "Content-Encoding is not supported: send the body as it is, without compression and without "
    "this header."
)
_PLAIN_ENCODINGS = (b"", b"identity", b"amz-1.0")
"""Values of Content-Encoding for a body as it is; AWS's examples of JSON requests have the last."""

OtherPages = Callable[[BaseRequest], Awaitable[web.StreamResponse | None]]
"""Answers requests that are not SQS's; None for those that are."""


class FallbackClient:
    """A client whose reply aiohttp waits for."""

    def __init__(self, request: BaseRequest, connection: SqsConnection, state: ServerState) -> None:
        self.source_ip = connection.source_ip
        self.is_secure = connection.is_secure
        self.keep_alive = request.keep_alive
        self.exchange: Exchange | None = None
        """None until the request is begun."""
        self._request = request
        self._connection = connection
        self._state = state
        self.written: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def write_reply(self, written: bytes) -> bool:
        """Write a reply; False if the client is gone."""
        transport = self._request.transport
        if self.written.done() or transport is None or transport.is_closing():
            return False
        if self._state.is_stopping:
            self.keep_alive = False
        if not self.keep_alive:
            transport.write(closing(written))
        elif self._request.version < HttpVersion11:
            transport.write(with_connection(written, b"keep-alive"))
        else:
            transport.write(written)
        self._connection.answer_to(self.exchange)
        self.written.set_result(None)
        return True


class Fallback:
    """aiohttp's handler of requests."""

    def __init__(
        self, gateway: Gateway, other_pages: OtherPages, origins: AllowedOrigins, state: ServerState
    ) -> None:
        self._gateway = gateway
        self._other_pages = other_pages
        self._origins = origins
        self._state = state
        self._one_large = asyncio.Lock()
        """Serialises large bodies: hashing and decoding one takes milliseconds."""

    async def answer(self, request: BaseRequest) -> web.StreamResponse:
        """Answer a request of which aiohttp has read the head."""
        connection = cast(SqsConnection, request.protocol)
        try:
            return await self._answer_from(connection, request)
        finally:
            connection.request_ends()

    async def _answer_from(
        self, connection: SqsConnection, request: BaseRequest
    ) -> web.StreamResponse:
        client = FallbackClient(request, connection, self._state)
        if connection.is_refused:
            return await _lingering(client)
        if request.version not in _VERSIONS:
            return _last_answer(400)  # a fault of the client; 505 would mean ours
        if request.version == HttpVersion10 and "Transfer-Encoding" in request.headers:
            return _last_answer(400)  # a proxy of that version sees another end of the body
        headers = headers_of(request)
        if headers.get(b"transfer-encoding", b"chunked").strip().lower() != b"chunked":
            return _last_answer(501)  # compressed, which would be read as it is
        if connection.origin_of is not None:
            client.source_ip, client.is_secure = connection.origin_of(headers)
            scheme = "https" if client.is_secure else "http"
            request = request.clone(remote=client.source_ip, scheme=scheme)
        other = await self._other_pages(request)
        if other is not None:
            return other if connection.page_begins(_size_of(other)) else _no_room()
        if request.method not in _METHODS:
            return self._answer_other_method(request, headers)
        return await self._answer_sqs(client, connection, request, headers)

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
        self,
        client: FallbackClient,
        connection: SqsConnection,
        request: BaseRequest,
        headers: dict[bytes, bytes],
    ) -> web.StreamResponse:
        method = request.method.encode()
        target = _without_host(request.raw_path).encode("utf-8", "surrogateescape")
        body = await read_body(request)
        if connection.is_refused:
            del body
            return await _lingering(client)
        if isinstance(body, RequestPayloadError):
            return _last_answer(400)
        if isinstance(body, RequestTooLarge):
            self._state.counters.too_large[TooLarge.BODY] += 1
            client.keep_alive = False
            self._gateway.refuse_unread(client, headers, body)
            return Written(client)
        connection.request_is_read()
        if headers.get(b"content-encoding", b"").lower() not in _PLAIN_ENCODINGS:
            self._gateway.refuse_unread(client, headers, InvalidRequest(_ENCODED))
            return Written(client)
        if len(body) > _LARGE_BYTES:
            async with self._one_large:
                await asyncio.sleep(0)  # requests that wait meanwhile come first
                exchange = self._gateway.begin(client, method, target, headers, body)
        else:
            exchange = self._gateway.begin(client, method, target, headers, body)
        client.exchange = exchange
        try:
            await client.written
        except asyncio.CancelledError:
            self._gateway.cancel(exchange)
            raise
        finally:
            client.exchange = None  # each would keep the other in memory
        return Written(client)


class Written(web.StreamResponse):
    """A reply that was written already: aiohttp makes neither its head nor its body."""

    def __init__(self, client: FallbackClient) -> None:
        super().__init__()
        self._keep_alive = client.keep_alive

    @override
    async def prepare(self, request: BaseRequest) -> None:
        """Wait until the client has read enough of the reply."""
        await request.writer.drain()

    @override
    async def write_eof(self, data: bytes = b"") -> None:
        """Write nothing more."""
        self._eof_sent = True


def _without_host(target: str) -> str:
    """The path and query of a target; a client that takes this service for a proxy names scheme and
    host as well (RFC 9112 §3.2.2)."""
    named = _SCHEME_AND_HOST.match(target)
    if named is None:
        return target
    rest = target[named.end() :]
    return rest if rest.startswith("/") else f"/{rest}"


def _as_text(headers: HeaderLines) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in headers}


def _size_of(page: web.StreamResponse) -> int:
    body = page.body if isinstance(page, web.Response) else None
    return len(body) if isinstance(body, bytes) else 0


def _no_room() -> web.Response:
    return web.json_response({"error": _NO_ROOM}, status=503)


def _last_answer(status: int) -> web.Response:
    answer = web.Response(status=status)
    answer.force_close()
    return answer


async def _lingering(client: FallbackClient) -> Written:
    """The reply is already sent; keep the socket open so that the client can read it."""
    client.keep_alive = False
    await asyncio.sleep(_LINGER_S)
    return Written(client)


async def read_body(request: BaseRequest) -> bytes | RequestTooLarge | RequestPayloadError:
    """The whole body, or the reason to read no further."""
    if (request.content_length or 0) > BODY_BYTES_MAX:
        return RequestTooLarge(_TOO_LARGE)
    expects = request.headers.get("Expect", "").lower() == "100-continue"
    if expects and request.version >= HttpVersion11 and request.transport:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in request.content.iter_any():
            size += len(chunk)
            if size > BODY_BYTES_MAX:
                return RequestTooLarge(_TOO_LARGE)
            chunks.append(chunk)
    except RequestPayloadError as error:
        return error.with_traceback(None)  # Python 3.12 would keep its frames, which keep it
    return b"".join(chunks)


def headers_of(request: BaseRequest) -> dict[bytes, bytes]:
    """Lower-case names to values; a repeated header's values are joined, as HTTP and signatures
    read them."""
    headers: dict[bytes, bytes] = {}
    for sent_name, value in request.raw_headers:
        name = sent_name.lower()
        headers[name] = headers[name] + b"," + value if name in headers else value
    return headers
