"""A request on aiohttp's way: its headers, its body, and the answer that is written past aiohttp's own machinery."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiohttp import HttpVersion11, web
from aiohttp.web_protocol import RequestPayloadError
from aiohttp.web_request import BaseRequest

from sqs_api.protocol.reply import closing, with_connection
from visibility.contract.errors import RequestTooLarge

if TYPE_CHECKING:
    from sqs_api.http.connection import SqsConnection, SqsServer

BODY_BYTES_MAX = 4 << 20
"""No valid request is larger: a message of 1 MiB takes three times that in form encoding."""

_TOO_LARGE = f"The request is larger than {BODY_BYTES_MAX} bytes."


class SlowClient:
    """A client whose answer aiohttp waits for."""

    def __init__(self, request: BaseRequest, connection: SqsConnection, server: SqsServer) -> None:
        self.connection = connection
        self.source_ip = connection.source_ip
        self.is_secure = connection.is_secure
        self.keep_alive = request.keep_alive
        self._request = request
        self._server = server
        self.written: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def write_reply(self, written: bytes) -> bool:
        """See `Client.write_reply`."""
        transport = self._request.transport
        if self.written.done() or transport is None or transport.is_closing():
            return False
        if self._server.is_stopping:
            self.keep_alive = False
        if not self.keep_alive:
            transport.write(closing(written))
        elif self._request.version < HttpVersion11:
            transport.write(with_connection(written, b"keep-alive"))
        else:
            transport.write(written)
        self.written.set_result(None)
        return True


class LastClient:
    """A client that is told one thing more and is not listened to."""

    def __init__(self, connection: SqsConnection) -> None:
        self.source_ip = connection.source_ip
        self.is_secure = connection.is_secure
        self._transport = connection.transport

    def write_reply(self, written: bytes) -> bool:
        """See `Client.write_reply`."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        transport.write(closing(written))
        if transport.can_write_eof():
            transport.write_eof()
        return True


class Written(web.StreamResponse):
    """An answer that was written already: aiohttp makes neither its head nor its body."""

    def __init__(self, client: SlowClient) -> None:
        super().__init__()
        self._keep_alive = client.keep_alive

    async def prepare(self, request: BaseRequest) -> None:
        """Wait until the client has read enough of what was written."""
        await request.writer.drain()

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing is left to write."""
        self._eof_sent = True


async def read_body(request: BaseRequest) -> bytes | RequestTooLarge | RequestPayloadError:
    """The whole body, or why it is not read further."""
    if (request.content_length or 0) > BODY_BYTES_MAX:
        return RequestTooLarge(_TOO_LARGE)
    if request.headers.get("Expect", "").lower() == "100-continue" and request.transport:
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
        return error
    return b"".join(chunks)


def headers_of(request: BaseRequest) -> dict[bytes, bytes]:
    """Lower-case names to values; a repeated header's values are joined, as HTTP and signatures read them."""
    headers: dict[bytes, bytes] = {}
    for sent_name, value in request.raw_headers:
        name = sent_name.lower()
        headers[name] = headers[name] + b"," + value if name in headers else value
    return headers
