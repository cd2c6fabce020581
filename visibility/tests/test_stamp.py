"""Stamp: message ids are version 4 UUIDs, distinct within a request."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from visibility.state.stamp import Stamp

bits128 = st.integers(0, 2**128 - 1)


@given(bits128, st.integers(0, 9))
def test_a_message_id_is_a_version_4_uuid_in_lower_case(bits: int, position: int) -> None:
    text = Stamp(0, bits).message_id(position)

    parsed = uuid.UUID(text)
    assert str(parsed) == text
    assert (parsed.version, parsed.variant) == (4, uuid.RFC_4122)


@given(bits128)
def test_each_message_of_a_batch_has_an_id_of_its_own(bits: int) -> None:
    stamp = Stamp(0, bits)

    assert len({stamp.message_id(position) for position in range(10)}) == 10


@given(bits128)
def test_an_id_depends_on_nothing_but_the_random_bits(bits: int) -> None:
    assert Stamp(1, bits).message_id(3) == Stamp(2, bits).message_id(3)


def test_each_random_bit_but_six_reaches_the_id() -> None:
    ids = {Stamp(0, 1 << bit).message_id(0) for bit in range(128)}

    assert len(ids) == 128 - 6 + 1
