"""The keys in a data block of an SST file that fails its checksum, as far as they can be made out.

    entries | offsets of restart points (4 bytes each) | their number
    entry: bytes shared with the key before, further bytes, bytes of the value (varints); key; value

A key ends with 8 bytes: the kind of its entry, and its sequence number. At a restart point nothing
is shared, so damage before it does no harm there. Nothing found here is certain.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from struct import Struct, error

from storage.engines.sst_file import varint

_NUMBER = Struct("<I")
_SUFFIX_BYTES = 8
_PUT = 1


def keys_in(block: bytes) -> Iterator[tuple[bytes, bool]]:
    """(key, True for a row, False for a deletion) of the entries of an uncompressed block."""
    with suppress(error):
        (count,) = _NUMBER.unpack_from(block, len(block) - _NUMBER.size)
        end = len(block) - _NUMBER.size * (count + 1)
        if end < 0 or not count:
            return
        starts = [at for (at,) in _NUMBER.iter_unpack(block[end : -_NUMBER.size])]
        for first, until in zip(starts, [*starts[1:], end], strict=True):
            with suppress(IndexError):
                yield from _keys_between(block, first, min(until, end))


def _keys_between(block: bytes, at: int, end: int) -> Iterator[tuple[bytes, bool]]:
    key = b""
    while at < end:
        shared, at = varint(block, at)
        added, at = varint(block, at)
        size, at = varint(block, at)
        key = key[:shared] + block[at : at + added]
        at += added + size
        if at > end or len(key) < _SUFFIX_BYTES:
            return
        yield key[:-_SUFFIX_BYTES], key[-_SUFFIX_BYTES] == _PUT
