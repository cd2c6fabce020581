"""A replica's id and its promise to a leader, in two slots of the file `promise`.

    0                16 KiB          32 KiB          48 KiB
    +---------------+---------------+---------------+
    | not used      | slot          | slot          |      payload: MessagePack of `Promise`
    +---------------+---------------+---------------+

A promise is synced before it is answered (rule 25): from then on the replica takes nothing from a
leader of a lower term. A slot that cannot be read may have held a later promise, so a file with one
does not count at all, nor does one that ends before its second slot. Most promises need one sector;
see `slots.py` for those that need more.

Files of early builds of 0.2 have two slots of 512 bytes at their beginning. These count until
another one is written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path

import msgspec

from storage.log.disk import Disk, Done, Work, open_small
from storage.log.slots import SLOT_BYTES, Slots, encode_slot, read_slots, write_steps

PROMISE_FILE = "promise"
PROMISE_SLOT_BYTES = 16 << 10
FIRST_SLOT_AT = PROMISE_SLOT_BYTES

_LEAST_BYTES = FIRST_SLOT_AT + PROMISE_SLOT_BYTES + SLOT_BYTES
"""Of a file with two slots."""
_NAMES_BYTES = 12 << 10
"""Of a promise with all hosts of a cluster. Hosts that register at the same moment do not see each
other: the rest of the slot is for them."""


class Promise(msgspec.Struct, frozen=True, array_like=True):
    """The promise of a replica."""

    replica_id: str
    """Random; a folder that lost its promise or its log gets another one."""
    term: int = 0
    leader: str = ""
    """The replica that this term was promised to."""
    voters: Mapping[str, str] = {}
    """Names of hosts by replica id: who counts in this term."""
    old_voters: tuple[str, ...] = ()
    """The ids of the set before, until the term's leader has committed an Entry."""
    kept: int = 0
    """The log's last Entry, if the leaders lost committed ones that it has; else 0."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Promise).decode


def read_promises(data: bytes) -> Slots:
    """The slots of a whole file."""
    slots = read_slots(data[FIRST_SLOT_AT:], PROMISE_SLOT_BYTES)
    if slots.payload is None and not slots.damaged:
        slots = read_slots(data[: 2 * SLOT_BYTES])._replace(slot_bytes=PROMISE_SLOT_BYTES)
    return slots


def _lacks_its_end(data: bytes, promise: Promise) -> bool:
    """True if the second slot is gone. Each opening writes both before it promises a term; one that
    was interrupted left the slots of an early build."""
    is_short = len(data) < _LEAST_BYTES
    return is_short and promise.term > 0 and not any(data[: 2 * SLOT_BYTES])


def have_room(names: Collection[str]) -> bool:
    """True if a promise has room for voters on hosts of these names, and for a change of them."""
    ids = [f"{number:032x}" for number in range(len(names) + 1)]
    voters = dict(zip(ids, names, strict=False))
    return len(_encode(Promise(ids[0], 1 << 63, ids[0], voters, tuple(ids)))) <= _NAMES_BYTES


class PromiseFile:
    """The file of one shard's replica, open for writing."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        """Open or create it; blocks. Raises OSError."""
        self._disk = disk
        whole = FIRST_SLOT_AT + 2 * PROMISE_SLOT_BYTES
        self._handle, data = open_small(disk, folder / PROMISE_FILE, whole)
        self._slots = read_promises(data)
        self.promise: Promise | None = None
        """None if there is none, or if a slot is damaged or gone."""
        if self._slots.payload is not None and not self._slots.damaged:
            promise = _decode(self._slots.payload)
            self.promise = None if _lacks_its_end(data, promise) else promise

    def write(self, promise: Promise, done: Done) -> None:
        """Make it durable in the sync lane; `done` gets None or the OSError."""
        self._disk.run(self._next_write(promise), done)

    def write_now(self, promise: Promise) -> None:
        """The same, blocking, in both slots: none that is damaged is left. Raises OSError."""
        self._next_write(promise)()
        self._next_write(promise)()

    def close(self) -> None:
        """Close the file. No write may be under way."""
        self._disk.close(self._handle)

    def _next_write(self, promise: Promise) -> Work:
        payload = _encode(promise)
        slot, at = encode_slot(self._slots.number + 1, payload), self._slots.next_at
        assert len(slot) <= PROMISE_SLOT_BYTES, "hosts register if there is room for their names"
        self._slots = self._slots.written(payload)
        return partial(self._write, slot, FIRST_SLOT_AT + at)

    def _write(self, slot: bytes, at: int) -> None:
        for part, behind in write_steps(slot):
            self._disk.pwrite(self._handle, part, at + behind)
            self._disk.fdatasync(self._handle)
