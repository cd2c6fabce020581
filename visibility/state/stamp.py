"""Stamp: the only time and chance a decision knows, given by whoever leads the shard."""

from __future__ import annotations

import msgspec

_UUID_RANDOM = (1 << 128) - 1 & ~(0xF000 << 64 | 0xC000 << 48)
_UUID_VERSION_4 = 0x4000 << 64 | 0x8000 << 48
_POSITION_SHIFT = 80


class Stamp(msgspec.Struct, frozen=True, gc=False):
    """The shard's time in epoch milliseconds, and 128 random bits for this request alone.

    `believed_ms` is the time that retention may act on, 0 where it is `now_ms`: less while a leap of the clock is not
    believed yet.
    """

    now_ms: int
    random_bits: int
    believed_ms: int = 0

    @property
    def retained_until_ms(self) -> int:
        """The time that retention acts on."""
        return self.believed_ms or self.now_ms

    def message_id(self, position: int) -> str:
        """A version 4 UUID for the request's message at `position`; distinct for each position."""
        bits = self.random_bits ^ (position << _POSITION_SHIFT)
        digits = f"{bits & _UUID_RANDOM | _UUID_VERSION_4:032x}"
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
