"""Timeouts and size limits of a connection, on top of aiohttp's reading.

No timer runs for a connection or a request. Each notes the start of a step, in seconds that the
server counts, and the server checks all of them once a second (`SqsServer.sweep`).

Private names of aiohttp's RequestHandler that are used, here and in `connection.py`: `_messages`
(heads that it has read and not begun, last an error if it cannot read on), `_request_count` (all
heads that it has read), `_paused` (whether writing is), `_request_in_progress`.
"""

from __future__ import annotations

import asyncio
import fcntl
import re
import sys
import termios
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from typing import Any

from aiohttp import StreamReader, web
from aiohttp.web_protocol import RequestHandler, RequestPayloadError
from aiohttp.web_request import BaseRequest
from typing_extensions import override

from auth.caller import Caller
from sqs_api.gateway.request_memory import COUNTED_BYTES_MIN, PAGES
from sqs_api.http.http_limits import TARGET_BYTES_MAX, Refused, ServerState, TimedOut, TooLarge
from sqs_api.protocol.reply import closing

_HEAD_BYTES_MAX = TARGET_BYTES_MAX + (16 << 10)
"""Limit of a request's head. aiohttp bounds a line and their number, which makes 1 MiB for each
connection."""
_FRAMING_BYTES_MAX = 512 << 10
"""Limit of what frames the chunks of a body, with the head and up to 256 KiB that aiohttp has not
read yet. It bounds neither their number nor their extensions, and takes microseconds for each."""
_BUFFER_BYTES = 64 << 10
"""Bytes of an unread body that aiohttp keeps; at twice that it stops reading."""
_SPARED_S = 2
"""Seconds without a request after which a connection may have to give way: a request may cross our
end of it."""
_NEVER_S = 1e9
"""aiohttp's own timer of each connection does not end it: `SqsServer.sweep` does."""
_REASON_MAX = 500
"""Characters of aiohttp's reason why it cannot read a request."""
_REFUSED_HEAD_BYTES = 8000
"""Bytes that are searched for the protocol and the origin of a refused request."""
_NAMES = (b"accept", b"content-type", b"origin", b"x-amz-target")
"""Headers that the refusal of an unread request depends on."""
_OF_A_REFUSAL = re.compile(rb"(?<=\r\n)(%b):[ \t]*([^\r\n]*)" % b"|".join(_NAMES), re.IGNORECASE)


class Reader(Enum):
    """Readers of a connection's bytes."""

    US = "us"
    AIOHTTP = "aiohttp"
    NOBODY = "nobody"


