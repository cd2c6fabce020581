"""Every refusal, its code and its words, on both roads."""

from __future__ import annotations

import msgspec
import pytest

from auth import (
    AuthError,
    IncompleteSignature,
    InvalidClientTokenId,
    MissingAuthenticationToken,
    SignatureDoesNotMatch,
)
from auth.tests.refusing import (
    MISMATCH,
    PAYLOAD,
    PRESIGNED,
    SIGNED,
    UNKNOWN_KEY,
    UNSIGNED_AMZ,
    refusal,
)
from auth.tests.signed_requests import KEY, TEMPORARY_KEY, Request, sign_header

NEEDS = "Authorization header requires '{}' parameter."
HASHED = "(Hashed with SHA-256 and encoded with Base64) Authorization="


def _query(old: bytes, new: bytes) -> Request:
    assert old in PRESIGNED.target
    return msgspec.structs.replace(PRESIGNED, target=PRESIGNED.target.replace(old, new))


REFUSALS: dict[str, tuple[Request, type[AuthError], str]] = {
    "unsigned": (
        SIGNED.with_header(b"authorization", None),
        MissingAuthenticationToken,
        "Request is missing Authentication Token",
    ),
    "empty authorization": (
        SIGNED.with_header(b"authorization", b""),
        MissingAuthenticationToken,
        "Request is missing Authentication Token",
    ),
    "a bearer token": (
        SIGNED.with_header(b"authorization", b"Bearer abc"),
        IncompleteSignature,
        "Invalid key=value pair (missing equal-sign) in Authorization header (hashed with SHA-256 "
        "and encoded with "
        "Base64): 'ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0='.",
    ),
    "another algorithm": (
        SIGNED.with_authorization(b"SHA256 ", b"SHA512 "),
        IncompleteSignature,
        "Unsupported AWS 'algorithm': 'AWS4-HMAC-SHA512'",
    ),
    "nothing but the algorithm": (
        SIGNED.with_header(b"authorization", b"AWS4-HMAC-SHA256").with_header(b"x-amz-date", None),
        IncompleteSignature,
        " ".join(NEEDS.format(name) for name in ("Credential", "Signature", "SignedHeaders"))
        + " Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header. "
        + HASHED
        + "YI2YWea8FSxnksZL2ETHbs5elHm9HQufxTLK0W0ffV0=",
    ),
    "no credential": (
        SIGNED.with_authorization(b"Credential=", b"Other="),
        IncompleteSignature,
        NEEDS.format("Credential") + " " + HASHED,
    ),
    "no date": (
        SIGNED.with_header(b"x-amz-date", None),
        IncompleteSignature,
        "Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header. "
        + HASHED,
    ),
    "a malformed date": (
        SIGNED.with_header(b"x-amz-date", b"2026-01-01T12:00:00Z"),
        IncompleteSignature,
        "Date must be in ISO-8601 'basic format'. Got '2026-01-01T12:00:00Z'. See "
        "http://en.wikipedia.org/wiki/ISO_8601",
    ),
    "an http date in x-amz-date": (
        SIGNED.with_header(b"x-amz-date", b"Thu, 01 Jan 2026 12:00:00 GMT"),
        IncompleteSignature,
        "Date must be in ISO-8601 'basic format'.",
    ),
    "a month that is none": (
        SIGNED.with_header(b"x-amz-date", b"20261301T120000Z"),
        IncompleteSignature,
        "Date must be in ISO-8601 'basic format'. Got '20261301T120000Z'.",
    ),
    "a short credential": (
        SIGNED.with_authorization(b"/sqs/", b"/"),
        IncompleteSignature,
        "Credential must have exactly 5 slash-delimited elements, e.g. "
        "keyid/date/region/service/term, got "
        "'AKIDEXAMPLE/20260101/eu-west-1/aws4_request'",
    ),
    "another service": (
        sign_header(service="sns"),
        SignatureDoesNotMatch,
        "Credential should be scoped to correct service: 'sqs'.",
    ),
    "another terminator": (
        SIGNED.with_authorization(b"aws4_request", b"aws5_request"),
        SignatureDoesNotMatch,
        "Credential should be scoped with a valid terminator: 'aws4_request', not 'aws5_request'.",
    ),
    "another day": (
        SIGNED.with_authorization(b"20260101", b"20251231"),
        SignatureDoesNotMatch,
        "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP: "
        "'20251231' != "
        "'20260101', from '20260101T120000Z'.",
    ),
    "an unknown key": (
        sign_header(key=msgspec.structs.replace(KEY, access_key_id="AKIDOTHER")),
        InvalidClientTokenId,
        UNKNOWN_KEY,
    ),
    "a key id that is no text": (
        SIGNED.with_authorization(b"AKIDEXAMPLE", b"\xff"),
        InvalidClientTokenId,
        UNKNOWN_KEY,
    ),
    "another secret": (
        sign_header(key=msgspec.structs.replace(KEY, secret_access_key="other")),
        SignatureDoesNotMatch,
        MISMATCH,
    ),
    "a short signature": (
        SIGNED.with_header(b"authorization", SIGNED.headers[b"authorization"][:-1]),
        SignatureDoesNotMatch,
        MISMATCH,
    ),
    "a token for a key without one": (
        SIGNED.with_header(b"x-amz-security-token", b"t"),
        InvalidClientTokenId,
        UNKNOWN_KEY,
    ),
    "no token where one is needed": (
        sign_header(key=msgspec.structs.replace(TEMPORARY_KEY, session_token=None)),
        InvalidClientTokenId,
        UNKNOWN_KEY,
    ),
    "another token": (
        sign_header(key=msgspec.structs.replace(TEMPORARY_KEY, session_token="x")),
        InvalidClientTokenId,
        UNKNOWN_KEY,
    ),
    "host not signed": (
        SIGNED.with_authorization(b"host;", b""),
        SignatureDoesNotMatch,
        "'Host' or ':authority' must be a 'SignedHeader' in the AWS Authorization.",
    ),
    "x-amz-target not signed": (
        UNSIGNED_AMZ,
        SignatureDoesNotMatch,
        "'X-Amz-Target' must be a 'SignedHeader' in the AWS Authorization.",
    ),
    "a signed header that is absent": (
        SIGNED.with_header(b"content-type", None),
        SignatureDoesNotMatch,
        MISMATCH,
    ),
    "a line feed in a signed header": (
        SIGNED.with_header(b"x-amz-target", b"AmazonSQS\n.SendMessage"),
        SignatureDoesNotMatch,
        MISMATCH,
    ),
    "a payload hash of another body": (
        sign_header(headers=PAYLOAD | {"X-Amz-Target": "t"}, body=b"{ }"),
        SignatureDoesNotMatch,
        MISMATCH,
    ),
    "an unsigned payload": (
        sign_header(headers={"X-Amz-Content-SHA256": "UNSIGNED-PAYLOAD"}),
        SignatureDoesNotMatch,
        MISMATCH,
    ),
    "more parameters than anybody sends": (
        msgspec.structs.replace(SIGNED, target=b"/?" + b"&".join([b"a=b"] * 1001)),
        IncompleteSignature,
        "The query has more than 1000 parameters.",
    ),
    "a target that is no path": (
        msgspec.structs.replace(SIGNED, target=b"*"),
        SignatureDoesNotMatch,
        MISMATCH,
    ),
    "both forms": (
        PRESIGNED.with_header(b"authorization", SIGNED.headers[b"authorization"]),
        SignatureDoesNotMatch,
        "Found both 'X-Amz-Algorithm' as a query-string param and 'Authorization' as HTTP header.",
    ),
    "presigned without credential and date": (
        _query(b"X-Amz-Credential=", b"Cred="),
        IncompleteSignature,
        "AWS query-string parameters must include 'X-Amz-Credential'. Re-examine the query-string "
        "parameters.",
    ),
    "presigned with another algorithm": (
        _query(b"AWS4-HMAC-SHA256", b"AWS4-ECDSA-P256-SHA256"),
        IncompleteSignature,
        "Unsupported AWS 'algorithm': 'AWS4-ECDSA-P256-SHA256'",
    ),
    "presigned for more than a week": (
        _query(b"X-Amz-Expires=60", b"X-Amz-Expires=604801"),
        IncompleteSignature,
        "X-Amz-Expires must be less than a week",
    ),
    "presigned for no time": (
        _query(b"X-Amz-Expires=60", b"X-Amz-Expires=0"),
        IncompleteSignature,
        "X-Amz-Expires must be greater than 0",
    ),
    "presigned for a time that is no number": (
        _query(b"X-Amz-Expires=60", b"X-Amz-Expires=-1"),
        IncompleteSignature,
        "X-Amz-Expires should be a number",
    ),
    "presigned with another body": (
        msgspec.structs.replace(PRESIGNED, body=b"x"),
        SignatureDoesNotMatch,
        MISMATCH,
    ),
    "presigned with an unsigned x-amz header": (
        PRESIGNED.with_header(b"x-amz-target", b"AmazonSQS.DeleteQueue"),
        SignatureDoesNotMatch,
        "'X-Amz-Target' must be a 'SignedHeader' in the AWS Authorization.",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refuses_in_the_words_of_aws(case: str) -> None:
    request, error_type, message = REFUSALS[case]

    error = refusal(request)

    assert type(error) is error_type
    assert error.message.startswith(message)
