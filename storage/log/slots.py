"""Two slots in one small file, written in turn, so that an interrupted write leaves the other.
Pure.

    0       8        16      18
    +-------+--------+-------+---------+---------+-----+
    | magic | number | bytes | payload | CRC-32  | 0   |   up to the end of a sector
    +-------+--------+-------+---------+---------+-----+

The slot with the higher number counts. A disk writes a sector of 512 bytes completely or not at
all. Slots have one sector, or the room that their file gives them: then only the sectors that the
payload needs are written, and what lies behind them is left from before.

Of several sectors any may reach the disk first. So the first one is made empty, then the others are
written, then the first one, each step synced before the next: a slot whose first sector is empty is
an empty one, and an interrupted write leaves no other.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple
from zlib import crc32

SLOT_BYTES = 512
"""Size of a sector, and of a slot with one."""

_MAGIC = b"\x93HFSLOT\n"
_FIELDS = Struct(">8sQH")
_CHECKSUM = Struct(">I")


class Slots(NamedTuple):
    """The content of the file."""

    payload: bytes | None
    """The newest intact payload."""
    number: int
    """Its number, 0 if there is none."""
    damaged: int
    """Number of slots that are neither intact nor empty."""
    slot_bytes: int
    """The distance of the two."""

    @property
    def next_at(self) -> int:
        """The offset of the slot to write next, never the current one."""
        return (self.number + 1) % 2 * self.slot_bytes

    def written(self, payload: bytes) -> Slots:
        """The slots after `payload` is written."""
        return self._replace(payload=payload, number=self.number + 1)


def encode_slot(number: int, payload: bytes) -> bytes:
    """A slot's whole sectors."""
    content = _FIELDS.pack(_MAGIC, number, len(payload)) + payload
    used = content + _CHECKSUM.pack(crc32(content))
    return used + bytes(-len(used) % SLOT_BYTES)


def write_steps(slot: bytes) -> list[tuple[bytes, int]]:
    """The writes of a slot, each with its offset there; each is synced before the next."""
    first, others = slot[:SLOT_BYTES], slot[SLOT_BYTES:]
    if not others:
        return [(first, 0)]
    return [(bytes(SLOT_BYTES), 0), (others, SLOT_BYTES), (first, 0)]


def read_slots(data: bytes, slot_bytes: int = SLOT_BYTES) -> Slots:
    """Read both slots; a file that is too short has empty ones."""
    best = Slots(None, 0, 0, slot_bytes)
    damaged = 0
    for at in (0, slot_bytes):
        slot = data[at : at + slot_bytes]
        found = _read_slot(slot)
        if found is None:
            damaged += any(slot[:SLOT_BYTES])
        elif found[0] > best.number:
            best = Slots(found[1], found[0], 0, slot_bytes)
    return best._replace(damaged=damaged)


def _read_slot(slot: bytes) -> tuple[int, bytes] | None:
    if len(slot) < SLOT_BYTES:
        return None
    magic, number, size = _FIELDS.unpack_from(slot)
    end = _FIELDS.size + size
    if magic != _MAGIC or end + _CHECKSUM.size > len(slot):
        return None
    if crc32(slot[:end]) != _CHECKSUM.unpack_from(slot, end)[0]:
        return None
    return number, slot[_FIELDS.size : end]
