"""Reads a plainly formed HTTP request in one step. Pure.

The short cut past aiohttp's parser accepts a strict subset of its requests: anything unusual is not
refused here but left to aiohttp, so there is one judge of odd requests and no room for two readings
of one (request smuggling). sqs_api/tests/test_gateway_differential.py compares the two on mutated
requests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import cast

from auth.native import native

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
KEPT_MAX = 1000
_KEPT_BYTES_MAX = 200
"""Longer lines are read each time."""
_CHANGING = frozenset(
    (b"amz-sdk-invocation-id", b"authorization", b"traceparent", b"x-amzn-trace-id")
)
"""Headers that differ from request to request."""

# Headers that change how a request is framed or answered are left to aiohttp.
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


class _Lines(dict[bytes, tuple[bytes, bytes]]):
    """Header lines as sent to lower-case name and value; KeyError for one that may not be read
    here. Bounded.

    Clients repeat most of their lines, so reading a head is mostly looking up.
    """

    def __missing__(self, line: bytes) -> tuple[bytes, bytes]:
        sent_name, separator, value = line.partition(b": ")
        name = _names.get(sent_name)
        if name is None:
            name = sent_name.lower()
            if _TOKEN.fullmatch(sent_name) is None or name in _LEFT_TO_AIOHTTP:
                raise KeyError(line)
            if len(_names) < KEPT_MAX:
                _names[sent_name] = name
        if not separator or line.translate(None, _PRINTABLE):
            raise KeyError(line)
        read = (name, value.strip(b" "))
        if len(line) <= _KEPT_BYTES_MAX and name not in _CHANGING:
            if len(self) >= KEPT_MAX:
                self.clear()
            self[line] = read
        return read


_names: dict[bytes, bytes] = {}
"""Header names as sent to lower case; only names that may be read here. Bounded."""
_lines = _Lines()
_line = _lines.__getitem__
_targets: dict[bytes, bytes] = {}
"""Request lines to targets; only lines that may be read here. Bounded."""


_native = native and native.HeadReader(
    head_bytes_max=HEAD_BYTES_MAX,
    headers_max=HEADERS_MAX,
    length_digits_max=_LENGTH_DIGITS_MAX,
    other_paths=list(OTHER_PATHS),
    left_out=set(_LEFT_TO_AIOHTTP),
)
PlainRequest = tuple[bytes, Mapping[bytes, bytes], bytes]
"""A POST: raw path and query, lower-case header names to values, body."""


class NotPlain(Enum):
    """Reasons to read nothing."""

    UNUSUAL = "aiohttp shall read it"
    SHORT = "the body is not complete"


def read_plain_request(data: bytes) -> PlainRequest | NotPlain:
    """The one request that `data` consists of.

    SHORT means that head and body length are plain and more of the body must come; UNUSUAL that
    these bytes, and all that follow, are aiohttp's.
    """
    read = None if _native is None else _native.read(data)
    return read_in_python(data) if read is None else cast(PlainRequest, read)


def read_in_python(data: bytes) -> PlainRequest | NotPlain:
    """The same without the native module, which answers for plain requests only."""
    head, blank_line, body = data.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    request_line = lines.pop(0)
    target = _targets.get(request_line) or _readable_target(request_line)
    if not blank_line or target is None or len(head) > HEAD_BYTES_MAX or len(lines) > HEADERS_MAX:
        return NotPlain.UNUSUAL
    try:
        headers = dict(map(_line, lines))
    except KeyError:
        return NotPlain.UNUSUAL
    length = headers.get(b"content-length", b"")
    if len(headers) != len(lines) or b"host" not in headers:
        return NotPlain.UNUSUAL  # a header came twice
    if not length.isdigit() or len(length) > _LENGTH_DIGITS_MAX:
        return NotPlain.UNUSUAL
    size = int(length)
    if size == len(body):
        return target, headers, body
    if size < len(body) or size > BODY_BYTES_MAX:
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
    if len(_targets) < KEPT_MAX and len(target) < _KEPT_BYTES_MAX:
        _targets[request_line] = target
    return target
