"""A request's unverified claim about its signer, from the Authorization header or the query.

The wordings are AWS's. Source: answers recorded from AWS, and Signature Version 4's documentation
of both forms.
"""

from __future__ import annotations

import re
from binascii import b2a_base64
from collections.abc import Mapping
from hashlib import sha256

import msgspec

from auth.auth_errors import IncompleteSignature, MissingAuthenticationToken, SignatureDoesNotMatch
from auth.canonical import ALGORITHM, TERMINATOR, split_query
from auth.dates import read_basic_date, read_http_date, write_basic_date

SKEW_S = 15 * 60
# Source: AWS, X-Amz-Expires: "the maximum value you can set is 604,800 seconds (7 days)".
PRESIGNED_LIFETIME_MAX_S = 604_800

# Of a query string: a full batch has about 700, and who reads more pays milliseconds to strangers.
_PARAMETERS_MAX = 1000
# Longest piece of a client's bytes that a message repeats.
_SHOWN_BYTES_MAX = 256
_SHOWN = bytes(byte if 0x20 <= byte < 0x7F else ord("?") for byte in range(256))
_REGION = re.compile(rb"[a-z0-9-]{1,32}")
_AUTHORIZATION_PARAMETERS = ("Credential", "Signature", "SignedHeaders")
_QUERY_PARAMETERS = (
    "X-Amz-Algorithm",
    "X-Amz-Credential",
    "X-Amz-Signature",
    "X-Amz-SignedHeaders",
    "X-Amz-Date",
)


class Claim(msgspec.Struct, frozen=True, gc=False):
    """The parts of a signed request that are about its signature, unverified.

    `date` is in ISO 8601 basic form and `signed_at_s` is the same in epoch seconds. `lifetime_s` is
    how long the signature stays valid after that. `path` is raw; `pairs` are the signed
    part of the query, decoded.
    """

    credential: bytes
    signed_names: tuple[bytes, ...]
    signature: bytes
    date: bytes
    signed_at_s: int
    lifetime_s: int
    security_token: bytes | None
    path: bytes
    pairs: list[tuple[bytes, bytes]]


class Scope(msgspec.Struct, frozen=True, gc=False):
    """A credential in its parts; `text` is day/region/service/aws4_request."""

    access_key_id: bytes
    region: str
    text: bytes


def read_claim(target: bytes, headers: Mapping[bytes, bytes]) -> Claim:
    """Read either form.

    Raises MissingAuthenticationToken if there is none, IncompleteSignature if it is malformed.
    """
    path, _, query = target.partition(b"?")
    if not path.startswith(b"/"):
        raise SignatureDoesNotMatch
    if query.count(b"&") >= _PARAMETERS_MAX:
        raise IncompleteSignature(f"The query has more than {_PARAMETERS_MAX} parameters.")
    pairs = split_query(query)
    is_presigned = any(name in (b"X-Amz-Algorithm", b"X-Amz-Signature") for name, _ in pairs)
    authorization = headers.get(b"authorization")
    if authorization and is_presigned:
        raise SignatureDoesNotMatch(
            "Found both 'X-Amz-Algorithm' as a query-string param and 'Authorization' as HTTP "
            "header."
        )
    if authorization:
        return _read_authorization(authorization, headers, path, pairs)
    if is_presigned:
        return _read_presigned(path, pairs)
    raise MissingAuthenticationToken


def read_scope(claim: Claim, service: bytes) -> Scope:
    """Check the credential scope.

    Raise IncompleteSignature unless it has five parts, SignatureDoesNotMatch if it names another
    day or service, or a string that cannot be a region.
    """
    parts = claim.credential.split(b"/")
    if len(parts) != 5:
        raise IncompleteSignature(
            "Credential must have exactly 5 slash-delimited elements, e.g. "
            f"keyid/date/region/service/term, got '{shown(claim.credential)}'"
        )
    access_key_id, day, region, claimed_service, terminator = parts
    faults: list[str] = []
    if _REGION.fullmatch(region) is None:
        faults.append(f"Credential should be scoped to a valid region, not '{shown(region)}'.")
    if claimed_service != service:
        faults.append(f"Credential should be scoped to correct service: '{shown(service)}'.")
    if terminator != TERMINATOR:
        faults.append(
            "Credential should be scoped with a valid terminator: 'aws4_request', "
            f"not '{shown(terminator)}'."
        )
    if day != claim.date[:8]:
        faults.append(
            "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from "
            "HTTP: "
            f"'{shown(day)}' != '{shown(claim.date[:8])}', from '{shown(claim.date)}'."
        )
    if faults:
        raise SignatureDoesNotMatch(" ".join(faults))
    return Scope(access_key_id, region.decode("ascii"), b"/".join(parts[1:]))


