"""TLS handshakes that fail: the client gets OpenSSL's alert, and the listener learns the reason.

Both event loops drop the connection when a handshake fails, and with it the alert that OpenSSL has
just made: a client without its certificate saw only a connection that ended.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, cast

from typing_extensions import override

_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client sent no certificate",
    "CERTIFICATE_VERIFY_FAILED": "the client's certificate is refused",
}


class Handshake:
    """One handshake. `reason` is the failure, empty if there was none that TLS knows."""

    def __init__(self, client: socket.socket) -> None:
        self._client = client
        self.reason = ""

    def failed(self, error: ssl.SSLError, alert: bytes) -> None:
        """Send the alert at once: the event loop closes the connection next."""
        known = error.reason or "unknown"
        self.reason = _REASONS.get(known, known.lower().replace("_", " "))
        if isinstance(error, ssl.SSLCertVerificationError):
            self.reason += f": {error.verify_message}"
        with suppress(OSError):
            self._client.send(alert)
            self._client.shutdown(socket.SHUT_WR)
            self._client.recv(65536)  # unread bytes would turn the end into a reset


_under_way: ContextVar[Handshake | None] = ContextVar("handshake", default=None)


@contextmanager
def handshake(client: socket.socket) -> Iterator[Handshake]:
    """The handshake that begins in here, by any event loop: both run a connection in the context
    that accepted it."""
    begun = Handshake(client)
    token = _under_way.set(begun)
    try:
        yield begun
    finally:
        _under_way.reset(token)


class _Tls(ssl.SSLObject):
    outgoing: ssl.MemoryBIO
    begun: Handshake | None

    @override
    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            if self.begun is not None:
                self.begun.failed(error, self.outgoing.read())
            raise


class ServerContext(ssl.SSLContext):
    """A context whose failed handshakes are known to `handshake`."""

    sslobject_class = _Tls

    @override
    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *more: Any, **options: Any
    ) -> ssl.SSLObject:
        made = cast(_Tls, super().wrap_bio(incoming, outgoing, *more, **options))
        made.outgoing, made.begun = outgoing, _under_way.get()
        return made
