"""Replies as bytes, head and body in one piece.

Pure; both ways through the gateway write exactly these.
"""

from __future__ import annotations

from email.utils import formatdate
from http import HTTPStatus

_REASONS = {status.value: f"{status.value} {status.phrase}".encode() for status in HTTPStatus}
_REPLY = (
    b"HTTP/1.1 %b\r\nContent-Type: %b\r\nx-amzn-RequestId: %b\r\nDate: %b\r\n"
    b"%bContent-Length: %d\r\n\r\n%b"
)
_LENGTH = b"\r\nContent-Length: "

HeaderLines = tuple[tuple[bytes, bytes], ...]


def reply(
    status: int,
    content_type: bytes,
    request_id: str,
    date: bytes,
    body: bytes,
    headers: HeaderLines = (),
) -> bytes:
    """A reply after which the connection stays open."""
    return _REPLY % (
        _REASONS[status],
        content_type,
        request_id.encode(),
        date,
        b"".join([b"%b: %b\r\n" % line for line in headers]) if headers else b"",
        len(body),
        body,
    )


def closing(written: bytes) -> bytes:
    """The reply, after which the connection is closed."""
    return with_connection(written, b"close")


def with_connection(written: bytes, value: bytes) -> bytes:
    """The reply with a Connection header."""
    return written.replace(_LENGTH, b"\r\nConnection: " + value + _LENGTH, 1)


def date_line(wall_s: float) -> bytes:
    """The Date header's value."""
    return formatdate(wall_s, usegmt=True).encode()
