"""OidcProvider: the OpenID Connect provider, as a client of its authorization code flow with PKCE.

Its document and keys are read when they are needed and kept for ten minutes; an unknown key is
looked for at most once a minute. Signatures and claims of the id token are checked by joserfc, with
asymmetric algorithms only. Claims that the id token lacks come from the userinfo endpoint.
Source: OpenID Connect Core 1.0, 3.1; Discovery 1.0; RFC 7636; RFC 9207.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from sqs_api.settings.sign_in_settings import SignInSettings, is_trusted_address

_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"]
_LEEWAY_S = 60
"""Difference of the provider's clock from this one."""
_KEPT_S = 600.0
_KEYS_AGAIN_S = 60.0
_TIMEOUT = aiohttp.ClientTimeout(total=10)
_ANSWER_BYTES_MAX = 256 << 10

T = TypeVar("T")


class ProviderAway(Exception):
    """The provider does not answer, or not as it should; the text gives the reason in one line."""


class SignInRefused(Exception):
    """The provider, or a check of its answer, refuses the sign-in; the text gives the reason."""


class _Document(msgspec.Struct, frozen=True):
    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class _Tokens(msgspec.Struct, frozen=True):
    id_token: str
    access_token: str = ""


class OidcProvider:
    """All methods raise ProviderAway."""

    def __init__(
        self,
        settings: SignInSettings,
        wall_s: Callable[[], float],
        monotonic_s: Callable[[], float],
    ) -> None:
        """`settings` name a provider."""
        assert settings.oidc_issuer is not None
        assert settings.oidc_client_id is not None
        self.issuer: str = settings.oidc_issuer
        self._client_id: str = settings.oidc_client_id
        secret = settings.oidc_client_secret
        self._secret = None if secret is None else secret.get_secret_value()
        self._scopes = settings.oidc_scopes
        self._needed = (settings.oidc_role_claim, settings.oidc_name_claim)
        self._wall_s = wall_s
        self._monotonic_s = monotonic_s
        self._document: tuple[float, _Document] | None = None
        self._keys: tuple[float, KeySet] | None = None

    async def address(self, redirect_uri: str, state: str, nonce: str, verifier: str) -> str:
        """The address to send a browser to."""
        document = await self._read_document()
        digest = hashlib.sha256(verifier.encode()).digest()
        asked = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": redirect_uri,
            "scope": self._scopes,
            "state": state,
            "nonce": nonce,
            "code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="),
            "code_challenge_method": "S256",
        }
        endpoint = document.authorization_endpoint
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(asked)}"

    async def claims(
        self, code: str, redirect_uri: str, nonce: str, verifier: str
    ) -> Mapping[str, Any]:
        """The checked claims of who signed in, for a code. Raises SignInRefused."""
        document = await self._read_document()
        tokens = await self._exchange(document, code, redirect_uri, verifier)
        claims = await self._checked(document, tokens.id_token, nonce)
        if all(claim_of(claims, name) is not None for name in self._needed):
            return claims
        return {**await self._user_info(document, tokens, claims["sub"]), **claims}

    # -- what the provider says --------------------------------------------------------------------

    async def _read_document(self) -> _Document:
        if self._document is not None and self._monotonic_s() - self._document[0] < _KEPT_S:
            return self._document[1]
        address = self.issuer.rstrip("/") + "/.well-known/openid-configuration"
        document = _converted(await self._ask("GET", address), _Document)
        if document.issuer != self.issuer:
            raise ProviderAway(f"the document at {address} is that of {document.issuer!r}")
        ends = (document.authorization_endpoint, document.token_endpoint, document.jwks_uri)
        if not all(map(is_trusted_address, ends)):
            raise ProviderAway("an address in the provider's document is not https")
        self._document = self._monotonic_s(), document
        return document

    async def _exchange(
        self, document: _Document, code: str, redirect_uri: str, verifier: str
    ) -> _Tokens:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
        }
        headers = {}
        if self._secret is None:
            form["client_id"] = self._client_id
        elif "client_secret_basic" in document.token_endpoint_auth_methods_supported:
            pair = f"{quote(self._client_id, safe='')}:{quote(self._secret, safe='')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            form |= {"client_id": self._client_id, "client_secret": self._secret}
        said = await self._ask("POST", document.token_endpoint, headers, form)
        return _converted(said, _Tokens)

    async def _checked(self, document: _Document, id_token: str, nonce: str) -> dict[str, Any]:
        """The claims of an id token. Raises SignInRefused."""
        try:
            try:
                token = jwt.decode(id_token, await self._read_keys(document), _ALGORITHMS)
            except JoseError:  # perhaps the provider has a new key
                keys = await self._read_keys(document, _KEYS_AGAIN_S)
                token = jwt.decode(id_token, keys, _ALGORITHMS)
            jwt.JWTClaimsRegistry(
                now=int(self._wall_s()),
                leeway=_LEEWAY_S,
                iss={"essential": True, "value": self.issuer},
                aud={"essential": True, "value": self._client_id},
                exp={"essential": True},
                iat={"essential": True},
                sub={"essential": True},
                nonce={"essential": True, "value": nonce},
            ).validate(token.claims)
        except (JoseError, ValueError, TypeError) as error:
            raise SignInRefused(f"the id token is not valid: {error}") from error
        claims = dict(token.claims)
        if claims.get("azp", self._client_id) != self._client_id:
            raise SignInRefused("the id token is for another client")
        return claims

    async def _read_keys(self, document: _Document, kept_s: float = _KEPT_S) -> KeySet:
        if self._keys is not None and self._monotonic_s() - self._keys[0] < kept_s:
            return self._keys[1]
        keys = _usable_keys(await self._ask("GET", document.jwks_uri))
        self._keys = self._monotonic_s(), keys
        return keys

    async def _user_info(
        self, document: _Document, tokens: _Tokens, subject: str
    ) -> dict[str, Any]:
        """The claims of the userinfo endpoint. Raises SignInRefused if they are another's."""
        if document.userinfo_endpoint is None or not tokens.access_token:
            return {}
        headers = {"Authorization": f"Bearer {tokens.access_token}"}
        said = await self._ask("GET", document.userinfo_endpoint, headers)
        if said.get("sub") != subject:
            raise SignInRefused("the userinfo endpoint answers for another subject")
        return said

    async def _ask(
        self,
        method: str,
        address: str,
        headers: Mapping[str, str] | None = None,
        form: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """The object in an answer. Raises SignInRefused for a refusal of the code."""
        if not is_trusted_address(address):
            raise ProviderAway(f"{address} is not https")
        try:
            async with (
                aiohttp.ClientSession(timeout=_TIMEOUT) as session,
                session.request(
                    method, address, data=form, headers=headers, allow_redirects=False
                ) as answer,
            ):
                body = await answer.content.read(_ANSWER_BYTES_MAX)
                while len(body) < _ANSWER_BYTES_MAX and (more := await answer.content.readany()):
                    body += more
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ProviderAway(f"{address}: {error or 'no answer in time'}") from error
        if form is not None and answer.status in (400, 401, 403):
            raise SignInRefused(f"the provider refuses the code: {body[:200].decode('latin-1')!r}")
        if answer.status != 200:
            raise ProviderAway(f"{address} answers {answer.status}")
        return _converted_text(body, address)


def _usable_keys(said: dict[str, Any]) -> KeySet:
    """The keys of a set (RFC 7517), without those of types and curves that are not known. Raises
    ProviderAway if none is left."""
    keys: list[Any] = []
    reason: object = "there are none"
    listed = said.get("keys")
    for each in listed if isinstance(listed, list) else []:
        try:
            keys += KeySet.import_key_set({"keys": [each]}).keys
        except (JoseError, ValueError, TypeError, LookupError, AttributeError) as error:
            reason = error
    if not keys:
        raise ProviderAway(f"the provider's keys cannot be read: {reason}")
    return KeySet(keys)


def claim_of(claims: Mapping[str, Any], path: str) -> Any:
    """The value of a claim, None without one. Dots lead into objects, if no claim has the whole
    name."""
    if path in claims:
        return claims[path]
    found: Any = claims
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _converted_text(body: bytes, address: str) -> dict[str, Any]:
    try:
        said: dict[str, Any] = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProviderAway(f"{address} does not answer with JSON") from error
    return said


def _converted(said: dict[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(said, kind)
    except msgspec.ValidationError as error:
        raise ProviderAway(f"the provider's answer cannot be read: {error}") from error
