"""The native module gives what Python gives, or nothing; never anything else.

A longer run: FUZZ_EXAMPLES=1000000 python -m pytest sqs_api/tests/test_native.py
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auth import AuthError, CredentialSet, Verifier
from auth.envelope import DataKey, SealBroken, data_key
from auth.native import native
from auth.tests.signed_requests import JSON_HEADERS, KEY, NOW_S, TEMPORARY_KEY, Request, sign_header
from sqs_api.protocol.request import NotPlain, read_in_python, read_plain_request
from sqs_api.tests.odd_requests import HEADERS, odd_bytes
from visibility.content.receipts import ReceiptKey
from visibility.contract.errors import ReceiptHandleIsInvalid
from visibility.contract.model import Receipt

if native is None:
    pytest.skip("the native module is not built", allow_module_level=True)

_EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "4000"))
_SEED = int(os.environ.get("FUZZ_SEED", "9324"))
_SETTINGS = settings(max_examples=max(_EXAMPLES // 8, 50), deadline=None, database=None)
SECRET = bytes(range(32))
TEXT = st.text() | st.text(st.characters(max_codepoint=0x7F)) | st.text("\ufffe\uffff\ud800x")


# -- heads -----------------------------------------------------------------------------------------


def test_heads_are_read_as_in_python_and_where_python_reads_them() -> None:
    chance = random.Random(_SEED)
    plain = 0
    for _ in range(_EXAMPLES):
        data = odd_bytes(chance)
        read, expected = read_plain_request(data), read_in_python(data)
        if isinstance(expected, NotPlain) or isinstance(read, NotPlain):
            assert read is expected, data
            continue
        plain += 1
        assert type(read[1]) is native.Headers, data
        assert (read[0], dict(read[1]), read[2]) == expected
        assert list(read[1]) == list(expected[1])

    assert plain > _EXAMPLES / 10


def test_headers_are_a_mapping() -> None:
    (_, headers, _) = _read(_request_bytes(sign_header()))

    assert headers[b"host"] == headers.get(b"host") == b"localhost:9324"
    assert headers.get(b"origin") is None
    assert headers.get(b"origin", b"x") == b"x"
    assert b"host" in headers
    assert b"origin" not in headers
    assert "host" not in headers
    assert len(headers) == len(list(headers)) == len(dict(headers.items()))
    assert list(headers.values()) == [headers[name] for name in headers]
    with pytest.raises(KeyError):
        headers[b"origin"]


# -- signatures ------------------------------------------------------------------------------------


def test_signatures_are_judged_as_in_python() -> None:
    chance = random.Random(_SEED)
    credentials = CredentialSet([KEY, TEMPORARY_KEY])
    verifiers = Verifier(credentials), Verifier(credentials)
    bodies = (b"{}", b'{"QueueUrl": "http://localhost/1/q"}', b"")
    signed = [
        sign_header(key=key, target=target, body=body, headers=JSON_HEADERS | more)
        for key in (KEY, TEMPORARY_KEY)
        for target in ("/", "/123456789012/q")
        for body in bodies
        for more in ({}, {"X-Amz-Note": "a b"}, {"X-Amz-Note": "a  b"}, {"Traceparent": "x"})
    ]
    # The hash of the body may be unsigned; it is that of one of two bodies here.
    hash_of = {body: sha256(body).hexdigest().encode() for body in bodies}
    signed += [
        each.with_header(b"x-amz-content-sha256", hash_of[body])
        for each in signed[: 2 * len(bodies)]
        for body in bodies[:2]
    ]
    accepted = 0
    for _ in range(_EXAMPLES):
        now_s = NOW_S + chance.choice((0, 0, 0, 1, 899, 901, -899, -901))
        data = _changed(chance, _request_bytes(chance.choice(signed)))
        expected = read_in_python(data)
        if isinstance(expected, NotPlain):
            continue
        target, _, body = expected
        for _ in range(2):  # the second time by the short path
            outcomes = [
                _verified(verifier, target, headers, body, now_s)
                for verifier, headers in zip(verifiers, (expected[1], _read(data)[1]), strict=True)
            ]
            assert outcomes[0] == outcomes[1], data
            accepted += outcomes[0][0] == "Caller"

    assert accepted > _EXAMPLES / 10


def test_replaced_credentials_are_used_at_once() -> None:
    verifier = Verifier(CredentialSet([KEY]))
    target, headers, body = _read(_request_bytes(sign_header()))
    for _ in range(2):
        assert verifier.verify(b"POST", target, headers, body, NOW_S).user == "ann"

    verifier.replace(CredentialSet([]))

    with pytest.raises(AuthError):
        verifier.verify(b"POST", target, headers, body, NOW_S)


def test_a_key_that_expires_is_refused_by_the_short_path_too() -> None:
    key = msgspec.structs.replace(TEMPORARY_KEY, expires_at_ms=int(NOW_S * 1000) + 500)
    verifier = Verifier(CredentialSet([key]))
    target, headers, body = _read(_request_bytes(sign_header(key=key)))
    for _ in range(2):
        verifier.verify(b"POST", target, headers, body, NOW_S)

    with pytest.raises(AuthError, match="expired"):
        verifier.verify(b"POST", target, headers, body, NOW_S + 1)


def _verified(
    verifier: Verifier, target: bytes, headers: Mapping[bytes, bytes], body: bytes, now_s: float
) -> tuple[str, str]:
    try:
        return "Caller", str(verifier.verify(b"POST", target, headers, body, now_s))
    except AuthError as error:
        return type(error).__name__, str(error)


def _request_bytes(request: Request) -> bytes:
    headers = request.headers | {b"content-length": b"%d" % len(request.body)}
    lines = [b"POST %b HTTP/1.1" % request.target, *(b"%b: %b" % line for line in headers.items())]
    return b"\r\n".join(lines) + b"\r\n\r\n" + request.body


def _changed(chance: random.Random, data: bytes) -> bytes:
    """The request with one change, or none."""
    place = chance.randrange(len(data))
    match chance.randrange(8):
        case 0:
            return (
                data[:place] + bytes([data[place] ^ (1 << chance.randrange(8))]) + data[place + 1 :]
            )
        case 1:
            return data[:place] + chance.choice((b" ", b"x", b"\t", b"0")) + data[place:]
        case 2:
            return data.replace(b"\r\n\r\n", b"\r\n" + chance.choice(HEADERS) + b"\r\n\r\n", 1)
        case 3:
            head, _, body = data.partition(b"\r\n\r\n")
            first, *lines = head.split(b"\r\n")
            chance.shuffle(lines)
            return b"\r\n".join((first, *lines)) + b"\r\n\r\n" + body
        case 4:
            return data.replace(b"\r\n\r\n", b"\r\nX-Amz-Content-Sha256: x\r\n\r\n", 1)
        case _:
            return data


def _read(data: bytes) -> Any:
    read = native_read(data)
    assert isinstance(read, tuple), data
    return read


native_read = read_plain_request


# -- seals -----------------------------------------------------------------------------------------


@_SETTINGS
@given(st.binary(max_size=2_000))
def test_each_path_opens_what_the_other_sealed(data: bytes) -> None:
    key, python = data_key(3, SECRET), DataKey(3, SECRET)

    assert type(key) is not DataKey
    assert key.number == 3
    assert key.seal(data) == python.seal(data)
    assert python.open(key.seal(data)) == data
    assert key.open(python.seal(data)) == data
    assert key.count == python.count == 2


def test_no_count_is_used_twice() -> None:
    key = data_key(1, SECRET)
    key.count = (1 << 40) + 5
    sealed = [key.seal(b"x")[:8] for _ in range(100)]

    assert sealed == [((1 << 40) + 6 + each).to_bytes(8, "big") for each in range(100)]


@_SETTINGS
@given(st.binary(max_size=60), st.integers(0, 10_000), st.integers(0, 7))
def test_changed_bytes_are_not_opened(data: bytes, place: int, bit: int) -> None:
    key = data_key(1, SECRET)
    sealed = bytearray(DataKey(1, SECRET).seal(data))
    sealed[place % len(sealed)] ^= 1 << bit

    with pytest.raises(SealBroken):
        key.open(bytes(sealed))
    with pytest.raises(SealBroken):
        key.open(bytes(sealed)[: place % 24])


# -- receipt handles -------------------------------------------------------------------------------


@_SETTINGS
@given(st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 32) - 1), st.data())
def test_handles_are_made_and_read_as_in_python(
    sequence: int, delivery: int, data: st.DataObject
) -> None:
    key = ReceiptKey(SECRET)
    handle = key.handle(sequence, delivery)

    assert handle == _python(key).handle(sequence, delivery)
    assert key.receipt(handle) == _python(key).receipt(handle) == Receipt(sequence, delivery)
    place = data.draw(st.integers(0, len(handle) - 1))
    for other in (
        handle[:place] + data.draw(st.text(max_size=2)) + handle[place + 1 :],
        handle.upper(),
        handle[:place],
        data.draw(TEXT),
    ):
        assert list(_receipts(key, other)) == list(_receipts(_python(key), other))


def _python(key: ReceiptKey) -> ReceiptKey:
    """The same key without the native module."""
    plain = ReceiptKey(SECRET)
    plain.native = None
    return plain


def _receipts(key: ReceiptKey, handle: str) -> Iterator[object]:
    try:
        yield key.receipt(handle)
    except ReceiptHandleIsInvalid as error:
        yield str(error)
