"""Requests of a router that no leader answered: held and tried again, given up, or undone."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Protocol

import msgspec
import structlog

from cluster.catalog.catalog_records import QueueName, name_of
from cluster.clock import Entropy
from cluster.encoded_requests import MessageUnreadable
from cluster.peers.breaker import Pause
from cluster.peers.link import Link
from cluster.peers.peer_outcomes import Failure, Refusal, may_have_happened, may_retry
from cluster.peers.peer_settings import ForwardingSettings
from cluster.peers.queue_news import QueueNews
from cluster.shards.answers import NotDecided
from visibility.contract.errors import (
    InternalError,
    Moved,
    QueueDoesNotExist,
    QueueError,
    ServiceUnavailable,
    UnsupportedOperation,
)
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.operations import ReceiveMessage
from visibility.contract.outcomes import Answer
from visibility.rules.acknowledge import UndoReceive
from visibility.rules.receive import waiting_on
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
    """The request as it is sent, without the head; empty while that is not known."""
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

    def age_of_retry_ms(self, now_s: float) -> int:
        """The age of a retry, rounded up; 0 for a request that was not decided yet."""
        return int((now_s - self.begun_s) * 1000) + 1 if self.is_retry else 0

    def as_it_waits(self, now_s: float) -> Request:
        """The request; a long poll that was held waits for the seconds that are left."""
        is_rest = self.is_late and self.wait_ends_s
        return waiting_on(self.request, self.wait_ends_s - now_s) if is_rest else self.request


def _not_allowed(request: Request) -> UnsupportedOperation:
    """The refusal of what this process may not ask other hosts for."""
    return UnsupportedOperation(
        f"{type(request.operation).__name__} cannot be asked for through this gateway or host. "
        f"Ask a host of the cluster that keeps queue {request.queue.name}."
    )


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


class View(Protocol):
    """This host's definitions of queues."""

    def queue_of_id(self, queue_id: int) -> QueueDefinition | None:
        """The queue with this id, None if it was deleted."""

    def find(self, name: QueueName) -> QueueDefinition | None:
        """The queue of that name, None if there is none."""

    def renewed(self, request: Request) -> Request | None:
        """The same request with the definitions of now; None if its queue is gone."""

    def when_caught_up(self, then: Callable[[], None]) -> None:
        """Call back once, later, when the view shows all that was committed before this call, or
        when that cannot be known in bounded time."""


