"""The HTTP server: makes the connections, and the listeners that the settings ask for."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Any, NamedTuple, cast

import structlog
from aiohttp import HttpVersion, HttpVersion11, web
from aiohttp.web_request import BaseRequest
from prometheus_client.core import Metric
from typing_extensions import override

from sqs_api.gateway.gateway import Gateway
from sqs_api.gateway.metrics import Source
from sqs_api.http.connection import SqsConnection
from sqs_api.http.fallback import Fallback, OtherPages
from sqs_api.http.http_limits import (
    TARGET_BYTES_MAX,
    ListenerLimits,
    Places,
    ServerState,
    descriptors_for_connections,
    raise_descriptor_limit,
)
from sqs_api.http.listener import Listener
from sqs_api.http.listener_metrics import ListenerMetrics
from sqs_api.http.tls import Tls, TlsUnusable
from sqs_api.settings.config import Settings
from sqs_api.settings.origins import AllowedOrigins
from sqs_api.settings.proxies import TrustedProxies

LOCAL_HOST = "127.0.0.1"
SWEPT_AT_ONCE = 1000
"""About a millisecond's; then other work gets its turn."""
_UNSERVED_AT_ONCE = 64
"""Connections that are looked at when a new one needs a place."""
_LOCAL_MAX = 64
"""Limit of connections to the local port."""
_LOCAL_IDLE_S = 5
"""Its idle limit: a program on the machine must not lock out commands, which connect for each
request."""
SERVER_CHECK_S = 1.0
"""Interval of the checks of connections and certificates; the unit of the listener's time
limits."""


class SqsServer(web.Server):
    """Makes an SqsConnection for each client."""

    def __init__(
        self,
        gateway: Gateway,
        other_pages: OtherPages,
        limits: ListenerLimits | None = None,
        proxies: TrustedProxies | None = None,
        origins: AllowedOrigins | None = None,
        places: Places | None = None,
    ) -> None:
        self.limits = limits or ListenerLimits()
        self._state = state = ServerState(self.limits, proxies or TrustedProxies(), gateway.memory)
        state.places = places
        fallback = Fallback(gateway, other_pages, origins or AllowedOrigins(), state)
        # A body is signed in its sent form, so it is not unpacked here.
        super().__init__(
            fallback.answer,
            handler_cancellation=True,
            access_log=None,
            auto_decompress=False,
            max_line_size=TARGET_BYTES_MAX,
        )
        self._gateway = gateway
        self.counters, self.memory = state.counters, state.memory
        self._idle: deque[SqsConnection] | None = None
        """Those that were idle when room was needed first in this second; None before that."""

    @override
    def __call__(self) -> SqsConnection:
        """The protocol of a new connection."""
        return SqsConnection(self, self._state, self._gateway, loop=self._loop, **self._kwargs)

    def moved(self) -> SqsConnection:
        """The protocol of a connection of another process."""
        connection = self()
        connection.was_served()
        return connection

    def make_room(self) -> bool:
        """End the connection that is idle longest, first those without any request; False if there
        is none.

        The others are looked for once a second at most: with ten thousand that takes milliseconds.
        """
        if self._end_unserved():
            return True
        if self._idle is None:
            self._idle = self._look_for_idle()
        while self._idle:
            connection = self._idle.popleft()
            if connection.may_give_way:
                connection.give_way()
                return True
        return False

    def _end_unserved(self) -> bool:
        """End the oldest connection without any request; False if none is found soon."""
        unserved = self._state.unserved
        for _ in range(min(len(unserved), _UNSERVED_AT_ONCE)):
            connection, _ = unserved.popitem(last=False)
            if connection.active_at:
                continue
            if connection.may_give_way:
                connection.give_way()
                return True
            unserved[connection] = None
        return False

    def _look_for_idle(self) -> deque[SqsConnection]:
        """In the order in which they give way; they are kept in the order in which they came."""
        connections = cast(Iterable[SqsConnection], self._connections)
        idle = [connection for connection in connections if connection.may_give_way]
        return deque(sorted(idle, key=lambda connection: connection.active_at))

    def polls_not_waited(self) -> int:
        """Long polls that were answered at once, since too many wait."""
        return self._gateway.receives.polls_not_waited

    async def sweep(self) -> None:
        """Hang up on clients that take too long; to be called once a second."""
        self._state.seconds += 1
        self._idle = None
        for number, (connection, transport) in enumerate(list(self._connections.items()), 1):
            if connection in self._connections:  # it may have ended meanwhile
                cast(SqsConnection, connection).end_if_overdue(transport)
            if number % SWEPT_AT_ONCE == 0:
                await asyncio.sleep(0)

    def begin_to_stop(self) -> None:
        """Begin no more requests: idle connections end now, the others with their reply."""
        self._state.is_stopping = True
        for connection in self.connections:
            if isinstance(connection, SqsConnection):
                connection.close_if_idle()

    @override
    def _make_request(
        self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any
    ) -> BaseRequest:
        request = _Request(message, payload, protocol, writer, task, self._loop)
        cast(SqsConnection, request.protocol).request_begins(request)
        return request


