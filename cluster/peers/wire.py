"""Wire: one TCP connection as frames. It knows neither hosts nor requests.

Frames that are sent in one pass of the loop leave in one write. What waits to be written is
bounded. While answers are not read, no more requests are: only the side that answers stops
reading, since two sides that both did would wait for each other.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Protocol, cast

from typing_extensions import override

from cluster.clock import next_pulse
from cluster.peers.frames import HEAD, BadFrame, Frame, FrameReader, Kind
from cluster.peers.hello import HELLO_MAX, names_of
from cluster.peers.peer_outcomes import NotSent, Reason
from cluster.peers.peer_settings import PeerSettings

# Read once: these are looked up for each frame.
_pack, _HEAD_BYTES, _REQUEST, _HEARTBEAT = HEAD.pack, HEAD.size, Kind.REQUEST, Kind.HEARTBEAT
_WRITE_MAX = 1 << 20
"""Bytes of one write; further ones wait until the transport takes more."""
_SMALL = 1 << 10
"""Frames up to this size have as much room again in the outbox: a refusal always finds some."""
_BUFFER_MAX = 1 << 20
"""Bytes in the transport's own buffer from which on it takes no more."""
_READ = memoryview(bytearray(256 << 10))
"""Bytes of one read, until `buffer_updated` returns. A transport that is given no buffer makes a
new one of this size for each read, however little arrived."""


class Side(Protocol):
    """One side of a conversation."""

    answers: bool
    """True for the side that answers."""

    def opened(self) -> None:
        """The connection is there."""

    def received(self, frame: Frame) -> None:
        """A frame arrived. May raise BadFrame, which ends the connection."""

    def beat(self) -> None:
        """Called at each heartbeat."""

    def lost(self, reason: str) -> None:
        """The connection is over. Called once, and nothing else after it."""


