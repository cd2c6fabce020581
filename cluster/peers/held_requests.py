"""Requests of a router that are tried again: those that are held, and receives to be undone."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec
import structlog

from cluster.clock import Entropy
from cluster.peers.breaker import Pause
from cluster.peers.link import Link
from cluster.peers.peer_settings import ForwardingSettings
from visibility.contract.errors import QueueError
from visibility.contract.operations import ReceiveMessage
from visibility.contract.outcomes import Answer
from visibility.rules.acknowledge import UndoReceive
from visibility.state.waiters import Ticket

_AT_ONCE = 512
"""Requests that are tried in one pass: bounds how long the event loop is held."""


class Routed(Ticket, eq=False):
    """A request on its way to a leader. It is at one place: here, at a peer, or held."""

    begun_s: float = 0.0
    """Time of its first try."""
    give_up_s: float = 0.0
    """It is not tried again after this time."""
    wait_ends_s: float = 0.0
    """The end of a long poll's wait, 0 for other requests."""
    is_retry: bool = False
    """True once a try may have been decided."""
    is_late: bool = False
    """True once it was held: a long poll then waits for what is left of its time."""
    is_hinted: bool = False
    """True from a hint until it is held: two hosts may each take the other for the leader."""
    is_redone: bool = False
    """True once it was decided upon anew, with other definitions."""
    is_offered: bool = False
    """True if another shard may get it: unless a try may have been decided, it is not held."""
    undoes: bool = False
    """True if it undoes a receive: nobody waits for it."""
    hint: str = ""
    """The leader that another host named."""
    body: bytes = b""
    """As it is sent, without the head; empty while that is not known."""
    here: Ticket | None = None
    """Its ticket while a shard of this host has it."""
    is_here: bool = False
    """True if it is itself the ticket that a shard of this host has, or has answered."""
    link: Link | None = None
    """The link over which it was sent, while a peer has it."""
    call: int = 0
    """Its number there."""

    @property
    def is_other(self) -> bool:
        """True for a request of a client that is no long poll."""
        return not (self.wait_ends_s or self.undoes)


class _OfShard:
    """Pauses double until a request gets through."""

    def __init__(self, pause: Pause, try_again: Callable[[Routed], None]) -> None:
        self.pause = pause
        self.others = 0
        """Those of them for which `Routed.is_other` holds."""
        self._try_again = try_again
        self._tickets: dict[Routed, None] = {}
        self._due: deque[Routed] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._tickets) + len(self._due)

    def add(self, ticket: Routed) -> None:
        """Hold a request until after the next pause."""
        self._tickets[ticket] = None
        self.others += ticket.is_other
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self.pause.next_s(), self._release)

    def remove(self, ticket: Routed) -> bool:
        """Take a request out; False if it is about to be tried."""
        if self._tickets.pop(ticket, self) is self:
            return False
        self.others -= ticket.is_other
        return True

    def hurry(self) -> None:
        """Something changed: try now."""
        self.pause.reset()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(0, self._release)

    def _release(self) -> None:
        self._timer = None
        was_idle = not self._due
        self._due.extend(self._tickets)
        self._tickets.clear()
        if was_idle:
            self._try_some()

    def _try_some(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(min(_AT_ONCE, len(self._due))):
            # Each in a call of its own, so that a bug in one does not keep others waiting.
            ticket = self._due.popleft()
            self.others -= ticket.is_other
            loop.call_soon(self._try_again, ticket)
        if self._due:
            loop.call_soon(self._try_some)


class HeldRequests:
    """Belongs to the event loop's thread."""

    def __init__(
        self, settings: ForwardingSettings, entropy: Entropy, try_again: Callable[[Routed], None]
    ) -> None:
        self._settings = settings
        self._entropy = entropy
        self._try_again = try_again
        self.of_shard: dict[int, _OfShard] = {}
        """Empty until the first request is held."""

    def __len__(self) -> int:
        return sum(map(len, self.of_shard.values()))

    @property
    def is_full(self) -> bool:
        """True if no more requests may be held. The gateway bounds long polls."""
        return sum(held.others for held in self.of_shard.values()) >= self._settings.held_max

    def add(self, ticket: Routed) -> None:
        """Hold a request until after its shard's next pause."""
        ticket.is_late, ticket.is_hinted = True, False
        number = ticket.request.queue.shard
        held = self.of_shard.get(number)
        if held is None:
            pause = Pause(self._settings.retry_s, self._settings.retry_max_s, self._entropy)
            held = self.of_shard[number] = _OfShard(pause, self._try_again)
        held.add(ticket)

    def remove(self, ticket: Routed) -> bool:
        """Take a request out; False if it is not held, or about to be tried."""
        held = self.of_shard.get(ticket.request.queue.shard)
        return held is not None and held.remove(ticket)

    def got_through(self, number: int) -> None:
        """A request got through to the shard: the next pause is the shortest."""
        held = self.of_shard.get(number)
        if held is not None:
            held.pause.reset()

    def hurry(self, number: int) -> None:
        """Something changed for a shard: try now."""
        held = self.of_shard.get(number)
        if held is not None:
            held.hurry()

    def hurry_all(self) -> None:
        """The same for all of them."""
        for held in self.of_shard.values():
            held.hurry()


class UndoneReceives:
    """Receives that may have been decided although nobody gets their messages. Belongs to the
    event loop's thread."""

    def __init__(self, settings: ForwardingSettings, submit: Callable[[Routed], None]) -> None:
        self._settings = settings
        self._submit = submit
        self._under_way = 0
        self._log = structlog.get_logger("forwarding")

    def begin(self, ticket: Routed) -> None:
        """Have a request undone, if it is a receive that may have been decided."""
        request = ticket.request
        if not ticket.is_retry or type(request.operation) is not ReceiveMessage:
            return
        if self._under_way >= self._settings.held_max:
            self._log.warning("receive_not_undone", request_id=request.request_id)
            return
        self._under_way += 1
        undo = Routed(
            msgspec.structs.replace(request, operation=UndoReceive(), dead_letter_queue=None),
            self._undone,
            begun_s=ticket.begun_s,
            give_up_s=ticket.begun_s + self._settings.undo_s,
            is_retry=True,
            undoes=True,
        )
        asyncio.get_running_loop().call_soon(self._submit, undo)

    def _undone(self, answer: Answer | QueueError) -> None:
        self._under_way -= 1
