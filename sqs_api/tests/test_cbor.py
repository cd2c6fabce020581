"""CBOR as RFC 8949 has it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqs_api.cloudwatch.cbor import CborUnreadable, Instant, decode_cbor, encode_cbor

# Source: RFC 8949, appendix A.
EXAMPLES = {
    "00": 0,
    "17": 23,
    "1818": 24,
    "1903e8": 1000,
    "1b000000e8d4a51000": 1000000000000,
    "20": -1,
    "3903e7": -1000,
    "f93c00": 1.0,
    "f93e00": 1.5,
    "fa47c35000": 100000.0,
    "fb3ff199999999999a": 1.1,
    "f4": False,
    "f5": True,
    "f6": None,
    "c11a514b67b0": 1363896240,
    "c1fb41d452d9ec200000": 1363896240.5,
    "40": b"",
    "4401020304": b"\x01\x02\x03\x04",
    "6449455446": "IETF",
    "62c3bc": "\u00fc",
    "80": [],
    "83010203": [1, 2, 3],
    "8301820203820405": [1, [2, 3], [4, 5]],
    "a0": {},
    "a26161016162820203": {"a": 1, "b": [2, 3]},
    "9f018202039f0405ffff": [1, [2, 3], [4, 5]],
    "bf61610161629f0203ffff": {"a": 1, "b": [2, 3]},
    "7f657374726561646d696e67ff": "streaming",
}


@pytest.mark.parametrize(("text", "value"), EXAMPLES.items())
def test_examples_of_the_rfc_are_read(text: str, value: object) -> None:
    assert decode_cbor(bytes.fromhex(text)) == value


@pytest.mark.parametrize(
    "text",
    ["", "18", "61", "83010", "a1", "a10101", "ff", "9f01", "1c", "f8ff", "0000", "9b" + 16 * "f"],
)
def test_what_is_no_cbor_is_refused(text: str) -> None:
    with pytest.raises(CborUnreadable):
        decode_cbor(bytes.fromhex(text.ljust(len(text) + len(text) % 2, "0")))


def test_more_items_than_a_request_can_have_are_refused() -> None:
    assert len(decode_cbor(b"\x9f" + bytes(40_000) + b"\xff")) == 40_000  # type: ignore[arg-type]
    with pytest.raises(CborUnreadable, match="too many"):
        decode_cbor(b"\x9f" + bytes(60_000) + b"\xff")


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(CborUnreadable, match="deeply"):
        decode_cbor(b"\x81" * 10_000 + b"\x00")


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        decode_cbor(data)
    except CborUnreadable:
        return


_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@given(_values)
def test_what_is_written_is_read(value: object) -> None:
    assert decode_cbor(encode_cbor(value)) == value


def test_an_instant_has_the_tag_of_a_timestamp() -> None:
    assert encode_cbor(Instant(1363896240.5)).hex() == "c1fb41d452d9ec200000"
    assert decode_cbor(encode_cbor([math.inf, Instant(1)])) == [math.inf, 1.0]
