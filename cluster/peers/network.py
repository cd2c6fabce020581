"""The network as the peers see it: TLS over TCP, or the simulator's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol


class Address(NamedTuple):
    """The address on which a host listens for its peers."""

    host: str
    port: int


class Network(Protocol):
    """Connects protocols. The transports know the other side's certificate ("peercert")."""

    async def connect(self, peer: str, address: Address, protocol: asyncio.BaseProtocol) -> None:
        """Connect to the host with this id. Raises OSError."""

    async def listen(self, address: Address, accept: Callable[[], asyncio.BaseProtocol]) -> Address:
        """Accept connections; port 0 picks a free one. Raises OSError."""

    def reload_if_changed(self) -> bool:
        """Take over changed certificates, for new connections; True if there were any."""

    def close(self) -> None:
        """Accept no more."""
