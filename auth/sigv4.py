"""AWS Signature Version 4: a request's bytes and the time in, its Caller or an AuthError out.

There are two paths. The full one, `_verify_in_full`, applies every rule, words every refusal, and
is the only one that refuses. `verify` first tries a short one for a signer and a URL path that an
earlier request was verified with: it caches their constants, hashes included, and answers only
where the full path would give the same Caller. All other requests take the full path.

AWS's rules, where they leave a choice:
- The payload hash is always that of the body. UNSIGNED-PAYLOAD is for the operations whose model
  says so; SQS has none, so x-amz-content-sha256 must be the body's hash in both forms. Presigned
  requests sign their body too.
- Every x-amz-* header sent must be signed, or its value could be changed on the way. Two may be
  added after signing, for only one value of each is accepted: x-amz-security-token (suite:
  post-sts-header-after), and x-amz-content-sha256, which aws-requests-auth and opensearch-js send
  so to services of AWS.
- Any region is served, if its name could be one.

Source: AWS, "Signature Version 4 for API requests"; the skew was measured on SQS (15 minutes).
"""

from __future__ import annotations

import hmac
from binascii import hexlify
from collections.abc import Callable, Mapping
from hashlib import sha256
from hmac import compare_digest
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING, TypeVar

import msgspec

from auth.auth_errors import ExpiredToken, InvalidClientTokenId, SignatureDoesNotMatch
from auth.caller import Caller
from auth.canonical import (
    ALGORITHM,
    FIXED_LINE_FEEDS,
    canonical_resource,
    fold_blanks,
    request_template,
    signing_key,
    string_to_sign,
)
from auth.claim import SKEW_S, Claim, Scope, read_claim, read_scope, shown
from auth.credentials import AccessKey, CredentialSet
from auth.dates import write_basic_date
from auth.native import native

if TYPE_CHECKING:
    from hashlib import _Hash

_K = TypeVar("_K")
_V = TypeVar("_V")
_StartKey = tuple[bytes, bytes, bytes, tuple[bytes, ...]]
"""Authorization header up to the signature, method, target, values of the signed headers."""

# A signer is a few KB, one per client, region and day, and kept only after one of its signatures
# was valid, so a stranger can neither fill nor empty a cache. A full one is emptied, which costs
# each client one full verification.
SIGNERS_MAX = 2_048
RESOURCES_MAX = 4_096
DATES_MAX = 1_024
STARTS_MAX = 4_096
# The orders in which one client sends its headers: at most one per operation.
NAME_LISTS_MAX = 16
# Longer ones are served but not cached, which bounds the size of the caches.
_KEPT_PREFIX_BYTES_MAX = 1_024
_KEPT_RESOURCE_BYTES_MAX = 256
_KEPT_VALUES_BYTES_MAX = 512

_TOKEN_HEADER = b"x-amz-security-token"
_HASH_HEADER = b"x-amz-content-sha256"
_MAY_BE_UNSIGNED = frozenset((_TOKEN_HEADER, _HASH_HEADER))
_CHANGING = frozenset(
    (
        b"amz-sdk-invocation-id",
        b"content-md5",
        b"traceparent",
        _HASH_HEADER,
        b"x-amzn-trace-id",
    )
)
"""Headers whose values differ from request to request."""
_SIGNATURE_DIGITS = 64
_DAY_S = 86_400
_HMAC_BLOCK_BYTES = 64
_INNER_PAD = bytes(byte ^ 0x36 for byte in range(256))
_OUTER_PAD = bytes(byte ^ 0x5C for byte in range(256))
_LINE_FEED = b"\n"[0]  # as an int: searching for it is several times as fast


class _Signer(msgspec.Struct, frozen=True, gc=False):
    """The constants of all requests that share their Authorization header up to the signature.

    `inner` and `outer` are HMAC's two hashes after the key, `inner` also after the first line of
    the string to sign. Invariant: they are only copied, and the copies updated. `name_lists` holds
    the header names, in order, of requests whose signature was valid: the same names mean that the
    same headers are signed and none is missing.
    """

    caller: Caller
    values_of: Callable[[Mapping[bytes, bytes]], tuple[bytes, ...]]
    template: bytes
    name_lists: set[tuple[bytes, ...]]
    day: bytes
    scope_line: bytes
    inner: _Hash
    outer: _Hash
    expires_at_ms: float
    security_token: bytes | None
    has_content_hash: bool
    repeats: bool
    """True if later requests can share everything signed except the body."""