def shown(value: bytes) -> str:
    """A client's bytes as a message may repeat them: short and printable."""
    return value[:_SHOWN_BYTES_MAX].translate(_SHOWN).decode("ascii")


def _read_authorization(
    authorization: bytes,
    headers: Mapping[bytes, bytes],
    path: bytes,
    pairs: list[tuple[bytes, bytes]],
) -> Claim:
    algorithm, _, rest = authorization.strip().partition(b" ")
    if algorithm != ALGORITHM and algorithm.startswith(b"AWS4-"):
        raise IncompleteSignature(f"Unsupported AWS 'algorithm': '{shown(algorithm)}'")
    fields: dict[bytes, bytes] = {}
    for part in rest.replace(b",", b" ").split():
        name, equals, value = part.partition(b"=")
        if not equals:
            raise IncompleteSignature(
                "Invalid key=value pair (missing equal-sign) in Authorization header "
                f"(hashed with SHA-256 and encoded with Base64): '{_hashed(part)}'."
            )
        fields[name] = value
    date = headers.get(b"x-amz-date", headers.get(b"date"))
    faults = [
        f"Authorization header requires '{name}' parameter."
        for name in _AUTHORIZATION_PARAMETERS
        if not fields.get(name.encode()) or algorithm != ALGORITHM
    ]
    if date is None:
        faults.append(
            "Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header."
        )
    if faults or date is None:
        raise IncompleteSignature(
            f"{' '.join(faults)} (Hashed with SHA-256 and encoded with Base64) "
            f"Authorization={_hashed(authorization)}"
        )
    date, signed_at_s = _read_date(date, is_http_date_allowed=b"x-amz-date" not in headers)
    return Claim(
        credential=fields[b"Credential"],
        signed_names=tuple(fields[b"SignedHeaders"].split(b";")),
        signature=fields[b"Signature"],
        date=date,
        signed_at_s=signed_at_s,
        lifetime_s=SKEW_S,
        security_token=headers.get(b"x-amz-security-token"),
        path=path,
        pairs=pairs,
    )


def _read_presigned(path: bytes, pairs: list[tuple[bytes, bytes]]) -> Claim:
    fields = dict(pairs)
    faults = [
        f"AWS query-string parameters must include '{name}'."
        for name in _QUERY_PARAMETERS
        if not fields.get(name.encode())
    ]
    if faults:
        raise IncompleteSignature(f"{' '.join(faults)} Re-examine the query-string parameters.")
    if fields[b"X-Amz-Algorithm"] != ALGORITHM:
        raise IncompleteSignature(
            f"Unsupported AWS 'algorithm': '{shown(fields[b'X-Amz-Algorithm'])}'"
        )
    date, signed_at_s = _read_date(fields[b"X-Amz-Date"], is_http_date_allowed=False)
    return Claim(
        credential=fields[b"X-Amz-Credential"],
        signed_names=tuple(fields[b"X-Amz-SignedHeaders"].split(b";")),
        signature=fields[b"X-Amz-Signature"],
        date=date,
        signed_at_s=signed_at_s,
        lifetime_s=_read_lifetime(fields.get(b"X-Amz-Expires")),
        security_token=fields.get(b"X-Amz-Security-Token"),
        path=path,
        pairs=[pair for pair in pairs if pair[0] != b"X-Amz-Signature"],
    )


def _read_lifetime(expires: bytes | None) -> int:
    """Seconds. AWS does not require X-Amz-Expires: without it, the skew bounds a signature."""
    if expires is None:
        return SKEW_S
    if not (expires.isdigit() and len(expires) <= 6):
        raise IncompleteSignature("X-Amz-Expires should be a number")
    lifetime_s = int(expires)
    if lifetime_s > PRESIGNED_LIFETIME_MAX_S:
        raise IncompleteSignature(
            "X-Amz-Expires must be less than a week (in seconds); "
            f"that is, the given X-Amz-Expires must be less than {PRESIGNED_LIFETIME_MAX_S} seconds"
        )
    if lifetime_s == 0:
        raise IncompleteSignature("X-Amz-Expires must be greater than 0")
    return lifetime_s


def _read_date(date: bytes, *, is_http_date_allowed: bool) -> tuple[bytes, int]:
    date = date.strip(b" \t")
    signed_at_s = read_basic_date(date)
    if signed_at_s is not None:
        return date, signed_at_s
    if is_http_date_allowed:
        signed_at_s = read_http_date(date)
        if signed_at_s is not None:
            return write_basic_date(signed_at_s).encode("ascii"), signed_at_s
    raise IncompleteSignature(
        f"Date must be in ISO-8601 'basic format'. Got '{shown(date)}'. "
        "See http://en.wikipedia.org/wiki/ISO_8601"
    )


def _hashed(value: bytes) -> str:
    return b2a_base64(sha256(value).digest(), newline=False).decode("ascii")
