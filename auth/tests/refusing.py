"""Asserts a refusal of a verifier with empty caches and of one that knows the signers."""

from __future__ import annotations

from hashlib import sha256

import pytest

from auth import AuthError, CredentialSet, Verifier
from auth.tests.signed_requests import KEY, NOW_S, TEMPORARY_KEY, Request, sign_header, sign_query

MISMATCH = (
    "The request signature we calculated does not match the signature you provided. Check your AWS "
    "Secret Access Key "
    "and signing method. Consult the service documentation for details."
)
UNKNOWN_KEY = "The security token included in the request is invalid."
SIGNED = sign_header()
PRESIGNED = sign_query()
TEMPORARY = sign_header(key=TEMPORARY_KEY)
UNSIGNED_AMZ = sign_header(headers={}).with_header(b"x-amz-target", b"AmazonSQS.DeleteQueue")
PAYLOAD = {"X-Amz-Content-SHA256": sha256(b"{}").hexdigest()}


def make_verifier() -> Verifier:
    """A verifier that knows both keys."""
    return Verifier(CredentialSet([KEY, TEMPORARY_KEY]))


def refusal(
    request: Request, *, now_s: float = NOW_S, verifier: Verifier | None = None
) -> AuthError:
    """The refusal of a request by a verifier with empty caches and by one that knows the
    signers."""
    errors: list[AuthError] = []
    warm = make_verifier()
    for known in (SIGNED, TEMPORARY, sign_header(headers={})):
        known.verify(warm)
    for each in [verifier] if verifier else [make_verifier(), warm]:
        with pytest.raises(AuthError) as caught:
            request.verify(each, now_s)
        errors.append(caught.value)
    assert {(type(error), error.message) for error in errors} == {
        (type(errors[0]), errors[0].message)
    }
    return errors[0]
