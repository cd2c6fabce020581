"""AWS's own vectors, and the worked example of its documentation."""

from __future__ import annotations

from hashlib import sha256

import msgspec
import pytest

from auth import AccessKey, CredentialSet, Verifier
from auth.canonical import request_template, signing_key, string_to_sign
from auth.tests.suite import (
    KEY,
    PRESIGNED_TARGETS,
    SECRET,
    SIGNED_AT_S,
    STS_VECTORS,
    TOKEN,
    VECTORS,
    Vector,
)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_verifies_the_vectors_of_the_suite(vector: Vector) -> None:
    _verify_twice(vector, KEY)


@pytest.mark.parametrize("vector", STS_VECTORS, ids=lambda vector: vector.name)
def test_verifies_the_session_token_vectors_of_the_suite(vector: Vector) -> None:
    _verify_twice(vector, msgspec.structs.replace(KEY, session_token=TOKEN))


@pytest.mark.parametrize("name", PRESIGNED_TARGETS)
def test_verifies_the_presigned_vectors_of_the_suite(name: str) -> None:
    verifier = Verifier(CredentialSet([KEY]), service="service")

    caller = verifier.verify(
        b"GET",
        PRESIGNED_TARGETS[name],
        {b"host": b"example.amazonaws.com"},
        b"",
        SIGNED_AT_S + 3600,
    )

    assert caller.access_key_id == "AKIDEXAMPLE"


def test_derives_the_signing_key_of_the_documentation() -> None:
    key = signing_key(SECRET, b"20150830/us-east-1/iam/aws4_request")

    assert key.hex() == "c4afb1cc5771d871763a393e44b703571b55cc28424d1a5e86da6ed3c154a4b9"


def test_builds_the_texts_of_the_documentation() -> None:
    template = request_template([b"content-type", b"host", b"x-amz-date"])

    canonical = template % (
        b"GET",
        b"/\nAction=ListUsers&Version=2010-05-08",
        b"application/x-www-form-urlencoded; charset=utf-8",
        b"iam.amazonaws.com",
        b"20150830T123600Z",
        sha256(b"").hexdigest().encode(),
    )

    scope = b"20150830/us-east-1/iam/aws4_request"
    assert string_to_sign(b"20150830T123600Z", scope, canonical) == (
        b"AWS4-HMAC-SHA256\n20150830T123600Z\n20150830/us-east-1/iam/aws4_request\n"
        b"f536975d06c0309214f805bb90ccff089219ecd68b2577efef23edd43b7e1a59"
    )


def test_verifies_the_request_of_the_documentation() -> None:
    verifier = Verifier(CredentialSet([KEY]), service="iam")
    headers = {
        b"content-type": b"application/x-www-form-urlencoded; charset=utf-8",
        b"host": b"iam.amazonaws.com",
        b"x-amz-date": b"20150830T123600Z",
        b"authorization": b"AWS4-HMAC-SHA256 "
        b"Credential=AKIDEXAMPLE/20150830/us-east-1/iam/aws4_request, "
        b"SignedHeaders=content-type;host;x-amz-date, "
        b"Signature=5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7",
    }

    target = b"/?Action=ListUsers&Version=2010-05-08"
    assert verifier.verify(b"GET", target, headers, b"", SIGNED_AT_S).region == "us-east-1"


def _verify_twice(vector: Vector, key: AccessKey) -> None:
    """Once in full, once on the short road."""
    verifier = Verifier(CredentialSet([key]), service="service")
    for _ in range(2):
        caller = verifier.verify(
            vector.method, vector.target, vector.headers(), vector.body, SIGNED_AT_S
        )
        assert (caller.account, caller.region) == ("123456789012", "us-east-1")
        assert (caller.principal, caller.access_key_id) == ("123456789012", "AKIDEXAMPLE")
