"""Layout of RocksDB's SST files, as needed for recovery: finds the end of the data blocks.

    data blocks | filter, index, range deletions, properties | metaindex | footer

Everything after the data blocks (the tail, about 1 %) is needed to open the file; a copy of it
repairs any damage there. Footer format 6, which RocksDB has written since 2023.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from struct import Struct

_FOOTER = Struct("<B4sIII24xI8s")
_MAGIC = bytes.fromhex("f7cff485b741e288")
_EXTENDED_MAGIC = bytes.fromhex("3e007a00")
_FOOTER_FORMAT = 6
_TRAILER_BYTES = 5
_COUNT = Struct("<I")


def tail_begin(file: Path) -> int:
    """The offset after the last data block. Raises OSError; ValueError if it cannot be
    determined."""
    with file.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        if size < _FOOTER.size:
            raise ValueError(f"{file} has only {size} bytes")
        stream.seek(size - _FOOTER.size)
        footer = _FOOTER.unpack(stream.read(_FOOTER.size))
        _, extended, _, _, length, version, magic = footer
        if (extended, version, magic) != (_EXTENDED_MAGIC, _FOOTER_FORMAT, _MAGIC):
            raise ValueError(f"{file} ends with an unknown footer")
        begin = size - _FOOTER.size - _TRAILER_BYTES - length
        if begin < 0:
            raise ValueError(f"{file} names a metaindex outside of it")
        stream.seek(begin)
        metaindex = stream.read(length)
    try:
        return min(_varint(handle, 0)[0] for handle in _values(metaindex))
    except (IndexError, ValueError) as error:
        raise ValueError(f"{file} has a damaged metaindex") from error


def _values(block: bytes) -> Iterator[bytes]:
    """The values of an uncompressed block, which are the locations of other blocks."""
    (restarts,) = _COUNT.unpack(block[-4:])
    at, end = 0, len(block) - 4 - 4 * restarts
    while at < end:
        _, at = _varint(block, at)  # bytes of the key shared with the previous one
        rest, at = _varint(block, at)
        length, at = _varint(block, at)
        at += rest + length
        yield block[at - length : at]


def _varint(block: bytes, at: int) -> tuple[int, int]:
    """The number at this offset, and the offset after it."""
    number = shift = 0
    while True:
        byte = block[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, at
