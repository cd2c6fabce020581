"""Reading a plainly formed HTTP request in one go. Pure.

The short cut past aiohttp's parser accepts a strict subset of what that accepts: anything unusual is not refused here but
left to aiohttp, so there is one judge of odd requests and no room for two readings of one (request smuggling).
sqs_api/tests/test_gateway_differential.py compares the two on mutated requests.
"""

from __future__ import annotations

import re
from enum import Enum

import msgspec

HEAD_BYTES_MAX = 8000
"""Just below aiohttp's limit for one line, so a head that is read here would be read there."""
HEADERS_MAX = 100
BODY_BYTES_MAX = 256 << 10
"""Larger bodies go to aiohttp, which applies back pressure while it reads."""

OTHER_PATHS = (b"/_holdfast/", b"/healthz", b"/readyz")
"""Not SQS's: aiohttp's."""

_PRINTABLE = bytes(range(0x20, 0x7F))
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
_TARGET = re.compile(rb"/[!-\"$-~]*")
_LENGTH_DIGITS_MAX = 6
_KEPT_MAX = 1000
_KEPT_TARGET_BYTES_MAX = 200

# What changes how a request is framed or answered is aiohttp's business.
_LEFT_TO_AIOHTTP = frozenset(
    (
        b"connection",
        b"content-encoding",
        b"expect",
        b"keep-alive",
        b"proxy-connection",
        b"sec-websocket-key1",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)


class _Names(dict[bytes, bytes]):
    """Header names as sent to lower case; KeyError for one that may not be read here. Keeps a bounded number."""

    def __missing__(self, sent_name: bytes) -> bytes:
        name = sent_name.lower()
        if _TOKEN.fullmatch(sent_name) is None or name in _LEFT_TO_AIOHTTP:
            raise KeyError(sent_name)
        if len(self) < _KEPT_MAX:
            self[sent_name] = name
        return name


_names = _Names()
_targets: dict[bytes, bytes] = {}
"""Request lines to targets; only lines that may be read here. Bounded."""


class RawRequest(msgspec.Struct, frozen=True, gc=False):
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
    head, blank_line, body = data.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    header_count = len(lines) - 1
    target = _targets.get(lines[0]) or _readable_target(lines[0])
    if not blank_line or target is None or len(head) > HEAD_BYTES_MAX or header_count > HEADERS_MAX:
        return NotPlain.UNUSUAL
    if len(head.translate(None, _PRINTABLE)) != 2 * header_count:
        return NotPlain.UNUSUAL  # something unprintable beside the line ends
    del lines[0]
    try:
        pairs = [line.split(b": ", 1) for line in lines]
        headers = {_names[sent_name]: value.strip(b" ") for sent_name, value in pairs}
    except (KeyError, ValueError):
        return NotPlain.UNUSUAL  # a name that may not be read here, or no colon and space
    length = headers.get(b"content-length", b"")
    if len(headers) != header_count or b"host" not in headers:
        return NotPlain.UNUSUAL  # a header came twice
    if not length.isdigit() or len(length) > _LENGTH_DIGITS_MAX:
        return NotPlain.UNUSUAL
    missing = int(length) - len(body)
    if missing == 0:
        return RawRequest(b"POST", target, headers, body)
    if missing < 0 or int(length) > BODY_BYTES_MAX:
        return NotPlain.UNUSUAL
    return NotPlain.SHORT


def _readable_target(request_line: bytes) -> bytes | None:
    """The target of a request line that may be read here, else None."""
    method, _, rest = request_line.partition(b" ")
    target, _, version = rest.partition(b" ")
    if method != b"POST" or version != b"HTTP/1.1" or _TARGET.fullmatch(target) is None:
        return None
    if target.startswith(OTHER_PATHS):
        return None
    if len(_targets) < _KEPT_MAX and len(target) < _KEPT_TARGET_BYTES_MAX:
        _targets[request_line] = target
    return target
