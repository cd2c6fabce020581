"""Requests signed by our own commands pass the verifier and equal those signed by botocore."""

from __future__ import annotations

import pytest

from auth import AccessKey, CredentialSet, SignatureDoesNotMatch, Verifier
from auth.signing import SigningKey, signed_headers
from auth.tests.signed_requests import KEY, NOW_S, TEMPORARY_KEY, Request, sign_header

TARGET = "/_holdfast/a%20b/c?x=1&y=%2F"


def _signed(key: AccessKey, target: str = TARGET, body: bytes = b"{}") -> Request:
    ours = SigningKey(key.access_key_id, key.secret_access_key, "eu-west-1", key.session_token)
    headers = {"Host": "localhost:9324", "X-Holdfast-Nonce": "a  b"}
    made = signed_headers(ours, "POST", target, headers, body, NOW_S)
    encoded = {name.encode(): value.encode() for name, value in made.items()}
    return Request(target=target.encode(), headers=encoded, body=body)


@pytest.mark.parametrize("key", [KEY, TEMPORARY_KEY], ids=["key", "session"])
def test_the_verifier_takes_it(key: AccessKey) -> None:
    caller = _signed(key).verify(Verifier(CredentialSet([key])))

    assert (caller.access_key_id, caller.region) == (key.access_key_id, "eu-west-1")


@pytest.mark.parametrize("key", [KEY, TEMPORARY_KEY], ids=["key", "session"])
def test_botocore_signs_the_same(key: AccessKey) -> None:
    theirs = sign_header(key=key, target=TARGET, headers={"X-Holdfast-Nonce": "a  b"})

    assert _signed(key).headers[b"authorization"] == theirs.headers[b"authorization"]


def test_every_header_is_signed() -> None:
    changed = _signed(KEY).with_header(b"x-holdfast-nonce", b"another")

    with pytest.raises(SignatureDoesNotMatch):
        changed.verify(Verifier(CredentialSet([KEY])))


def test_a_key_shows_no_secret() -> None:
    assert "geheim" not in repr(SigningKey("AKIA", "geheim", "us-east-1", "geheim"))
