"""Frames: the bytes on a connection between two hosts.

    frame: length of the body (4), kind (1), number (8), body

There is no checksum: TLS authenticates every byte. The number is that of the request that the
frame belongs to, or of the shard that a message is for; else 0. The frames of the handshake, and
this head, stay as they are in every version.
"""

from __future__ import annotations

from struct import Struct

HEAD = Struct(">IBQ")
_unpack_from = HEAD.unpack_from


class Kind:
    """Kinds of frames."""

    HELLO = 1  # the opener's handshake
    WELCOME = 2  # the acceptor's
    REFUSED = 3  # the request was not done, or in the handshake: there will be no connection
    HEARTBEAT = 4
    MESSAGE = 5  # is not answered
    REQUEST = 6
    ANSWER = 7
    CANCEL = 8  # the answer to this request is not needed any more; it is answered all the same
    END = 9  # send no further requests; those under way are answered


Frame = tuple[int, int, bytes]
"""Kind, number and body."""


class BadFrame(Exception):
    """The bytes are no frames of ours; the text says why in one line."""


class FrameReader:
    """Cuts what arrives into frames. Keeps at most one frame and one read."""

    __slots__ = ("_needed", "_rest", "body_max")

    def __init__(self, body_max: int) -> None:
        self.body_max = body_max
        self._rest = bytearray()
        self._needed = HEAD.size
        """Bytes from which on `_rest` holds more than it was looked at for."""

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """The frames that are complete now, copied out of the data. Raises BadFrame, as soon as a
        head is too large."""
        rest = self._rest
        if rest:
            rest += data
            if len(rest) < self._needed:
                return []
            whole = bytes(rest)
            rest.clear()
        else:
            whole = bytes(data)  # cut without a view of each piece
        frames: list[Frame] = []
        at, end, head = 0, len(whole), HEAD.size
        needed = head
        while end - at >= head:
            length, kind, number = _unpack_from(whole, at)
            if length > self.body_max:
                raise BadFrame(f"a frame of {length} bytes, allowed are {self.body_max}")
            stop = at + head + length
            if stop > end:
                needed = stop - at
                break
            frames.append((kind, number, whole[at + head : stop]))
            at = stop
        if at < end:
            rest += whole[at:] if at else whole
        self._needed = needed
        return frames
