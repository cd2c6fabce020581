"""The sender of a request at the gateway, and the check that establishes its caller."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Protocol

from auth.caller import Caller
from sqs_api.gateway.access import Sender

_HOST = re.compile(rb"[A-Za-z0-9._~:\[\]-]{1,255}")


class Authenticate(Protocol):
    """Establishes the caller of a request: the signature verifier, or the open mode."""

    def __call__(
        self,
        method: bytes,
        target: bytes,
        headers: dict[bytes, bytes],
        body: bytes,
        now_s: float,
    ) -> Caller:
        """The caller. Raises AuthError."""


class Client(Sender, Protocol):
    """The origin of a request and the destination of its answer."""

    def write_reply(self, written: bytes) -> bool:
        """Write a reply after which the connection may stay open; False if the client is gone."""


def reached_at(headers: Mapping[bytes, bytes], client: Client) -> str:
    """The address of the service as the client's Host header says it."""
    host = headers.get(b"host", b"")
    scheme = "https" if client.is_secure else "http"
    return f"{scheme}://{host.decode() if _HOST.fullmatch(host) else 'localhost'}"
