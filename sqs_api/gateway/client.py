"""The sender of a request at the gateway, and the check that establishes its caller."""

from __future__ import annotations

from typing import Protocol

from auth.caller import Caller
from sqs_api.gateway.access import Sender


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
