"""Receipt handles: only the queue that gave one out can read it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from visibility.content.receipts import ReceiptKey
from visibility.contract.errors import ReceiptHandleIsInvalid
from visibility.contract.model import Receipt

KEY = ReceiptKey(bytes(range(32)))

sequences = st.integers(1, 2**64 - 1)
deliveries = st.integers(1, 2**32 - 1)


@given(sequences, deliveries)
def test_a_handle_names_its_delivery(sequence: int, delivery: int) -> None:
    handle = KEY.handle(sequence, delivery)

    assert KEY.receipt(handle) == Receipt(sequence, delivery)
    assert handle.isascii()
    assert len(handle) <= 1_024


def test_each_delivery_has_a_handle_of_its_own() -> None:
    handles = {KEY.handle(sequence, delivery) for sequence in range(50) for delivery in range(50)}

    assert len(handles) == 2_500


def test_a_handle_is_the_same_after_a_restart() -> None:
    assert ReceiptKey(bytes(range(32))).handle(7, 2) == KEY.handle(7, 2)


@given(sequences, deliveries)
def test_a_handle_of_another_queue_is_refused(sequence: int, delivery: int) -> None:
    foreign = ReceiptKey(bytes(32)).handle(sequence, delivery)

    with pytest.raises(ReceiptHandleIsInvalid):
        KEY.receipt(foreign)


def test_a_handle_with_any_other_digit_is_refused() -> None:
    handle = KEY.handle(300, 2)

    for position, digit in enumerate(handle):
        for other in "0123456789abcdef":
            if other != digit:
                with pytest.raises(ReceiptHandleIsInvalid):
                    KEY.receipt(handle[:position] + other + handle[position + 1 :])


@pytest.mark.parametrize("change", ["", "cut", "longer", "spaced", "doubled"])
def test_a_handle_of_another_length_is_refused(change: str) -> None:
    handle = KEY.handle(300, 2)
    changed = {
        "": "",
        "cut": handle[:-2],
        "longer": handle + "00",
        "spaced": handle[:-2] + "  ",
        "doubled": handle * 2,
    }[change]

    with pytest.raises(ReceiptHandleIsInvalid):
        KEY.receipt(changed)


@given(st.text(max_size=80) | st.text(alphabet="０1é -_=", min_size=56, max_size=56))
def test_any_text_is_refused_and_nothing_else_happens(text: str) -> None:
    with pytest.raises(ReceiptHandleIsInvalid):
        KEY.receipt(text)
