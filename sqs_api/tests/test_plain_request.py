"""Requests that the short cut reads or leaves to aiohttp; no input makes it fail."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqs_api.protocol import request
from sqs_api.protocol.request import (
    BODY_BYTES_MAX,
    HEAD_BYTES_MAX,
    HEADERS_MAX,
    NotPlain,
    read_in_python,
    read_plain_request,
)

HEAD = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n"
_EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "4000")) // 8
_SETTINGS = settings(max_examples=_EXAMPLES, deadline=None, derandomize=True, database=None)


def _with(*lines: bytes, body: bytes = b"{}") -> bytes:
    """A plain request with these header lines added."""
    return HEAD + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body


def _on(request_line: bytes) -> bytes:
    return _with().replace(b"POST / HTTP/1.1", request_line)


def _of(length: bytes, body: bytes = b"{}") -> bytes:
    return _with(body=body).replace(b"Content-Length: 2", b"Content-Length: " + length)


def test_plain_request_is_read_as_it_came() -> None:
    data = (
        b"POST /1/q?a=b HTTP/1.1\r\nHost: h:1\r\nX-Mixed:  a: b  \r\ncontent-LENGTH: 3\r\n\r\na\r\n"
    )

    read = read_plain_request(data)

    assert isinstance(read, tuple)
    assert read[0] == b"/1/q?a=b"
    assert dict(read[1]) == {b"host": b"h:1", b"x-mixed": b"a: b", b"content-length": b"3"}
    assert read[2] == b"a\r\n"


PLAIN = {
    "no body": _of(b"0", b""),
    "leading zeros": _of(b"0002"),
    "length in spaces": _of(b"  2  "),
    "any order": b"POST / HTTP/1.1\r\nContent-Length: 0\r\nHost: h\r\n\r\n",
    "empty value": _with(b"X: "),
    "every token character": _with(b"!#$%&'*+-.^_`|~09azAZ: x"),
    "longest name": _with(b"x" * 64 + b": y"),
    "most headers": _with(*(b"X-%d: y" % number for number in range(HEADERS_MAX - 2))),
    "line ends in the body": _of(b"8", b"\r\n\r\n\r\n\r\n"),
    "any bytes in the body": _of(b"256", bytes(range(256))),
    "largest body": _of(b"%d" % BODY_BYTES_MAX, b"x" * BODY_BYTES_MAX),
    "printable target": _on(b"POST /!\"$%&'()*+,-./:;<=>?@[\\]^_`{|}~ HTTP/1.1"),
    "reserved name without its slash": _on(b"POST /_holdfast HTTP/1.1"),
}


@pytest.mark.parametrize("case", PLAIN)
def test_plain_request_is_read(case: str) -> None:
    assert isinstance(read_plain_request(PLAIN[case]), tuple)


@pytest.mark.parametrize("case", PLAIN)
def test_plain_request_without_its_last_byte_is_short_and_with_one_more_unusual(case: str) -> None:
    data = PLAIN[case]
    less = NotPlain.UNUSUAL if data.endswith(b"\r\n\r\n") and b": 0" in data else NotPlain.SHORT

    assert read_plain_request(data[:-1]) is less
    assert read_plain_request(data + b"x") is NotPlain.UNUSUAL


UNUSUAL = {
    "nothing": b"",
    "no blank line": HEAD,
    "empty line first": b"\r\n" + _with(),
    "bare line feeds": _with().replace(b"\r\n", b"\n"),
    "one bare line feed": _with(b"X: y\nZ: z"),
    "one bare carriage return": _with(b"X: y\rZ: z"),
    "folded header": _with(b"X: y\r\n z"),
    "no header": b"POST / HTTP/1.1\r\n\r\n",
    "no host": b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
    "no length": b"POST / HTTP/1.1\r\nHost: h\r\n\r\n",
    "another method": _on(b"GET / HTTP/1.1"),
    "method in lower case": _on(b"post / HTTP/1.1"),
    "another version": _on(b"POST / HTTP/1.0"),
    "version of two digits": _on(b"POST / HTTP/1.10"),
    "no version": _on(b"POST /"),
    "absolute target": _on(b"POST http://h/ HTTP/1.1"),
    "asterisk": _on(b"POST * HTTP/1.1"),
    "space in the target": _on(b"POST /a b HTTP/1.1"),
    "two spaces": _on(b"POST  / HTTP/1.1"),
    "space at the end": _on(b"POST / HTTP/1.1 "),
    "fragment": _on(b"POST /#a HTTP/1.1"),
    "high byte in the target": _on(b"POST /\xc3\xa9 HTTP/1.1"),
    "delete in the target": _on(b"POST /\x7f HTTP/1.1"),
    "health": _on(b"POST /healthz HTTP/1.1"),
    "readiness": _on(b"POST /readyz HTTP/1.1"),
    "reserved": _on(b"POST /_holdfast/metrics HTTP/1.1"),
    "header twice": _with(b"X: a", b"x: b"),
    "host twice": _with(b"host: h"),
    "length twice": _with(b"Content-Length: 2"),
    "no space behind the colon": _with(b"X:y"),
    "tab behind the colon": _with(b"X:\ty"),
    "space before the colon": _with(b"X : y"),
    "space before the name": _with(b" X: y"),
    "no name": _with(b": y"),
    "no colon": _with(b"X"),
    "empty header line": _with(b""),
    "high byte in a name": _with(b"\xe9: y"),
    "separator in a name": _with(b"a(b): y"),
    "long name": _with(b"x" * 65 + b": y"),
    "nul": _with(b"X: \0"),
    "delete": _with(b"X: \x7f"),
    "high byte": _with(b"X: \xe9"),
    "signed length": _of(b"+2"),
    "negative length": _of(b"-2"),
    "length list": _of(b"2,2"),
    "hexadecimal length": _of(b"0x2"),
    "length of other digits": _of(b"\xb2"),
    "empty length": _of(b""),
    "length in words": _of(b"two"),
    "underscore in the length": _of(b"0_2"),
    "large length": _of(b"%d" % (BODY_BYTES_MAX + 1)),
    "huge length": _of(b"9" * 400),
    "too many headers": _with(*(b"X-%d: y" % number for number in range(HEADERS_MAX - 1))),
    "large head": _with(b"X: " + b"y" * HEAD_BYTES_MAX),
    "compressed": _with(b"Content-Encoding: gzip"),
    "chunked": _with(b"Transfer-Encoding: chunked"),
    "chunked in odd case": _with(b"tRANSFER-eNCODING: chunked"),
    "expecting": _with(b"Expect: 100-continue"),
    "closing": _with(b"Connection: close"),
    "upgrading": _with(b"Upgrade: h2c"),
    "trailers": _with(b"TE: trailers"),
    "old web socket": _with(b"Sec-WebSocket-Key1: x"),
}


@pytest.mark.parametrize("case", UNUSUAL)
def test_unusual_request_is_left_to_aiohttp(case: str) -> None:
    # Twice: caches of the first time must not change the second.
    assert read_plain_request(UNUSUAL[case]) is NotPlain.UNUSUAL
    assert read_plain_request(UNUSUAL[case]) is NotPlain.UNUSUAL


_PIECES = st.sampled_from(
    (b"\r\n", b"\r", b"\n", b": ", b":", b" ", b"POST / HTTP/1.1", b"Host: h", b"Content-Length: ")
)


@_SETTINGS
@given(st.lists(_PIECES | st.binary(max_size=8) | st.sampled_from(tuple(PLAIN.values()))))
def test_any_bytes_are_read_or_left(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    read = read_plain_request(data)

    if isinstance(read, tuple):
        _, headers, body = read
        assert data.endswith(b"\r\n\r\n" + body)
        assert int(headers[b"content-length"]) == len(body)
    else:
        assert isinstance(read, NotPlain)


@_SETTINGS
@given(st.integers(0, len(HEAD)), st.binary(max_size=4), st.integers(0, 4))
def test_any_change_of_a_head_is_read_or_left(place: int, new: bytes, gone: int) -> None:
    head = HEAD[:place] + new + HEAD[place + gone :]
    read = read_plain_request(head + b"\r\n{}")

    assert isinstance(read, tuple | NotPlain)


def test_lines_that_were_read_before_are_read_the_same_and_bounded() -> None:
    for number in range(3 * request.KEPT_MAX):
        for _ in range(2):
            read = read_in_python(_with(b"X-Number: %d " % number, b"Authorization: a%d" % number))
            assert isinstance(read, tuple)
            assert read[1][b"x-number"] == b"%d" % number
            assert read[1][b"authorization"] == b"a%d" % number

    assert 0 < len(request._lines) <= request.KEPT_MAX
    assert not any(line.startswith(b"Authorization") for line in request._lines)


def test_lines_that_may_not_be_read_are_not_kept() -> None:
    for line in (b"Expect: 100-continue", b"X: a\x00", b"X:y", b"X-Long: " + b"y" * 300):
        for _ in range(2):
            read_in_python(_with(line))
        assert line not in request._lines
