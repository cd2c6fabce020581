"""Rows to bytes and back: every value carries a version and a checksum.

    0         1         5
    +---------+---------+------------------------------+
    | version | CRC-32  | MessagePack                  |
    +---------+---------+------------------------------+

The checksum covers the MessagePack. New fields go to the end of a row's array and have a default,
so older rows stay readable. Rows without a value are empty and have neither.
"""

from __future__ import annotations

from struct import Struct
from typing import TypeVar
from zlib import crc32

import msgspec

from visibility.state.rows import DamagedRecord
from visibility.state.short_answers import ShortAnswer

_VERSION = 1
_HEAD = Struct(">BI")
_encode = msgspec.msgpack.Encoder().encode
_T = TypeVar("_T")
_decoders: dict[object, msgspec.msgpack.Decoder[object]] = {}


class QueueRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A queue's own row: fields as in `visibility.state.queue_state.QueueState`.

    `listed` is the number of groups that may give messages, `stamp_ms` is the shard's time at which
    the row was written. `purged_at_ms` is no longer used.
    """

    next_sequence: int
    low_water: int
    waiting: int
    purged_at_ms: int
    delayed: int = 0
    listed: int = 0
    aliases: int = 0
    remembered_ms: int = 0
    fifo: bool = False
    stamp_ms: int = 0
    continues: int = 0
    first_sequence: int = 1
    departed: int = 0


class ArchiveRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A shard's archive state: fields as in `visibility.state.archive_state.ArchiveState`."""

    source: str
    next_position: int
    next_batch: int
    archived: int
    open_first: int
    open_size: int
    open_since_ms: int
    discarded: int


class OutboxRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An outbox's state: fields as in `visibility.state.outbox.Outbox`."""

    origin: bytes
    next_number: int


class AppliedRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The log position of the last Entry applied to the rows."""

    term: int
    index: int
    checksum: int


class AnswersRow(msgspec.Struct, frozen=True, array_like=True):
    """The requests that an Entry's changes belong to, and the answer to each."""

    request_ids: list[str]
    answers: list[ShortAnswer]


def encode_row(row: object) -> bytes:
    """The bytes to store for a row."""
    payload = _encode(row)
    return _HEAD.pack(_VERSION, crc32(payload)) + payload


def decode_row(kind: type[_T], key: bytes, value: bytes) -> _T:
    """Decode a stored row; raises DamagedRecord if the value is damaged."""
    payload = check_value(key, value)
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    try:
        row: _T = decoder.decode(payload)  # type: ignore[assignment]
    except msgspec.MsgspecError as error:
        raise DamagedRecord(key, str(error)) from error
    return row


def check_value(key: bytes, value: bytes) -> memoryview:
    """The MessagePack of a stored value; raises DamagedRecord if version or checksum is wrong."""
    if len(value) < _HEAD.size:
        raise DamagedRecord(key, f"{len(value)} bytes are too short")
    version, checksum = _HEAD.unpack_from(value)
    if version != _VERSION:
        raise DamagedRecord(key, f"unknown version {version}")
    payload = memoryview(value)[_HEAD.size :]
    if crc32(payload) != checksum:
        raise DamagedRecord(key, "checksum does not match")
    return payload
