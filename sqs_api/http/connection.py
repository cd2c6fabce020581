"""A connection of a client: plain SQS requests are answered at once, aiohttp reads everything else.

aiohttp's handler chain costs more than all the rest of a SendMessage, so `SqsConnection` answers a
complete, plainly formed POST synchronously from `data_received` through the gateway. An unusual
request, or one that is not for SQS, goes to aiohttp together with the rest of that
connection (`fallback.py`). Both ways write the same bytes.

State        Reader   _exchange  _received       Ends with
idle         US       None       empty           a plain request: waiting; the start of one: begun;
                                                 anything else: fallback
begun        US       None       head, some body the rest: waiting; too late: 408 and the end
waiting      US       a request  bytes ahead     the reply: idle, or the bytes ahead are begun
(held back)  US       any        any             the reply, or its reading; reading is paused: too
                                                 many bytes ahead, or replies stay unread
last         US       a request  dropped         the reply, and the end: the client half-closed
leaving      US       None       empty           the end here, if another process takes it; idle
fallback     AIOHTTP  None       empty           the end of the connection
refused      NOBODY   None       empty           the end; input is dropped, memory is short

Limits of time and memory: `timeouts.py`. A stop of the server ends idle connections, and others
with their reply.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError

from sqs_api.gateway.exchange import Exchange
from sqs_api.gateway.gateway import Gateway
from sqs_api.gateway.request_memory import COUNTED_BYTES_MIN
from sqs_api.http.http_limits import ServerState
from sqs_api.http.timeouts import BoundedConnection, LastClient, Reader
from sqs_api.protocol.reply import closing
from sqs_api.protocol.request import NotPlain, read_plain_request
from sqs_api.settings.proxies import Origin, source_address
from visibility.contract.errors import ServiceUnavailable
from visibility.contract.operations import ReceiveMessage

_AHEAD_BYTES_MAX = 64 << 10
"""Bytes that a connection may send ahead of the reply it waits for before reading pauses."""
_UNSENT_BYTES_MAX = 64 << 10
"""Bytes of unsent answers above which no further request is begun."""
_NO_MEMORY = "Too many large requests are being received. Try again later."
_US = Reader.US


class SqsConnection(BoundedConnection):
    """One connection."""

    __slots__ = (
        "_exchange",
        "_gateway",
        "_held_back",
        "_is_last",
        "_received",
        "_taken",
        "goes_to",
        "in_a_row",
        "is_secure",
        "origin_of",
        "source_ip",
    )

    def __init__(
        self, manager: web.Server, state: ServerState, gateway: Gateway, **options: Any
    ) -> None:
        super().__init__(manager, state, **options)
        self._gateway = gateway
        self._exchange: Exchange | None = None
        """The request that waits for its reply. Invariant: None unless we read."""
        self._taken: Exchange | None = None
        """The latest request, if its answer had messages that do not come again."""
        self._received = b""
        """Bytes not begun yet: the start of a request, or those after the waiting one."""
        self._held_back = False
        """True while reading is paused."""
        self._is_last = False
        """True once the client sends no more; the connection ends with the reply under way."""
        self.goes_to, self.in_a_row = "", 0
        self.source_ip = ""
        self.is_secure = False
        """True if the request under way was sent over TLS. Behind no trusted proxy this and
        `source_ip` are the connection's."""
        self.origin_of: Callable[[Mapping[bytes, bytes]], Origin] | None = None
        """Finds the origin of a request by its headers; None if the peer is no trusted proxy."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the client's address."""
        super().connection_made(transport)
        self.source_ip = source_address(transport.get_extra_info("peername"))
        self.is_secure = transport.get_extra_info("sslcontext") is not None
        if self.is_secure:  # as without TLS, where it is the default
            cast(asyncio.Transport, transport).set_write_buffer_limits(_UNSENT_BYTES_MAX)
        if self._state.proxies.trusts(self.source_ip):
            direct = Origin(self.source_ip, self.is_secure)
            self.origin_of = partial(self._state.proxies.origin, direct)

    def data_received(self, data: bytes) -> None:
        """Answer a plain request at once; hand anything else to aiohttp."""
        if self._reader is not _US:
            if self._take_memory_for(data):
                self.feed_aiohttp(data)
            return
        begun_at = 0
        if self._received:
            data = self._received + data
            self._received = b""
            begun_at, self._begun_at = self._begun_at, 0
        size = len(data)
        if self._exchange is not None or self._held_back:
            self._received = data
            if size > _AHEAD_BYTES_MAX:
                self._hold_back()
            return
        if self._state.is_stopping:
            self.force_close()
            return
        if size > COUNTED_BYTES_MIN:
            if not self._state.memory.take(size - self._held_bytes):
                self._refuse_body(data)
                return
            self._held_bytes = size
        read = read_plain_request(data)
        if type(read) is tuple:
            target, headers, body = read
            if self.origin_of is not None:
                self.source_ip, self.is_secure = self.origin_of(headers)
            exchange = self._gateway.begin(self, b"POST", target, headers, body)
            if not exchange.answered:
                self._exchange = exchange
        elif read is NotPlain.SHORT:
            self._received = data
            self._begun_at = begun_at or self._state.seconds
            self._begun_bytes = size
        else:
            self._fall_back_with(data, begun_at)

    def eof_received(self) -> bool:  # type: ignore[override]  # aiohttp ends them all
        """Keep the connection for a reply under way; False ends it.

        A client that is gone looks the same until something is written to it. So a receive ends:
        its messages would be hidden in vain. One that is not decided yet may be a receive.
        """
        operation = None if self._exchange is None else self._exchange.operation
        can_wait = self.transport is not None and self.transport.can_write_eof()  # TLS cannot
        if operation is None or type(operation) is ReceiveMessage or not can_wait:
            return False
        self._is_last = self._held_back = True
        return True

    def write_reply(self, written: bytes) -> bool:
        """Write a reply, and go on with the next request; False if the client is gone."""
        exchange, self._exchange = self._exchange, None
        self._active_at = self._state.seconds
        self._taken = exchange if exchange is not None and exchange.taken else None
        if self._held_bytes:
            self._give_memory_back()
        transport = self.transport
        if transport is None or transport.is_closing():
            return False
        if self._state.is_stopping:
            transport.write(closing(written))
            self.force_close()
            return True
        transport.write(written)
        if self._paused:
            self._hold_back()
            self.answer_to(exchange)
        elif self._received or self._held_back:
            self._loop.call_soon(self._go_on)
        elif self._state.places is not None and exchange is not None:
            self._state.places.answered(self, exchange.queue)
        return True

    def leave(self, take: Callable[[socket.socket], bool]) -> None:
        """Give the connection to another process. Its last answer leaves this one first."""
        self._hold_back()
        self._loop.call_soon(self._leave, take)

    def _leave(self, take: Callable[[socket.socket], bool]) -> None:
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if not transport.get_write_buffer_size():
            own = transport.get_extra_info("socket")
            with socket.socket(fileno=os.dup(own.fileno())) as copy:
                if take(copy):
                    transport.abort()  # the copy stays open, and with it the connection
                    return
        self._go_on()

    def answer_to(self, exchange: Exchange | None) -> None:
        """Count what the client has not read of an answer; None if it was refused at once."""
        self._taken = exchange if exchange is not None and exchange.taken else None
        if exchange is None:
            self.answer_written(None, has_room=False)
        else:
            self.answer_written(exchange.caller, has_room=exchange.held_bytes > 0)

    def resume_writing(self) -> None:
        """Continue: the client reads its answers again."""
        super().resume_writing()
        if self._reader is _US and self._held_back and self._exchange is None:
            self._loop.call_soon(self._go_on)

    def connection_lost(self, exc: BaseException | None) -> None:
        """End: the client is gone, and its long poll with it."""
        if exc is not None and self._taken is not None:
            self._gateway.receives.count_lost(self._taken)
        exchange, self._exchange = self._exchange, None
        self._received = b""
        self._give_memory_back()
        super().connection_lost(exc)
        if exchange is not None:
            self._gateway.cancel(exchange)

    def _is_our_turn(self) -> bool:
        return self._exchange is not None or super()._is_our_turn()

    def close_if_idle(self) -> None:
        """End the connection unless a request of it is under way."""
        if self._exchange is None and not self._request_in_progress:
            self.force_close()

    def log_exception(self, *args: Any, **options: Any) -> None:
        """Log an error, but not a request that aiohttp cannot read: its bytes do not belong into a
        log."""
        if isinstance(options.get("exc_info"), HttpProcessingError | RequestPayloadError):
            return
        super().log_exception(*args, **options)

    def _hold_back(self) -> None:
        if not self._held_back and self.transport is not None:
            self._held_back = True
            self.transport.pause_reading()

    def _go_on(self) -> None:
        """Begin the requests that arrived while one was under way."""
        if self._exchange is not None or self.transport is None or self._paused:
            return
        if self._is_last:
            self.force_close()
            return
        if self._held_back:
            self._held_back = False
            self.transport.resume_reading()
        if self._received:
            self.data_received(b"")

    def refuse_unread(self, headers: Mapping[bytes, bytes]) -> None:
        """Reply that there is no memory for the request."""
        client = LastClient(self.transport, self.source_ip, is_secure=self.is_secure)
        self._gateway.refuse_unread(client, headers, ServiceUnavailable(_NO_MEMORY))

    def fall_back(self) -> None:
        """Have aiohttp read the connection from its first request on."""
        self._reader = Reader.AIOHTTP

    def _fall_back_with(self, data: bytes, begun_at: int) -> None:
        """Have aiohttp read this data and all that follows."""
        self._reader = Reader.AIOHTTP
        self._give_memory_back()
        self._begun_at = begun_at
        self._begun_bytes = 0
        self.data_received(data)
