"""Records of a RocksDB MANIFEST: finds the end of the last whole one, and makes one that removes
files.

Blocks of 32 KiB hold parts of records: CRC-32C (4 bytes), length (2), kind (1), content. The last
bytes of a block, too few for a head, are empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct

_BLOCK = 32 << 10
_HEAD = Struct("<IHB")
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
"""Kinds: a record in one part, and the parts of others."""
_ENDS_RECORD = (_WHOLE, _LAST)
_DELETED_FILE = b"\6"
"""Tag of a change that removes a file: its level and its number follow."""
_CASTAGNOLI = 0x82F63B78


def whole_records(content: bytes, offset: int) -> int:
    """Length of the part of `content` that is whole records; `content` begins at `offset` in the
    file."""
    at = end = 0
    while True:
        left = _BLOCK - (offset + at) % _BLOCK
        if left < _HEAD.size:
            at += left
            continue
        if len(content) - at < _HEAD.size:
            return end
        _, length, kind = _HEAD.unpack_from(content, at)
        at += _HEAD.size + length
        if at > len(content) or not kind:
            return end
        if kind in _ENDS_RECORD:
            end = at


def deletion_records(files: Mapping[str, int], offset: int) -> bytes:
    """The record that removes SST files, given with their levels, from the database.

    It belongs at `offset`, the end of the MANIFEST.
    """
    edit = b"".join(
        _DELETED_FILE + _varint(level) + _varint(int(name.partition(".")[0]))
        for name, level in files.items()
    )
    left = _BLOCK - offset % _BLOCK
    padding, left = (bytes(left), _BLOCK) if left < _HEAD.size else (b"", left)
    parts, rest = [edit[: left - _HEAD.size]], edit[left - _HEAD.size :]
    while rest:
        parts.append(rest[: _BLOCK - _HEAD.size])
        rest = rest[_BLOCK - _HEAD.size :]
    kinds = [_FIRST, *[_MIDDLE] * (len(parts) - 2), _LAST] if len(parts) > 1 else [_WHOLE]
    return padding + b"".join(
        _HEAD.pack(_masked(_crc32c(bytes([kind]) + part)), len(part), kind) + part
        for kind, part in zip(kinds, parts, strict=True)
    )


def _varint(number: int) -> bytes:
    encoded = b""
    while number >= 0x80:
        encoded += bytes([number & 0x7F | 0x80])
        number >>= 7
    return encoded + bytes([number])


def _crc32c(content: bytes) -> int:
    checksum = 0xFFFFFFFF
    for byte in content:
        checksum ^= byte
        for _ in range(8):
            checksum = checksum >> 1 ^ (_CASTAGNOLI if checksum & 1 else 0)
    return checksum ^ 0xFFFFFFFF


def _masked(checksum: int) -> int:
    """A checksum as RocksDB stores it."""
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF
