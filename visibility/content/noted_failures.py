"""Noted: the messages of a span that may have a failure, by the note that `sqs_api/failures` wrote.

cells      a failure's signs, and more; None for failures beyond those that are told apart
columns    compressed: the numbers of the messages' cells, 2 bytes each, and more
"""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from visibility.content.failures import FAILURE_VERSION, Failure
from visibility.contract.outcomes import FailureNote

_FORM = 1
"""Version of what a note holds."""
NOTE_VERSION = FAILURE_VERSION << 8 | _FORM


class _Cell(msgspec.Struct, frozen=True, array_like=True):
    signs: tuple[tuple[str, str], ...] | None


class _Content(msgspec.Struct, frozen=True, array_like=True):
    cells: list[_Cell]
    columns: bytes


class Noted(NamedTuple):
    """The messages of a span, by their offsets in it."""

    bits: int
    """A bit for each message."""
    chosen: Sequence[int]
    """Those that have a failure, or may have it, in order."""
    cells: int
    """Number of failures and more that were compared."""


def noted(note: FailureNote, content: bytes, failure_id: str) -> Noted | None:
    """The messages of a note whose opened content this is, and those that may have a failure. None
    if the note cannot be used."""
    bits = int.from_bytes(note.sequences, "little")
    try:
        found = msgspec.msgpack.decode(zlib.decompress(content), type=_Content)
        wanted = {
            number
            for number, cell in enumerate(found.cells)
            if cell.signs is None or Failure(cell.signs).failure_id == failure_id
        }
        if not wanted:
            return Noted(bits, (), len(found.cells))
        offsets = offsets_of(note.sequences)
        cells = array("H", zlib.decompress(found.columns)[: 2 * len(offsets)])
        if sys.byteorder == "big":
            cells.byteswap()
        pairs = zip(offsets, cells, strict=True)
        chosen = array("H", (offset for offset, cell in pairs if cell in wanted))
        return Noted(bits, chosen, len(found.cells))
    except (msgspec.MsgspecError, zlib.error, ValueError):
        return None


def offsets_of(sequences: bytes) -> list[int]:
    """The offsets of a note's messages in its span."""
    digits = bin(int.from_bytes(sequences, "little"))[:1:-1]
    return [offset for offset, digit in enumerate(digits) if digit == "1"]
