"""Laws: botocore's signatures verify, one changed bit does not, no bytes raise another error."""

from __future__ import annotations

import hashlib
from string import ascii_letters, digits
from urllib.parse import quote, unquote_to_bytes

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auth import AccessKey, AuthError, Verifier, open_caller, sigv4
from auth.canonical import canonical_resource, split_query
from auth.tests.refusing import PRESIGNED, SIGNED, make_verifier
from auth.tests.signed_requests import KEY, NOW_S, TEMPORARY_KEY, Request, sign_header, sign_query

TEXT = st.text(min_size=1, max_size=12)
HEADER_TEXT = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=12)
QUERY = st.lists(st.tuples(TEXT, TEXT), max_size=3).map(
    lambda pairs: "&".join(
        f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in pairs
    )
)
PATH = st.lists(st.text(ascii_letters + digits + "-_.~", max_size=6), max_size=3).map(
    lambda segments: "/" + "/".join(segments)
)
TARGET = st.tuples(PATH, QUERY).map(lambda parts: "?".join(part for part in parts if part))
NAMES = (
    b"authorization",
    b"host",
    b"date",
    b"x-amz-date",
    b"x-amz-security-token",
    b"x-amz-content-sha256",
    b"x-amz-target",
)
NAMES_SIGNED = (b"content-type", b"host", b"x-amz-date", b"x-amz-target")


@given(
    method=st.sampled_from(["GET", "POST"]),
    target=TARGET,
    value=HEADER_TEXT,
    body=st.binary(max_size=50),
    key=st.sampled_from([KEY, TEMPORARY_KEY]),
)
def test_verifies_what_botocore_signs_in_headers(
    method: str, target: str, value: str, body: bytes, key: AccessKey
) -> None:
    request = sign_header(
        key=key, method=method, target=target, headers={"X-Amz-Note": value}, body=body
    )
    verifier = make_verifier()

    callers = [request.verify(verifier) for _ in range(2)]

    assert callers[0] == callers[1]
    assert callers[0].access_key_id == key.access_key_id


@given(target=TARGET, expires_s=st.integers(1, 604_800), key=st.sampled_from([KEY, TEMPORARY_KEY]))
def test_verifies_what_botocore_presigns(target: str, expires_s: int, key: AccessKey) -> None:
    request = sign_query(target=target, expires_s=expires_s, key=key)

    assert request.verify(make_verifier(), NOW_S + expires_s).principal == key.principal


@given(data=st.data())
def test_refuses_a_request_with_one_bit_changed(data: st.DataObject) -> None:
    request = data.draw(st.sampled_from([SIGNED, PRESIGNED]))
    part = data.draw(st.sampled_from([b"method", b"target", b"body", b"signature", *NAMES_SIGNED]))
    verifier = make_verifier()
    for _ in range(2):
        request.verify(verifier)  # the second time from its caches

    changed = _change_a_bit(request, part, data)

    if changed is not None:
        for each in (make_verifier(), verifier):
            with pytest.raises(AuthError):
                changed.verify(each)


@given(
    method=st.binary(max_size=8),
    target=st.one_of(
        st.binary(max_size=40), st.binary(max_size=40).map(b"/?X-Amz-Signature=".__add__)
    ),
    headers=st.dictionaries(
        st.one_of(st.sampled_from(NAMES), st.binary(max_size=12)), st.binary(max_size=60)
    ),
    body=st.binary(max_size=20),
)
def test_random_bytes_raise_only_auth_errors(
    method: bytes, target: bytes, headers: dict[bytes, bytes], body: bytes
) -> None:
    with pytest.raises(AuthError):
        make_verifier().verify(method, target, headers, body, NOW_S)
    assert open_caller(method, target, headers, "0" * 12, "home").account


@given(data=st.data(), rubbish=st.binary(max_size=30))
def test_signed_requests_with_rubbish_in_them_raise_only_auth_errors(
    data: st.DataObject, rubbish: bytes
) -> None:
    verifier = make_verifier()
    request = data.draw(st.sampled_from([SIGNED, PRESIGNED]))
    for _ in range(2):
        request.verify(verifier)
    name = data.draw(st.sampled_from([*NAMES, b"target"]))
    old = request.target if name == b"target" else request.headers.get(name, b"")
    start = data.draw(st.integers(0, len(old)))
    end = data.draw(st.integers(start, len(old)))
    new = old[:start] + rubbish + old[end:]
    if name == b"target":
        request = msgspec.structs.replace(request, target=new)
    else:
        request = request.with_header(name, new)

    answers = [_answer(request, each) for each in (make_verifier(), verifier)]

    assert answers[0] == answers[1]


@pytest.mark.parametrize("size", [10_000, 1_000_000])
def test_huge_headers_are_refused(size: int) -> None:
    for name in (b"authorization", b"x-amz-date", b"x-amz-target", b"x-amz-security-token"):
        with pytest.raises(AuthError):
            SIGNED.with_header(name, b"=," * size).verify(make_verifier())


def test_strangers_fill_no_cache() -> None:
    verifier = make_verifier()

    for number in range(50):
        for request in (SIGNED, SIGNED.with_header(b"authorization", b"x" * number)):
            stranger = request.with_header(b"x-amz-target", b"%d" % number)
            with pytest.raises(AuthError):
                stranger.verify(verifier)

    assert (verifier._signers, verifier._dates, verifier._resources) == ({}, {}, {})


