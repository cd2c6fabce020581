"""AdminAccess: who sends a request below /_holdfast/.

    always       the Host header names this service, and the request is not from a browser, except
                 those of the console's own pages for the routes below api/
    auth sigv4   the Authorization header has a valid signature
                   - by the key for local commands, from loopback; SQS does not accept this key
                   - by any other key; `Asked` checks what its policies allow
                 or, below api/, it has the cookie of a session, see `browser_sessions.py`
    auth open    the request is from loopback

A request with a header of a proxy is never local.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import ip_address
from typing import NamedTuple

from auth.auth_errors import AccessDenied, InvalidClientTokenId, MissingAuthenticationToken
from auth.caller import Caller
from auth.claim import Claim, read_claim
from auth.credentials import AccessKey, CredentialSet
from auth.sigv4 import Verifier
from auth.unverified import open_caller, refuse_browsers
from cluster.keys.session_store import Session
from sqs_api.settings.origins import KnownHosts
from sqs_api.settings.service_note import LOGIN_HEADER

_PASSED_ON = re.compile(rb"forwarded|via|x-real-ip|x-forwarded-.*")
"""Headers of proxies."""
_LOGIN_CHARACTERS_MAX = 64
_SWEEP_S = 60.0
"""Interval at which expired signatures are forgotten."""


class AdminRequest(NamedTuple):
    """A request for a page.

    Header names are in lower case; `parts` are those of the route's path.
    """

    method: str
    target: bytes
    headers: dict[bytes, bytes]
    body: bytes
    source_ip: str
    is_secure: bool
    parts: tuple[str, ...] = ()

    @property
    def is_local(self) -> bool:
        """True if the client connects by loopback and not through a proxy."""
        if any(map(_PASSED_ON.fullmatch, self.headers)):
            return False
        try:
            return ip_address(self.source_ip).is_loopback
        except ValueError:
            return False


SessionOf = Callable[[AdminRequest], Session | None]
"""The session of a request, None without one. Raises AuthError."""


class Operator(NamedTuple):
    """The signer of a request.

    Local commands are trusted, and in open mode everyone on this machine.
    """

    caller: Caller
    is_trusted: bool


class AdminAccess:
    """Authenticates requests."""

    def __init__(
        self,
        hosts: KnownHosts,
        *,
        local_key: AccessKey,
        verifier: Verifier | None,
        account: str,
        region: str,
        wall_s: Callable[[], float],
        session_of: SessionOf | None,
    ) -> None:
        """`local_key` signs local commands; `verifier` has all other keys and is None in open
        mode, as is `session_of`, which finds sessions by their cookies."""
        self._hosts = hosts
        self._local_id = local_key.access_key_id
        self._local = Verifier(CredentialSet([local_key]))
        self._verifier = verifier
        self._account = account
        self._region = region
        self._wall_s = wall_s
        self._sent = _SentOnce(wall_s())
        self._session_of = session_of

    def check_origin(self, request: AdminRequest) -> None:
        """Raise AccessDenied for requests from browsers and for unknown Host headers."""
        self.check_host(request)
        try:
            refuse_browsers(request.method.encode(), request.headers)
        except AccessDenied:
            raise AccessDenied("Requests of web pages are refused.") from None

    def check_host(self, request: AdminRequest) -> None:
        """Raise AccessDenied for unknown Host headers."""
        host = request.headers.get(b"host", b"")
        if host not in self._hosts:
            shown = host.decode("latin-1")[:100]
            raise AccessDenied(
                f"This service does not know the host {shown!r}: set public_url to its public "
                "address."
            )

    def signer(self, request: AdminRequest, *, may_be_page: bool) -> Caller:
        """The signer of the request; in open mode the claimed one. `may_be_page`: the console's
        pages may send it, too, and with a session's cookie. Raises AuthError."""
        if not may_be_page:
            self.check_origin(request)
            return self._signer(request)
        self.check_page(request)
        session = None if self._session_of is None else self._session_of(request)
        if session is None:
            return self._signer(request)
        stored = session.stored
        return Caller(
            stored.account, stored.region, stored.principal, stored.access_key_id, stored.user
        )

    def check_page(self, request: AdminRequest) -> None:
        """Raise AccessDenied for requests of pages of other origins, and for unknown Host
        headers."""
        self.check_host(request)
        if not self._hosts.may_be_own_page(request.headers, is_secure=request.is_secure):
            raise AccessDenied("Requests of other sites' pages are refused.")

    def _signer(self, request: AdminRequest) -> Caller:
        raw = (request.method.encode(), request.target, request.headers)
        if self._verifier is None:
            return open_caller(*raw, self._account, self._region)
        if b"authorization" not in request.headers:
            raise MissingAuthenticationToken
        try:
            return self._local.verify(*raw, request.body, self._wall_s())
        except InvalidClientTokenId:  # signed with another key
            return self._verifier.verify(*raw, request.body, self._wall_s())

    def check_claims_local(self, request: AdminRequest) -> None:
        """Raise AuthError unless the request comes from this machine and says that the key for
        local commands signed it."""
        self.check_origin(request)
        key_id = read_claim(request.target, request.headers).credential.partition(b"/")[0]
        if not request.is_local or key_id != self._local_id.encode():
            raise AccessDenied("This is for commands with the data folder on this machine.")

    def check_local(self, request: AdminRequest) -> None:
        """Raise AuthError unless the key for local commands signed the request, and for the first
        time if it changes something."""
        raw = (request.method.encode(), request.target, request.headers)
        self._local.verify(*raw, request.body, self._wall_s())
        if request.method != "GET":
            self._sent.add(read_claim(request.target, request.headers), self._wall_s())

    def login(self, request: AdminRequest, caller: Caller) -> str | None:
        """The user of this machine who runs the local command; None for requests of others."""
        if caller.access_key_id != self._local_id:
            return None
        said = request.headers.get(LOGIN_HEADER.encode(), b"")
        return said[:_LOGIN_CHARACTERS_MAX].decode("latin-1") or None

    def operator(self, request: AdminRequest, caller: Caller) -> Operator:
        """The signer, who is trusted only on this machine. Raises AccessDenied."""
        is_trusted = self._verifier is None or caller.access_key_id == self._local_id
        if is_trusted and not request.is_local:
            raise AccessDenied("Without an access key this is for programs on this machine.")
        return Operator(caller, is_trusted)

    def accept_once(self, request: AdminRequest) -> None:
        """Raise AccessDenied if a signed request that changes something was accepted before."""
        if self._verifier is not None and b"authorization" in request.headers:
            self._sent.add(read_claim(request.target, request.headers), self._wall_s())


class _SentOnce:
    """Signatures of accepted requests that change something, kept while valid to prevent
    replays."""

    def __init__(self, started_s: float) -> None:
        """`started_s`: the previous process may have accepted signatures made before this process
        began."""
        self._started_s = started_s
        self._swept_s = started_s
        self._until_s: dict[bytes, float] = {}

    def add(self, claim: Claim, now_s: float) -> None:
        """Raise AccessDenied for a repeated signature.

        Strangers are refused earlier, so they cannot fill the table.
        """
        if claim.signed_at_s < int(self._started_s):
            raise AccessDenied(
                "This request was signed before the service started: sign another one."
            )
        if now_s - self._swept_s >= _SWEEP_S:
            self._swept_s = now_s
            kept = self._until_s.items()
            self._until_s = {signature: until_s for signature, until_s in kept if until_s >= now_s}
        if claim.signature in self._until_s:
            raise AccessDenied("This very request was sent before: sign another one.")
        self._until_s[claim.signature] = claim.signed_at_s + claim.lifetime_s
