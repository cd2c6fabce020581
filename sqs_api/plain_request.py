"""Reading a plainly formed HTTP request in one go. Pure.

The short cut past aiohttp's parser accepts a strict subset of what that accepts: anything unusual is not refused here but
left to aiohttp, so there is one judge of odd requests and no room for two readings of one (request smuggling).
sqs_api/tests/test_gateway_differential.py compares the two on mutated requests.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

HEAD_BYTES_MAX = 8000
"""Just below aiohttp's limit for one line, so a head that is read here would be read there."""
HEADERS_MAX = 100
BODY_BYTES_MAX = 256 << 10
"""Larger bodies go to aiohttp, which applies back pressure while it reads."""

_PRINTABLE = bytes(range(0x20, 0x7F))
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
_TARGET = re.compile(rb"/[!-\"$-~]*")
_KEPT_NAMES_MAX = 1000

# What changes how a request is framed or answered is aiohttp's business.
_LEFT_TO_AIOHTTP = frozenset(
    (
        b"connection",
        b"content-encoding",
        b"expect",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
_names: dict[bytes, bytes] = {}
"""Header names as sent to lower case; only names that may be read here. Bounded."""


class RawRequest(NamedTuple):
    """A request as it came. `target` is the raw path and query, `headers` maps lower-case names to values."""

    method: bytes
    target: bytes
    headers: dict[bytes, bytes]
    body: bytes


class NotPlain(Enum):
    """Why nothing was read."""

    UNUSUAL = "aiohttp shall read it"
    SHORT = "the body is not complete"


def read_plain_request(data: bytes) -> RawRequest | NotPlain:
    """The one request that `data` consists of.

    SHORT means that head and body length are plain and more of the body must come; UNUSUAL that these bytes, and all that
    follow, are aiohttp's.
    """
    head_end = data.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX)
    if head_end < 0 or not data.startswith(b"POST /"):
        return NotPlain.UNUSUAL
    lines = data[:head_end].split(b"\r\n")
    if not 1 < len(lines) <= HEADERS_MAX:
        return NotPlain.UNUSUAL
    method, _, rest = lines[0].partition(b" ")
    target, _, version = rest.partition(b" ")
    if version != b"HTTP/1.1" or _TARGET.fullmatch(target) is None:
        return NotPlain.UNUSUAL
    if data[:head_end].translate(None, _PRINTABLE) != b"\r\n" * (len(lines) - 1):
        return NotPlain.UNUSUAL
    headers: dict[bytes, bytes] = {}
    for line in lines[1:]:
        sent_name, colon, value = line.partition(b":")
        name = _names.get(sent_name) or _readable_name(sent_name)
        if not colon or not name or name in headers:
            return NotPlain.UNUSUAL
        headers[name] = value.strip(b" ")
    length = headers.get(b"content-length", b"")
    if b"host" not in headers or not length.isdigit() or len(length) > 6:
        return NotPlain.UNUSUAL
    body_at = head_end + 4
    missing = body_at + int(length) - len(data)
    if int(length) > BODY_BYTES_MAX or missing < 0:
        return NotPlain.UNUSUAL
    if missing:
        return NotPlain.SHORT
    return RawRequest(method, target, headers, data[body_at:])


def _readable_name(sent_name: bytes) -> bytes | None:
    """The lower-case name of a header that may be read here, else None."""
    name = sent_name.lower()
    if _TOKEN.fullmatch(sent_name) is None or name in _LEFT_TO_AIOHTTP:
        return None
    if len(_names) < _KEPT_NAMES_MAX:
        _names[sent_name] = name
    return name
