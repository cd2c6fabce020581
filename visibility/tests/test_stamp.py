"""Stamp: message ids are version 4 UUIDs, made from nothing but the random bits."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from visibility.state.stamp import Stamp

bits128 = st.integers(0, 2**128 - 1)


def id_of(bits: int, now_ms: int = 0) -> str:
    return Stamp(now_ms, lambda: bits).message_id()


@given(bits128)
def test_a_message_id_is_a_version_4_uuid_in_lower_case(bits: int) -> None:
    text = id_of(bits)

    parsed = uuid.UUID(text)
    assert str(parsed) == text
    assert (parsed.version, parsed.variant) == (4, uuid.RFC_4122)


@given(bits128)
def test_an_id_depends_on_nothing_but_the_random_bits(bits: int) -> None:
    assert id_of(bits, 1) == id_of(bits, 2)


def test_each_random_bit_but_six_reaches_the_id() -> None:
    assert len({id_of(1 << bit) for bit in range(128)}) == 128 - 6 + 1


def test_each_message_draws_bits_of_its_own() -> None:
    drawn = iter([1 << 100, 1 << 101])
    stamp = Stamp(0, lambda: next(drawn))

    assert stamp.message_id() != stamp.message_id()
