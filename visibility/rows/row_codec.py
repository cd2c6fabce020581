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

_VERSION = 1
_HEAD = Struct(">BI")
_encode = msgspec.msgpack.Encoder().encode
_T = TypeVar("_T")
_decoders: dict[object, msgspec.msgpack.Decoder[object]] = {}


class DamagedRecord(Exception):
    """A stored value differs from the written one. Names the key; the value is never guessed."""

    def __init__(self, key: bytes, reason: str) -> None:
        super().__init__(f"record {key.hex()}: {reason}")
        self.key = key
        self.reason = reason


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
