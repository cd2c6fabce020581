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
        headers, body = self.headers, self.body
        return _ANSWER % (
            _REASONS[self.status],
            self.content_type,
            self.request_id.encode(),
            self.date,
            b"".join([b"%b: %b\r\n" % line for line in headers]) if headers else b"",
            len(body),
            body,
        )

    def closing(self) -> bytes:
        """The answer, after which the connection is closed."""
        return self.with_header(b"Connection", b"close").keeping_alive()

    def with_header(self, name: bytes, value: bytes) -> Reply:
        """The same answer with one more header."""
        return msgspec.structs.replace(self, headers=(*self.headers, (name, value)))


def date_line(wall_s: float) -> bytes:
    """The Date header's value."""
    return formatdate(wall_s, usegmt=True).encode()
