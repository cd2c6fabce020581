"""A small and cheap SQS client: one connection, signed or open requests, the JSON protocol.

An SDK would spend several times the server's time on a request, so the figures would be its own.
This client signs every request if it has credentials (SigV4, with the day's key kept) and
understands answers with a Content-Length, or in chunks without trailers. Where the server closes
the connection after an answer, it opens another for the next call.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import time
from typing import NamedTuple, cast
from urllib.parse import urlsplit

from compat_tests.benchmarks import query_wire
from compat_tests.facade import Credentials

_ALGORITHM = "AWS4-HMAC-SHA256"
_CONTENT_TYPE = "application/x-amz-json-1.0"
_SIGNED_HEADERS = "content-type;host;x-amz-date;x-amz-target"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_LAST_CHUNK = b"\r\n0\r\n\r\n"
_CLOSES = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)
_CONNECTING_AT_ONCE = 32  # fewer than the accept queue of any server holds


class Endpoint(NamedTuple):
    """A server to measure."""

    name: str
    url: str
    credentials: Credentials | None
    """None: requests are unsigned."""

    pid: int | None
    """The server's process, None if its cost is not measured."""

    by_sdk: bool = False
    """True for traffic through boto3, with its retries."""

    protocols: tuple[str, ...] = ("json",)
    """`json` and `query`: callers of boto3 take them in turn, others speak the first."""

    followers: tuple[int, ...] = ()
    """The processes of the hosts that copy what the server stores, if their cost is measured."""

    is_static: bool = False
    """It gives each request the same answer, and keeps nothing."""


class Refused(Exception):
    """An answer other than success."""


