"""SequenceNumber: twenty digits that increase."""

from __future__ import annotations

from itertools import pairwise

from visibility.content.receipts import sequence_number

SEQUENCES = [0, 1, 2, 9, 10, 11, 99, 100, 4096, 10**9, 10**18, (1 << 63) - 1]


def test_number_has_twenty_digits() -> None:
    assert sequence_number(1) == "10000000000000000001"
    assert {len(sequence_number(sequence)) for sequence in SEQUENCES} == {20}


def test_numbers_increase_as_numbers_and_as_texts() -> None:
    numbers = [sequence_number(sequence) for sequence in SEQUENCES]

    assert all(int(earlier) < int(later) for earlier, later in pairwise(numbers))
    assert numbers == sorted(numbers)