def test_strangers_start_nothing_with_a_known_signers_header() -> None:
    verifier = make_verifier()
    for _ in range(2):
        SIGNED.verify(verifier)
    kept = dict(verifier._starts)

    for number in range(50):
        stranger = SIGNED.with_header(b"x-amz-target", b"%d" % number)
        with pytest.raises(AuthError):
            stranger.verify(verifier)

    assert len(kept) == 1
    assert verifier._starts == kept


def test_the_start_of_a_signature_is_kept_for_other_bodies_only() -> None:
    verifier = make_verifier()
    for body in (b"1", b"2", b"3"):
        sign_header(body=body).verify(verifier)

    assert len(verifier._starts) == 1
    for name in (b"host", b"x-amz-target", b"x-amz-date"):
        changed = SIGNED.headers[name][:-1] + b"z"
        with pytest.raises(AuthError):
            SIGNED.with_header(name, changed).verify(verifier)
    with pytest.raises(AuthError):
        msgspec.structs.replace(SIGNED, method=b"PUT").verify(verifier)
    with pytest.raises(AuthError):
        msgspec.structs.replace(SIGNED, body=b"another").verify(verifier)


def test_starts_with_headers_that_always_change_are_not_kept() -> None:
    verifier = make_verifier()

    for number in range(5):
        headers = {"X-Amz-Content-Sha256": hashlib.sha256(b"%d" % number).hexdigest()}
        sign_header(headers=headers, body=b"%d" % number).verify(verifier)
        sign_header(headers={"amz-sdk-invocation-id": f"{number}"}).verify(verifier)
        sign_header(headers={"X-Amz-Note": "x" * 600}).verify(verifier)

    assert len(verifier._signers) == 3
    assert not verifier._starts


def test_header_orders_kept_of_one_signer_are_bounded() -> None:
    verifier = make_verifier()

    for number in range(sigv4.NAME_LISTS_MAX + 5):
        SIGNED.with_header(b"n%d" % number, b"").verify(verifier)
    SIGNED.with_header(b"n" * 100_000, b"").verify(verifier)

    (signer,) = verifier._signers.values()
    assert len(signer.name_lists) == 5


def test_queries_and_long_paths_are_not_kept() -> None:
    verifier = make_verifier()

    for target in ("/123456789012/q", "/?a=b", "/" + "a" * 1_000):
        sign_header(target=target).verify(verifier)

    assert set(verifier._resources) == {b"/123456789012/q"}


def test_a_full_cache_is_emptied_before_the_next_entry() -> None:
    kept: dict[bytes, int] = {}

    for number in range(10):
        sigv4._put(kept, b"%d" % number, number, 4)
        assert len(kept) <= 4

    assert kept == {b"8": 8, b"9": 9}


@pytest.mark.parametrize("parameter", ["SignedHeaders", "Credential"])
def test_an_overlong_prefix_is_served_and_not_kept(parameter: str) -> None:
    verifier = make_verifier()
    filler = b"Filler=" + b"x" * 2_000 + b", " + parameter.encode() + b"="
    request = SIGNED.with_authorization(parameter.encode() + b"=", filler)

    assert request.verify(verifier).account == KEY.account
    assert len(verifier._signers) == 0


def _answer(request: Request, verifier: Verifier) -> object:
    try:
        return request.verify(verifier)
    except AuthError as error:
        return type(error), error.message


def _flip(value: bytes, data: st.DataObject) -> bytes:
    position = data.draw(st.integers(0, len(value) * 8 - 1))
    changed = bytearray(value)
    changed[position // 8] ^= 1 << position % 8
    return bytes(changed)


def _change_a_bit(request: Request, part: bytes, data: st.DataObject) -> Request | None:
    """None where the request lacks the part, or the changed bit keeps its meaning ("%2f" is
    "%2F")."""
    if part == b"method":
        return msgspec.structs.replace(request, method=_flip(request.method, data))
    if part == b"target":
        target = _flip(request.target, data)
        same = target[:1] == b"/" and _resource(target) == _resource(request.target)
        return None if same else msgspec.structs.replace(request, target=target)
    if part == b"body":
        return msgspec.structs.replace(request, body=_flip(request.body or b"\0", data))
    if part == b"signature":
        if b"authorization" not in request.headers:
            before, after = request.target[:-64], request.target[-64:]
            return msgspec.structs.replace(request, target=before + _flip(after, data))
        before, after = (
            request.headers[b"authorization"][:-64],
            request.headers[b"authorization"][-64:],
        )
        return request.with_header(b"authorization", before + _flip(after, data))
    if part not in request.headers:
        return None
    return request.with_header(part, _flip(request.headers[part], data))


@given(value=st.text("%4a\\x25u\n\xff", max_size=12).map(lambda text: text.encode("latin-1")))
def test_escapes_are_decoded_as_python_does(value: bytes) -> None:
    ((name, decoded),) = split_query(b"a=" + value)

    assert (name, decoded) == (b"a", unquote_to_bytes(value))


def _resource(target: bytes) -> bytes:
    path, _, query = target.partition(b"?")
    return canonical_resource(path, split_query(query))