class _Request(BaseRequest):
    """A request whose answers do not name the software and its versions.

    Their own version is HTTP/1.1 whatever that of the request (RFC 9110 §6.2), and they say when
    the connection ends.
    """

    _has_head = False
    """True once the head of the answer is made, which depends on the version, and is written."""

    @property
    @override
    def version(self) -> HttpVersion:
        """The client's; in the first line of the answer, ours."""
        return HttpVersion11 if self._has_head else self._version

    @override
    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        response.headers.pop("Server", None)
        if not response.keep_alive:
            response.headers.setdefault("Connection", "close")
        self._has_head = True


class Inherited(NamedTuple):
    """Listening sockets that another process opened for this one, and keeps open."""

    main: Sequence[socket.socket]
    local: Sequence[socket.socket]
    """The sockets of administrative pages, if there is a port for them."""


class Server(Source):
    """The open ports with their servers, a source of `Metrics`."""

    def __init__(
        self, settings: Settings, wall_s: Callable[[], float], inherited: Inherited | None = None
    ) -> None:
        """Raises TlsUnusable."""
        self._inherited = inherited
        self._settings = settings
        self._wall_s = wall_s
        self._tls: Tls | None = None
        self._servers: list[SqsServer] = []
        self._listeners: list[Listener] = []
        self.admin_address = ""
        """Address of the administrative pages for local programs."""
        if settings.tls_certificate is not None and settings.tls_key is not None:
            self._tls = Tls(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)
        self._log = structlog.get_logger("front")

    async def open(self, gateway: Gateway, pages: OtherPages, places: Places | None = None) -> str:
        """Listen; `places` are those of clients' connections. Returns the address. Raises
        OSError."""
        settings, tls = self._settings, self._tls
        limits = ListenerLimits(
            connections_max=descriptors_for_connections(
                settings.connections_max, raise_descriptor_limit()
            ),
            request_timeout_s=settings.request_timeout_s,
            idle_timeout_s=settings.idle_timeout_s,
            client_bytes_per_s_min=settings.client_bytes_per_s_min,
        )
        if limits.connections_max < settings.connections_max:
            self._log.warning(
                "few_file_descriptors",
                connections_max=limits.connections_max,
                means="this process may not open the files for connections_max connections of the "
                "settings; new clients wait while so many are open",
                action="raise the limit of open files (ulimit -Hn, LimitNOFILE of systemd)",
            )
        proxies = TrustedProxies(settings.trusted_proxies)
        origins = AllowedOrigins(settings.browser_origins)
        if tls is not None:
            places = None  # the state of TLS is in this process
        server = SqsServer(gateway, pages, limits, proxies, origins, places)
        main, local = self._inherited or (None, None)
        port = await self._listen(server, settings.host, settings.port, tls, main)
        self._report_expiry()
        loopback = loopback_of(settings.host)
        if local or has_local_port(settings):
            # Local commands have neither a client certificate nor a name that the server
            # certificate is valid for.
            few = limits._replace(connections_max=_LOCAL_MAX, idle_timeout_s=_LOCAL_IDLE_S)
            pages_server = PagesServer(gateway, pages, few)
            local_port = await self._listen(pages_server, LOCAL_HOST, 0, None, local)
            self.admin_address = f"http://{LOCAL_HOST}:{local_port}"
        else:
            self.admin_address = f"http://{loopback}:{port}"
        return address_of(settings, port)

    async def _listen(
        self,
        server: SqsServer,
        host: str,
        port: int,
        tls: Tls | None,
        given: Sequence[socket.socket] | None,
    ) -> int:
        """The port. Raises OSError, with nothing left open."""
        listener = Listener(
            server,
            server.counters,
            connections_max=server.limits.connections_max,
            tls=tls,
            make_room=server.make_room,
        )
        try:
            port = listener.adopt(given) if given else await listener.open(host, port)
        except OSError:
            self.close()
            raise
        self._servers.append(server)
        self._listeners.append(listener)
        return port

    @property
    def connections(self) -> tuple[int, int]:
        """Connections of clients, with those in their handshake, and the limit; none before a port
        is open."""
        if not self._servers:
            return 0, 0
        return self._listeners[0].open_now, self._servers[0].limits.connections_max

    def take(self, client: socket.socket) -> None:
        """Go on with a connection of another process of this machine."""
        if self._listeners:
            self._listeners[0].take(client, self._servers[0].moved)
        else:
            client.close()

    @override
    async def read(self) -> None:
        """These are all in memory."""

    @override
    def collect(self) -> Iterator[Metric]:
        """Call it once a port is open."""
        server, *_ = self._servers
        yield from ListenerMetrics(
            server.counters, server.memory, self._tls, server.polls_not_waited, wall_s=self._wall_s
        ).collect()

    async def look(self) -> None:
        """Hang up on clients that let the service wait, and take over a new certificate.

        Call it every `SERVER_CHECK_S`.
        """
        for server in self._servers:
            await server.sweep()
        try:
            if self._tls is not None and self._tls.reload_if_changed():
                self._log.info("certificate_reloaded")
        except TlsUnusable as error:
            self._log.error("certificate_not_reloaded", error=str(error))
        self._report_expiry()

    def _report_expiry(self) -> None:
        """Clients refuse an expired certificate; only this side can warn in time."""
        tls = self._tls
        if tls is not None and tls.expires_now(self._wall_s()):
            expired = datetime.fromtimestamp(tls.expires_at_s, UTC).isoformat()
            file = str(self._settings.tls_certificate)
            self._log.error("certificate_expired", file=file, expired=expired)

    def close(self) -> None:
        """Accept no more, and begin no more requests."""
        for listener in self._listeners:
            listener.close()
        for server in self._servers:
            server.begin_to_stop()

    async def disconnect(self, wait_s: float) -> None:
        """End the connections, the idle ones after `wait_s`."""
        for server in self._servers:
            await server.shutdown(wait_s)


