"""BrowserSessions: browsers sign in once, and then send a cookie instead of signatures.

    challenge   sealed under a key that all hosts have, so no host keeps one. It is answered once,
                within two minutes, in a signed request: the secret stays in the page
    cookie      a random token; HttpOnly, SameSite=Strict, for eight hours. Behind TLS it is
                Secure and its name has the prefix __Host-, so that no other host can set it.
                Else it is for the API's paths alone. Cookies know no ports, so the name has it

Only the routes below api/ take the cookie, and SQS never does. A request with it carries the header
X-Holdfast-Console as well, which a page of another origin cannot send without asking first.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections.abc import Callable
from typing import TypeVar

import msgspec

from auth.auth_errors import AccessDenied
from auth.caller import Caller
from auth.envelope import SealBroken
from cluster.clock import Entropy
from cluster.keys.keyring import Secrets
from cluster.keys.session_store import (
    CHALLENGE_MS,
    Challenge,
    Session,
    SessionStore,
    Signer,
    session_id_of,
)
from sqs_api.admin.admin_access import AdminRequest
from sqs_api.admin.routes import API
from sqs_api.settings.origins import KnownHosts
from visibility.contract.errors import InvalidParameterValue

CONSOLE_HEADER = "x-holdfast-console"
_CHALLENGE = "console-challenge"
_ID_BYTES = 16
_SEALED_CHARACTERS_MAX = 4_096
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")
_PORT = re.compile(rb":([0-9]{1,5})$")

T = TypeVar("T")


class _Challenge(msgspec.Struct, frozen=True):
    challenge_id: str
    until_ms: int


class Seals:
    """Texts that a browser keeps for the service, and can neither read nor make."""

    def __init__(self, secrets: Callable[[], Secrets]) -> None:
        self._secrets = secrets

    def seal(self, content: msgspec.Struct, purpose: str) -> str:
        """The content as a text for cookies and JSON."""
        sealed = self._secrets().encrypt(msgspec.json.encode(content), purpose)
        return urlsafe_b64encode(sealed).decode().rstrip("=")

    def open(self, text: str, purpose: str, kind: type[T]) -> T | None:
        """The content; None if this text was not sealed here for the purpose."""
        if len(text) > _SEALED_CHARACTERS_MAX:
            return None
        try:
            sealed = urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4))
            return msgspec.json.decode(self._secrets().decrypt(sealed, purpose), type=kind)
        except (NotBase64, SealBroken, ValueError):
            return None


class BrowserSessions:
    """Signs browsers in, and reads their cookies."""

    def __init__(
        self,
        hosts: KnownHosts,
        store: SessionStore,
        seals: Seals,
        entropy: Entropy,
        wall_s: Callable[[], float],
    ) -> None:
        self._hosts = hosts
        self.store = store
        self.seals = seals
        self._entropy = entropy
        self._wall_s = wall_s

    # -- signing in --------------------------------------------------------------------------------

    def challenge(self) -> str:
        """A new challenge."""
        until_ms = int(self._wall_s() * 1000) + CHALLENGE_MS
        content = _Challenge(self._entropy.secret(_ID_BYTES).hex(), until_ms)
        return self.seals.seal(content, _CHALLENGE)

    async def begin(
        self, request: AdminRequest, caller: Caller, challenge: str
    ) -> tuple[Session, str]:
        """A session of the signer of a request who answers a challenge, and the header that sets
        its cookie. Raises InvalidParameterValue, RequestThrottled, SessionEnded."""
        asked = self.seals.open(challenge, _CHALLENGE, _Challenge)
        if asked is None:
            raise InvalidParameterValue("The challenge is not one of this service: sign in again.")
        return await self.admit(request, caller, Challenge(asked.challenge_id, asked.until_ms))

    async def admit(
        self, request: AdminRequest, caller: Caller, challenge: Challenge
    ) -> tuple[Session, str]:
        """The same for a caller who was identified in another way."""
        signer = Signer(
            caller.account,
            caller.region,
            caller.principal,
            caller.user,
            caller.access_key_id,
            request.source_ip,
            request.headers.get(b"user-agent", b"").decode("latin-1"),
        )
        token, session = await self.store.begin(signer, challenge)
        lasts_ms = session.stored.expires_at_ms - session.stored.created_at_ms
        return session, self._cookie(request, token, lasts_ms // 1000)

    # -- requests ----------------------------------------------------------------------------------

    def session(self, request: AdminRequest) -> Session | None:
        """The session of a request without a signature, None without a cookie.

        Raises SessionEnded, and AccessDenied without the console's header.
        """
        if b"authorization" in request.headers:
            return None
        token = self._token(request)
        if token is None:
            return None
        if CONSOLE_HEADER.encode() not in request.headers:
            raise AccessDenied("A request with a cookie needs the header X-Holdfast-Console.")
        return self.store.find(token)

    def id_of(self, request: AdminRequest) -> str | None:
        """The id of the session that a request was sent with, also if it has ended since."""
        token = None if b"authorization" in request.headers else self._token(request)
        return None if token is None else session_id_of(token)

    def forgotten(self, request: AdminRequest) -> str:
        """The header that removes the cookie."""
        return self._cookie(request, "", 0)

    # -- cookies -----------------------------------------------------------------------------------

    def _token(self, request: AdminRequest) -> str | None:
        """The token of the cookie. Behind TLS only the cookie counts that no other host can set."""
        said = cookies_of(request)
        names = [self._name(request, is_secure=True)]
        if not self._hosts.is_behind_tls(request.headers, is_secure=request.is_secure):
            names.append(self._name(request, is_secure=False))
        for name in names:
            if _TOKEN.fullmatch(said.get(name, "")):
                return said[name]
        return None

    def _cookie(self, request: AdminRequest, token: str, lasts_s: int) -> str:
        is_secure = self._hosts.is_behind_tls(request.headers, is_secure=request.is_secure)
        name = self._name(request, is_secure=is_secure)
        place = "Path=/; Secure" if is_secure else f"Path={API}"
        return f"{name}={token}; {place}; Max-Age={lasts_s}; HttpOnly; SameSite=Strict"

    def _name(self, request: AdminRequest, *, is_secure: bool) -> str:
        port = _PORT.search(request.headers.get(b"host", b""))
        name = "holdfast" if port is None else f"holdfast-{port[1].decode()}"
        return f"__Host-{name}" if is_secure else name


def cookies_of(request: AdminRequest) -> dict[str, str]:
    """The cookies of a request by name; of several of one name the first."""
    found: dict[str, str] = {}
    for pair in request.headers.get(b"cookie", b"").decode("latin-1").split(";"):
        name, _, value = pair.strip().partition("=")
        found.setdefault(name, value)
    return found
