"""AdminAccess: who may use the pages under /_holdfast/, from where, and as whom.

    always              a Host header that names this service, and no web page
    auth sigv4          a request that is signed in its headers
                          by the key of commands on this machine, from this machine; it is in no set that SQS knows
                          by the root of the configured account, or a user of it whose policy allows the page's action
    auth open           any program on this machine

What a proxy passed on is not from this machine, whatever it says of where it came from.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import ip_address
from typing import NamedTuple

from auth.caller import Caller
from auth.claim import Claim, read_claim
from auth.credentials import AccessKey, CredentialSet
from auth.errors import AccessDenied, InvalidClientTokenId, MissingAuthenticationToken
from auth.sigv4 import Verifier
from auth.unverified import open_caller, refuse_browsers
from sqs_api.access import Access
from sqs_api.admin_actions import AdminPage
from sqs_api.known_hosts import KnownHosts

_PASSED_ON = re.compile(rb"forwarded|via|x-real-ip|x-forwarded-.*")
"""Headers of proxies."""


class AdminRequest(NamedTuple):
    """A request for a page; names of headers are lower-case. `parts` are those of the path that the page asks for."""

    method: str
    target: bytes
    headers: dict[bytes, bytes]
    body: bytes
    source_ip: str
    is_secure: bool
    parts: tuple[str, ...] = ()

    @property
    def is_local(self) -> bool:
        """Whether the client is on this machine, without a proxy in between."""
        if any(map(_PASSED_ON.fullmatch, self.headers)):
            return False
        try:
            return ip_address(self.source_ip).is_loopback
        except ValueError:
            return False


class AdminAccess:
    """Decides for the pages. Belongs to the event loop's thread."""

    def __init__(
        self,
        hosts: KnownHosts,
        *,
        local_key: AccessKey,
        verifier: Verifier | None,
        access: Access,
        account: str,
        region: str,
        wall_s: Callable[[], float],
    ) -> None:
        """`local_key` is that of commands on this machine; `verifier` knows all others, and is None in open mode."""
        self._hosts = hosts
        self._local_id = local_key.access_key_id
        self._local = Verifier(CredentialSet([local_key]))
        self._verifier = verifier
        self._access = access
        self._account = account
        self._region = region
        self._wall_s = wall_s
        self._sent = _SentOnce()

    def check_origin(self, request: AdminRequest) -> None:
        """Raise AccessDenied for what a web page may have sent."""
        host = request.headers.get(b"host", b"")
        if host not in self._hosts:
            shown = host.decode("latin-1")[:100]
            raise AccessDenied(
                f"This service does not know the host {shown!r}: set public_url to its public address."
            )
        try:
            refuse_browsers(request.headers)
        except AccessDenied:
            raise AccessDenied("Requests of web pages are refused.") from None

    def signer(self, request: AdminRequest) -> Caller:
        """Who asks; in open mode, who it says it is. Raises AuthError."""
        self.check_origin(request)
        raw = (request.method.encode(), request.target, request.headers)
        if self._verifier is None:
            return open_caller(*raw, self._account, self._region)
        if b"authorization" not in request.headers:
            raise MissingAuthenticationToken
        try:
            return self._local.verify(*raw, request.body, self._wall_s())
        except InvalidClientTokenId:  # it is another key
            return self._verifier.verify(*raw, request.body, self._wall_s())

    def admit(self, page: AdminPage, request: AdminRequest, caller: Caller) -> None:
        """Return if the one who asks may. Raises AuthError."""
        if self._verifier is None or caller.access_key_id == self._local_id:
            if not request.is_local:
                raise AccessDenied("Without an access key this is for programs on this machine.")
        else:
            self._access.administer(page.action, caller, request, request.headers, self._account)
        if self._verifier is not None and not page.only_reads:
            self._sent.add(read_claim(request.target, request.headers), self._wall_s())


class _SentOnce:
    """Signatures of requests that changed something, as long as they are valid: whoever sees one may not send it again."""

    def __init__(self) -> None:
        self._until_s: dict[bytes, float] = {}

    def add(self, claim: Claim, now_s: float) -> None:
        """Raise AccessDenied for one that was here. The signer is known, so no stranger can fill this."""
        self._until_s = {
            signature: until_s for signature, until_s in self._until_s.items() if until_s >= now_s
        }
        if claim.signature in self._until_s:
            raise AccessDenied("This very request was sent before: sign another one.")
        self._until_s[claim.signature] = claim.signed_at_s + claim.lifetime_s