class PagesServer(SqsServer):
    """Serves the administrative pages only, not SQS."""

    def __init__(self, gateway: Gateway, pages: OtherPages, limits: ListenerLimits) -> None:
        async def answer(request: BaseRequest) -> web.StreamResponse:
            return await pages(request) or web.Response(status=404, text="not found\n")

        super().__init__(gateway, answer, limits)

    @override
    def __call__(self) -> SqsConnection:
        """The protocol of a new connection."""
        connection = super().__call__()
        connection.fall_back()
        return connection


def has_local_port(settings: Settings) -> bool:
    """True if programs on this machine need a port of their own for administrative pages."""
    return settings.tls_certificate is not None or loopback_of(settings.host) is None


def address_of(settings: Settings, port: int) -> str:
    """The address of the service as it is announced."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{'http' if settings.tls_certificate is None else 'https'}://{host}:{port}"


def loopback_of(host: str) -> str | None:
    """The loopback address at which a listener on `host` is reached; None if there is none."""
    try:
        address = ip_address(host)
    except ValueError:
        return "127.0.0.1" if host in ("", "localhost") else None
    if address.is_unspecified:
        return "[::1]" if address.version == 6 else "127.0.0.1"
    if not address.is_loopback:
        return None
    return f"[{address}]" if address.version == 6 else str(address)
