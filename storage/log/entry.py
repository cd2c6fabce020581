"""Entries to bytes and back: one record of a shard's log. Pure.

    0        4         6       8            12           16     24      32       40            40 + 8n
    +--------+---------+-------+------------+------------+------+-------+--------+-------------+--------+
    | magic  | version | ids n | body bytes | previous   | term | index | synced | n queue ids | CRC-32 |   head
    +--------+---------+-------+------------+------------+------+-------+--------+-------------+--------+
    | body ...                                           | CRC-32     | zeros up to a multiple of 8     |
    +----------------------------------------------------+------------+---------------------------------+

Numbers are big-endian. `previous` is the last CRC-32 of the Entry before it, so records form a chain; `synced` is the
index up to which the writer knew the log to be durable. The first CRC-32 covers the head. The second covers head and
body and is the Entry's checksum. Both begin with the CRC-32 of the log's id, so no record of another log fits.
Records begin at multiples of 8, so a search for the magic finds the record behind a damaged one.

To change the layout: raise the version and keep reading the older one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from zlib import crc32

import msgspec

MAGIC = b"\xd1\x9b\xf2\x8e"
ALIGNMENT = 8
ENTRY_BYTES_MAX = 8 << 20
"""Size limit of a record. A Turn stops at 4 MiB of changes and a request brings at most 1 MiB, so none gets there."""
QUEUE_IDS_MAX = 0xFFFF

_VERSION = 1
_HEAD = ">4sHHIIQQQ"
_FIXED = Struct(_HEAD)
_CHECKSUM = Struct(">I")
_BODY_AT = _FIXED.size + _CHECKSUM.size  # without queue ids
_PADS = tuple(bytes(-size % ALIGNMENT) for size in range(ALIGNMENT))


class Position(msgspec.Struct, frozen=True, gc=False):
    """The place of an Entry in a log. The applied row holds the one of the last Entry whose changes the rows have."""

    term: int
    index: int
    checksum: int


BEGINNING = Position(0, 0, 0)
"""Before the first Entry."""


class Head(msgspec.Struct, frozen=True, gc=False):
    """The head of a record that is intact, whatever its body is."""

    term: int
    index: int
    previous: int
    synced: int
    queue_ids: tuple[int, ...]
    body_bytes: int
    size: int
    """Bytes of the whole record."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A record that is intact."""

    term: int
    index: int
    checksum: int
    previous: int
    synced: int
    queue_ids: tuple[int, ...]
    body: bytes
    size: int
    """Bytes of the whole record."""

    @property
    def position(self) -> Position:
        """Its place in the log."""
        return Position(self.term, self.index, self.checksum)


class Misfit(msgspec.Struct, frozen=True, gc=False):
    """The reason why there is no Entry at an offset."""

    reason: str
    head: Head | None = None
    """Its head, if that is intact."""


@lru_cache(maxsize=1024)
def _head_of(ids: int) -> Struct:
    return Struct(f"{_HEAD}{ids}Q")


def encode_entry(
    body: bytes,
    queue_ids: Sequence[int],
    seed: int,
    *,
    term: int,
    index: int,
    previous: int,
    synced: int,
) -> tuple[bytes, int]:
    """The record and the Entry's checksum. `seed` is the CRC-32 of the log's id."""
    ids = len(queue_ids)
    head = _head_of(ids).pack(
        MAGIC, _VERSION, ids, len(body), previous, term, index, synced, *queue_ids
    )
    head_checksum = crc32(head, seed)
    checksum = crc32(body, head_checksum)
    ends = (_CHECKSUM.pack(head_checksum), body, _CHECKSUM.pack(checksum), _PADS[len(body) & 7])
    return head + b"".join(ends), checksum


def record_bytes(body_bytes: int, queue_ids: int) -> int:
    """The size of a record."""
    size = _BODY_AT + 8 * queue_ids + body_bytes + _CHECKSUM.size
    return size + -size % ALIGNMENT


def read_entry(data: bytes, offset: int, seed: int) -> Entry | Misfit:
    """The Entry whose record begins at `offset`, or the reason why there is none."""
    head = read_head(data, offset, seed)
    if isinstance(head, Misfit):
        return head
    if offset + head.size > len(data):
        return Misfit("the segment ends within the record", head)
    body_at = offset + _BODY_AT + 8 * len(head.queue_ids)
    body_end = body_at + head.body_bytes
    body = data[body_at:body_end]
    checksum = crc32(body, _CHECKSUM.unpack_from(data, body_at - _CHECKSUM.size)[0])
    if checksum != _CHECKSUM.unpack_from(data, body_end)[0]:
        return Misfit("the record's checksum does not match", head)
    return Entry(
        head.term,
        head.index,
        checksum,
        head.previous,
        head.synced,
        head.queue_ids,
        body,
        head.size,
    )


def read_head(data: bytes, offset: int, seed: int) -> Head | Misfit:
    """The head of the record that begins at `offset`, or the reason why there is none."""
    if offset + _BODY_AT > len(data):
        return Misfit("the segment ends")
    magic, version, ids, body_bytes, previous, term, index, synced = _FIXED.unpack_from(
        data, offset
    )
    if magic != MAGIC:
        return Misfit("no record begins here")
    head_end = offset + _FIXED.size + 8 * ids
    if head_end + _CHECKSUM.size > len(data):
        return Misfit("the segment ends within the head")
    if crc32(data[offset:head_end], seed) != _CHECKSUM.unpack_from(data, head_end)[0]:
        return Misfit("the head's checksum does not match")
    if version != _VERSION:
        return Misfit(f"the record has format {version}")
    queue_ids = _head_of(ids).unpack_from(data, offset)[8:]
    size = record_bytes(body_bytes, ids)
    return Head(term, index, previous, synced, queue_ids, body_bytes, size)


def next_magic(data: bytes, offset: int) -> int:
    """The next offset from `offset` on where a record may begin, -1 if there is none."""
    found = data.find(MAGIC, offset)
    while found >= 0 and found % ALIGNMENT:
        found = data.find(MAGIC, found + 1)
    return found
