"""Stamp: the only time and chance a decision knows, given by whoever leads the shard."""

from __future__ import annotations

import msgspec

_UUID_RANDOM = (1 << 128) - 1 & ~(0xF000 << 64 | 0xC000 << 48)
_UUID_VERSION_4 = 0x4000 << 64 | 0x8000 << 48
_POSITION_SHIFT = 80


class Stamp(msgspec.Struct, frozen=True, gc=False):
    """The shard's time in epoch milliseconds, and 128 random bits for this request alone."""

    now_ms: int
    random_bits: int

    def message_id(self, position: int) -> bytes:
        """A version 4 UUID (16 bytes) for the request's message at `position` (0..9); distinct for each position."""
        bits = self.random_bits ^ (position << _POSITION_SHIFT)
        return (bits & _UUID_RANDOM | _UUID_VERSION_4).to_bytes(16, "big")


def message_id_text(message_id: bytes) -> str:
    """The UUID as AWS shows it."""
    text = message_id.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