class BoundedConnection(RequestHandler):
    """aiohttp's connection with limits."""

    __slots__ = (
        "_active_at",
        "_begun_at",
        "_begun_bytes",
        "_begun_count",
        "_body",
        "_held_bytes",
        "_is_cut",
        "_is_unreadable",
        "_made_at",
        "_reader",
        "_request",
        "_state",
        "_unread_bytes",
        "_unread_since",
        "_unsent_bytes",
        "_unsent_to",
    )

    def __init__(self, manager: web.Server, state: ServerState, **options: Any) -> None:
        super().__init__(manager, keepalive_timeout=_NEVER_S, read_bufsize=_BUFFER_BYTES, **options)
        self._state = state
        self._reader = Reader.US
        self._held_bytes = 0
        """This connection's share of the request memory."""
        # Instants are in the server's seconds; 0 is never.
        self._made_at = 0
        self._active_at = 0
        """Time of the last answer."""
        self._begun_at = 0
        """Arrival of the first byte of the request that is not complete."""
        self._begun_bytes = 0
        """Bytes of that request so far."""
        self._begun_count = 0
        """Heads that aiohttp had read when it began."""
        self._body: StreamReader | None = None
        """The body of aiohttp's last request."""
        self._request: BaseRequest | None = None
        """aiohttp's request that is not answered yet."""
        self._unread_since = 0
        """Time at which answers were first seen to stay unread."""
        self._unread_bytes = 0
        """Bytes of them at that time."""
        self._unsent_bytes = 0
        """This connection's share of the request memory for answers."""
        self._unsent_to = PAGES
        """The caller whose share that is."""
        self._is_cut = False
        """True after an abort: the transport cannot be asked any more."""
        self._is_unreadable = False
        """True once the client is answered that its bytes cannot be read, and is hung up on."""

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection."""
        super().connection_made(transport)
        self._state.counters.connections += 1
        self._state.counters.accepted += 1
        self._made_at = self._state.seconds
        self._state.unserved[self] = None

    def was_served(self) -> None:
        """Note that another process has answered requests of this connection."""
        self._active_at = self._state.seconds

    @override
    def connection_lost(self, exc: BaseException | None) -> None:
        """Count the connection no more."""
        self._state.counters.connections -= 1
        self._state.unserved.pop(self, None)
        self._hold_unsent(0)
        super().connection_lost(exc)
        self._messages.clear()  # their bodies refer to this connection
        if self._body is not None:
            self._body.set_exception(ConnectionResetError())  # the last one kept its readers
            self._body = None  # it keeps the unread rest, and this connection

    def feed_aiohttp(self, data: bytes) -> None:
        """Have aiohttp read; without data, the bytes it kept while it was paused."""
        if data and not self._begun_at:
            self._begun_at = self._state.seconds
            self._begun_bytes = 0
            self._begun_count = self._request_count
        self._begun_bytes += len(data)
        was_in_body = self._is_in_body()
        super().data_received(data)
        self._note_error()
        if was_in_body and not self._is_in_body():
            self._begun_at = 0
        elif was_in_body and self._messages and self._body is not None:
            # Not a further request but an error, which aiohttp does not report to readers of the
            # body.
            self._body.set_exception(RequestPayloadError("malformed body"))
        elif was_in_body and self._request is not None and self._body is not None:
            if self._begun_bytes - self._body.total_bytes > _FRAMING_BYTES_MAX:
                self._state.counters.too_large[TooLarge.BODY] += 1
                self._is_unreadable = True
                self._body.set_exception(RequestPayloadError("too much beside the body"))
        is_read = was_in_body or self._messages  # a head that waits for aiohttp's task
        is_in_head = not is_read and self._request_count == self._begun_count
        if self._begun_at and is_in_head and self._begun_bytes > _HEAD_BYTES_MAX:
            self._state.counters.too_large[TooLarge.HEAD] += 1
            self._end_with(b"431 Request Header Fields Too Large")

    def _note_error(self) -> None:
        """Read no more once aiohttp cannot: it would keep an error for each further piece.

        The error's traceback and its frames hold each other, and the input: only the collector,
        which counts objects and not bytes, would free them.
        """
        error = getattr(self._messages[-1][0], "exc", None) if self._messages else None
        if error is None:
            return
        error.__traceback__ = None
        self._is_unreadable = True
        is_next = self._request is None and len(self._messages) == 1
        if is_next and self.transport is not None:
            self.transport.pause_reading()  # else the end of the connection may end a long poll

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """See aiohttp, whose message would have all that it could not read."""
        return super().handle_error(request, status, exc, message and message[:_REASON_MAX])

    def _is_in_body(self) -> bool:
        """True while the body of aiohttp's last request is incomplete."""
        return self._body is not None and not self._body.is_eof()

    def request_begins(self, request: BaseRequest) -> None:
        """Note that aiohttp begins a request whose head it has read."""
        self._request = request
        self._body = request.content

    def request_is_read(self) -> None:
        """Note that aiohttp read a request to its end."""
        self._begun_at = 0

    def request_ends(self) -> None:
        """Note that the answer was written, or will be at once."""
        self._request = None
        self._begun_at = 0
        self._active_at = self._state.seconds
        self._give_memory_back()

    # -- requests that find no memory --------------------------------------------------------------

    @property
    def is_refused(self) -> bool:
        """True once the last reply is written; further input is dropped."""
        return self._reader is Reader.NOBODY

    def _take_memory_for(self, data: bytes) -> bool:
        """True if aiohttp may have the data.

        Small requests are always allowed: the number of connections bounds them.
        """
        if self.is_refused or self._is_unreadable:
            return False
        if self._request is None and self._is_in_body():
            return True  # it was answered already, and aiohttp drops the rest
        if self._state.memory.take(len(data)):
            self._held_bytes += len(data)
            return True
        if len(data) + (self._begun_bytes if self._begun_at else 0) <= COUNTED_BYTES_MIN:
            return True
        self._refuse_body(data)
        return False

    def _give_memory_back(self) -> None:
        self._state.memory.give_back(self._held_bytes)
        self._held_bytes = 0

    def _refuse_body(self, data: bytes) -> None:
        """Reply at once that there is no memory, and drop further input.

        Reading continues for a while: a client that is still sending would lose the reply if the
        connection were closed.
        """
        self._state.counters.refused[Refused.MEMORY] += 1
        self._give_memory_back()
        self._reader = Reader.NOBODY
        self._begun_at = self._begun_at or self._state.seconds
        if self._is_our_turn():  # behind a request that is not answered
            self.force_close()
            return
        if self._request is None:
            found = _OF_A_REFUSAL.findall(data[:_REFUSED_HEAD_BYTES])
        else:
            found = [line for line in self._request.raw_headers if line[0].lower() in _NAMES]
            self._request.content.feed_eof()  # its reader gives up
        self.refuse_unread({name.lower(): value for name, value in found})

    def refuse_unread(self, headers: Mapping[bytes, bytes]) -> None:
        """Reply that there is no memory for a request, of which these headers are known."""
        raise NotImplementedError

    # -- answers that are not read -----------------------------------------------------------------

    @override
    def resume_writing(self) -> None:
        """The client has read its answers."""
        super().resume_writing()
        self._hold_unsent(0)

    def answer_written(self, caller: Caller | None, *, has_room: bool) -> None:
        """Count an answer's bytes that the client does not take yet; hang up if they had no room,
        and find none."""
        transport = self.transport
        if not self._paused or transport is None:
            return
        self._hold_unsent(transport.get_write_buffer_size(), caller)
        if not has_room and self._state.memory.is_exceeded:
            self._state.counters.refused[Refused.MEMORY] += 1
            self._is_cut = True
            transport.abort()

    def page_begins(self, size: int) -> bool:
        """Count the body of a page that is to be written; False if it has no room."""
        if size >= COUNTED_BYTES_MIN:
            if not self._state.memory.has_room(PAGES, size, may_exceed=True):
                self._state.counters.refused[Refused.MEMORY] += 1
                return False
            self._hold_unsent(size)
        return True

    def _hold_unsent(self, size: int, caller: Caller | None = None) -> None:
        """Hold memory for this number of bytes, the caller's from now on."""
        memory = self._state.memory
        if self._unsent_bytes:
            memory.hold(self._unsent_to, -self._unsent_bytes)
        if caller is not None:
            self._unsent_to = caller
        if size:
            memory.hold(self._unsent_to, size)
        self._unsent_bytes = size

    # -- time --------------------------------------------------------------------------------------

    def _end_with(self, status: bytes) -> None:
        """Answer a request that is not complete, and hang up."""
        if self.transport is not None:
            self.transport.write(
                b"HTTP/1.1 %b\r\nConnection: close\r\nContent-Length: 0\r\n\r\n" % status
            )
        self.force_close()

    def _is_our_turn(self) -> bool:
        """True while the client waits for an answer."""
        if self._request is not None:
            return not self._is_in_body()
        return bool(self._messages)

    def _may_have_answer(self) -> bool:
        """True if the request that is being read may have been answered."""
        return self.is_refused or self._is_in_body() or self._request is not None

    def end_if_overdue(self, transport: asyncio.Transport) -> None:
        """Hang up on a client that takes too long; the server calls this once a second.

        A request must be complete in time, and its answer must be read: each within a fixed time,
        and longer while bytes come or go at the least rate. Nothing is overdue while the client
        waits for its answer.
        """
        if self._is_cut:
            return
        state = self._state
        now, limits = state.seconds, state.limits
        self._hold_unsent(transport.get_write_buffer_size() if self._paused else 0)
        if self._paused or transport.is_closing():
            if self._does_not_read(_unread_bytes(transport)):
                state.counters.timeouts[TimedOut.ANSWER] += 1
                self._is_cut = True
                transport.abort()
            return
        self._unread_since = 0
        if self._is_our_turn():
            return
        if self._begun_at:
            allowed_s = limits.request_timeout_s
            allowed_s += self._begun_bytes // limits.client_bytes_per_s_min
            if now - self._begun_at > allowed_s:
                state.counters.timeouts[TimedOut.REQUEST] += 1
                if self._may_have_answer():
                    self.force_close()
                else:
                    self._end_with(b"408 Request Timeout")
        elif self._is_idle_too_long(now):
            state.counters.timeouts[TimedOut.IDLE] += 1
            self.force_close()

    def _is_idle_too_long(self, now: int) -> bool:
        limits = self._state.limits
        if self._active_at:
            return now - self._active_at > limits.idle_timeout_s
        return now - self._made_at > min(limits.request_timeout_s, limits.idle_timeout_s)

    @property
    def active_at(self) -> int:
        """Time of the last answer; 0 before the first."""
        return self._active_at

    @property
    def may_give_way(self) -> bool:
        """True if nothing is under way, and was not just now."""
        transport = self.transport
        return not (
            (self._active_at and self._state.seconds - self._active_at < _SPARED_S)
            or self._begun_at
            or self._request is not None
            or self._is_our_turn()
            or self._is_cut
            or transport is None
            or transport.is_closing()
            or transport.get_write_buffer_size()
        )

    def give_way(self) -> None:
        """End without a farewell, for which a client could let us wait."""
        assert self.transport is not None
        self._state.counters.timeouts[TimedOut.ROOM] += 1
        self._is_cut = True
        self.transport.abort()

    def _does_not_read(self, unread_bytes: int) -> bool:
        """True if the waiting bytes have left more slowly than the least rate since they were first
        seen."""
        now, limits = self._state.seconds, self._state.limits
        waited_s = now - self._unread_since
        if self._unread_since and waited_s <= limits.request_timeout_s:
            return False
        sent_bytes = self._unread_bytes - unread_bytes
        is_slow = sent_bytes < waited_s * limits.client_bytes_per_s_min
        if not self._unread_since or not is_slow:
            self._unread_since, self._unread_bytes = now, unread_bytes
            return False
        return True


class LastClient:
    """Writes a final reply, then ignores further input."""

    def __init__(
        self, transport: asyncio.Transport | None, source_ip: str, *, is_secure: bool
    ) -> None:
        self.source_ip = source_ip
        self.is_secure = is_secure
        self._transport = transport

    def write_reply(self, written: bytes) -> bool:
        """Write the reply and end the stream; False if the client is gone."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        transport.write(closing(written))
        if transport.can_write_eof():
            transport.write_eof()
        return True


def _unread_bytes(transport: asyncio.Transport) -> int:
    """Bytes that were written and not received by the client.

    The system's buffer counts too: it may take minutes of a slow client's in one go, while the
    transport's does not shrink.
    """
    size: int = transport.get_write_buffer_size()
    sock = transport.get_extra_info("socket")
    if sock is None:
        return size  # the connection is over
    with suppress(OSError, ValueError):  # not on every system, and not of every kind of socket
        queued = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
        size += int.from_bytes(queued, sys.byteorder)
    return size
