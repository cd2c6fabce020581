"""Valid Host headers of the administrative pages: the protection against DNS rebinding."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")


class KnownHosts:
    """The host listened on, localhost, and the host of the public URL. Ports are ignored."""

    def __init__(self, host: str, public_url: str | None) -> None:
        """`host` is the one listened on."""
        public = urlsplit(public_url or "").hostname or ""
        self._names = {"localhost", host.lower(), public} - {""}
        address = _address(host)
        self._any_address = not host or address is None or address.is_unspecified

    def __contains__(self, header: bytes) -> bool:
        """True if a Host header names this service. On a wildcard address any IP address does: only names can be rebound."""
        match = _HOST.fullmatch(header.decode("latin-1"))
        if match is None:
            return False
        name = match[1].strip("[]").lower().rstrip(".")
        address = _address(name)
        if address is None:
            return name in self._names
        return self._any_address or address.is_loopback or name in self._names


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None
