"""Origins and hosts: web pages that may use the service from a browser (CORS), valid Host headers
of its own pages. Pure.

Nothing here depends on the signer: an allowed page needs a signature like any client. Cookies are
never requested.
Source: the Fetch standard, "HTTP-response" of its CORS protocol.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit

from sqs_api.protocol.reply import HeaderLines

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9_.-]+|\[[0-9a-f:]+\])(?::[0-9]{1,5})?")
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
_DEFAULT_PORT = re.compile(r"(?<=^http:)(.*):80$|(?<=^https:)(.*):443$")
_HEADER_NAMES = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z, -]{1,4096}")
_READABLE = b"x-amzn-RequestId, x-amzn-query-error, x-amzn-ErrorType, x-amz-crc32, Date"
"""Headers of an answer that SDKs read beside its content type; a browser hides all others."""
_PREFLIGHT_LASTS_S = b"7200"
"""The longest time for which browsers keep the answer to a preflight."""


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
        """Headers that let the page read the answer to this request; none if it may not."""
        origin = headers.get(b"origin")
        if origin not in self.names:
            return ()
        return (
            (b"Access-Control-Allow-Origin", origin),
            (b"Access-Control-Expose-Headers", _READABLE),
            (b"Vary", b"Origin"),
        )

    def headers_of_preflight(self, headers: Mapping[bytes, bytes]) -> HeaderLines:
        """Headers that let the page send the request that this OPTIONS asks for; none if it may
        not, or asks for none."""
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


class KnownHosts:
    """Valid Host headers of the administrative pages, as a protection against DNS rebinding.

    These are the host listened on, localhost, and the host of the public URL. Ports are ignored.
    """

    def __init__(self, host: str, public_url: str | None) -> None:
        """`host` is the one listened on."""
        public = urlsplit(public_url or "").hostname or ""
        self._names = {"localhost", host.lower(), public} - {""}
        self._public_origin = "{0.scheme}://{0.netloc}".format(urlsplit(public_url or "")).lower()
        address = _address(host)
        self._any_address = not host or address is None or address.is_unspecified

    def __contains__(self, header: bytes) -> bool:
        """True if a Host header names this service.

        On a wildcard address any IP address does: only names can be rebound.
        """
        match = _HOST.fullmatch(header.decode("latin-1"))
        if match is None:
            return False
        name = match[1].strip("[]").lower().rstrip(".")
        address = _address(name)
        if address is None:
            return name in self._names
        return self._any_address or address.is_loopback or name in self._names

    def may_be_own_page(self, headers: Mapping[bytes, bytes], *, is_secure: bool) -> bool:
        """False if the headers show that a page of another origin sent the request.

        Browsers set both headers, and no page can change them.
        """
        if headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
            return False
        origin = headers.get(b"origin")
        scheme = b"https://" if is_secure else b"http://"
        own = (scheme + headers.get(b"host", b"").lower(), self._public_origin.encode())
        return origin is None or origin.lower() in own

    def is_behind_tls(self, headers: Mapping[bytes, bytes], *, is_secure: bool) -> bool:
        """True if the browser reaches the service by TLS: its own, or that of the proxy at the
        public URL."""
        if is_secure or not self._public_origin.startswith("https://"):
            return is_secure
        host = headers.get(b"host", b"").decode("latin-1").lower()
        return self._public_origin == f"https://{host}"


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None
