"""The sender of a request at the gateway, and the check that establishes its caller."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Protocol

from auth.caller import Caller
from auth.sigv4 import Verifier
from auth.unverified import open_caller, refuse_browsers
from sqs_api.gateway.access import Sender
from sqs_api.settings.config import AuthMode, Settings
from sqs_api.settings.origins import AllowedOrigins

_HOST = re.compile(rb"[A-Za-z0-9._~:\[\]-]{1,255}")


class Authenticate(Protocol):
    """Establishes the caller of a request: the signature verifier, or the open mode."""

    def __call__(
        self,
        method: bytes,
        target: bytes,
        headers: Mapping[bytes, bytes],
        body: bytes,
        now_s: float,
    ) -> Caller:
        """The caller. Raises AuthError."""


def authentication(settings: Settings, verifier: Verifier, service: str = "") -> Authenticate:
    """The check that the settings ask for; `service` is another one than SQS, for which the same
    keys sign."""
    if settings.auth is AuthMode.SIGV4:
        return partial(_verified, verifier, service) if service else verifier.verify
    origins = AllowedOrigins(settings.browser_origins).names
    claimed = partial(open_caller, account=settings.account, region=settings.region)

    def authenticate(
        method: bytes, target: bytes, headers: Mapping[bytes, bytes], body: bytes, now_s: float
    ) -> Caller:
        refuse_browsers(method, headers, origins)
        return claimed(method, target, headers)

    return authenticate


def _verified(
    known: Verifier,
    service: str,
    method: bytes,
    target: bytes,
    headers: Mapping[bytes, bytes],
    body: bytes,
    now_s: float,
) -> Caller:
    verifier = Verifier(known.credentials, service, used=known.used)
    return verifier.verify(method, target, headers, body, now_s)


class Client(Sender, Protocol):
    """The origin of a request and the destination of its answer."""

    def write_reply(self, written: bytes) -> bool:
        """Write a reply after which the connection may stay open; False if the client is gone."""


def reached_at(headers: Mapping[bytes, bytes], client: Client) -> str:
    """The address of the service as the client's Host header says it."""
    host = headers.get(b"host", b"")
    scheme = "https" if client.is_secure else "http"
    return f"{scheme}://{host.decode() if _HOST.fullmatch(host) else 'localhost'}"
