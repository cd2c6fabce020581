"""Link: a connection that this host opened to a channel of a peer, with the requests that wait for
its answers.

An end in order lets the requests under way finish: `retired` tells when to open the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

import structlog

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
)
from cluster.peers.peer_outcomes import NotSent, OnOutcome, Outcome, Reason, Refused, Unknown
from cluster.peers.peer_settings import PeerSettings
from cluster.peers.roles import Place
from cluster.peers.wire import Wire

_DEADLINES_S = 0.5
"""Deadlines are kept in slots of this length: one may end so much later."""


class Link:
    """Belongs to the event loop's thread."""

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
        host. The link is connected through
        `wire`; `on_end` is called once it is over."""
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

    def opened(self) -> None:
        """Say who this is."""
        self.wire.send(Kind.HELLO, 0, encode(self._hello))

    def received(self, frame: Frame) -> None:
        """See `Side`."""
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
            self._be_welcomed(decode(body, Welcome))
        elif kind != Kind.REFUSED:
            raise BadFrame(f"a frame of kind {kind} is not expected")
        elif self.peer is not None:
            self._settle(number, decode_refusal(body))
        else:
            self._refused(decode_refusal(body))

    def _be_welcomed(self, welcome: Welcome) -> None:
        theirs = welcome.hello
        version = agreed(self._hello, theirs, self.wire.names, self._place_of)
        if isinstance(version, Refused):
            self._refused(version)
            return
        if welcome.version not in self._hello.versions:
            self._refused(Refused(Reason.NO_COMMON_VERSION, f"version {welcome.version}"))
            return
        self.version = welcome.version
        self.peer = theirs
        self.is_open = True
        self.wire.allow_large_frames()
        self.welcomed.set_result(None)

    def _place_of(self, host: str) -> Place | None:
        return self._place if host == self._hello.to else None

    def _refused(self, refusal: Refused) -> None:
        if not self.welcomed.done():
            self.welcomed.set_result(refusal)
        self.wire.close()

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