class Retries:
    """Requests that no leader has answered: held, given up or undone."""

    def __init__(
        self,
        settings: ForwardingSettings,
        entropy: Entropy,
        monotonic_s: Callable[[], float],
        view: View,
        news: QueueNews | None,
        try_again: Callable[[Routed], None],
    ) -> None:
        """`news` brings the view changes of queues that it missed."""
        self.ends_s = inf
        """Nothing is held after this time: the node stops."""
        self.of_shard: dict[int, _OfShard] = {}
        """Held requests; empty until the first one is."""
        self._settings = settings
        self._entropy = entropy
        self._monotonic_s = monotonic_s
        self._view = view
        self._news = news
        self._try_again = try_again
        self._undoing = 0
        """Receives that are being undone."""
        self._log = structlog.get_logger("forwarding")

    def __len__(self) -> int:
        """Requests that wait to be tried again."""
        return sum(map(len, self.of_shard.values()))

    @property
    def _is_full(self) -> bool:
        """True if no more requests may be held. The gateway bounds long polls."""
        return sum(held.others for held in self.of_shard.values()) >= self._settings.held_max

    def _hold(self, ticket: Routed) -> None:
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

    # -- what becomes of a request -----------------------------------------------------------------

    def failed(self, ticket: Routed, failure: Failure, host: str = "") -> None:
        """Hold a request that may be tried again, or answer it; `host` is the one that refused
        it."""
        if may_have_happened(failure):
            ticket.is_retry = True
        if failure.reason == Refusal.NOT_ALLOWED:
            self.answer_later(ticket, _not_allowed(ticket.request))
        elif not may_retry(failure):
            self.give_up(ticket, failure.reason)
        elif failure.reason == Refusal.DEFINITION_UNKNOWN:
            if ticket.is_redone:
                self.give_up(ticket, failure.reason)
            else:
                ticket.is_redone = True
                self._look(host, ticket, partial(self._redo, ticket))
        elif self._monotonic_s() >= min(ticket.give_up_s, self.ends_s):
            self.give_up(ticket, failure.reason)
        elif ticket.is_offered and not (ticket.is_retry or ticket.hint):
            self.answer_later(ticket, NotDecided())
        elif ticket.is_other and self._is_full:
            self.give_up(ticket, failure.reason)
        elif ticket.hint:
            asyncio.get_running_loop().call_soon(self._try_again, ticket)
        else:
            self._hold(ticket)

    def _look(self, host: str, ticket: Routed, then: Callable[[], None]) -> None:
        """Call back when the view has the latest news of the queues of a request that this host
        had."""
        if self._news is None:
            self._view.when_caught_up(then)
        else:
            self._news.ask(host, ticket.request, then)

    def _redo(self, ticket: Routed) -> None:
        """Try again with the definitions of now."""
        renewed = self._view.renewed(ticket.request)
        if renewed is None:
            self._gone(ticket)
        else:
            ticket.request, ticket.body = renewed, b""
            self._try_again(ticket)

    def _gone(self, ticket: Routed) -> None:
        """Answer a request for a queue, or a part of one, that is not there any more."""
        queue = ticket.request.queue
        found = self._view.find(name_of(queue))
        if found is None:
            self.answer(ticket, QueueDoesNotExist())
        elif ticket.is_retry or not found.is_same_queue(queue):
            # It may have been decided there, or was made for a queue that had the name before.
            self.give_up(ticket, Refusal.DEFINITION_UNKNOWN)
        elif queue.parts:
            self.answer(ticket, QueueDoesNotExist())  # whoever asks a part knows the others
        else:
            self.answer(ticket, Moved())

    def give_up(self, ticket: Routed, reason: str) -> None:
        """Answer that the service is not available."""
        request = ticket.request
        self._log.warning(
            "request_given_up",
            request_id=request.request_id,
            shard=request.queue.shard,
            operation=type(request.operation).__name__,
            reason=reason,
        )
        self.undo(ticket)
        self.answer_later(ticket, ServiceUnavailable())

    def answer_later(self, ticket: Routed, answer: Answer | QueueError) -> None:
        """Answer, but never from within `submit`."""
        asyncio.get_running_loop().call_soon(ticket.on_answer, answer)

    def unreadable(self, ticket: Routed, host: str, error: MessageUnreadable) -> None:
        """Answer for a host whose answer cannot be read."""
        self._log.error("answer_unreadable", peer=host, error=str(error))
        ticket.is_retry = True
        self.answer(ticket, InternalError())

    def answer_when_known(
        self, ticket: Routed, host: str, queue_id: int, answer: Answer | QueueError
    ) -> None:
        """Answer for that queue, which continues a purged one, or with news of a queue's parts,
        once the view shows them."""
        if type(answer) is Moved and self._news is not None and self._news.is_behind:
            self._look(host, ticket, partial(self.answer, ticket, answer))
        elif not queue_id:
            self.answer(ticket, answer)
        elif self._view.queue_of_id(queue_id) is None:
            self._look(host, ticket, partial(self._answer_from, ticket, queue_id, answer))
        else:
            self._answer_from(ticket, queue_id, answer)

    def _answer_from(self, ticket: Routed, queue_id: int, answer: Answer | QueueError) -> None:
        queue = self._view.queue_of_id(queue_id)
        if queue is None:
            ticket.is_retry = True
            self.give_up(ticket, Refusal.DEFINITION_UNKNOWN)
        else:
            ticket.request = msgspec.structs.replace(ticket.request, queue=queue)
            self.answer(ticket, answer)

    def answer(self, ticket: Routed, answer: Answer | QueueError) -> None:
        """Answer; a receive that gets an error is undone."""
        if isinstance(answer, QueueError):
            self.undo(ticket)
        ticket.on_answer(answer)

    def undo(self, ticket: Routed) -> None:
        """Have a request undone, if it is a receive that may have been decided."""
        request = ticket.request
        if not ticket.is_retry or type(request.operation) is not ReceiveMessage:
            return
        if self._undoing >= self._settings.held_max:
            self._log.warning("receive_not_undone", request_id=request.request_id)
            return
        self._undoing += 1
        undo = Routed(
            msgspec.structs.replace(request, operation=UndoReceive(), dead_letter_queue=None),
            self._undone,
            begun_s=ticket.begun_s,
            give_up_s=ticket.begun_s + self._settings.undo_s,
            is_retry=True,
            undoes=True,
        )
        asyncio.get_running_loop().call_soon(self._try_again, undo)

    def _undone(self, answer: Answer | QueueError) -> None:
        self._undoing -= 1
