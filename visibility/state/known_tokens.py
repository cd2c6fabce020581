"""KnownTokens: says of most new transactions, without a read, that their token is not remembered.

By span of time, a bit is set for each token that was recorded there. Another token may have the
same bit: then the rows are read. Volatile: of a span from which the rows have tokens already when
it is first asked about, nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable

_BITS = 1 << 23
"""Bits of a span: a MiB."""
_SPANS_MAX = 5
"""Three are asked about, and others after the clock was set back."""


class KnownTokens:
    """Tokens are random, of 16 bytes."""

    __slots__ = ("_spans",)

    def __init__(self) -> None:
        self._spans: dict[int, bytearray | None] = {}
        """By the span's begin: empty before its first token, None if nothing is known of it."""

    def may_have(self, begin_ms: int, token: bytes, is_empty: Callable[[int], bool]) -> bool:
        """False if the span has no such token. `is_empty` tells whether the rows have none of a
        span."""
        if begin_ms not in self._spans:
            while len(self._spans) >= _SPANS_MAX:
                del self._spans[min(self._spans)]
            self._spans[begin_ms] = bytearray() if is_empty(begin_ms) else None
        bits = self._spans[begin_ms]
        if not bits:
            return bits is None
        place = _place(token)
        return bool(bits[place >> 3] & 1 << (place & 7))

    def add(self, begin_ms: int, token: bytes) -> None:
        """A token was recorded."""
        bits = self._spans.get(begin_ms)
        if bits is not None:
            if not bits:
                bits.extend(bytes(_BITS // 8))
            place = _place(token)
            bits[place >> 3] |= 1 << (place & 7)


def _place(token: bytes) -> int:
    return int.from_bytes(token[:4]) % _BITS
