"""The client of an OpenID Connect provider: valid answers, wrong and forged ones, and none."""

from __future__ import annotations

import hmac
import json
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

from sqs_api.operators.oidc_provider import OidcProvider, ProviderAway, SignInRefused, claim_of
from sqs_api.settings.config import Settings

NOW_S = 1_800_000_000.0
KEY = RSAKey.generate_key(2048, {"kid": "one"})
OTHER = RSAKey.generate_key(2048, {"kid": "one"})


class FakeProvider:
    """Answers on loopback; its answers are there to be changed."""

    def __init__(self) -> None:
        self.keys = [KEY]
        self.other_keys: list[Any] = []
        self.token: str = ""
        self.token_status = 200
        self.document: dict[str, Any] = {}
        self.user_info: dict[str, Any] = {"sub": "s", "groups": ["sre"]}
        self.asked: list[str] = []
        self.forms: list[dict[str, str]] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        if request.path == "/token":
            form = {name: str(text) for name, text in (await request.post()).items()}
            self.forms.append(form)
            said = {"id_token": self.token, "access_token": "a"}
            return web.json_response(said, status=self.token_status)
        if request.path == "/keys":
            listed = [*self.other_keys, *(key.as_dict(private=False) for key in self.keys)]
            return web.json_response({"keys": listed})
        if request.path == "/me":
            return web.json_response(self.user_info)
        return web.json_response(self.document)


@pytest_asyncio.fixture
async def fake() -> AsyncIterator[FakeProvider]:
    fake = FakeProvider()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", fake.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    issuer = f"http://127.0.0.1:{runner.addresses[0][1]}"
    fake.document = {
        "issuer": issuer,
        "authorization_endpoint": f"{issuer}/authorize",
        "token_endpoint": f"{issuer}/token",
        "jwks_uri": f"{issuer}/keys",
        "userinfo_endpoint": f"{issuer}/me",
    }
    yield fake
    await runner.cleanup()


class Clock:
    """Time that a test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now_s


def client(fake: FakeProvider, clock: Clock | None = None) -> OidcProvider:
    settings = Settings(
        oidc_issuer=fake.document["issuer"], oidc_client_id="me", oidc_roles="sre=operator"
    )
    return OidcProvider(settings, lambda: NOW_S, clock or Clock())


def claims(fake: FakeProvider, **changed: object) -> dict[str, Any]:
    """Those of a valid id token; None leaves one out."""
    given = {
        "iss": fake.document["issuer"],
        "aud": "me",
        "sub": "s",
        "exp": NOW_S + 60,
        "iat": NOW_S,
        "nonce": "n",
        "groups": ["dev"],
        "preferred_username": "ann",
    }
    return {name: value for name, value in (given | changed).items() if value is not None}


def signed(content: dict[str, Any], key: Any = KEY, algorithm: str = "RS256") -> str:
    header = {"alg": algorithm, "kid": "one"}
    return jwt.encode(header, content, key, algorithms=[algorithm])


def by_public_key(content: dict[str, Any]) -> str:
    """A token whose HMAC has the provider's public key as its secret."""

    def part(content: dict[str, Any]) -> str:
        return urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")

    text = f"{part({'alg': 'HS256', 'kid': 'one'})}.{part(content)}"
    digest = hmac.digest(KEY.as_pem(private=False), text.encode(), "sha256")
    return f"{text}.{urlsafe_b64encode(digest).decode().rstrip('=')}"


async def test_the_claims_of_a_valid_token_are_taken(fake: FakeProvider) -> None:
    fake.token = signed(claims(fake))
    found = await client(fake).claims("c", "http://here/back", "n", "verifier")

    assert (found["sub"], found["groups"]) == ("s", ["dev"])
    assert fake.forms[0]["code_verifier"] == "verifier"
    assert "/me" not in fake.asked


async def test_missing_claims_come_from_the_userinfo_endpoint(fake: FakeProvider) -> None:
    fake.token = signed(claims(fake, groups=None))
    found = await client(fake).claims("c", "", "n", "")
    fake.user_info["sub"] = "other"

    assert found["groups"] == ["sre"]
    with pytest.raises(SignInRefused, match="another subject"):
        await client(fake).claims("c", "", "n", "")


