"""Requests signed by botocore, the signer most clients use, at a time the test chooses."""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256
from hmac import digest
from urllib.parse import urlsplit

import msgspec
from botocore import auth as botocore_auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from auth import AccessKey, Caller, Verifier
from auth.canonical import request_template, signing_key, string_to_sign

NOW_S = 1_767_225_600.0 + 12 * 3600  # 2026-01-01T12:00:00Z
KEY = AccessKey("AKIDEXAMPLE", "secret", "123456789012", "AIDAEXAMPLE", user="ann")
TEMPORARY_KEY = AccessKey(
    "ASIDEXAMPLE", "secret", "123456789012", "AIDAANN", session_token="to/ken+=", user="ann"
)
SIGNING_ACCOUNT_KEY = AccessKey("210987654321", "secret", "123456789012", "AIDAEXAMPLE")
JSON_HEADERS = {
    "Content-Type": "application/x-amz-json-1.0",
    "X-Amz-Target": "AmazonSQS.SendMessage",
    "User-Agent": "Boto3/1.0  md/Botocore",
}


class Request(msgspec.Struct, frozen=True):
    """A request as the gateway hands it on."""

    method: bytes = b"POST"
    target: bytes = b"/"
    headers: dict[bytes, bytes] = {}
    body: bytes = b""

    def verify(self, verifier: Verifier, now_s: float = NOW_S) -> Caller:
        """The verifier's answer to it."""
        return verifier.verify(self.method, self.target, self.headers, self.body, now_s)

    def with_header(self, name: bytes, value: bytes | None) -> Request:
        """The same with one header set, or taken away."""
        headers = {key: old for key, old in self.headers.items() if key != name}
        if value is not None:
            headers[name] = value
        return msgspec.structs.replace(self, headers=headers)

    def with_authorization(self, old: bytes, new: bytes) -> Request:
        """The same with `old` replaced in the Authorization header."""
        authorization = self.headers[b"authorization"]
        assert old in authorization
        return self.with_header(b"authorization", authorization.replace(old, new))


def sign_header(
    *,
    key: AccessKey = KEY,
    method: str = "POST",
    target: str = "/",
    headers: dict[str, str] = JSON_HEADERS,
    body: bytes = b"{}",
    service: str = "sqs",
    region: str = "eu-west-1",
    at_s: float = NOW_S,
) -> Request:
    """A request with an Authorization header."""
    signer = botocore_auth.SigV4Auth(_credentials(key), service, region)
    return _sign(signer, method=method, target=target, headers=headers, body=body, at_s=at_s)


def sign_query(
    *,
    key: AccessKey = KEY,
    method: str = "GET",
    target: str = "/123456789012/q?Action=ReceiveMessage&Version=2012-11-05",
    expires_s: int = 60,
    at_s: float = NOW_S,
) -> Request:
    """A presigned request."""
    signer = botocore_auth.SigV4QueryAuth(_credentials(key), "sqs", "eu-west-1", expires_s)
    return _sign(signer, method=method, target=target, headers={}, body=b"", at_s=at_s)


def sign_by_hand(
    *,
    method: bytes = b"POST",
    headers: dict[bytes, bytes] | None = None,
    more: dict[bytes, bytes] | None = None,
    date: bytes = b"20260101T120000Z",
    day: bytes = b"",
    body: bytes = b"{}",
) -> Request:
    """A request with all its headers signed, right or forbidden; botocore would repair it first."""
    signed = ({b"host": b"h", b"x-amz-date": date} if headers is None else headers) | (more or {})
    names = sorted(signed)
    scope = (day or date[:8]) + b"/eu-west-1/sqs/aws4_request"
    payload = sha256(body).hexdigest().encode()
    values = [signed[name] for name in names]
    canonical = request_template(names) % (method, b"/\n", *values, payload)
    text = string_to_sign(date, scope, canonical)
    signature = digest(signing_key(KEY.secret_access_key, scope), text, "sha256").hex().encode()
    authorization = (
        b"AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/"
        + scope
        + b", SignedHeaders="
        + b";".join(names)
        + b", Signature="
        + signature
    )
    return Request(method=method, headers=signed | {b"authorization": authorization}, body=body)


def _credentials(key: AccessKey) -> Credentials:
    return Credentials(key.access_key_id, key.secret_access_key, key.session_token)


def _sign(
    signer: botocore_auth.SigV4Auth,
    *,
    method: str,
    target: str,
    headers: dict[str, str],
    body: bytes,
    at_s: float,
) -> Request:
    request = AWSRequest(method, f"http://localhost:9324{target}", headers=headers, data=body)
    # As `add_auth`, except that it would read the time from the clock.
    request.context["timestamp"] = f"{datetime.fromtimestamp(at_s, UTC):%Y%m%dT%H%M%SZ}"
    signer._modify_request_before_signing(request)
    text = signer.string_to_sign(request, signer.canonical_request(request))
    signer._inject_signature_to_request(request, signer.signature(text, request))
    url = urlsplit(request.url)
    signed = {name.lower().encode(): value.encode() for name, value in request.headers.items()}
    return Request(
        method=method.encode(),
        target=(url.path + ("?" + url.query if url.query else "")).encode(),
        headers={b"host": b"localhost:9324"} | signed,
        body=body,
    )
