"""The bytes of format version 1: what is written today must be readable for ever."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import keys
from storage.codec import (
    DamagedRecord,
    QueueRow,
    decode_lease,
    decode_message,
    decode_queue,
    encode_row,
)
from visibility.events import Lease, StoredMessage

Row = StoredMessage | Lease | QueueRow
Decode = Callable[[bytes, bytes], Row]

MESSAGE_ID = "01234567-89ab-4def-8123-456789abcdef"
MESSAGE = StoredMessage(MESSAGE_ID, 1_700_000_000_000, 5, b"hello")
DEAD_LETTER = StoredMessage(MESSAGE_ID, 1, 5, b"hello", 0, "arn:aws:sqs:r:0:q", 3, 2)
LEASE = Lease(300, 1_700_000_030_000, 2, 1, 1_700_000_000_000, 1_700_000_000_001)
QUEUE = QueueRow(70_000, 12, 9, 0)

GOLDEN: list[tuple[Row, Decode, str]] = [
    (
        MESSAGE,
        decode_message,
        "01"
        "f098fdcb"
        "98d92430313233343536372d383961622d346465662d383132332d3435363738"
        "39616263646566cf0000018bcfe5680005c40568656c6c6f00c00000",
    ),
    (
        DEAD_LETTER,
        decode_message,
        "01"
        "ed69788b"
        "98d92430313233343536372d383961622d346465662d383132332d3435363738"
        "396162636465660105c40568656c6c6f00b161726e3a6177733a7371733a723a"
        "303a710302",
    ),
    (
        LEASE,
        decode_lease,
        "0185382da596cd012ccf0000018bcfe5dd300201cf0000018bcfe56800cf0000018bcfe56801",
    ),
    (QUEUE, decode_queue, "013b67ddbf94ce000111700c0900"),
]
NAMES = ["message", "dead letter", "lease", "queue"]
KEY = b"key"


@pytest.mark.parametrize(("row", "decode", "golden"), GOLDEN, ids=NAMES)
def test_row_is_written_as_these_bytes_and_read_from_them(
    row: Row, decode: Decode, golden: str
) -> None:
    assert encode_row(row).hex() == golden
    assert decode(KEY, bytes.fromhex(golden)) == row


@pytest.mark.parametrize(("row", "decode", "golden"), GOLDEN, ids=NAMES)
def test_any_flipped_bit_is_a_damaged_record(row: Row, decode: Decode, golden: str) -> None:
    value = encode_row(row)

    for bit in range(len(value) * 8):
        flipped = bytearray(value)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedRecord):
            decode(KEY, bytes(flipped))


@pytest.mark.parametrize(("row", "decode", "golden"), GOLDEN, ids=NAMES)
def test_a_value_that_was_cut_or_goes_on_is_a_damaged_record(
    row: Row, decode: Decode, golden: str
) -> None:
    value = encode_row(row)

    for length in range(len(value)):
        with pytest.raises(DamagedRecord):
            decode(KEY, value[:length])
    with pytest.raises(DamagedRecord):
        decode(KEY, value + b"\0")


@given(st.binary(max_size=60))
def test_any_bytes_decode_or_are_a_damaged_record(rubbish: bytes) -> None:
    for decode in (decode_message, decode_lease, decode_queue):
        with pytest.raises(DamagedRecord, match=KEY.hex()) as caught:
            decode(KEY, rubbish)
        assert caught.value.key == KEY


def test_a_row_of_another_kind_is_a_damaged_record() -> None:
    with pytest.raises(DamagedRecord):
        decode_message(KEY, encode_row(QUEUE))
    with pytest.raises(DamagedRecord):
        decode_lease(KEY, encode_row(MESSAGE))


def test_an_unknown_version_of_a_row_is_named() -> None:
    value = b"\x02" + encode_row(QUEUE)[1:]

    with pytest.raises(DamagedRecord, match="unknown version 2"):
        decode_queue(KEY, value)


# -- keys ---------------------------------------------------------------------------------------------------------------


def test_keys_are_these_bytes() -> None:
    assert keys.queue_key(1).hex() == "000000000000000101"
    assert keys.message_key(2, 3).hex() == "0000000000000002100000000000000003"
    assert keys.lease_key(258, 65_535).hex() == "000000000000010220000000000000ffff"


@given(st.integers(1, 2**63 - 1), st.integers(1, 2**63 - 1))
def test_keys_tell_their_queue_and_sequence(queue_id: int, sequence: int) -> None:
    for key in (keys.message_key(queue_id, sequence), keys.lease_key(queue_id, sequence)):
        assert keys.queue_of(key) == queue_id
        assert keys.sequence_of(key) == sequence
    assert keys.queue_of(keys.queue_key(queue_id)) == queue_id


numbers = st.integers(1, 2**63 - 1)


@given(st.tuples(numbers, numbers), st.tuples(numbers, numbers))
def test_keys_sort_by_queue_then_table_then_sequence(
    one: tuple[int, int], other: tuple[int, int]
) -> None:
    def rows(queue_id: int, sequence: int) -> list[bytes]:
        return [
            keys.queue_key(queue_id),
            keys.message_key(queue_id, sequence),
            keys.lease_key(queue_id, sequence),
        ]

    assert rows(*one) == sorted(rows(*one))
    if one[0] != other[0]:
        assert (max(rows(*one)) < min(rows(*other))) is (one[0] < other[0])
    assert (keys.message_key(*one) < keys.message_key(*other)) is (one < other)


@given(numbers, numbers)
def test_ranges_hold_exactly_their_rows(queue_id: int, sequence: int) -> None:
    begin, end = keys.queue_range(queue_id)
    message, lease = keys.message_key(queue_id, sequence), keys.lease_key(queue_id, sequence)

    assert all(begin <= key < end for key in (keys.queue_key(queue_id), message, lease))
    assert keys.queue_key(queue_id + 1) >= end
    first, behind = keys.table_range(queue_id, keys.MESSAGE)
    assert first <= message < behind
    assert not first <= lease < behind
    assert not first <= keys.queue_key(queue_id) < behind