@pytest.mark.parametrize(
    "changed",
    [
        {"nonce": "other"},
        {"nonce": None},
        {"aud": "another client"},
        {"aud": ["me", "you"], "azp": "you"},
        {"iss": "https://evil.example"},
        {"exp": NOW_S - 61},
        {"exp": None},
        {"iat": NOW_S + 61},
        {"sub": None},
    ],
    ids=str,
)
async def test_a_token_with_a_wrong_claim_is_refused(
    fake: FakeProvider, changed: dict[str, object]
) -> None:
    fake.token = signed(claims(fake, **changed))

    with pytest.raises(SignInRefused):
        await client(fake).claims("c", "", "n", "")


async def test_forged_tokens_are_refused(fake: FakeProvider) -> None:
    head, _, rest = signed(claims(fake)).partition(".")
    elliptic = ECKey.generate_key("P-256", {"kid": "one"})
    tokens = [
        signed(claims(fake), OTHER),
        by_public_key(claims(fake)),
        signed(claims(fake), elliptic, "ES256"),
        f"eyJhbGciOiJub25lIn0.{rest.partition('.')[0]}.",
        f"{head}.{rest[:-4]}AAAA",
        "",
        "a.b.c",
    ]
    for token in tokens:
        fake.token = token
        with pytest.raises(SignInRefused):
            await client(fake).claims("c", "", "n", "")


async def test_a_new_key_is_found_and_looked_for_once_a_minute(fake: FakeProvider) -> None:
    clock = Clock()
    asking = client(fake, clock)
    fake.token = signed(claims(fake))
    await asking.claims("c", "", "n", "")
    fake.keys, fake.token = [OTHER], signed(claims(fake), OTHER)
    with pytest.raises(SignInRefused):
        await asking.claims("c", "", "n", "")
    early = fake.asked.count("/keys")
    clock.now_s += 61
    await asking.claims("c", "", "n", "")

    assert (early, fake.asked.count("/keys"), fake.asked.count("/.well-known/openid-configuration")
            ) == (1, 2, 1)  # fmt: skip


async def test_keys_of_unknown_kinds_do_not_matter(fake: FakeProvider) -> None:
    fake.token = signed(claims(fake))
    fake.other_keys = [
        {"kty": "EC", "crv": "brainpoolP256r1", "x": "AA", "y": "AA", "kid": "two"},
        {"kty": "AKP", "alg": "ML-DSA-44", "pub": "AA", "kid": "three"},
        *({"kid": "four"}, {}, {"kty": ["RSA"]}, "no key", None, 5),
    ]
    assert (await client(fake).claims("c", "", "n", ""))["sub"] == "s"

    fake.keys = []
    with pytest.raises(ProviderAway, match="keys cannot be read"):
        await client(fake).claims("c", "", "n", "")


@pytest.mark.parametrize(
    "changed",
    [
        {"issuer": "https://evil.example"},
        {"token_endpoint": "http://evil.example/token"},
        {"jwks_uri": None},
    ],
    ids=str,
)
async def test_a_wrong_document_is_not_used(fake: FakeProvider, changed: dict[str, Any]) -> None:
    asking = client(fake)
    fake.document |= changed

    with pytest.raises(ProviderAway):
        await asking.address("", "", "", "")


async def test_a_refused_code_is_not_a_provider_that_is_away(fake: FakeProvider) -> None:
    fake.token_status = 400
    with pytest.raises(SignInRefused):
        await client(fake).claims("c", "", "n", "")
    fake.token_status = 502
    with pytest.raises(ProviderAway):
        await client(fake).claims("c", "", "n", "")


def test_dots_lead_into_objects() -> None:
    said = {"realm_access": {"roles": ["a"]}, "https://x.example/roles": "b", "n": 1}

    assert claim_of(said, "realm_access.roles") == ["a"]
    assert claim_of(said, "https://x.example/roles") == "b"
    assert claim_of(said, "n.more") is None
