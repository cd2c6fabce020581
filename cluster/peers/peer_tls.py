"""TlsNetwork: TCP under TLS 1.3, in which each side shows a certificate of the cluster's authority.

There is no plain mode: a cluster on one machine makes its certificates, too, and the simulator
brings a network of its own. The certificate bears the host's name as a DNS name.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import structlog
from typing_extensions import override

from cluster.peers.peer_settings import Address, PeerSettings, host_of
from cluster.peers.transport import Network
from cluster.tasks import start_task
from storage.files.copying import file_mark

_BACKLOG = 64
_HANDSHAKES_MAX = 64
"""Incoming connections whose TLS is not agreed upon."""
_ACCEPT_PAUSE_S = 0.25
"""Pause after a failed accept: the connection that waits would wake the loop again at once."""
_REPORT_S = 1.0


class PeerTlsUnusable(Exception):
    """The files cannot be used; the text says why in one line."""


class TlsFiles(NamedTuple):
    """PEM files."""

    authority: Path
    certificate: Path
    key: Path


class TlsNetwork(Network):
    """The network of a host outside simulations."""

    def __init__(
        self, files: TlsFiles, settings: PeerSettings, monotonic_s: Callable[[], float]
    ) -> None:
        """Raises PeerTlsUnusable."""
        self._files = files
        self._settings = settings
        self._monotonic_s = monotonic_s
        self._seen = self._marks()
        self._client, self._server = _contexts(files)
        self._listening: list[socket.socket] = []
        self._beginning: set[asyncio.Task[None]] = set()
        self._taken: set[socket.socket] = set()
        """Connections whose task has not run yet: cancelled now, it would never close them."""
        self._accept: Callable[[], asyncio.BaseProtocol]
        self._next_report_s = 0.0
        self._log = structlog.get_logger("peers")

    # -- certificates ------------------------------------------------------------------------------

    @override
    def reload_if_changed(self) -> bool:
        """Files that cannot be used are reported once, the old ones stay in use."""
        marks = self._marks()
        if marks == self._seen:
            return False
        self._seen = marks
        try:
            # A context in use is never changed: connections go on with what they agreed upon.
            self._client, self._server = _contexts(self._files)
        except PeerTlsUnusable as error:
            self._log.error("peer_tls_unusable", error=str(error))
            return False
        self._log.info("peer_tls_reloaded")
        return True

    def _marks(self) -> list[tuple[int, int, int] | None]:
        return [file_mark(file) for file in self._files]

    # -- connections -------------------------------------------------------------------------------

    @override
    async def connect(self, peer: str, address: Address, protocol: asyncio.BaseProtocol) -> None:
        await asyncio.get_running_loop().create_connection(
            lambda: protocol,
            *address,
            ssl=self._client,
            server_hostname=host_of(peer),
            ssl_handshake_timeout=self._settings.handshake_s,
            ssl_shutdown_timeout=self._settings.handshake_s,
        )

    async def bind(self, address: Address) -> Address:
        """Take the address, so that it is this host's before `listen`: until then peers are
        refused. Raises OSError."""
        host, port = address
        found = await asyncio.get_running_loop().getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        try:
            for family, name in dict.fromkeys((each[0], str(each[4][0])) for each in found):
                bound = socket.socket(family, socket.SOCK_STREAM)
                self._listening.append(bound)
                bound.setblocking(False)
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                bound.bind((name, port))
                port = bound.getsockname()[1]
        except OSError:
            self.close()
            raise
        return Address(host, port)

    @override
    async def listen(self, address: Address, accept: Callable[[], asyncio.BaseProtocol]) -> Address:
        self._accept = accept
        if not self._listening:
            address = await self.bind(address)
        try:
            for bound in self._listening:
                bound.listen(_BACKLOG)
        except OSError:
            self.close()
            raise
        self._resume()
        return address

    @override
    def close(self) -> None:
        loop = asyncio.get_running_loop()
        for listening in self._listening:
            loop.remove_reader(listening)
            listening.close()
        self._listening.clear()
        for task in self._beginning:
            task.cancel()
        while self._taken:
            self._taken.pop().close()

    def _resume(self) -> None:
        loop = asyncio.get_running_loop()
        for listening in self._listening:
            loop.add_reader(listening, self._take, listening)

    def _take(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            taken, _ = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            self._log.error("cannot_accept", error=error.strerror or str(error))
            for each in self._listening:
                loop.remove_reader(each)
            loop.call_later(_ACCEPT_PAUSE_S, self._resume)
            return
        if len(self._beginning) >= _HANDSHAKES_MAX:
            taken.close()
            return
        taken.setblocking(False)
        self._taken.add(taken)
        start_task(self._beginning, self._shake_hands(taken))

    async def _shake_hands(self, taken: socket.socket) -> None:
        self._taken.discard(taken)
        source = ""
        try:
            source = taken.getpeername()[0]
            await asyncio.get_running_loop().connect_accepted_socket(
                self._accept,
                taken,
                ssl=self._server,
                ssl_handshake_timeout=self._settings.handshake_s,
                ssl_shutdown_timeout=self._settings.handshake_s,
            )
        except OSError as error:
            taken.close()
            self._report(source, error)

    def _report(self, source: str, error: OSError) -> None:
        """Log a failed handshake, at most one a second."""
        now_s = self._monotonic_s()
        if now_s >= self._next_report_s:
            self._next_report_s = now_s + _REPORT_S
            self._log.warning("peer_handshake_failed", source=source, reason=_reason(error))


def _contexts(files: TlsFiles) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The context of connections that this host opens, and the one of those that it accepts."""
    contexts = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for context in contexts:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            # Without a password function, OpenSSL would ask for one on the terminal.
            context.load_cert_chain(files.certificate, files.key, password=lambda: "")
        except (OSError, ValueError) as error:
            where = f"certificate {files.certificate} with key {files.key}"
            raise PeerTlsUnusable(f"cannot use {where}: {_reason(error)}") from error
        try:
            context.load_verify_locations(files.authority)
        except (OSError, ValueError) as error:
            raise PeerTlsUnusable(f"cannot use {files.authority}: {_reason(error)}") from error
    return contexts


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not in PEM form, or encrypted").lower().replace("_", " ")
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
