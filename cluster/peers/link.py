"""The two sides of a connection between hosts. Link: one that this host opened to a channel of a
peer, with the requests that wait for its answers. Incoming: one that another host opened, with its
requests that are being served here.

An end in order lets the requests under way finish: `Link.retired` tells when to open the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Protocol

import msgspec
import structlog
from typing_extensions import override

from cluster.peers.breaker import Breaker
from cluster.peers.frames import BadFrame, Frame, Kind
from cluster.peers.hello import (
    HandshakeUnreadable,
    Hello,
    Welcome,
    agreed,
    decode,
    decode_refusal,
    encode,
    welcomed,
)
from cluster.peers.peer_outcomes import NotSent, OnOutcome, Outcome, Reason, Refused, Unknown
from cluster.peers.peer_settings import PeerSettings
from cluster.peers.roles import Place
from cluster.peers.wire import Side, Wire

_DEADLINES_S = 0.5
"""Deadlines are kept in slots of this length: one may end so much later."""


class Link(Side):
    """The side that opened the connection, and asks."""

    answers = False

    def __init__(
        self,
        hello: Hello,
        *,
        settings: PeerSettings,
        monotonic_s: Callable[[], float],
        breaker: Breaker,
        place: Place,
        on_end: Callable[[Link], None],
    ) -> None:
        """`breaker` is that of the channel, which outlives its links; `place` is that of the other
        host; `on_end` is called once the link, which is connected through `wire`, is over."""
        loop = asyncio.get_running_loop()
        self.wire = Wire(self, settings)
        self.welcomed: asyncio.Future[Refused | None] = loop.create_future()
        """Done after the handshake; with the reason if it failed."""
        self.retired: asyncio.Future[str] = loop.create_future()
        """Done when a connection takes no more requests, with the reason."""
        self.is_open = False
        """True while it takes messages and requests."""
        self.version = 0
        """The version that both sides speak."""
        self.peer: Hello | None = None
        """The other host's word about itself."""
        self._hello = hello
        self._place = place
        self._settings = settings
        self._monotonic_s = monotonic_s
        self.breaker = breaker
        self._loop = loop
        self._numbers = count(1)
        self._on_end = on_end
        self._pending: dict[int, OnOutcome] = {}
        self._due: dict[int, list[int]] = {}
        """Numbers by the slot of their deadline; many are answered long before."""
        self._is_closing = False
        self._closing_timer: asyncio.TimerHandle | None = None
        self._log = structlog.get_logger("peers").bind(peer=hello.to, channel=hello.channel)

    @property
    def is_busy(self) -> bool:
        """True while answers are outstanding."""
        return bool(self._pending)

    # -- requests ----------------------------------------------------------------------------------

    def message(self, shard: int, body: bytes) -> NotSent | None:
        """Send a shard what needs no answer. It may get lost with the connection."""
        if not self.is_open:
            return NotSent(Reason.NOT_CONNECTED)
        return self.wire.send(Kind.MESSAGE, shard, body)

    def request(self, body: bytes, on_outcome: OnOutcome, timeout_s: float) -> int | NotSent:
        """Send a request. Returns its number, and `on_outcome` is called exactly once, later; or
        the reason why nothing was sent."""
        if not self.is_open:
            return NotSent(Reason.NOT_CONNECTED)
        if len(self._pending) >= self._settings.requests_max:
            return NotSent(Reason.FULL)
        now_s = self._monotonic_s()
        if self.breaker.failures and not self.breaker.lets(now_s):
            return NotSent(Reason.BREAKER_OPEN)
        number = next(self._numbers)
        failure = self.wire.send(Kind.REQUEST, number, body)
        if failure is not None:
            return failure
        self._pending[number] = on_outcome
        slot = int((now_s + timeout_s) / _DEADLINES_S) + 1
        due = self._due.get(slot)
        if due is None:
            self._due[slot] = [number]
        else:
            due.append(number)
        return number

    def cancel(self, number: int) -> bool:
        """The answer is not needed any more. True if it was not sent yet: then no outcome comes."""
        if number not in self._pending:
            return False
        if self.wire.withdraw(number):
            del self._pending[number]
            return True
        self.wire.send(Kind.CANCEL, number)
        return False

    def close(self) -> None:
        """Send no further requests; end the connection when the last answer is here."""
        if self.wire.is_over or self._is_closing:
            return
        self._is_closing = True
        self._retire(Reason.CLOSING)
        if self.peer is None:
            self.wire.break_off(Reason.STOPPED)
            return
        self.wire.send(Kind.END, 0)
        self._closing_timer = self._loop.call_later(
            self._settings.drain_s, self.wire.break_off, Reason.STOPPED
        )
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if not self._pending:
            self.wire.close()

    def _retire(self, reason: str) -> None:
        self.is_open = False
        if not self.retired.done():
            self.retired.set_result(reason)

    # -- the wire's calls --------------------------------------------------------------------------

    @override
    def opened(self) -> None:
        """Say who this is."""
        self.wire.send(Kind.HELLO, 0, encode(self._hello))

    @override
    def received(self, frame: Frame) -> None:
        """Take an outcome, or the peer's part of the handshake."""
        kind, number, body = frame
        if kind == Kind.ANSWER and self.peer is not None:
            self._settle(number, body)
        elif kind == Kind.END and self.peer is not None:
            self.close()
        else:
            try:
                self._received_rarely(kind, number, body)
            except HandshakeUnreadable as error:
                raise BadFrame(str(error)) from error

    def _received_rarely(self, kind: int, number: int, body: bytes) -> None:
        """Refusals and the handshake."""
        if self.peer is None and kind == Kind.WELCOME:
            self._be_welcomed(body)
        elif kind != Kind.REFUSED:
            raise BadFrame(f"a frame of kind {kind} is not expected")
        elif self.peer is not None:
            self._settle(number, decode_refusal(body))
        else:
            self._refused(decode_refusal(body))

    def _be_welcomed(self, body: bytes) -> None:
        welcome = welcomed(self._hello, body, self.wire.names, self._place)
        if isinstance(welcome, Refused):
            self._refused(welcome)
            return
        self.version, self.peer, self.is_open = welcome.version, welcome.hello, True
        self.wire.allow_large_frames()
        self.welcomed.set_result(None)

    def _refused(self, refusal: Refused) -> None:
        if not self.welcomed.done():
            self.welcomed.set_result(refusal)
        self.wire.close()

    @override
    def beat(self) -> None:
        """End what is overdue."""
        now = int(self._monotonic_s() / _DEADLINES_S)
        for slot in [slot for slot in self._due if slot <= now]:
            for number in self._due.pop(slot):
                if number not in self._pending:
                    continue
                self.breaker.failed(self._monotonic_s())
                if self.wire.withdraw(number):
                    self._settle(number, NotSent(Reason.DEADLINE))
                else:
                    self.wire.send(Kind.CANCEL, number)
                    self._settle(number, Unknown(Reason.DEADLINE))

    @override
    def lost(self, reason: str) -> None:
        """No answer comes any more."""
        self._retire(reason)
        if self._closing_timer is not None:
            self._closing_timer.cancel()
        if self._pending and not self._is_closing:
            self.breaker.failed(self._monotonic_s())
        pending, self._pending = self._pending, {}
        self._due.clear()
        unsent = NotSent(Reason.NOT_CONNECTED)
        unknown = Unknown(reason)
        waiting = self.wire.unsent()
        for number, on_outcome in pending.items():
            # Each in a call of its own, so that a bug in one does not keep others waiting.
            self._loop.call_soon(on_outcome, unsent if number in waiting else unknown)
        if not self.welcomed.done():
            self.welcomed.set_result(Refused(reason, "the connection ended in the handshake"))
        self._on_end(self)

    # -- outcomes ----------------------------------------------------------------------------------

    def _settle(self, number: int, outcome: Outcome) -> None:
        on_outcome = self._pending.pop(number, None)
        if on_outcome is None:
            return  # it came too late
        if self.breaker.failures and isinstance(outcome, bytes | Refused):
            self.breaker.succeeded()
        try:
            on_outcome(outcome)
        except Exception:
            self._log.exception("outcome_failed", number=number)
        if self._is_closing:
            self._close_if_idle()


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
        """True if the connection has room for an answer of this size."""
        return self._incoming.wire.has_room(size)

    def take(self, size: int) -> None:
        """Take no room: others may fill it first, then the answer is refused."""

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


class Incoming(Side):
    """The side that was connected to, and answers."""

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

    @override
    def opened(self) -> None:
        """Wait for the handshake, for a bounded time."""
        self._end_after(self._settings.handshake_s, Reason.NO_HANDSHAKE)
        self._acceptor.begun(self)

    @override
    def received(self, frame: Frame) -> None:
        """Take a request, a message or the peer's part of the handshake."""
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
                self._log.exception(
                    "message_failed",
                    peer=self.peer,
                    means="a bug: this message of that process counts as lost",
                    action="tell us, with this line",
                )

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

    @override
    def beat(self) -> None:
        """Nothing of ours is due."""

    @override
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
