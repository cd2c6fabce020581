"""A listener in front of a service of `serving.running`, with seconds that pass on command."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqs_api.http.http_limits import ListenerCounters, ListenerLimits
from sqs_api.http.listener import Listener
from sqs_api.http.server import SqsServer
from sqs_api.http.tls import Tls
from sqs_api.settings.proxies import TrustedProxies
from sqs_api.tests.serving import AiohttpServer, Client, Service, settled


class Port:
    """One port and its clients."""

    def __init__(self, server: SqsServer, number: int) -> None:
        self.server = server
        self.number = number
        self.clients: list[Client] = []

    @property
    def counters(self) -> ListenerCounters:
        """Counters of refusals."""
        return self.server.counters

    @property
    def has_read_all(self) -> bool:
        """True if no bytes wait for the server."""
        return not any(_waits(connection.transport) for connection in self.server.connections)

    async def connect(self, context: ssl.SSLContext | None = None) -> Client:
        """A new connection."""
        name = "localhost" if context else None
        streams = await asyncio.open_connection(
            "127.0.0.1", self.number, ssl=context, server_hostname=name
        )
        client = Client(*streams)
        self.clients.append(client)
        return client

    async def pass_seconds(self, seconds: int) -> None:
        """Let this number of seconds pass for the connections."""
        for _ in range(seconds):
            await self.server.sweep()
            await settled(3)


def _waits(transport: asyncio.Transport | None) -> bool:
    if transport is None or transport.is_closing():
        return False
    if not transport.is_reading():
        return True
    sock = socket.socket(fileno=transport.get_extra_info("socket").fileno())
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False
    finally:
        sock.detach()


@asynccontextmanager
async def listening(
    service: Service,
    *,
    limits: ListenerLimits | None = None,
    memory_bytes: int = 256 << 20,
    tls: Tls | None = None,
    proxies: str = "",
    with_short_cut: bool = True,
) -> AsyncIterator[Port]:
    """A listener on a free port, with this number of bytes for requests and answers."""
    service.gateway.memory.bytes_max = memory_bytes
    kind = SqsServer if with_short_cut else AiohttpServer
    server = kind(service.gateway, service.pages, limits, TrustedProxies(proxies))
    service.servers.append(server)
    listener = Listener(
        server,
        server.counters,
        connections_max=server.limits.connections_max,
        tls=tls,
        make_room=server.make_room,
    )
    port = Port(server, await listener.open("127.0.0.1", 0))
    try:
        yield port
    finally:
        listener.close()
        for client in port.clients:
            await client.close()
