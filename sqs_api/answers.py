"""Answers as bytes on the connection. Pure; both ways through the gateway write exactly these."""

from __future__ import annotations

from email.utils import formatdate
from http import HTTPStatus

import msgspec

_REASONS = {status.value: f"{status.value} {status.phrase}".encode() for status in HTTPStatus}
_ANSWER = (
    b"HTTP/1.1 %b\r\nContent-Type: %b\r\nx-amzn-RequestId: %b\r\nDate: %b\r\n"
    b"%bContent-Length: %d\r\n\r\n%b"
)
_CLOSE = (b"Connection", b"close")

HeaderLines = tuple[tuple[bytes, bytes], ...]


class Reply(msgspec.Struct, frozen=True, gc=False):
    """One answer: what both ways of writing it need."""

    status: int
    content_type: bytes
    request_id: str
    date: bytes
    body: bytes
    headers: HeaderLines = ()

    def keeping_alive(self) -> bytes:
        """The answer, after which the connection stays open."""
        return self._bytes(self.headers, self.body)

    def closing(self, *, with_body: bool = True) -> bytes:
        """The answer, after which the connection is closed."""
        return self._bytes((*self.headers, _CLOSE), self.body if with_body else b"")

    def _bytes(self, headers: HeaderLines, body: bytes) -> bytes:
        lines = b"".join([b"%b: %b\r\n" % line for line in headers]) if headers else b""
        return _ANSWER % (
            _REASONS[self.status],
            self.content_type,
            self.request_id.encode(),
            self.date,
            lines,
            len(self.body),
            body,
        )


class DateLine:
    """The Date header's value, made anew once a second."""

    __slots__ = ("_second", "_text")

    def __init__(self) -> None:
        self._second = -1
        self._text = b""

    def at(self, wall_s: float) -> bytes:
        """The value for this instant."""
        second = int(wall_s)
        if second != self._second:
            self._second = second
            self._text = formatdate(second, usegmt=True).encode()
        return self._text
