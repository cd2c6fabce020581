"""Origins: web pages that may use the service from a browser, and the headers by which it lets them (CORS). Pure.

Nothing here depends on who signed: a page that is let in needs a signature as any client does. Cookies are never asked for.
Source: the Fetch standard, "HTTP-response" of its CORS protocol.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from sqs_api.protocol.reply import HeaderLines

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9_.-]+|\[[0-9a-f:]+\])(?::[0-9]{1,5})?")
_DEFAULT_PORT = re.compile(r"(?<=^http:)(.*):80$|(?<=^https:)(.*):443$")
_HEADER_NAMES = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z, -]{1,4096}")
_READABLE = b"x-amzn-RequestId, x-amzn-query-error, x-amzn-ErrorType, x-amz-crc32, Date"
"""What SDKs read of an answer beside its content type: a browser hides all other headers from them."""
_PREFLIGHT_LASTS_S = b"7200"
"""As long as browsers keep the answer to a preflight at most."""


class AllowedOrigins:
    """The origins of the configuration. False if there are none."""

    def __init__(self, origins: str = "") -> None:
        """`origins` are separated by commas. Raises ValueError with a reason."""
        given = [origin.strip().lower() for origin in origins.split(",") if origin.strip()]
        for origin in given:
            if _ORIGIN.fullmatch(origin) is None:
                raise ValueError(f'{origin!r} is not of the form "https://app.example.com"')
        self.names = frozenset(_DEFAULT_PORT.sub(r"\1\2", origin).encode() for origin in given)

    def __bool__(self) -> bool:
        return bool(self.names)

    def headers_of_answer(self, headers: Mapping[bytes, bytes]) -> HeaderLines:
        """What lets the page read the answer to a request with these headers; nothing if it may not."""
        origin = headers.get(b"origin")
        if origin not in self.names:
            return ()
        return (
            (b"Access-Control-Allow-Origin", origin),
            (b"Access-Control-Expose-Headers", _READABLE),
            (b"Vary", b"Origin"),
        )

    def headers_of_preflight(self, headers: Mapping[bytes, bytes]) -> HeaderLines:
        """What lets the page send the request that this OPTIONS asks for; nothing if it may not, or if it asks for none."""
        origin = headers.get(b"origin")
        if origin not in self.names or b"access-control-request-method" not in headers:
            return ()
        lines = (
            (b"Access-Control-Allow-Origin", origin),
            (b"Access-Control-Allow-Methods", b"GET, POST"),
            (b"Access-Control-Max-Age", _PREFLIGHT_LASTS_S),
            (b"Vary", b"Origin"),
        )
        names = headers.get(b"access-control-request-headers", b"")
        if _HEADER_NAMES.fullmatch(names):
            return (*lines, (b"Access-Control-Allow-Headers", names))
        return lines
