"""The client's address, also behind a trusted proxy."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple

Network = IPv4Network | IPv6Network

_HOPS_MAX = 20
"""Bound of the entries that are read: the client chooses the header's length."""
_KEPT_MAX = 1024
"""Origins that are remembered: to read one costs as much as a tenth of a send."""
_KEPT_BYTES_MAX = 200
"""Longer headers are read each time: the client chooses them."""


class Origin(NamedTuple):
    """The origin of a request."""

    source_ip: str
    """An address without zone, IPv4 in its own form; empty if the transport knows none."""
    is_secure: bool
    """True if the client speaks TLS."""


class TrustedProxies:
    """The networks whose X-Forwarded-For and X-Forwarded-Proto are trusted."""

    def __init__(self, networks: str = "") -> None:
        """`networks`: addresses and CIDR blocks, separated by commas. Raises ValueError."""
        self._networks = tuple(
            ip_network(text.strip()) for text in networks.split(",") if text.strip()
        )
        self._read_once = lru_cache(_KEPT_MAX)(self._read)

    def trusts(self, address: str) -> bool:
        """True for the address of a trusted proxy."""
        if not self._networks:
            return False
        try:
            parsed = ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self._networks)

    def origin(self, direct: Origin, headers: Mapping[bytes, bytes]) -> Origin:
        """The origin of a request that came from a trusted proxy at `direct`: the rightmost address
        that is not trusted.

        The client itself wrote everything left of that address. An entry that is not an address
        ends the search too: then the origin is the proxy that wrote it.
        """
        forwarded, schemes = headers.get(b"x-forwarded-for"), headers.get(b"x-forwarded-proto")
        if forwarded is None and schemes is None:
            return direct
        given = direct, forwarded or b"", schemes or b""
        is_short = len(given[1]) + len(given[2]) <= _KEPT_BYTES_MAX
        return self._read_once(*given) if is_short else self._read(*given)

    def _read(self, direct: Origin, forwarded: bytes, schemes: bytes) -> Origin:
        source_ip = direct.source_ip
        hops = forwarded.decode("latin-1").rsplit(",", _HOPS_MAX)
        for hop in reversed(hops[-_HOPS_MAX:]):
            address = _without_port(hop.strip())
            if not address:
                break
            source_ip = address
            if not self.trusts(address):
                break
        scheme = schemes.rpartition(b",")[2].strip().lower()
        is_secure = scheme == b"https" if scheme else direct.is_secure
        return Origin(source_ip, is_secure)


def source_address(peername: object) -> str:
    """The address in a transport's `peername`; empty if there is none."""
    return _canonical(str(peername[0])) if isinstance(peername, tuple) and peername else ""


def _without_port(hop: str) -> str:
    """The address of an entry, which some proxies write with a port; empty if it is none."""
    if hop.startswith("["):
        hop = hop[1:].partition("]")[0]
    elif hop.count(":") == 1:
        hop = hop.partition(":")[0]
    return _canonical(hop)


def _canonical(text: str) -> str:
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(address)
