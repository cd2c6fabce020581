"""Sealed messages are unreadable, open to the original, and anything else is refused."""

from __future__ import annotations

import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auth.envelope import DataKey, SealBroken, WrappingKey, derived_key

SECRET = bytes(range(32))
NONCE = bytes(range(12))


@given(st.binary(max_size=300))
def test_what_was_sealed_can_be_opened_by_the_same_key_elsewhere(data: bytes) -> None:
    sealed = DataKey(1, SECRET).seal(data)

    assert DataKey(1, SECRET).open(sealed) == data
    assert len(sealed) == len(data) + 24
    assert len(data) < 4 or data not in sealed


def test_the_same_message_never_seals_to_the_same_bytes() -> None:
    key = DataKey(1, SECRET)

    assert len({key.seal(b"x" * 40)[8:] for _ in range(1000)}) == 1000
    assert key.count == 1000


@given(st.data())
def test_any_bit_that_changed_is_refused(data: st.DataObject) -> None:
    sealed = bytearray(DataKey(1, SECRET).seal(b"the body of a message"))
    bit = data.draw(st.integers(0, len(sealed) * 8 - 1))
    sealed[bit // 8] ^= 1 << bit % 8

    with pytest.raises(SealBroken):
        DataKey(1, SECRET).open(bytes(sealed))


@pytest.mark.parametrize("sealed", [b"", b"x" * 23, b"x" * 24, b"x" * 400])
def test_what_was_never_sealed_is_refused(sealed: bytes) -> None:
    with pytest.raises(SealBroken):
        DataKey(1, SECRET).open(sealed)


def test_another_key_opens_nothing() -> None:
    with pytest.raises(SealBroken):
        DataKey(1, bytes(32)).open(DataKey(1, SECRET).seal(b"x"))


@pytest.mark.parametrize("number", [1, 1025])
def test_keys_are_derived_as_rfc_5869_expands_a_secret(number: int) -> None:
    expected = hmac.digest(SECRET, b"holdfast data key %d\x01" % number, "sha256")

    assert derived_key(SECRET, number) == expected


def test_a_wrapped_secret_opens_for_its_purpose_only() -> None:
    key = WrappingKey(SECRET)
    wrapped = key.wrap(b"a secret", "purpose", NONCE)

    assert key.unwrap(wrapped, "purpose") == b"a secret"
    assert b"secret" not in wrapped
    for other, purpose, text in (
        (key, "other", wrapped),
        (WrappingKey(bytes(32)), "purpose", wrapped),
        (key, "purpose", wrapped[:-1]),
        (key, "purpose", b""),
    ):
        with pytest.raises(SealBroken):
            other.unwrap(text, purpose)