class _Start(msgspec.Struct, frozen=True, gc=False):
    """The constants of all requests that share everything signed except the body.

    Two hashes to copy and update: `canonical` covers the canonical request up to the payload's
    hash, `inner` covers HMAC's inner key and the string to sign up to the canonical request's hash.
    """

    signed_at_s: int
    canonical: _Hash
    inner: _Hash


class Verifier:
    """Verifies requests to one service against a set of credentials. Its caches are bounded."""

    __slots__ = (
        "_credentials",
        "_dates",
        "_native",
        "_resources",
        "_service",
        "_signers",
        "_starts",
        "used",
    )

    def __init__(
        self,
        credentials: CredentialSet,
        service: str = "sqs",
        *,
        used: dict[str, int] | None = None,
    ) -> None:
        """`service` must be the service named in the credential scope; `used` is that of a verifier
        of another service with the same credentials."""
        self._service = service.encode("ascii")
        self.used: dict[str, int] = {} if used is None else used
        """Day of the latest use, numbered since 1970, by access key id. A signer is of one day, so
        the short path has no part in it."""
        self.replace(credentials)

    @property
    def credentials(self) -> CredentialSet:
        """The credentials that requests are verified against."""
        return self._credentials

    def replace(self, credentials: CredentialSet) -> None:
        """Use these credentials from now on and clear the caches."""
        self._credentials = credentials
        self._signers: dict[bytes, _Signer] = {}
        self._resources: dict[bytes, bytes] = {}
        self._dates: dict[bytes, int] = {}
        self._starts: dict[_StartKey, _Start] = {}
        self._native = native and native.Signers(
            signers_max=SIGNERS_MAX,
            name_lists_max=NAME_LISTS_MAX,
            dates_max=DATES_MAX,
            resources_max=RESOURCES_MAX,
            skew_s=SKEW_S,
        )

    def verify(
        self,
        method: bytes,
        target: bytes,
        headers: Mapping[bytes, bytes],
        body: bytes,
        now_s: float,
    ) -> Caller:
        """The signer of a request, by its Authorization header or its presigned query.

        `target` is the raw path and query, in origin form; other forms are refused. `headers` maps
        lower-case names to raw values, one value a name.
        Raises MissingAuthenticationToken (unsigned), IncompleteSignature (malformed),
        InvalidClientTokenId (the key or its session token is unknown, disabled, expired or
        missing), ExpiredToken (a temporary key that has expired), SignatureDoesNotMatch (signature,
        date or scope).
        """
        if native is not None and type(headers) is native.Headers:  # of a POST
            caller = self._native.verify(target, headers, body, now_s)
            return caller or self._verify_in_full(method, target, headers, body, now_s)
        starts = self._starts  # before the signer, as in `_verify_in_full`
        authorization = headers.get(b"authorization", b"")
        prefix = authorization[:-_SIGNATURE_DIGITS]
        signer = self._signers.get(prefix)
        names = tuple(headers)
        if signer is None or names not in signer.name_lists:
            return self._verify_in_full(method, target, headers, body, now_s)
        values = signer.values_of(headers)
        key = (prefix, method, target, values)
        kept = starts.get(key)
        start = kept or self._begin(signer, method, target, headers)
        if start is None:
            return self._verify_in_full(method, target, headers, body, now_s)
        canonical, inner = start.canonical, start.inner
        if signer.repeats:
            canonical, inner = canonical.copy(), inner.copy()
        payload = hexlify(sha256(body).digest())
        canonical.update(payload)
        inner.update(hexlify(canonical.digest()))
        outer = signer.outer.copy()
        outer.update(inner.digest())
        if (
            compare_digest(hexlify(outer.digest()), authorization[-_SIGNATURE_DIGITS:])
            and -SKEW_S <= now_s - start.signed_at_s <= SKEW_S
            and now_s * 1000 < signer.expires_at_ms
            and (signer.security_token is None or _carries_token(signer.security_token, headers))
            and (not signer.has_content_hash or headers[_HASH_HEADER] == payload)
        ):
            if kept is None and signer.repeats and _bytes_of(values) <= _KEPT_VALUES_BYTES_MAX:
                _put(starts, key, start, STARTS_MAX)
            return signer.caller
        if now_s * 1000 >= signer.expires_at_ms:
            self._signers.pop(prefix, None)
        return self._verify_in_full(method, target, headers, body, now_s)

    def _begin(
        self, signer: _Signer, method: bytes, target: bytes, headers: Mapping[bytes, bytes]
    ) -> _Start | None:
        """The cached start of a signature; None where only the full path can tell what is
        signed."""
        date = headers.get(b"x-amz-date", b"")
        resource = self._resources.get(target)
        signed_at_s = self._dates.get(date)
        if resource is None or signed_at_s is None or date[:8] != signer.day:
            return None
        values = tuple(map(fold_blanks, signer.values_of(headers)))
        if _LINE_FEED in b"".join(values) or _LINE_FEED in method:
            return None
        inner = signer.inner.copy()
        inner.update(date + signer.scope_line)
        canonical = sha256(signer.template % (method, resource, *values, b""))
        return _Start(signed_at_s, canonical, inner)

    def _verify_in_full(
        self,
        method: bytes,
        target: bytes,
        headers: Mapping[bytes, bytes],
        body: bytes,
        now_s: float,
    ) -> Caller:
        # Read before the credentials, which `replace` writes first: if a thread is verifying a
        # large body meanwhile, no signer of an earlier set is added to those of the new one.
        signers, short = self._signers, self._native
        claim = read_claim(target, headers)
        _check_signed_names(claim.signed_names, headers)
        _check_age(claim, now_s)
        scope = read_scope(claim, self._service)
        key = self._find_key(scope, claim.security_token, now_s)
        payload = hexlify(sha256(body).digest())
        if headers.get(_HASH_HEADER, payload) != payload:
            raise SignatureDoesNotMatch
        values = [fold_blanks(headers[name]) for name in claim.signed_names]
        template = request_template(claim.signed_names)
        resource = canonical_resource(claim.path, claim.pairs)  # of known keys only: it takes time
        canonical = template % (method, resource, *values, payload)
        if canonical.count(b"\n") != len(values) + FIXED_LINE_FEEDS:
            # A line feed inside a part would let two requests share one canonical text.
            raise SignatureDoesNotMatch
        derived = signing_key(key.secret_access_key, scope.text)
        text = string_to_sign(claim.date, scope.text, canonical)
        signature = hexlify(hmac.digest(derived, text, "sha256"))
        if not compare_digest(signature, claim.signature):
            raise SignatureDoesNotMatch
        self.used[key.access_key_id] = int(now_s // _DAY_S)
        principal = key.account if key.user is None else key.principal
        caller = Caller(key.account, scope.region, principal, key.access_key_id, key.user)
        prefix = headers.get(b"authorization", b"")[:-_SIGNATURE_DIGITS]
        if _is_worth_keeping(prefix, claim, headers):
            is_kept = b"?" not in target and len(target) <= _KEPT_RESOURCE_BYTES_MAX
            if short is not None and type(headers) is native.Headers:
                if is_kept and _bytes_of(tuple(headers)) <= _KEPT_PREFIX_BYTES_MAX:
                    signed = (list(claim.signed_names), derived, scope.text)
                    at = (claim.date, claim.signed_at_s, target, resource)
                    short.learn(prefix, caller, headers, signed, at, *_limits(key))
                return caller
            signer = signers.get(prefix)
            if signer is None:
                signer = _make_signer(key, derived, scope, claim.signed_names, caller=caller)
            _keep_names(signer, tuple(headers))
            _put(signers, prefix, signer, SIGNERS_MAX)
            _put(self._dates, claim.date, claim.signed_at_s, DATES_MAX)
            if is_kept:
                _put(self._resources, target, resource, RESOURCES_MAX)
        return caller

    def _find_key(self, scope: Scope, security_token: bytes | None, now_s: float) -> AccessKey:
        try:
            key = self._credentials.find(scope.access_key_id.decode("ascii"))
        except UnicodeDecodeError:
            raise InvalidClientTokenId from None
        if key is None or not key.enabled:
            raise InvalidClientTokenId
        expected = None if key.session_token is None else key.session_token.encode()
        if expected is None or security_token is None:
            if expected is not security_token:
                raise InvalidClientTokenId
        elif not compare_digest(expected, security_token.strip(b" \t")):
            raise InvalidClientTokenId
        if key.has_expired(now_s):
            raise InvalidClientTokenId if expected is None else ExpiredToken
        return key


def _put(kept: dict[_K, _V], key: _K, value: _V, count_max: int) -> None:
    if len(kept) >= count_max and key not in kept:
        kept.clear()
    kept[key] = value


def _bytes_of(values: tuple[bytes, ...]) -> int:
    return sum(map(len, values))


def _keep_names(signer: _Signer, names: tuple[bytes, ...]) -> None:
    if _bytes_of(names) > _KEPT_PREFIX_BYTES_MAX:
        return
    if len(signer.name_lists) >= NAME_LISTS_MAX:
        signer.name_lists.clear()
    signer.name_lists.add(names)


def _is_worth_keeping(prefix: bytes, claim: Claim, headers: Mapping[bytes, bytes]) -> bool:
    """True if the short path could serve such a request: only the signature follows `prefix`."""
    return (
        len(claim.signature) == _SIGNATURE_DIGITS
        and headers.get(b"authorization") == prefix + claim.signature
        and prefix.endswith((b" Signature=", b",Signature="))
        and len(prefix) <= _KEPT_PREFIX_BYTES_MAX
        and headers.get(b"x-amz-date") == claim.date
        and (_HASH_HEADER not in headers or _HASH_HEADER in claim.signed_names)
    )


def _check_signed_names(signed_names: tuple[bytes, ...], headers: Mapping[bytes, bytes]) -> None:
    faults: list[str] = []
    if b"host" not in signed_names:
        faults.append("'Host' or ':authority' must be a 'SignedHeader' in the AWS Authorization.")
    faults += [
        f"'{shown(name.title())}' must be a 'SignedHeader' in the AWS Authorization."
        for name in headers
        if name.startswith(b"x-amz-") and name not in signed_names and name not in _MAY_BE_UNSIGNED
    ]
    if faults:
        raise SignatureDoesNotMatch(" ".join(faults))
    if not all(name in headers for name in signed_names):
        raise SignatureDoesNotMatch


def _check_age(claim: Claim, now_s: float) -> None:
    if now_s - claim.signed_at_s > claim.lifetime_s:
        raise SignatureDoesNotMatch(
            f"Signature expired: {claim.date.decode()} is now earlier than "
            f"{write_basic_date(now_s - claim.lifetime_s)} "
            f"({write_basic_date(now_s)} - {_duration(claim.lifetime_s)}.)"
        )
    if claim.signed_at_s - now_s > SKEW_S:
        raise SignatureDoesNotMatch(
            f"Signature not yet current: {claim.date.decode()} is still later than "
            f"{write_basic_date(now_s + SKEW_S)} ({write_basic_date(now_s)} + {_duration(SKEW_S)}.)"
        )


def _duration(duration_s: int) -> str:
    minutes, seconds = divmod(duration_s, 60)
    return f"{duration_s} sec" if seconds else f"{minutes} min"


def _make_signer(
    key: AccessKey, derived: bytes, scope: Scope, signed_names: tuple[bytes, ...], *, caller: Caller
) -> _Signer:
    padded = derived.ljust(_HMAC_BLOCK_BYTES, b"\0")
    expires_at_ms, security_token = _limits(key)
    return _Signer(
        caller=caller,
        values_of=itemgetter(*signed_names),
        template=request_template(signed_names),
        name_lists=set(),
        day=scope.text[:8],
        scope_line=b"\n" + scope.text + b"\n",
        inner=sha256(padded.translate(_INNER_PAD) + ALGORITHM + b"\n"),
        outer=sha256(padded.translate(_OUTER_PAD)),
        expires_at_ms=expires_at_ms,
        security_token=security_token,
        has_content_hash=_HASH_HEADER in signed_names,
        repeats=_CHANGING.isdisjoint(signed_names),
    )


def _limits(key: AccessKey) -> tuple[float, bytes | None]:
    """The end of a key's life in epoch milliseconds, and its session token."""
    token = None if key.session_token is None else key.session_token.encode()
    return inf if key.expires_at_ms is None else key.expires_at_ms, token


def _carries_token(token: bytes, headers: Mapping[bytes, bytes]) -> bool:
    return compare_digest(headers.get(_TOKEN_HEADER, b""), token)
