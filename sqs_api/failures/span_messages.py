"""SpanMessages: what is known of the messages of one span of sequences, 12 bytes for each.

    offset     of the sequence from the beginning of the span
    cell       a number for a failure and a source queue, see `counted_failures.py`
    seen       when it came to the queue, in seconds
    retained   the instant from which retention counts

While nothing changes they are packed, as they are in a note: a bit for each sequence, and the rest
compressed.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from visibility.content.noted_failures import offsets_of
from visibility.rules.failure_notes import span_bits

_TYPECODES = "HHII"


class Packed(NamedTuple):
    """Messages of a span. `cells` names those that `columns` numbers from 0 on."""

    sequences: bytes
    cells: list[int]
    columns: bytes


class Known(NamedTuple):
    """The facts about one message."""

    cell: int
    seen_s: int
    retained_s: int


class SpanMessages:
    """The messages of one span."""

    __slots__ = ("_columns", "_messages", "_packed")

    def __init__(self, packed: Packed | None = None) -> None:
        self._packed = packed
        self._columns = tuple(array(each) for each in _TYPECODES)
        self._messages = int.from_bytes(packed.sequences, "little").bit_count() if packed else 0

    def __len__(self) -> int:
        return self._messages

    def __contains__(self, offset: int) -> bool:
        if self._packed is not None:
            return bool(self._packed.sequences[offset >> 3] >> (offset & 7) & 1)
        return self._place(offset)[1]

    @property
    def last(self) -> int:
        """The highest offset of a message. There must be one."""
        if self._packed is not None:
            return int.from_bytes(self._packed.sequences, "little").bit_length() - 1
        return self._columns[0][-1]

    def add(self, offset: int, known: Known) -> bool:
        """Add a message; False if it is there."""
        self._unpack()
        place, is_there = self._place(offset)
        if is_there:
            return False
        for column, value in zip(self._columns, (offset, *known), strict=True):
            column.insert(place, value)
        self._messages += 1
        return True

    def remove(self, offset: int) -> Known | None:
        """Remove a message, None if it is not there."""
        if offset not in self:
            return None
        self._unpack()
        place, _ = self._place(offset)
        _, *known = (column.pop(place) for column in self._columns)
        self._messages -= 1
        return Known(*known)

    def read(self) -> Sequence[Sequence[int]]:
        """The offsets, cells and both times of all messages."""
        self._unpack()
        return self._columns

    def pack(self) -> Packed:
        """Hold the messages packed until something changes."""
        if self._packed is None:
            offsets, cells, seen, retained = self._columns
            used = sorted(set(cells))
            numbers = {cell: number for number, cell in enumerate(used)}
            local = array("H", map(numbers.__getitem__, cells))
            columns = b"".join(_little_endian(each).tobytes() for each in (local, seen, retained))
            self._packed = Packed(span_bits(offsets), used, zlib.compress(columns, 1))
            self._columns = tuple(array(each) for each in _TYPECODES)
        return self._packed

    def _unpack(self) -> None:
        if self._packed is None:
            return
        sequences, used, compressed = self._packed
        columns, begin = zlib.decompress(compressed), 0
        offsets = array("H", offsets_of(sequences))
        unpacked = [offsets]
        for typecode in _TYPECODES[1:]:
            column = array(typecode)
            end = begin + column.itemsize * len(offsets)
            column.frombytes(columns[begin:end])
            unpacked.append(_little_endian(column))
            begin = end
        unpacked[1] = array("H", map(used.__getitem__, unpacked[1]))
        self._columns, self._packed = tuple(unpacked), None

    def _place(self, offset: int) -> tuple[int, bool]:
        offsets = self._columns[0]
        place = bisect_left(offsets, offset)
        return place, place < len(offsets) and offsets[place] == offset


def _little_endian(column: array[int]) -> array[int]:
    if sys.byteorder == "big":
        column = array(column.typecode, column)
        column.byteswap()
    return column
