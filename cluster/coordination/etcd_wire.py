"""HTTP to single endpoints of etcd. Knows nothing of what is sent; `etcd_client.py` does.

The simulator puts a simulated network in place of HttpWire.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol
from weakref import WeakSet

import aiohttp
from typing_extensions import override

_LINE_BYTES_MAX = 256 << 20
"""Limit of a watch's line: a thousand transactions of the size that etcd accepts by default do not
reach it."""
_IDLE_CONNECTION_S = 30.0
_CLOSED_S = 1.0
"""Bound for the end of the last connections."""
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")
"""OpenSSL's reasons for an answer that is not TLS; each version has its own."""


class NoAnswer(Exception):
    """No answer came. Unless `was_sent`, the request never reached etcd."""

    def __init__(self, reason: str, *, was_sent: bool) -> None:
        super().__init__(reason)
        self.was_sent = was_sent


class TooLate(NoAnswer):
    """It did not come within the limit."""

    def __init__(self, endpoint: str, *, was_sent: bool) -> None:
        super().__init__(f"etcd at {endpoint} does not answer", was_sent=was_sent)


class Reply(NamedTuple):
    """An answer's status and body."""

    status: int
    body: bytes


class Wire(Protocol):
    """Sends requests to one endpoint each. Both methods raise NoAnswer."""

    async def post(
        self, endpoint: str, path: str, body: bytes, headers: Mapping[str, str], limit_s: float
    ) -> Reply:
        """One request, answered within the limit."""

    def stream(
        self, endpoint: str, path: str, body: bytes, headers: Mapping[str, str], limit_s: float
    ) -> AsyncGenerator[bytes]:
        """The lines of an answer without end, the first within the limit."""

    async def close(self) -> None:
        """Close all connections."""


class TlsFiles(NamedTuple):
    """Certificates for `https` endpoints, PEM."""

    ca: Path | None = None
    """Signs the members' certificates; by default the machine's authorities do."""
    certificate: Path | None = None
    """The client's own."""
    key: Path | None = None

    def context(self) -> ssl.SSLContext:
        """Raises OSError, which includes ssl.SSLError."""
        context = ssl.create_default_context(cafile=self.ca)
        if self.certificate is not None:
            # Without a password function, OpenSSL would ask for one on the terminal.
            context.load_cert_chain(self.certificate, self.key, password=lambda: "")
        return context


class HttpWire(Wire):
    """Sends over HTTP/1.1, with connections kept open."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._sockets = WeakSet[socket.socket]()
        connector = aiohttp.TCPConnector(
            ssl=tls if tls is not None else True,
            limit=0,
            keepalive_timeout=_IDLE_CONNECTION_S,
            socket_factory=self._new_socket,
        )
        self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)

    @override
    async def post(
        self, endpoint: str, path: str, body: bytes, headers: Mapping[str, str], limit_s: float
    ) -> Reply:
        timeout = aiohttp.ClientTimeout(total=limit_s)
        try:
            async with self._session.post(
                endpoint + path, data=body, headers=headers, timeout=timeout
            ) as response:
                return Reply(response.status, await response.read())
        except (aiohttp.ClientError, OSError) as error:  # a timeout is an OSError
            raise _no_answer(endpoint, error) from error

    @override
    async def stream(
        self, endpoint: str, path: str, body: bytes, headers: Mapping[str, str], limit_s: float
    ) -> AsyncGenerator[bytes]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=limit_s)
        try:
            async with asyncio.timeout(limit_s):
                response = await self._session.post(
                    endpoint + path, data=body, headers=headers, timeout=timeout
                )
            async with response:
                async for line in _lines(response.content):
                    yield line
        except (aiohttp.ClientError, OSError) as error:
            raise _no_answer(endpoint, error) from error

    @override
    async def close(self) -> None:
        await self._session.close()
        # A connection over TLS whose request was cancelled while it was made waits for the member's
        # goodbye, and aiohttp does not know of it: the end of its stream ends it.
        for each in self._open_sockets():
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSED_S):
                while self._open_sockets():  # noqa: ASYNC110  a socket tells nobody of its end
                    await asyncio.sleep(0.001)

    def _new_socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, *_ = address
        made = socket.socket(family, kind, protocol)
        self._sockets.add(made)
        return made

    def _open_sockets(self) -> list[socket.socket]:
        return [each for each in self._sockets if each.fileno() >= 0]


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of any length; aiohttp's own are short."""
    parts: list[bytes] = []
    size = 0
    async for chunk in content.iter_any():
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            line = b"".join([*parts, end])
            parts, size = [], 0
            if line:
                yield line
        parts.append(rest)
        size += len(rest)
        if size > _LINE_BYTES_MAX:
            raise NoAnswer("a line without end", was_sent=True)
    if size:
        yield b"".join(parts)


def _no_answer(endpoint: str, error: Exception) -> NoAnswer:
    if isinstance(error, aiohttp.ClientConnectorError):
        return NoAnswer(_not_connected(endpoint, error), was_sent=False)
    if isinstance(error, TimeoutError):
        was_sent = not isinstance(error, aiohttp.ConnectionTimeoutError)
        return TooLate(endpoint, was_sent=was_sent)
    reason = str(error) or type(error).__name__
    if isinstance(error, aiohttp.ClientConnectionError) and endpoint.startswith("http:"):
        # A port with TLS ends the connection, as a member does that is killed.
        reason += ". If it speaks TLS, name it with https:// in --etcd"
    return NoAnswer(f"etcd at {endpoint}: {reason}", was_sent=True)


def _not_connected(endpoint: str, error: aiohttp.ClientConnectorError) -> str:
    """The reason for the operator, instead of aiohttp's text and the operating system's."""
    cause = error.os_error
    if isinstance(cause, ssl.SSLError):
        if cause.reason in _NO_TLS:
            return f"etcd at {endpoint} does not speak TLS: name it with http:// in --etcd"
        return f"etcd at {endpoint} and this host do not agree on TLS: {cause}"
    if isinstance(cause, ConnectionResetError):  # the port is open, so it was the handshake
        hint = "if it speaks none, name it with http:// in --etcd"
        return f"etcd at {endpoint} does not begin TLS: {hint}"
    number = cause.errno or 0
    reason = os.strerror(number) if number > 0 else cause.strerror or str(cause)
    return f"etcd cannot be reached at {endpoint}: start it, or correct --etcd ({reason})"