class Wire(asyncio.BufferedProtocol):
    """One connection: bytes to frames for its side, and frames to bytes."""

    def __init__(self, side: Side, settings: PeerSettings) -> None:
        self._side = side
        self._settings = settings
        self._frame_max, self._outbox_max = settings.frame_max, settings.outbox_max
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(HELLO_MAX)
        self._transport: asyncio.Transport
        self._is_connected = False
        self._outbox: list[bytes] = []
        """Frames, head and body each."""
        self._numbers: list[int] = []
        """The numbers of the frames in the outbox: 0 for those that are no requests."""
        self._outbox_bytes = 0
        self._is_paused = False
        self._will_flush = False
        self._is_closing = False
        self._has_read = self._wrote = False
        """Since the last heartbeat."""
        self._silent_beats = 0
        self._timer: asyncio.TimerHandle | None = None
        self._closing_timer: asyncio.TimerHandle | None = None
        self._why = Reason.LOST
        self.is_over = False
        """True from the moment the connection is given up."""
        self.names: frozenset[str] = frozenset()
        """Names in the other side's certificate."""

    # -- the transport's calls ---------------------------------------------------------------------

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._is_connected = True
        if self.is_over:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=_BUFFER_MAX)
        self.names = names_of(transport.get_extra_info("peercert"))
        self._plan_beat()
        self._side.opened()

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        return _READ

    @override
    def buffer_updated(self, nbytes: int) -> None:
        self._has_read = True
        try:
            received = self._side.received
            for frame in self._reader.feed(_READ[:nbytes]):
                if self.is_over:
                    return
                if frame[0] != _HEARTBEAT:
                    received(frame)
        except BadFrame:
            self.break_off(Reason.BAD_FRAME)

    @override
    def pause_writing(self) -> None:
        self._is_paused = True
        if self._side.answers:
            self._transport.pause_reading()

    @override
    def resume_writing(self) -> None:
        self._is_paused = False
        if not self.is_over:
            if self._side.answers:
                self._transport.resume_reading()
            self._flush()

    @override
    def connection_lost(self, error: Exception | None) -> None:
        self.is_over = True
        for timer in (self._timer, self._closing_timer):
            if timer is not None:
                timer.cancel()
        self._side.lost(self._why)

    # -- out ---------------------------------------------------------------------------------------

    def allow_large_frames(self) -> None:
        """The handshake is over."""
        self._reader.body_max = self._settings.frame_max

    def send(self, kind: int, number: int, body: bytes = b"") -> NotSent | None:
        """Put a frame into the outbox; its bytes leave after this pass of the loop."""
        size = len(body)
        if self.is_over or self._is_closing:
            return NotSent(Reason.NOT_CONNECTED)
        if size > self._frame_max:
            return NotSent(Reason.TOO_LARGE)
        room = self._outbox_max - self._outbox_bytes
        if size > room and not (size <= _SMALL and room > -self._outbox_max):
            return NotSent(Reason.FULL)
        self._outbox += (_pack(size, kind, number), body)
        self._numbers.append(number if kind == _REQUEST else 0)
        self._outbox_bytes += _HEAD_BYTES + size
        if not (self._will_flush or self._is_paused):
            self._will_flush = True
            self._loop.call_soon(self._flush)
        return None

    def has_room(self, size: int) -> bool:
        """True if a frame of this size can be sent now."""
        return size <= self._settings.outbox_max - self._outbox_bytes

    def withdraw(self, number: int) -> bool:
        """Take a request out of the outbox; False if it left already."""
        try:
            place = self._numbers.index(number)
        except ValueError:
            return False
        del self._numbers[place]
        head, body = self._outbox[2 * place : 2 * place + 2]
        self._outbox_bytes -= len(head) + len(body)
        del self._outbox[2 * place : 2 * place + 2]
        return True

    def unsent(self) -> set[int]:
        """Numbers of the requests in the outbox."""
        return set(self._numbers)

    def _flush(self) -> None:
        self._will_flush = False
        while self._outbox and not (self._is_paused or self.is_over):
            self._wrote = True
            self._transport.write(self._take())
        if self._is_closing and not (self._outbox or self.is_over):
            self._transport.close()

    def _take(self) -> bytes:
        """Bytes for one write."""
        if self._outbox_bytes <= _WRITE_MAX:
            taken, self._outbox, self._numbers = self._outbox, [], []
            self._outbox_bytes = 0
            return b"".join(taken)
        size = count = 0
        while size < _WRITE_MAX:
            size += len(self._outbox[2 * count]) + len(self._outbox[2 * count + 1])
            count += 1
        joined = b"".join(self._outbox[: 2 * count])
        del self._outbox[: 2 * count], self._numbers[:count]
        self._outbox_bytes -= size
        return joined

    # -- the end -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Write what waits, then end the connection."""
        if self.is_over or self._is_closing:
            return
        self._is_closing = True
        self._why = Reason.STOPPED
        # The other side may never read it.
        self._closing_timer = self._loop.call_later(
            self._settings.handshake_s, self.break_off, Reason.STOPPED
        )
        self._flush()

    def break_off(self, reason: Reason) -> None:
        """End the connection at once."""
        if not self.is_over:
            self.is_over = True
            self._why = reason
            if self._is_connected:
                with suppress(AttributeError):  # a TLS transport of Python 3.11.2 that is closed
                    self._transport.abort()

    # -- heartbeats --------------------------------------------------------------------------------

    def _plan_beat(self) -> None:
        due_s = next_pulse(self._loop.time(), self._settings.heartbeat_s)
        self._timer = self._loop.call_at(due_s, self._beat)

    def _beat(self) -> None:
        """Silence is counted in beats, not in time: a process that stood still finds what arrived
        meanwhile before it blames the other."""
        if self.is_over:
            return
        self._silent_beats = 0 if self._has_read else self._silent_beats + 1
        self._has_read = False
        if self._silent_beats >= self._settings.silent_beats:
            self.break_off(Reason.SILENT)
            return
        if not (self._wrote or self._outbox):
            self.send(Kind.HEARTBEAT, 0)
        self._wrote = False
        self._plan_beat()
        self._side.beat()
