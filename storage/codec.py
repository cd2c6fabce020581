"""Rows to bytes and back: every value carries a version and a checksum.

    0         1         5
    +---------+---------+------------------------------+
    | version | CRC-32  | MessagePack array            |
    +---------+---------+------------------------------+

The checksum covers the array. New fields go to the end of the array and have a default, so older rows stay readable.
"""

from __future__ import annotations

from struct import Struct
from zlib import crc32

import msgspec

from visibility.events import Lease, StoredMessage

_VERSION = 1
_HEAD = Struct(">BI")
_encode = msgspec.msgpack.Encoder().encode


class DamagedRecord(Exception):
    """A stored value is not what was written. Names the key; the value is never guessed."""

    def __init__(self, key: bytes, reason: str) -> None:
        super().__init__(f"record {key.hex()}: {reason}")
        self.key = key


class QueueRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A queue's own row: fields as in `visibility.state.QueueState`."""

    next_sequence: int
    low_water: int
    waiting: int
    purged_at_ms: int


_decode_message = msgspec.msgpack.Decoder(StoredMessage).decode
_decode_lease = msgspec.msgpack.Decoder(Lease).decode
_decode_queue = msgspec.msgpack.Decoder(QueueRow).decode


def encode_row(row: StoredMessage | Lease | QueueRow) -> bytes:
    """The bytes to store."""
    payload = _encode(row)
    return _HEAD.pack(_VERSION, crc32(payload)) + payload


def decode_message(key: bytes, value: bytes) -> StoredMessage:
    """The message that was stored; DamagedRecord if the value is damaged."""
    payload = _checked(key, value)
    try:
        return _decode_message(payload)
    except msgspec.MsgspecError as error:
        raise DamagedRecord(key, str(error)) from error


def decode_lease(key: bytes, value: bytes) -> Lease:
    """The lease that was stored; DamagedRecord if the value is damaged."""
    payload = _checked(key, value)
    try:
        return _decode_lease(payload)
    except msgspec.MsgspecError as error:
        raise DamagedRecord(key, str(error)) from error


def decode_queue(key: bytes, value: bytes) -> QueueRow:
    """The queue row that was stored; DamagedRecord if the value is damaged."""
    payload = _checked(key, value)
    try:
        return _decode_queue(payload)
    except msgspec.MsgspecError as error:
        raise DamagedRecord(key, str(error)) from error


def _checked(key: bytes, value: bytes) -> memoryview:
    if len(value) < _HEAD.size:
        raise DamagedRecord(key, f"{len(value)} bytes are too short")
    version, checksum = _HEAD.unpack_from(value)
    if version != _VERSION:
        raise DamagedRecord(key, f"unknown version {version}")
    payload = memoryview(value)[_HEAD.size :]
    if crc32(payload) != checksum:
        raise DamagedRecord(key, "checksum does not match")
    return payload
