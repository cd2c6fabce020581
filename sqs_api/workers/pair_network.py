"""PairNetwork: connections between the workers of a machine, for `Transport`; and connections of
clients that a worker gives to another one.

    message to the supervisor: kind (1), name of the other worker; with it a socket
    message to that worker: the same with the name of the first

A worker that connects makes a pair of sockets and gives one end to the supervisor, which hands it
to the other worker and says from whom it is. The pairs have no names or paths, so there is nothing
that another program could connect to, and no certificates are needed.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple, cast

from typing_extensions import override

from cluster.peers.peer_settings import Address
from cluster.peers.transport import Network
from cluster.tasks import start_task

_MESSAGE_MAX = 64
_ENDS_MAX = 4
"""Descriptors of one message; there is one."""


class SocketKind(StrEnum):
    """Kinds of sockets that go from one worker to another."""

    PAIR = "p"
    """The end of a pair."""
    CLIENT = "c"
    """A client's connection."""


class Passed(NamedTuple):
    """A message that came with sockets."""

    kind: SocketKind
    worker: str
    """The other worker: the one that it is for, or from."""
    ends: list[socket.socket]


def worker_name(number: int) -> str:
    """The name of a worker among the others."""
    return f"worker-{number}"


class _PairTransport:
    """A transport with the name that the supervisor vouches for. Calls go straight to it."""

    def __init__(self, transport: asyncio.Transport, peer: str) -> None:
        self._certificate = {"subjectAltName": (("DNS", peer),)}
        self.write = transport.write
        self.abort = transport.abort
        self.close = transport.close
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.set_write_buffer_limits = transport.set_write_buffer_limits

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """The name that the supervisor vouches for, as a certificate has it."""
        return self._certificate if name == "peercert" else default


class _Connecting(asyncio.Protocol):
    """Gives the connection to its protocol."""

    def __init__(self, protocol: asyncio.BaseProtocol, peer: str) -> None:
        self._protocol = protocol
        self._peer = peer

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)
        stream.set_protocol(self._protocol)
        named = _PairTransport(stream, self._peer)
        self._protocol.connection_made(cast(asyncio.Transport, named))


class PairNetwork(Network):
    """Connects the workers of one machine, by pairs of sockets that the supervisor passes on."""

    is_between_workers = True

    def __init__(
        self,
        descriptors: socket.socket,
        on_client: Callable[[socket.socket], None],
    ) -> None:
        """`descriptors` is the socket over which the supervisor passes ends of pairs; `on_client`
        gets connections of clients that another worker gave away."""
        self._descriptors = descriptors
        self._loop = asyncio.get_running_loop()
        self._accept: Callable[[], asyncio.BaseProtocol]
        self._opening: set[asyncio.Task[None]] = set()
        self._on_client = on_client
        descriptors.setblocking(False)

    @override
    async def connect(self, peer: str, address: Address, protocol: asyncio.BaseProtocol) -> None:
        own, others = socket.socketpair()
        try:
            send_end(self._descriptors, SocketKind.PAIR, peer, others)
        except OSError:
            own.close()
            raise
        finally:
            others.close()
        await self._open(own, peer, protocol)

    @override
    async def listen(self, address: Address, accept: Callable[[], asyncio.BaseProtocol]) -> Address:
        """Ends that came before are accepted now."""
        self._accept = accept
        self._loop.add_reader(self._descriptors, self._arrived)
        return address

    def give(self, worker: str, client: socket.socket) -> bool:
        """Give a client's connection to another worker; False if there is no room for it now."""
        try:
            send_end(self._descriptors, SocketKind.CLIENT, worker, client)
        except OSError:
            return False
        return True

    def _arrived(self) -> None:
        for kind, peer, ends in received_ends(self._descriptors, self.close):
            for end in ends:
                if kind is SocketKind.CLIENT:
                    self._on_client(end)
                    continue
                start_task(self._opening, self._open(end, peer, self._accept()))

    async def _open(self, end: socket.socket, peer: str, protocol: asyncio.BaseProtocol) -> None:
        end.setblocking(False)
        await self._loop.create_unix_connection(lambda: _Connecting(protocol, peer), sock=end)

    @override
    def reload_if_changed(self) -> bool:
        """There are no certificates."""
        return False

    @override
    def close(self) -> None:
        self._loop.remove_reader(self._descriptors)


def send_end(descriptors: socket.socket, kind: SocketKind, worker: str, end: socket.socket) -> None:
    """Send a copy of a socket. Raises OSError, also if there is no room."""
    socket.send_fds(descriptors, [(kind + worker).encode()], [end.fileno()])


def received_ends(descriptors: socket.socket, on_end: Callable[[], object]) -> list[Passed]:
    """All that wait to be read. `on_end` is called if the other process is gone."""
    found: list[Passed] = []
    while True:
        try:
            message, ends, _, _ = socket.recv_fds(descriptors, _MESSAGE_MAX, _ENDS_MAX)
        except (BlockingIOError, InterruptedError):
            return found
        except OSError:
            message, ends = b"", []
        if not message:
            on_end()
            return found
        kind, worker = SocketKind(message[:1].decode()), message[1:].decode()
        found.append(Passed(kind, worker, [socket.socket(fileno=end) for end in ends]))
