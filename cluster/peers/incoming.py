"""Incoming: a connection that another host opened, with its requests that are being served here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec
import structlog

from cluster.peers.frames import BadFrame, Frame, Kind
from cluster.peers.hello import HandshakeUnreadable, Hello, Welcome, agreed, decode, encode
from cluster.peers.peer_outcomes import Reason, Refused
from cluster.peers.peer_settings import PeerSettings
from cluster.peers.roles import Place
from cluster.peers.wire import Wire


class Call:
    """A request of another host, and the room for its answer. Answer or refuse it once."""

    __slots__ = ("_incoming", "body", "is_cancelled", "number", "on_cancel", "peer")

    def __init__(self, incoming: Incoming, number: int, body: bytes) -> None:
        self._incoming = incoming
        self.peer = incoming.peer
        """The host that asks."""
        self.number = number
        self.body = body
        self.is_cancelled = False
        self.on_cancel: Callable[[], None] | None = None
        """Called when the answer is not needed any more, or cannot be sent any more."""

    def has(self, size: int, messages: int) -> bool:
        """See `Room`."""
        return self._incoming.wire.has_room(size)

    def take(self, size: int) -> None:
        """See `Room`. Others may take it first: then the answer is refused."""

    def answer(self, body: bytes) -> bool:
        """False if the other host does not get it: then it is told so, if it can be reached."""
        return self._incoming.settle(self.number, Kind.ANSWER, body)

    def refuse(self, reason: str, detail: str = "") -> bool:
        """Say that the request was not done; False if the other host cannot get it any more."""
        refusal = msgspec.msgpack.encode(Refused(reason, detail))
        return self._incoming.settle(self.number, Kind.REFUSED, refusal)

    def cancel(self) -> None:
        """The answer is not needed any more."""
        self.is_cancelled = True
        if self.on_cancel is not None:
            self.on_cancel()


OnMessage = Callable[[str, bytes], None]
"""Gets the host that sent a message, and its bytes."""


class ChannelService:
    """Serves a channel: what to do with the messages of each shard, and with requests. A bug costs
    that message or request only."""

    def __init__(self, on_request: Callable[[Call], None] | None = None) -> None:
        self.on_request = on_request
        self.on_message: dict[int, OnMessage] = {}
        """By shard; others are dropped."""


class Acceptor(Protocol):
    """The parts of this host that a connection asks about a stranger."""

    def place_of(self, host: str) -> Place | None:
        """The place of a process of the fleet, None for a stranger."""

    def answer_to(self, theirs: Hello) -> tuple[Hello, ChannelService]:
        """This host's word to a Hello, and the one who serves the channel."""

    def begun(self, incoming: Incoming) -> None:
        """A stranger connected."""

    def welcomed(self, incoming: Incoming) -> None:
        """It turned out to be a peer."""

    def refused(self, theirs: Hello, refusal: Refused) -> None:
        """It may not connect."""

    def ended(self, incoming: Incoming) -> None:
        """The connection is over."""


