"""CBOR (RFC 8949) as far as smithy-rpc-v2-cbor uses it. Pure.

Maps with text keys, lists, text, bytes, integers, floats, booleans, null, and timestamps, which are
tag 1 around a number: they are read as that number, and written from an `Instant`.
"""

from __future__ import annotations

import struct

_DEPTH_MAX = 32
_ITEMS_MAX = 50_000
"""Several times as many as a request for 500 metrics has; bounds the time that reading takes."""
_BREAK = 0xFF
_INDEFINITE = 31
_TIME_TAG = b"\xc1"
_FLOATS = {25: ">e", 26: ">f", 27: ">d"}
_SIMPLE = {20: False, 21: True, 22: None, 23: None}


class CborUnreadable(ValueError):
    """The bytes are not CBOR, or of a form that is not used here."""


class Instant(float):
    """Seconds since 1970, to be written as a timestamp."""


def decode_cbor(data: bytes) -> object:
    """The one value in the bytes. Raises CborUnreadable."""
    reader = _Reader(data)
    try:
        value = reader.value(0)
    except (IndexError, struct.error, UnicodeDecodeError, OverflowError) as error:
        raise CborUnreadable("the CBOR is cut off or malformed") from error
    if reader.place != len(data):
        raise CborUnreadable("there are bytes behind the CBOR")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.place = 0
        self._items = 0

    def _take(self, size: int) -> bytes:
        taken = self._data[self.place : self.place + size]
        if len(taken) < size:
            raise CborUnreadable("the CBOR is cut off")
        self.place += size
        return taken

    def _head(self) -> tuple[int, int, int]:
        """Major type, additional information, argument."""
        first = self._take(1)[0]
        major, more = first >> 5, first & 31
        if more < 24 or more == _INDEFINITE:
            return major, more, more
        if more > 27:
            raise CborUnreadable("the CBOR is malformed")
        return major, more, int.from_bytes(self._take(1 << (more - 24)), "big")

    def value(self, depth: int) -> object:
        if depth > _DEPTH_MAX:
            raise CborUnreadable("the CBOR is nested too deeply")
        self._items += 1
        if self._items > _ITEMS_MAX:
            raise CborUnreadable("the CBOR has too many items")
        major, more, argument = self._head()
        if major == 7:
            return self._simple(more, argument)
        if more == _INDEFINITE:
            return self._indefinite(major, depth)
        if major == 0:
            return argument
        if major == 1:
            return -1 - argument
        if major == 2:
            return self._take(argument)
        if major == 3:
            return self._take(argument).decode()
        if major == 4:
            return [self.value(depth + 1) for _ in range(self._count(argument))]
        if major == 5:
            return dict(self._pair(depth) for _ in range(self._count(argument)))
        return self.value(depth + 1)  # a tag: 1 before the number of a timestamp

    def _count(self, count: int) -> int:
        if count > len(self._data) - self.place:  # each takes a byte at least
            raise CborUnreadable("the CBOR is cut off")
        return count

    def _pair(self, depth: int) -> tuple[str, object]:
        key = self.value(depth + 1)
        if not isinstance(key, str):
            raise CborUnreadable("a key of a CBOR map is not text")
        return key, self.value(depth + 1)

    def _simple(self, more: int, argument: int) -> object:
        form = _FLOATS.get(more)
        if form is not None:
            read: float = struct.unpack(form, argument.to_bytes(1 << (more - 24), "big"))[0]
            return read
        if more in _SIMPLE:
            return _SIMPLE[more]
        raise CborUnreadable("the CBOR has a value of an unknown kind")

    def _at_break(self) -> bool:
        if self._data[self.place] != _BREAK:
            return False
        self.place += 1
        return True

    def _indefinite(self, major: int, depth: int) -> object:
        if major == 4:
            listed: list[object] = []
            while not self._at_break():
                listed.append(self.value(depth + 1))
            return listed
        if major == 5:
            pairs: dict[str, object] = {}
            while not self._at_break():
                key, value = self._pair(depth)
                pairs[key] = value
            return pairs
        if major in (2, 3):
            chunks: list[bytes] = []
            while not self._at_break():
                chunk = self.value(depth + 1)
                chunks.append(chunk.encode() if isinstance(chunk, str) else _as_bytes(chunk))
            return b"".join(chunks).decode() if major == 3 else b"".join(chunks)
        raise CborUnreadable("the CBOR is malformed")


def _as_bytes(chunk: object) -> bytes:
    if not isinstance(chunk, bytes):
        raise CborUnreadable("the CBOR is malformed")
    return chunk


def encode_cbor(value: object) -> bytes:
    """Write a value of dicts, lists, text, numbers, booleans, None and Instants."""
    out: list[bytes] = []
    _write(value, out)
    return b"".join(out)


def _write(value: object, out: list[bytes]) -> None:
    if value is None:
        out.append(b"\xf6")
    elif isinstance(value, bool):
        out.append(b"\xf5" if value else b"\xf4")
    elif isinstance(value, int):
        out.append(_head(0, value) if value >= 0 else _head(1, -1 - value))
    elif isinstance(value, float):
        tag = _TIME_TAG if isinstance(value, Instant) else b""
        out.append(tag + b"\xfb" + struct.pack(">d", value))
    elif isinstance(value, str):
        text = value.encode()
        out += (_head(3, len(text)), text)
    elif isinstance(value, list):
        out.append(_head(4, len(value)))
        for each in value:
            _write(each, out)
    else:
        assert isinstance(value, dict), type(value)
        out.append(_head(5, len(value)))
        for key, member in value.items():
            _write(key, out)
            _write(member, out)


def _head(major: int, argument: int) -> bytes:
    if argument < 24:
        return bytes([major << 5 | argument])
    for more, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if argument < 1 << (8 * size):
            return bytes([major << 5 | more]) + argument.to_bytes(size, "big")
    raise OverflowError("the number takes more than 64 bits")
