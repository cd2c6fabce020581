"""SequenceNumber: how a FIFO message's sequence looks to clients, 20 decimal digits as AWS's."""

from __future__ import annotations

from visibility.contract.limits import SEQUENCE_NUMBER_DIGITS

_BASE = 10 ** (SEQUENCE_NUMBER_DIGITS - 1)


def sequence_number(sequence: int) -> str:
    """The digits; they increase with the sequence, as numbers and as texts."""
    return str(_BASE + sequence)
