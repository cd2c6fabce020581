"""The position of the last acknowledged Entry, in two slots of the file `answered`.

It reveals a log that has lost its end (rule 18).

    payload: log id (16 bytes), term (8), index (8), checksum (4)

It is written and synced after the commit of the Entry, so it may lag behind but is never ahead.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from storage.log.disk import Disk, Done, Work, open_small
from storage.log.entry import Position
from storage.log.slots import SLOT_BYTES, Slots, encode_slot, read_slots

ANSWERED_FILE = "answered"

_PAYLOAD = Struct(">16sQQI")


class NoteDamaged(Exception):
    """Neither slot of the note is readable, although something was noted."""


class Answered(NamedTuple):
    """The content of the note."""

    log_id: bytes
    position: Position


def read_answered(disk: Disk, folder: Path) -> Answered | None:
    """The note; None if nothing is noted. Changes nothing. Raises OSError, NoteDamaged."""
    if ANSWERED_FILE not in disk.list(folder):
        return None
    handle = disk.open_to_read(folder / ANSWERED_FILE)
    try:
        slots = read_slots(disk.pread(handle, 2 * SLOT_BYTES, 0))
    finally:
        disk.close(handle)
    if slots.payload is not None and len(slots.payload) == _PAYLOAD.size:
        log_id, term, index, checksum = _PAYLOAD.unpack(slots.payload)
        return Answered(log_id, Position(term, index, checksum))
    if slots.damaged:
        raise NoteDamaged(f"{folder / ANSWERED_FILE} is damaged")
    return None


class AnsweredNote:
    """The note of one shard.

    Its owner writes at most ten times a second, and waits for each before the next.
    """

    def __init__(self, disk: Disk, folder: Path, log_id: bytes) -> None:
        """Open or create the file; blocks. Raises OSError."""
        self._disk = disk
        self._log_id = log_id
        self._handle, data = open_small(disk, folder / ANSWERED_FILE, 2 * SLOT_BYTES)
        self._slots: Slots = read_slots(data)

    def write(self, position: Position, done: Done) -> None:
        """Write the note in the sync lane; `done` gets None or the OSError."""
        self._disk.run(self._next_write(position), done)

    def write_now(self, position: Position) -> None:
        """The same, blocking. Raises OSError."""
        self._next_write(position)()

    def close(self) -> None:
        """Close the file. No write may be under way."""
        self._disk.close(self._handle)

    def _next_write(self, position: Position) -> Work:
        payload = _PAYLOAD.pack(self._log_id, position.term, position.index, position.checksum)
        slot, at = encode_slot(self._slots.number + 1, payload), self._slots.next_at
        self._slots = self._slots.written(payload)
        return partial(self._write, slot, at)

    def _write(self, slot: bytes, at: int) -> None:
        self._disk.pwrite(self._handle, slot, at)
        self._disk.fdatasync(self._handle)
