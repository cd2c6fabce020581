"""Entries to bytes and back: one record of a shard's log (rule 1 of cluster/RULES.md). Pure.

    0       4         6       8            12         16     24      32       40        40 + 8n
    +-------+---------+-------+------------+----------+------+-------+--------+---------+--------+
    | magic | version | ids n | body bytes | previous | term | index | synced | n queue | CRC-32 |
    |       |         |       |            |          |      |       |        |   ids   |        |
    +-------+---------+-------+------------+----------+------+-------+--------+---------+--------+
    | body ...                                        | CRC-32 | zeros to a multiple of 8        |
    +-------------------------------------------------+--------+---------------------------------+

Numbers are big-endian. `previous` is the last CRC-32 of the Entry before it, so records form a
chain; `synced` is the index up to which the writer knew the log to be durable. The first CRC-32
covers the head. The second covers head and body and is the Entry's checksum. Both begin with the
CRC-32 of the log's id, so no record of another log fits. Records begin at multiples of 8, so a
search for the magic finds the record after a damaged one.

To change the layout, the body or a row's codec: raise `NEWEST_FORMAT` and keep reading the older
ones. A cluster writes the newest only once all of its hosts read it. A version that does not know a
record's format refuses the log, and never takes the record for a torn one.
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
"""Size limit of a record: a Turn stops at 4 MiB of changes, one request brings at most 1 MiB."""
_QUEUE_IDS_MAX = 0xFFFF

OLDEST_FORMAT = NEWEST_FORMAT = 1
"""Formats of Entries that this version reads. A single host writes the newest."""
_HEAD = ">4sHHIIQQQ"
_FIXED = Struct(_HEAD)
_CHECKSUM = Struct(">I")
_BODY_AT = _FIXED.size + _CHECKSUM.size  # without queue ids
_PADS = tuple(bytes(-size % ALIGNMENT) for size in range(ALIGNMENT))


class Position(msgspec.Struct, frozen=True, gc=False):
    """The place of an Entry in a log, as in the applied row."""

    term: int
    index: int
    checksum: int


BEGINNING = Position(0, 0, 0)
"""Before the first Entry."""


class EntryTooLarge(ValueError):
    """The record is over the limit of an Entry, or larger than a segment."""


class NewerFormat(OSError):
    """An intact record of a later version of holdfast, which cannot be read here."""


class Head(msgspec.Struct, frozen=True, gc=False):
    """The intact head of a record, whose body may be damaged."""

    term: int
    index: int
    queue_ids: tuple[int, ...]
    size: int
    """Bytes of the whole record."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """An intact record."""

    term: int
    index: int
    checksum: int
    previous: int
    synced: int
    queue_ids: tuple[int, ...]
    body: bytes
    size: int
    """Bytes of the whole record."""
    format: int

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


@lru_cache(maxsize=1024)
def _ids_of(ids: int) -> Struct:
    return Struct(f">{ids}Q")


def encode_entry(
    body: bytes,
    queue_ids: Sequence[int],
    seed: int,
    *,
    term: int,
    index: int,
    previous: int,
    synced: int,
    written_as: int = NEWEST_FORMAT,
) -> tuple[bytes, int]:
    """The record and the Entry's checksum. `seed` is the CRC-32 of the log's id, `written_as` the
    format. Raises EntryTooLarge."""
    ids = len(queue_ids)
    if ids > _QUEUE_IDS_MAX:
        raise EntryTooLarge(f"{ids} queues in one Entry")
    head = _head_of(ids).pack(
        MAGIC, written_as, ids, len(body), previous, term, index, synced, *queue_ids
    )
    head_checksum = crc32(head, seed)
    checksum = crc32(body, head_checksum)
    ends = _CHECKSUM.pack(head_checksum), body, _CHECKSUM.pack(checksum), _PADS[len(body) & 7]
    return b"".join((head, *ends)), checksum


def record_bytes(body_bytes: int, queue_ids: int) -> int:
    """The size of a record."""
    size = _BODY_AT + 8 * queue_ids + body_bytes + _CHECKSUM.size
    return size + -size % ALIGNMENT


def read_entry(data: bytes, offset: int, seed: int) -> Entry | Misfit:
    """The Entry whose record begins at `offset`, or the reason why there is none. Raises
    NewerFormat."""
    if offset + _BODY_AT > len(data):
        return Misfit("the segment ends")
    magic, version, ids, body_bytes, previous, term, index, synced = _FIXED.unpack_from(
        data, offset
    )
    if magic != MAGIC:
        return Misfit("no record begins here")
    head_end = offset + _FIXED.size + 8 * ids
    body_at = head_end + _CHECKSUM.size
    if body_at > len(data):
        return Misfit("the segment ends within the head")
    head_checksum = crc32(data[offset:head_end], seed)
    if head_checksum != _CHECKSUM.unpack_from(data, head_end)[0]:
        return Misfit("the head's checksum does not match")
    if version > NEWEST_FORMAT:
        raise NewerFormat(
            f"Entry {index} has format {version}; this version of holdfast knows {NEWEST_FORMAT}"
        )
    if version < OLDEST_FORMAT:
        return Misfit(f"the record has format {version}")
    queue_ids = _ids_of(ids).unpack_from(data, offset + _FIXED.size)
    size = record_bytes(body_bytes, ids)
    if offset + size > len(data):
        reason = "the segment ends within the record"
        return Misfit(reason, Head(term, index, queue_ids, size))
    body_end = body_at + body_bytes
    body = data[body_at:body_end]
    checksum = crc32(body, head_checksum)
    if checksum != _CHECKSUM.unpack_from(data, body_end)[0]:
        reason = "the record's checksum does not match"
        return Misfit(reason, Head(term, index, queue_ids, size))
    return Entry(term, index, checksum, previous, synced, queue_ids, body, size, version)


def next_magic(data: bytes, offset: int) -> int:
    """The next offset at or after `offset` at which a record may begin, -1 if there is none."""
    found = data.find(MAGIC, offset)
    while found >= 0 and found % ALIGNMENT:
        found = data.find(MAGIC, found + 1)
    return found
