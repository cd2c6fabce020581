"""The listener: accepts connections, gives each its TLS, and refuses those above its limits.

The event loops' own servers are not used. uvloop's closes its socket for good when accept() finds
no file descriptor, and neither can count connections before their handshake, or change the
certificate.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

import structlog

from sqs_api.http.handshakes import handshake
from sqs_api.http.http_limits import ListenerCounters, Refused, TimedOut
from sqs_api.http.tls import Tls

_BACKLOG = 1024
_UNSENT_BYTES = 128 << 10
_ACCEPTS_AT_ONCE = 64
"""Then requests of open connections get their turn."""
PAUSE_S = 0.25
"""Pause after a failed accept; without it, the waiting client would wake the loop again at once."""
HANDSHAKE_S = 10
"""A handshake is three short messages."""
HANDSHAKE_SPARED_S = 2.0
"""Time after which one that is not over gives way to a new client."""
_TLS_END_S = 5
"""Time for a client to answer the end of TLS."""
REPORT_S = 1.0
_HANDSHAKE_RECORD = b"\x16"
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Length: 0\r\n\r\n"
)
_NOT_TLS_TEXT = b"This port speaks https, not http.\n"
_NOT_TLS = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_NOT_TLS_TEXT), _NOT_TLS_TEXT)
)


class Listener:
    """The open ports."""

    def __init__(
        self,
        connect: Callable[[], asyncio.Protocol],
        counters: ListenerCounters,
        *,
        connections_max: int,
        tls: Tls | None = None,
        make_room: Callable[[], bool] = lambda: False,
    ) -> None:
        """`connect` makes the protocol of a connection. `make_room` ends one that is idle, and
        returns False if none is."""
        self._connect = connect
        self._counters = counters
        self._connections_max = connections_max
        self._tls = tls
        self._make_room = make_room
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._beginning: dict[asyncio.Task[None], float] = {}
        """Connections whose handshake is not over, oldest first, and when it began."""
        self._taken = 0
        """Connections that were accepted and not refused at once."""
        self._failed = 0
        """Those of them whose handshake failed."""
        self._log = structlog.get_logger("listener")
        self._accepts = True
        self._next_report_s = 0.0
        self._unreported = 0
        """Failed handshakes since the last line about one."""

    async def open(self, host: str, port: int) -> int:
        """Listen on every address of `host`; port 0 picks a free one, which is returned.

        Raises OSError.
        """
        return self.adopt(await listening_on(host, port))

    def adopt(self, sockets: Sequence[socket.socket]) -> int:
        """Accept from these sockets, of one port, which is returned."""
        self._sockets += sockets
        for listening in sockets:
            listening.listen(_BACKLOG)
            listening.setblocking(False)
            _bound_unsent(listening)
        self._resume()
        return int(sockets[0].getsockname()[1])

    def close(self) -> None:
        """Stop accepting, and give up handshakes under way."""
        self._accepts = False
        for listening in self._sockets:
            self._loop.remove_reader(listening)
            listening.close()
        self._sockets.clear()
        for task in list(self._beginning):
            task.cancel()

    def _resume(self) -> None:
        for listening in self._sockets:
            self._loop.add_reader(listening, self._accept, listening)

    def _pause(self, error: OSError) -> None:
        """Wait for descriptors; clients wait in the backlog."""
        if not self._counters.refused[Refused.DESCRIPTORS]:
            self._log.error("cannot_accept", error=error.strerror or str(error))
        self._counters.refused[Refused.DESCRIPTORS] += 1
        for listening in self._sockets:
            self._loop.remove_reader(listening)
        self._loop.call_later(PAUSE_S, self._resume)

    def _accept(self, listening: socket.socket) -> None:
        """Accept the waiting clients."""
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                client, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return
            except OSError as error:
                self._pause(error)
                return
            client.setblocking(False)
            if not self._has_room():
                self._counters.refused[Refused.CONNECTIONS] += 1
                _refuse(client, b"" if self._tls else _BUSY)
                continue
            self._start(client, self._connect)

    def take(self, client: socket.socket, connect: Callable[[], asyncio.Protocol]) -> None:
        """Go on with a connection of another process, without TLS. One that has no room ends.
        `connect` makes its protocol."""
        if not self._accepts or not self._has_room():
            client.close()
            return
        client.setblocking(False)
        self._start(client, connect)

    def _has_room(self) -> bool:
        """True if another connection may begin, for which an idle one may have to end."""
        if self.open_now < self._connections_max:
            return True
        return self._end_old_handshake() or self._make_room()

    def _end_old_handshake(self) -> bool:
        """End the oldest one; False if none is under way for long."""
        for task, begun_s in self._beginning.items():
            if self._loop.time() - begun_s < HANDSHAKE_SPARED_S:
                return False
            del self._beginning[task]
            task.cancel()
            self._counters.timeouts[TimedOut.HANDSHAKE] += 1
            return True
        return False

    def _start(self, client: socket.socket, connect: Callable[[], asyncio.Protocol]) -> None:
        self._taken += 1
        task = self._loop.create_task(self._begin(client, connect))
        self._beginning[task] = self._loop.time()
        task.add_done_callback(self._begun)

    def _begun(self, task: asyncio.Task[None]) -> None:
        self._beginning.pop(task, None)

    @property
    def open_now(self) -> int:
        """The number of connections, with those in their handshake."""
        lost = self._counters.accepted - self._counters.connections
        return self._taken - self._failed - lost

    async def _begin(self, client: socket.socket, connect: Callable[[], asyncio.Protocol]) -> None:
        """Make the connection, which then runs independently."""
        is_made = False
        try:
            if self._tls is None:
                await self._loop.connect_accepted_socket(connect, client)
                is_made = True
            elif await self._speaks_tls(client):
                await self._begin_tls(client, self._tls)
                is_made = True
        except ConnectionAbortedError:  # how a handshake ends that takes too long
            self._counters.timeouts[TimedOut.HANDSHAKE] += 1
        except OSError:  # TLS's errors are among them
            self._counters.refused[Refused.HANDSHAKE] += 1
        finally:
            self._failed += not is_made

    async def _begin_tls(self, client: socket.socket, tls: Tls) -> None:
        """Raises OSError."""
        address = ""
        with suppress(OSError):  # it may have hung up
            address = client.getpeername()[0]
        with handshake(client) as begun:
            try:
                await self._loop.connect_accepted_socket(
                    self._connect,
                    client,
                    ssl=tls.context,
                    ssl_handshake_timeout=HANDSHAKE_S,
                    ssl_shutdown_timeout=_TLS_END_S,
                )
            finally:
                if begun.reason:
                    self._report(address, begun.reason)

    def _report(self, address: str, reason: str) -> None:
        """At most one line a second: anyone can make handshakes fail."""
        now_s = self._loop.time()
        if now_s < self._next_report_s:
            self._unreported += 1
            return
        self._log.warning(
            "handshake_refused", client=address, reason=reason, unreported=self._unreported
        )
        self._next_report_s, self._unreported = now_s + REPORT_S, 0

    async def _speaks_tls(self, client: socket.socket) -> bool:
        """True if a handshake begins; any other client is refused here."""
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                first = await self._first_byte(client)
        except TimeoutError:
            self._counters.timeouts[TimedOut.HANDSHAKE] += 1
            client.close()
            return False
        except BaseException:
            client.close()
            raise
        if first != _HANDSHAKE_RECORD:
            self._counters.refused[Refused.PLAIN_HTTP] += 1
            _refuse(client, _NOT_TLS if first else b"")
            return False
        return True

    async def _first_byte(self, client: socket.socket) -> bytes:
        """The first byte, left unread in the socket; empty if the client hung up."""
        readable = self._loop.create_future()
        self._loop.add_reader(client, _set, readable)
        try:
            await readable
        finally:
            self._loop.remove_reader(client)
        return client.recv(1, socket.MSG_PEEK)


async def listening_on(host: str, port: int, *, shared: bool = False) -> list[socket.socket]:
    """Sockets that listen on every address of `host`; port 0 picks a free one. Several `shared`
    ones may listen on the same. Raises OSError, with nothing left open."""
    sockets = await bound_to(host, port, shared=shared)
    try:
        for each in sockets:
            each.listen(_BACKLOG)
    except OSError:
        for each in sockets:
            each.close()
        raise
    return sockets


async def bound_to(host: str, port: int, *, shared: bool) -> list[socket.socket]:
    """The same, but that they do not listen yet: clients are refused."""
    found = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((entry[0], entry[4][0]) for entry in found):
            bound = socket.socket(family, socket.SOCK_STREAM)
            sockets.append(bound)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound.bind((str(address), port))
            port = bound.getsockname()[1]
    except OSError:
        for each in sockets:
            each.close()
        raise
    return sockets


def _bound_unsent(listening: socket.socket) -> None:
    """Have the system take few bytes that a client has no room for, where it can: those beyond wait
    in the process, which counts them. Accepted sockets inherit it."""
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if option is not None:
        listening.setsockopt(socket.IPPROTO_TCP, option, _UNSENT_BYTES)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _refuse(client: socket.socket, answer: bytes) -> None:
    """Send as much of an answer as possible at once, and hang up.

    Received bytes are read first, so that no reset discards the answer.
    """
    with suppress(OSError):
        client.send(answer)
        client.shutdown(socket.SHUT_WR)
        client.recv(65536)
    client.close()