class Signer:
    """Makes the head of requests to one endpoint, signed if there are credentials."""

    def __init__(self, endpoint: Endpoint) -> None:
        parts = urlsplit(endpoint.url)
        self.address = (parts.hostname or "", parts.port or 80)
        self._host = parts.netloc
        self._path = parts.path or "/"
        self._credentials = endpoint.credentials
        self.speaks_query = endpoint.protocols[0] == "query"
        self._second = 0
        self._day = ""
        self._key = b""
        self._stamp = ""
        self._scope = ""
        self._starts: dict[str, tuple[bytes, str]] = {}
        """For each action the start of its canonical request and of its head; good for one
        second."""

    def head(self, action: str, body: bytes) -> bytes:
        """The request line and headers of a call of `action` with this body."""
        if self._credentials is None:
            return f"{self._open_start(action)}Content-Length: {len(body)}\r\n\r\n".encode()
        second = int(time.time())
        if second != self._second:
            self._begin_second(second, self._credentials)
        start = self._starts.get(action)
        if start is None:
            start = self._starts[action] = self._start(action, self._credentials.access_key_id)
        canonical = start[0] + hashlib.sha256(body).hexdigest().encode()
        digest = hashlib.sha256(canonical).hexdigest()
        text = f"{_ALGORITHM}\n{self._stamp}\n{self._scope}\n{digest}"
        signature = hmac.digest(self._key, text.encode(), "sha256").hex()
        return f"{start[1]}{signature}\r\nContent-Length: {len(body)}\r\n\r\n".encode()

    def _begin_second(self, second: int, credentials: Credentials) -> None:
        self._second = second
        self._stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second))
        self._starts.clear()
        if self._stamp[:8] != self._day:
            self._day = self._stamp[:8]
            key = b"AWS4" + credentials.secret_access_key.encode()
            for part in (self._day, credentials.region, "sqs", "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._key = key
            self._scope = f"{self._day}/{credentials.region}/sqs/aws4_request"

    def _start(self, action: str, access_key_id: str) -> tuple[bytes, str]:
        target = _target(action)
        canonical = (
            f"POST\n{self._path}\n\ncontent-type:{_CONTENT_TYPE}\nhost:{self._host}\n"
            f"x-amz-date:{self._stamp}\nx-amz-target:{target}\n\n{_SIGNED_HEADERS}\n"
        )
        head = (
            f"{self._open_start(action)}X-Amz-Date: {self._stamp}\r\nAuthorization: {_ALGORITHM} "
            f"Credential={access_key_id}/{self._scope}, SignedHeaders={_SIGNED_HEADERS}, Signature="
        )
        return canonical.encode(), head

    def _open_start(self, action: str) -> str:
        if self.speaks_query:
            kind = query_wire.CONTENT_TYPE
            return f"POST / HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: {kind}\r\n"
        return (
            f"POST {self._path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: {_CONTENT_TYPE}\r\n"
            f"X-Amz-Target: {_target(action)}\r\n"
        )


def _target(action: str) -> str:
    """An action of another service than SQS is named with it."""
    return action if "." in action else f"AmazonSQS.{action}"


class Connection(asyncio.Protocol):
    """One connection; it carries one call at a time. Made by `connect`."""

    retries = 0
    """It never repeats a call by itself."""

    def __init__(self, signer: Signer) -> None:
        self._signer = signer
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[bytes] | None = None
        self._received = b""
        self._expected = 0
        """Bytes of the whole answer, 0 until its head has come."""

        self._closes = False
        """The server closes the connection after the answer."""

        self._lost = asyncio.Event()

    async def call(self, action: str, body: bytes) -> bytes:
        """The body of the answer; raises Refused, or ConnectionError if the connection is lost."""
        assert self._answer is None, "one call at a time"
        if self._closes:
            self.close()
            await self._lost.wait()
            await self._loop.create_connection(lambda: self, *self._signer.address)
            self._closes = False
        if self._transport is None:
            raise ConnectionError("the server has closed the connection")
        speaks_query = self._signer.speaks_query
        if speaks_query:
            body = query_wire.form_of(action, body)
        self._answer = self._loop.create_future()
        self._transport.write(self._signer.head(action, body) + body)
        try:
            answer = await self._answer
            return query_wire.json_of(answer) if speaks_query else answer
        finally:
            self._answer = None

    def close(self) -> None:
        """Close the connection, even during a call."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        self._lost.clear()
        self._transport = cast(
            asyncio.Transport, transport
        )  # by behaviour: uvloop's has no such base

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is lost; a waiting call fails."""
        self._transport = None
        self._lost.set()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError(f"connection lost: {exc or 'closed'}"))

    def data_received(self, data: bytes) -> None:
        """Take a part of an answer, usually all of it."""
        self._received = self._received + data if self._received else data
        if not self._expected:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return
            length = _LENGTH.search(self._received, 0, end)
            if length is None and _CHUNKED.search(self._received, 0, end) is not None:
                if not self._received.endswith(_LAST_CHUNK):
                    return
                self._received = _unchunked(self._received, end + 4)
                self._expected = len(self._received)
            elif length is None:
                self._finish_with(Refused(f"an answer without length: {self._received[:end]!r}"))
                return
            else:
                self._expected = end + 4 + int(length[1])
            self._closes = _CLOSES.search(self._received, 0, end) is not None
        if len(self._received) >= self._expected:
            self._finish(self._received)

    def _finish(self, answer: bytes) -> None:
        body = answer[answer.find(b"\r\n\r\n") + 4 : self._expected]
        surplus = len(answer) > self._expected
        self._received = b""
        self._expected = 0
        if surplus or self._answer is None:
            self._finish_with(Refused(f"more than one answer to a call: {answer[:300]!r}"))
        elif answer[9:12] != b"200" or body.startswith(b'{"__type"'):
            self._finish_with(
                Refused(f"{answer[9:12].decode()} {body[:300].decode(errors='replace')}")
            )
        elif not self._answer.done():
            self._answer.set_result(body)

    def _finish_with(self, refusal: Refused) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(refusal)


def _unchunked(answer: bytes, body_at: int) -> bytes:
    """The answer with its body in one piece."""
    parts, at = [answer[:body_at]], body_at
    while True:
        line_end = answer.index(b"\r\n", at)
        size = int(answer[at:line_end], 16)
        if not size:
            return b"".join(parts)
        parts.append(answer[line_end + 2 : line_end + 2 + size])
        at = line_end + 2 + size + 2


async def connect(endpoint: Endpoint, count: int) -> list[Connection]:
    """`count` connections to the endpoint, in arbitrary order; the caller closes them."""
    signer = Signer(endpoint)
    loop = asyncio.get_running_loop()
    made: list[Connection] = []
    while len(made) < count:
        group = [
            loop.create_connection(lambda: Connection(signer), *signer.address)
            for _ in range(min(_CONNECTING_AT_ONCE, count - len(made)))
        ]
        made += [connection for _, connection in await asyncio.gather(*group)]
    return made
