"""A network in memory: bytes arrive in order, later, in pieces, and not at all while a link is cut.

As with TCP, nothing is lost or doubled within a connection: what a cut link holds arrives once it
is mended, unless the connection was given up meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from cluster.peers.peer_settings import Address


class SimulatedNetwork:
    """All links between all hosts."""

    def __init__(self) -> None:
        self.delay_s = 0.001
        self.piece = 0
        """Bytes that arrive at a time, 0 for as they were written."""
        self.listening: dict[Address, tuple[str, Callable[[], asyncio.BaseProtocol]]] = {}
        self.ends: list[End] = []
        self.names: dict[str, tuple[str, ...]] = {}
        """Names in a host's certificate where they are not its id."""
        self._cut: set[tuple[str, str]] = set()
        self._mended = asyncio.Event()

    def of(self, host: str) -> HostNetwork:
        """The network as one host sees it."""
        return HostNetwork(self, host)

    def cut(self, sender: str, receiver: str) -> None:
        """Nothing gets from one host to the other, and neither learns of it."""
        self._cut.add((sender, receiver))
        self._mended.clear()

    def mend(self) -> None:
        """All links work again."""
        self._cut.clear()
        self._mended.set()
        for end in self.ends:
            end.deliver()

    def is_cut(self, sender: str, receiver: str) -> bool:
        return (sender, receiver) in self._cut

    async def reached(self, host: str, peer: str) -> None:
        """Wait until neither direction is cut."""
        while self.is_cut(host, peer) or self.is_cut(peer, host):
            await self._mended.wait()

    def open_ends(self, host: str, peer: str = "") -> list[End]:
        """Connections of a host, at its side."""
        return [end for end in self.ends if end.host == host and peer in ("", end.other.host)]

    def crash(self, host: str) -> None:
        """The host is gone; its peers are told by their own systems."""
        self.listening = {at: made for at, made in self.listening.items() if made[0] != host}
        for end in self.open_ends(host):
            end.abort()


class HostNetwork:
    """One host's `Network`."""

    is_between_workers = False

    def __init__(self, network: SimulatedNetwork, host: str) -> None:
        self.whole = network
        self._host = host
        self.has_new_certificates = False

    async def connect(self, peer: str, address: Address, protocol: asyncio.BaseProtocol) -> None:
        network = self.whole
        await network.reached(self._host, peer)
        await asyncio.sleep(network.delay_s)
        if address not in network.listening:
            raise ConnectionRefusedError("connection refused")
        host, accept = network.listening[address]
        accepted = accept()
        here, there = End(network, self._host, protocol), End(network, host, accepted)
        here.other, there.other = there, here
        network.ends += (here, there)
        accepted.connection_made(there)
        protocol.connection_made(here)

    async def listen(self, address: Address, accept: Callable[[], asyncio.BaseProtocol]) -> Address:
        self.whole.listening[address] = (self._host, accept)
        return address

    def reload_if_changed(self) -> bool:
        changed, self.has_new_certificates = self.has_new_certificates, False
        return changed

    def close(self) -> None:
        self.whole.listening = {
            at: made for at, made in self.whole.listening.items() if made[0] != self._host
        }


class End(asyncio.Transport):
    """One side of a connection."""

    other: End

    def __init__(
        self, network: SimulatedNetwork, host: str, protocol: asyncio.BaseProtocol
    ) -> None:
        super().__init__()
        self.host = host
        self.writes = 0
        self.break_after: int | None = None
        """The connection ends when so many more bytes of this side have arrived."""
        self._network = network
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._pipe: deque[bytes] = deque()
        """Written here and not arrived at the other side."""
        self._under_way = 0
        self._is_reading = True
        self._is_closing = False
        self._is_lost = False
        self._is_full = False
        self._high = 1 << 16

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        assert name == "peercert"
        names = self._network.names.get(self.other.host, (self.other.host,))
        return {"subjectAltName": tuple(("URI" if ":" in each else "DNS", each) for each in names)}

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None
        self._high = high

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._is_closing:
            return
        self.writes += 1
        whole = bytes(data)
        piece = self._network.piece or len(whole)
        for start in range(0, len(whole), piece):
            self._pipe.append(whole[start : start + piece])
            self._loop.call_later(self._network.delay_s, self.deliver)
        if not self._is_full and sum(map(len, self._pipe)) > self._high:
            self._is_full = True
            self._protocol.pause_writing()

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self.other.deliver()

    def deliver(self) -> None:
        """Hand the other side what has arrived."""
        other = self.other
        while self._pipe and not self._network.is_cut(self.host, other.host):
            if other._is_lost or not other._is_reading:
                return
            data = self._pipe.popleft()
            if self.break_after is not None:
                data, self.break_after = data[: self.break_after], self.break_after - len(data)
            if data:
                other._receive(data)
            if self.break_after is not None and self.break_after <= 0:
                self.abort()
                return
        if self._is_full and not self._pipe:
            self._is_full = False
            self._protocol.resume_writing()
        if self._is_closing and not self._pipe and not self._is_lost:
            self._end()

    def _receive(self, data: bytes) -> None:
        protocol = self._protocol
        if isinstance(protocol, asyncio.Protocol):
            protocol.data_received(data)
            return
        assert isinstance(protocol, asyncio.BufferedProtocol)
        while data:
            buffer = memoryview(protocol.get_buffer(len(data)))
            size = min(len(data), len(buffer))
            buffer[:size] = data[:size]
            protocol.buffer_updated(size)
            data = data[size:]

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._loop.call_later(self._network.delay_s, self.deliver)

    def abort(self) -> None:
        """End at once; the other side learns of it unless the link is cut."""
        self._is_closing = True
        self._pipe.clear()
        self._end()

    def is_closing(self) -> bool:
        return self._is_closing

    def _end(self) -> None:
        if self._is_lost:
            return
        self._lose()
        if not self._network.is_cut(self.host, self.other.host):
            self._loop.call_later(self._network.delay_s, self.other._lose)

    def _lose(self) -> None:
        if not self._is_lost:
            self._is_closing = self._is_lost = True
            self._network.ends.remove(self)
            self._loop.call_soon(self._protocol.connection_lost, None)