class Incoming:
    """Belongs to the event loop's thread."""

    answers = True

    def __init__(self, acceptor: Acceptor, settings: PeerSettings) -> None:
        self.wire = Wire(self, settings)
        self._send = self.wire.send
        self.peer = ""
        """The other host's id, once it is proven."""
        self.channel = ""
        self.version = 0
        self._settings = settings
        self._acceptor = acceptor
        self._loop = asyncio.get_running_loop()
        self._service = ChannelService()
        self._serving: dict[int, Call] = {}
        self.is_closing = False
        self._timer: asyncio.TimerHandle | None = None
        self._log = structlog.get_logger("peers")

    # -- answers -----------------------------------------------------------------------------------

    def settle(self, number: int, kind: int, body: bytes) -> bool:
        """Send the outcome of a request; False if it does not reach the other host."""
        if self._serving.pop(number, None) is None:
            return False
        failure = self._send(kind, number, body)
        if failure is not None:
            refusal = msgspec.msgpack.encode(Refused(failure.reason, "there is no room for it"))
            if self.wire.send(Kind.REFUSED, number, refusal) is not None:
                # Without any outcome the other host would wait in vain.
                self.wire.break_off(Reason.FULL)
        return failure is None

    def close(self) -> None:
        """Take no further requests.

        The other host ends the connection: it knows when it has every answer, and requests may be
        on their way here. They are refused.
        """
        if not self.peer:
            self.wire.break_off(Reason.STOPPED)
        elif not (self.is_closing or self.wire.is_over):
            self.is_closing = True
            self.wire.send(Kind.END, 0)
            self._end_after(self._settings.drain_s, Reason.STOPPED)

    def _end_after(self, seconds: float, reason: Reason) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self.wire.break_off, reason)

    # -- the wire's calls --------------------------------------------------------------------------

    def opened(self) -> None:
        """Wait for the handshake, for a bounded time."""
        self._end_after(self._settings.handshake_s, Reason.NO_HANDSHAKE)
        self._acceptor.begun(self)

    def received(self, frame: Frame) -> None:
        """See `Side`."""
        kind, number, body = frame
        if not self.peer:
            self._shake_hands(kind, body)
        elif kind == Kind.REQUEST:
            self._serve(number, body)
        elif kind == Kind.MESSAGE:
            self._take(number, body)
        elif kind == Kind.CANCEL:
            if number in self._serving:
                self._serving[number].cancel()
        elif kind == Kind.END:
            self.is_closing = True
            self._end_after(self._settings.drain_s, Reason.STOPPED)
        else:
            raise BadFrame(f"a frame of kind {kind} is not expected")

    def _shake_hands(self, kind: int, body: bytes) -> None:
        if kind != Kind.HELLO:
            raise BadFrame("the handshake comes first")
        try:
            theirs = decode(body, Hello)
        except HandshakeUnreadable as error:
            raise BadFrame(str(error)) from error
        own, service = self._acceptor.answer_to(theirs)
        version = agreed(own, theirs, self.wire.names, self._acceptor.place_of)
        if isinstance(version, Refused):
            self._refuse(theirs, version)
            return
        assert self._timer is not None
        self._timer.cancel()
        self.peer, self.channel = theirs.host, theirs.channel
        self.version, self._service = version, service
        self.wire.allow_large_frames()
        self.wire.send(Kind.WELCOME, 0, encode(Welcome(version, own)))
        self._acceptor.welcomed(self)

    def _refuse(self, theirs: Hello, refusal: Refused) -> None:
        self._acceptor.refused(theirs, refusal)
        self.wire.send(Kind.REFUSED, 0, msgspec.msgpack.encode(refusal))
        self.wire.close()

    def _take(self, shard: int, body: bytes) -> None:
        on_message = self._service.on_message.get(shard)
        if on_message is not None:
            try:
                on_message(self.peer, body)
            except Exception:
                self._log.exception("message_failed", peer=self.peer)

    def _serve(self, number: int, body: bytes) -> None:
        if number in self._serving:
            raise BadFrame(f"request {number} comes twice")
        call = self._serving[number] = Call(self, number, body)
        if self.is_closing:
            call.refuse(Reason.CLOSING)
        elif len(self._serving) > self._settings.requests_max:
            call.refuse(Reason.BUSY)
        elif self._service.on_request is None:
            call.refuse(Reason.UNKNOWN_CHANNEL, "this channel takes no requests")
        else:
            try:
                self._service.on_request(call)
            except Exception:
                self._log.exception("request_failed", peer=self.peer)
                call.refuse(Reason.FAILED)

    def beat(self) -> None:
        """Nothing of ours is due."""

    def lost(self, reason: str) -> None:
        """Drop the answers: the connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
        if reason not in (Reason.LOST, Reason.STOPPED):
            self._log.warning(
                "peer_cut_off", peer=self.peer or None, channel=self.channel, reason=reason
            )
        serving, self._serving = self._serving, {}
        for call in serving.values():
            # Each in a call of its own, so that a bug in one does not keep the others.
            self._loop.call_soon(call.cancel)
        self._acceptor.ended(self)
