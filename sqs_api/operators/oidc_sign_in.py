"""OidcSignIn: the way of a browser to the OpenID Connect provider and back, at /_holdfast/sign-in.

    /_holdfast/sign-in         sends the browser to the provider, with a cookie for the way back
    /_holdfast/sign-in/back    where the provider sends it with a code: begins a session, and sends
                               it to the console, whose address says what came of it

The cookie is sealed and has what must fit: state, nonce and the verifier of PKCE. So another
browser's answer, or one that comes twice, begins no session. It is SameSite=Lax, since the provider
is another site. Its name has the state, so that each tab has a way of its own. No address to return
to is taken from a request.

Who signs in is a user of the service's account, made at the first time and bound to issuer and
subject, with the policy of the strongest role that the claim names. A user of the same name whom
the provider did not name is never taken over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

import msgspec
import structlog
from aiohttp import web
from aiohttp.web_request import BaseRequest

from auth.auth_errors import AuthError
from auth.caller import Caller
from auth.identities import User
from cluster.clock import Entropy
from cluster.keys.identity_records import IdentitiesUnreadable
from cluster.keys.identity_store import IdentityStore
from cluster.keys.session_store import Challenge
from sqs_api.admin.admin_access import AdminAccess, AdminRequest
from sqs_api.admin.admin_pages import error_page
from sqs_api.admin.browser_sessions import BrowserSessions, cookies_of
from sqs_api.admin.routes import RESERVED
from sqs_api.console.console_pages import CONSOLE
from sqs_api.gateway.audit import AuditLog
from sqs_api.operators.oidc_provider import OidcProvider, ProviderAway, SignInRefused, claim_of
from sqs_api.operators.role_policies import ROLES, Role
from sqs_api.settings.config import Settings
from sqs_api.settings.sign_in_settings import roles_in
from visibility.contract.errors import QueueError

SIGN_IN = RESERVED + "sign-in"
_BACK = SIGN_IN + "/back"
_COOKIE = "holdfast-sign-in-"
_WAY = re.compile(_COOKIE + "[0-9a-f]{32}")
_WAYS_MAX = 4
"""Of one browser: they are in each of its requests to these paths. One more ends all others."""
_PURPOSE = "console-oidc"
_LASTS_S = 600
_ID_BYTES = 16
_VERIFIER_BYTES = 32
_AT_ONCE_MAX = 20
"""Browsers for which the provider is asked at the same time."""
_AUDITED = "holdfast:SignIn"


class _Way(msgspec.Struct, frozen=True):
    """A browser that was sent to the provider."""

    state: str
    nonce: str
    verifier: str
    redirect_uri: str
    until_ms: int


class OidcSignIn:
    """Answers the two pages."""

    def __init__(
        self,
        settings: Settings,
        provider: OidcProvider,
        access: AdminAccess,
        sessions: BrowserSessions,
        identities: IdentityStore,
        *,
        audit: AuditLog | None,
        entropy: Entropy,
        wall_s: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._roles = roles_in(settings.oidc_roles or "")
        self._provider = provider
        self._access = access
        self._sessions = sessions
        self._identities = identities
        self._audit = audit
        self._entropy = entropy
        self._wall_s = wall_s
        self._asking = 0
        self._log = structlog.get_logger("sign_in")

    async def __call__(self, request: BaseRequest, sent: AdminRequest) -> web.Response:
        """The answer is a redirection: to the provider, or to the console."""
        path = request.raw_path.partition("?")[0]
        try:
            if path == _BACK:
                self._access.check_host(sent)
            else:
                self._access.check_page(sent)
        except AuthError as refusal:
            return error_page(403, refusal.message)
        if path not in (SIGN_IN, _BACK):
            return error_page(404, "There is no such page.")
        if request.method != "GET":
            return web.Response(status=405, headers={"Allow": "GET"})
        if self._asking >= _AT_ONCE_MAX:
            return _to_console("busy")
        self._asking += 1
        try:
            return await (self._back(sent) if path == _BACK else self._begin(sent))
        except ProviderAway as error:
            self._log.warning("provider_away", issuer=self._provider.issuer, reason=str(error))
            return _to_console("away")
        except (SignInRefused, AuthError, QueueError, ValueError) as error:
            self._log.warning("sign_in_refused", source_ip=sent.source_ip, reason=str(error))
            if self._audit is not None:
                self._audit.denied(_AUDITED, None, sent.source_ip, None, "SignInRefused")
            return _to_console("role" if isinstance(error, _NoRole) else "refused")
        except IdentitiesUnreadable as error:
            self._log.error("sign_in_failed", reason=str(error))
            return _to_console("records")
        finally:
            self._asking -= 1

    async def _begin(self, sent: AdminRequest) -> web.Response:
        secret = self._entropy.secret
        way = _Way(
            secret(_ID_BYTES).hex(),
            secret(_ID_BYTES).hex(),
            secret(_VERIFIER_BYTES).hex(),
            self._own_address(sent) + _BACK,
            int(self._wall_s() * 1000) + _LASTS_S * 1000,
        )
        place = await self._provider.address(way.redirect_uri, way.state, way.nonce, way.verifier)
        sealed = self._sessions.seals.seal(way, _PURPOSE)
        answer = _redirection(place)
        begun = list(filter(_WAY.fullmatch, cookies_of(sent)))
        for name in begun if len(begun) >= _WAYS_MAX else ():
            answer.headers.add("Set-Cookie", _cookie(name, way, "", 0))
        name = _COOKIE + way.state
        answer.headers.add("Set-Cookie", _cookie(name, way, sealed, _LASTS_S))
        return answer

    def _own_address(self, sent: AdminRequest) -> str:
        """The address by which the browser reaches the service, whose host is known."""
        if self._settings.public_url is not None:
            return self._settings.public_url.rstrip("/")
        host = sent.headers.get(b"host", b"").decode("latin-1")
        return f"{'https' if sent.is_secure else 'http'}://{host}"

    async def _back(self, sent: AdminRequest) -> web.Response:
        """Begin a session. Raises ProviderAway, SignInRefused, AuthError, QueueError,
        IdentitiesUnreadable."""
        query = sent.target.partition(b"?")[2].decode("latin-1")
        said = {name: values[0] for name, values in parse_qs(query, max_num_fields=20).items()}
        name = _COOKIE + said.get("state", "")
        sealed = cookies_of(sent).get(name, "")
        way = self._sessions.seals.open(sealed, _PURPOSE, _Way)
        if way is None or said.get("state") != way.state:
            raise SignInRefused("this browser did not ask for it")
        if self._wall_s() * 1000 >= way.until_ms:
            raise SignInRefused("it took more than ten minutes")
        if said.get("iss", self._provider.issuer) != self._provider.issuer:
            raise SignInRefused("the answer is that of another issuer")
        if "code" not in said:
            raise SignInRefused(f"the provider says {said.get('error', 'nothing')[:100]!r}")
        claims = await self._provider.claims(
            said["code"], way.redirect_uri, way.nonce, way.verifier
        )
        user = await self._user_of(claims)
        caller = Caller(
            user.account, self._settings.region, user.user_id, access_key_id=None, user=user.name
        )
        challenge = Challenge(way.state, way.until_ms)
        session, cookie = await self._sessions.admit(sent, caller, challenge)
        if self._audit is not None:
            self._audit.note(
                _AUDITED,
                account=user.account,
                user=user.name,
                source_ip=sent.source_ip,
                outcome="ok",
                session=session.session_id,
                issuer=self._provider.issuer,
                subject=claims["sub"],
            )
        answer = _to_console("done")
        answer.headers.add("Set-Cookie", cookie)
        answer.headers.add("Set-Cookie", _cookie(name, way, "", 0))
        return answer

    async def _user_of(self, claims: Mapping[str, Any]) -> User:
        """The user that the claims name, with its role; one who has none any more loses it.

        Raises SignInRefused, ValueError, IdentitiesUnreadable.
        """
        name = claim_of(claims, self._settings.oidc_name_claim)
        if not isinstance(name, str):
            raise SignInRefused(f"there is no claim {self._settings.oidc_name_claim}")
        role = self._role_of(claims)
        user = await self._identities.admit(
            (self._settings.account, name),
            f"{self._provider.issuer} {claims['sub']}",
            [each["name"] for each in ROLES],
            None if role is None else {role["name"]: role["document"]},
        )
        if user is None or role is None:
            raise _NoRole(f"no value of {self._settings.oidc_role_claim} gives {name} a role")
        return user

    def _role_of(self, claims: Mapping[str, Any]) -> Role | None:
        """The strongest role; ROLES begins with the weakest."""
        said = claim_of(claims, self._settings.oidc_role_claim)
        values = said if isinstance(said, list) else [said]
        names = {self._roles.get(value) for value in values if isinstance(value, str)}
        return next((role for role in reversed(ROLES) if role["name"] in names), None)


class _NoRole(SignInRefused):
    """The claims name no role."""


def _cookie(name: str, way: _Way, value: str, lasts_s: int) -> str:
    is_secure = "; Secure" if way.redirect_uri.startswith("https:") else ""
    return f"{name}={value}; Path={SIGN_IN}; Max-Age={lasts_s}; HttpOnly; SameSite=Lax{is_secure}"


def _to_console(outcome: str) -> web.Response:
    return _redirection(f"{CONSOLE}?sign_in={outcome}")


def _redirection(place: str) -> web.Response:
    return web.Response(
        status=HTTPStatus.SEE_OTHER,
        headers={
            "Location": place,
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
        },
    )
