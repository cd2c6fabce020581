"""Names of messages that clients see: receipt handles and, of FIFO queues, sequence numbers.

A receipt handle is the authenticated name of one delivery of one message:

    hexadecimal digits of   0        8          12         28
                            +--------+----------+----------+
                            |sequence| delivery | MAC      |
                            +--------+----------+----------+

The MAC is keyed BLAKE2b under the queue's receipt key, which the catalog keeps: handles survive
restarts, failover and moves, and a new queue of the same name refuses the old ones. BLAKE2b from a
kept state is the cheapest MAC here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from hmac import compare_digest
from struct import Struct
from typing import cast

from auth.native import native
from visibility.contract.errors import ReceiptHandleIsInvalid
from visibility.contract.limits import SEQUENCE_NUMBER_DIGITS
from visibility.contract.model import Receipt

_NAME = Struct(">QI")
_MAC_BYTES = 16
_NAME_CHARACTERS = 2 * _NAME.size
_FORM = re.compile(rf"[0-9a-f]{{{_NAME_CHARACTERS + 2 * _MAC_BYTES}}}")


class ReceiptKey:
    """One queue's key, ready to make and read handles."""

    __slots__ = ("_state", "native")

    def __init__(self, key: bytes) -> None:
        self._state = blake2b(key=key, digest_size=_MAC_BYTES)
        self.native = None if native is None else native.ReceiptKey(key)
        """The same key in the native module; None without it."""

    def handle(self, sequence: int, delivery: int) -> str:
        """The handle of the message's `delivery`-th delivery."""
        if self.native is not None:
            return cast(str, self.native.handle(sequence, delivery))
        name = _NAME.pack(sequence, delivery)
        mac = self._state.copy()
        mac.update(name)
        return (name + mac.digest()).hex()

    def receipt(self, handle: str) -> Receipt:
        """The delivery that `handle` names.

        Raises ReceiptHandleIsInvalid if this queue never issued the handle.
        """
        named = None if self.native is None else self.native.named(handle)
        if named is not None:
            return Receipt(*named)
        try:
            name = bytes.fromhex(handle[:_NAME_CHARACTERS])
        except ValueError:
            name = b""
        if len(name) == _NAME.size:
            sequence, delivery = _NAME.unpack(name)
            expected = self.handle(sequence, delivery)
            if handle.isascii() and compare_digest(expected, handle):
                return Receipt(sequence, delivery)
        if _FORM.fullmatch(handle):  # as of another queue
            raise ReceiptHandleIsInvalid(
                f'The receipt handle "{handle}" is not valid for this queue.'
            )
        raise ReceiptHandleIsInvalid(
            f'The input receipt handle "{handle}" is not a valid receipt handle.'
        )

    def receipts(self, handles: Sequence[str]) -> tuple[Receipt, ...] | None:
        """The deliveries that the handles name, by the native module; None without it, or where
        one of them is to be read by `receipt`."""
        named = None if self.native is None else self.native.all_named(handles)
        return None if named is None else tuple([Receipt(*each) for each in named])


_BASE = 10 ** (SEQUENCE_NUMBER_DIGITS - 1)


def sequence_number(sequence: int) -> str:
    """A FIFO message's sequence as clients see it, 20 decimal digits as in AWS; they increase with
    the sequence, both as numbers and as texts."""
    return str(_BASE + sequence)
