"""Answers as bytes on the connection. Pure; both ways through the gateway write exactly these."""

from __future__ import annotations

from email.utils import formatdate
from http import HTTPStatus

_REASONS = {status.value: f"{status.value} {status.phrase}".encode() for status in HTTPStatus}
_HEAD = (
    b"HTTP/1.1 %b\r\nContent-Type: %b\r\nx-amzn-RequestId: %b\r\nDate: %b\r\nContent-Length: %d\r\n"
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


class Reply:
    """One answer: what both ways of writing it need."""

    __slots__ = ("body", "head")

    def __init__(
        self,
        status: int,
        content_type: bytes,
        request_id: str,
        date: bytes,
        body: bytes,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        head = _HEAD % (_REASONS[status], content_type, request_id.encode(), date, len(body))
        if headers:
            head += b"".join(b"%b: %b\r\n" % header for header in headers)
        self.head = head
        self.body = body

    def keeping_alive(self) -> bytes:
        """The answer, after which the connection stays open."""
        return self.head + b"\r\n" + self.body

    def closing(self, *, with_body: bool = True) -> bytes:
        """The answer, after which the connection is closed."""
        return self.head + b"Connection: close\r\n\r\n" + (self.body if with_body else b"")
