"""Signature Version 4 signing, for our own commands; `sigv4.py` verifies."""

from __future__ import annotations

import hmac
from binascii import hexlify
from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple

from auth.canonical import (
    ALGORITHM,
    TERMINATOR,
    canonical_resource,
    fold_blanks,
    request_template,
    signing_key,
    split_query,
    string_to_sign,
)
from auth.dates import write_basic_date


class SigningKey(NamedTuple):
    """An access key and a region to sign for. A temporary key has a `session_token`."""

    access_key_id: str
    secret_access_key: str
    region: str
    session_token: str | None = None

    def __repr__(self) -> str:
        """Leaves out the secrets."""
        return f"SigningKey({self.access_key_id!r})"


def signed_headers(
    key: SigningKey,
    method: str,
    target: str,
    headers: Mapping[str, str],
    body: bytes,
    now_s: float,
    *,
    service: str = "sqs",
) -> dict[str, str]:
    """The given headers, in lower case, and those of the signature. Signs all; needs `host`."""
    date = write_basic_date(now_s).encode()
    scope = b"/".join((date[:8], key.region.encode(), service.encode(), TERMINATOR))
    given = {name.lower(): value for name, value in headers.items()}
    given["x-amz-date"] = date.decode()
    if key.session_token is not None:
        given["x-amz-security-token"] = key.session_token
    names = sorted(name.encode() for name in given)
    path, _, query = target.encode().partition(b"?")
    canonical = request_template(names) % (
        method.encode(),
        canonical_resource(path, split_query(query)),
        *(fold_blanks(given[name.decode()].encode()) for name in names),
        hexlify(sha256(body).digest()),
    )
    text = string_to_sign(date, scope, canonical)
    signature = hmac.new(signing_key(key.secret_access_key, scope), text, sha256).hexdigest()
    return given | {
        "authorization": f"{ALGORITHM.decode()} Credential={key.access_key_id}/{scope.decode()}, "
        f"SignedHeaders={b';'.join(names).decode()}, Signature={signature}"
    }
