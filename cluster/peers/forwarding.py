"""PeerRouter: has each request decided by the leader of its shard, here or on another host.

    submit → led here?  the shard's inbox
             else       encoded once, sent to the leader, with all others of this pass of the loop
             no leader, not sent, not leader: held and tried again, for a bounded time; a request
                      that was offered is answered NotDecided, since another shard may get it

Nothing waits on the way down. `peer_outcomes.py` says what may be tried again; only what may not,
or not in time, is answered ServiceUnavailable. A receive that may have been decided by then is
undone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import inf

import structlog
from typing_extensions import override

from cluster.clock import Clock, Entropy
from cluster.encoded_requests import MessageUnreadable, encode_request
from cluster.peers.breaker import Pause
from cluster.peers.forwarded import (
    REQUEST_HEAD,
    VERSION,
    Gathered,
    as_sent,
    decode_answers,
    decode_outcome,
    may_join,
)
from cluster.peers.held_requests import Retries, Routed, View
from cluster.peers.peer_outcomes import NotSent, Outcome, Reason, Refusal, Refused
from cluster.peers.peer_settings import Channel, ForwardingSettings
from cluster.peers.queue_news import QueueNews
from cluster.peers.readiness import Leaders, Readiness, Ready
from cluster.peers.transport import Transport
from cluster.shards.answers import NotDecided, answer_all
from cluster.shards.lead import Lead
from cluster.shards.router import RefusalOf, Router, takes_all
from cluster.shards.shard import Shard
from visibility.contract.errors import Moved, QueueError, ServiceUnavailable
from visibility.contract.model import Request
from visibility.contract.operations import ReceiveMessage
from visibility.contract.outcomes import Answer
from visibility.rules.decided import NO_MESSAGES
from visibility.rules.receive import wait_ms
from visibility.state.waiters import OnAnswer, Room, Ticket


class PeerRouter(Router):
    """The router of a member of a cluster, and of a gateway."""

    age_s_max = 10.0
    """A leader has an index of the requests of this time, see `EARLIER_MS`."""
    goes_elsewhere = True

    def __init__(
        self,
        shards: Iterable[Shard],
        *,
        transport: Transport,
        leaders: Leaders,
        view: View,
        settings: ForwardingSettings,
        clock: Clock,
        entropy: Entropy,
        refusal: RefusalOf = takes_all,
        readiness: Ready | None = None,
        shown_leader_of: Callable[[int], str | None] | None = None,
        news: QueueNews | None = None,
    ) -> None:
        """`shards` are those of this host, whether it leads them or not. `readiness` is that of a
        process without shards; its `leaders` also name hosts that may know better, so
        `shown_leader_of` has those alone that lead. `news` brings its view changes of queues that
        it missed."""
        super().__init__(shards, refusal)
        self.forwarded = 0
        """Requests that were sent to another host, each attempt."""
        self._host = transport.host
        self._transport = transport
        self._leaders = leaders
        self._shown_leader_of = shown_leader_of or leaders.leader_of
        self._settings = settings
        self._entropy = entropy
        self._monotonic_s = clock.monotonic_s
        self.retries = Retries(settings, entropy, clock.monotonic_s, view, news, self._try)
        self._on_refusal = self._refused_here
        """Made once: a method is an object of its own each time that it is named."""
        self._gathered = Gathered(self._send_all, self._send_alone, self.retries.give_up)
        self._polling: set[Routed] = set()
        """Long polls at other hosts."""
        self._log = structlog.get_logger("forwarding")
        self._readiness: Ready = readiness or Readiness(
            transport, leaders, self.shards, settings.hold_s, clock.monotonic_s
        )
        leaders.subscribe(self.retries.hurry)
        transport.on_open.append(self._link_opened)

    @property
    @override
    def ready(self) -> bool:
        return self._readiness.is_ready

    @override
    def is_led_elsewhere(self, number: int) -> bool:
        return self._leaders.leader_of(number) not in (None, self._host)

    @override
    def has_leader(self, number: int) -> bool:
        return self.leads(number) or self._shown_leader_of(number) not in (None, self._host)

    # -- down --------------------------------------------------------------------------------------

    @override
    def submit(
        self,
        request: Request,
        on_answer: OnAnswer,
        room: Room | None = None,
        age_ms: int = 0,
        *,
        is_offered: bool = False,
    ) -> Ticket:
        """Submit here or at the leader. `age_ms` is the time since a client sent the same request
        first, with the same id, if its answer did not arrive."""
        if not age_ms:
            number = request.queue.shard
            shard = self.shards.get(number)
            if shard is not None and shard.lead is not None:
                ticket = self._begin_here(shard.lead, request, on_answer, room)
            else:
                ticket = self._begin_elsewhere(number, request, on_answer)
            if ticket is not None:
                if is_offered:
                    ticket.is_offered = True
                return ticket
        give_up_s = now_s = self._monotonic_s()
        give_up_s += self._settings.hold_s
        wait_ends_s = 0.0
        if type(request.operation) is ReceiveMessage:
            wait_s = wait_ms(request.operation, request.queue.settings) / 1000
            if wait_s:
                wait_ends_s = now_s + wait_s
                give_up_s = max(give_up_s, wait_ends_s + self._settings.late_s)
        ticket = Routed(
            request,
            on_answer,
            room=room,
            begun_s=now_s - age_ms / 1000,
            give_up_s=give_up_s,
            wait_ends_s=wait_ends_s,
            is_retry=age_ms > 0,
            is_offered=is_offered,
        )
        self._try(ticket)
        return ticket

    @override
    def offer(self, request: Request, on_answer: OnAnswer) -> Ticket:
        return self.submit(request, on_answer, is_offered=True)

    def _begin_here(
        self, lead: Lead, request: Request, on_answer: OnAnswer, room: Room | None
    ) -> Routed | None:
        """The short way of a first try that is decided here; None for a poll, and what is
        refused."""
        operation = request.operation
        if type(operation) is ReceiveMessage and operation.wait_time_seconds != 0:
            if wait_ms(operation, request.queue.settings):
                return None
        if self._refusal(operation) is not None:
            return None
        ticket = Routed(request, on_answer)
        ticket.is_here, ticket.room, ticket.begun_s = True, room, self._monotonic_s()
        ticket.on_refusal = self._on_refusal
        lead.take(ticket)
        return ticket

    def _begin_elsewhere(self, number: int, request: Request, on_answer: OnAnswer) -> Routed | None:
        """The short way of a first try that another host decides in a bundle; None for others."""
        host = self._leaders.leader_of(number)
        if host is None or host == self._host or not may_join(request):
            return None
        ticket = Routed(request, on_answer)
        ticket.begun_s = now_s = self._monotonic_s()
        ticket.give_up_s = now_s + self._settings.hold_s
        self._gathered.add(host, ticket)
        return ticket

    def _refused_here(self, ticket: Ticket, refusal: QueueError) -> None:
        """A shard of this host had a request, and leads no more."""
        assert isinstance(ticket, Routed)
        ticket.is_here, ticket.on_refusal = False, None
        ticket.give_up_s = ticket.begun_s + self._settings.hold_s
        self._decided(ticket, ticket.request, refusal)

    def _try(self, ticket: Routed) -> None:
        """Pass a request on, or hold it."""
        if ticket.is_cancelled or (ticket.wait_ends_s and self.retries.ends_s < inf):
            is_receive = type(ticket.request.operation) is ReceiveMessage
            self.retries.undo(ticket)
            self.retries.answer_later(ticket, NO_MESSAGES if is_receive else ServiceUnavailable())
            return
        number = ticket.request.queue.shard
        shard = self.shards.get(number)
        if shard is not None and shard.ready:
            refused = self._refusal(ticket.request.operation)
            if refused is not None and not ticket.is_retry:
                self.retries.answer_later(ticket, refused)
                return
            decided, now_s = partial(self._decided_here, ticket), self._monotonic_s()
            request, age_ms = ticket.as_it_waits(now_s), ticket.age_of_retry_ms(now_s)
            ticket.here = shard.submit(request, decided, age_ms, ticket.room)
            ticket.here.if_first = refused  # a retry is told what it did
            return
        host, ticket.hint = ticket.hint or self._leaders.leader_of(number), ""
        if host is None or host == self._host:
            self.retries.failed(ticket, NotSent(Refusal.NOT_LEADER))
        else:
            self._send(ticket, host)

    def _send(self, ticket: Routed, host: str) -> None:
        if not ticket.is_retry and may_join(ticket.request):
            self._gathered.add(host, ticket)
        else:
            self._send_alone(ticket, host)

    def _send_all(self, host: str, bundle: bytes, tickets: Sequence[Routed]) -> None:
        link = self._transport.link(host, Channel.REQUESTS)
        if link is not None and link.version < VERSION:
            for ticket in tickets:
                self._send_alone(ticket, host)
            return
        sent: int | NotSent = NotSent(Reason.NOT_CONNECTED)
        if link is not None:
            outcome = partial(self._outcomes, tickets, host)
            sent = link.request(bundle, outcome, self._settings.answer_s)
        if isinstance(sent, NotSent):
            for ticket in tickets:
                self.retries.failed(ticket, sent)
        else:
            self.forwarded += len(tickets)

    def _send_alone(self, ticket: Routed, host: str) -> None:
        link = self._transport.link(host, Channel.REQUESTS)
        if link is None:
            self.retries.failed(ticket, NotSent(Reason.NOT_CONNECTED))
            return
        now_s = self._monotonic_s()
        timeout_s = self._settings.answer_s + max(0.0, ticket.wait_ends_s - now_s)
        if not ticket.body or (ticket.is_late and ticket.wait_ends_s):
            request = ticket.as_it_waits(now_s) if ticket.is_late else ticket.request
            ticket.body = encode_request(request, as_sent(request))
        age_ms = ticket.age_of_retry_ms(now_s) if ticket.is_retry else 0
        head = REQUEST_HEAD.pack(ticket.request.queue.shard, age_ms)
        sent = link.request(head + ticket.body, partial(self._outcome, ticket, host), timeout_s)
        if isinstance(sent, NotSent):
            self.retries.failed(ticket, sent)
        else:
            self.forwarded += 1
            ticket.link, ticket.call = link, sent
            if ticket.wait_ends_s:
                self._polling.add(ticket)

    async def ask_leader(self, request: Request) -> Answer:
        """Ask the leader, once etcd has what its shard knows. Raises ServiceUnavailable."""
        shard = self.shards.get(request.queue.shard)
        pause = Pause(self._settings.retry_s, self._settings.retry_max_s, self._entropy)
        give_up_s = self._monotonic_s() + self._settings.hold_s
        while shard is not None and shard.ready and not await shard.knows_all():
            if self._monotonic_s() >= give_up_s:
                raise ServiceUnavailable()
            await asyncio.sleep(pause.next_s())
        return await self.ask(request)

    @override
    def give_back(self, request: Request, received: Ticket | None) -> None:
        """Return messages; those of a repeated answer only by an undoing (rule 40)."""
        if isinstance(received, Routed) and received.is_retry:
            self.retries.undo(received)
        else:
            super().give_back(request, received)

    @override
    def submit_or_refuse(self, request: Request, on_answer: OnAnswer, age_ms: int = 0) -> None:
        """Submit a request that the shard's leader may refuse."""
        self.submit(request, on_answer, age_ms=age_ms)

    @override
    def cancel(self, ticket: Ticket) -> bool:
        """Stop waiting. A poll at another host is answered all the same, empty."""
        assert isinstance(ticket, Routed)
        ticket.is_cancelled = True
        here = ticket if ticket.is_here else ticket.here
        if here is not None:
            return self.shards[ticket.request.queue.shard].cancel(here)
        if ticket.link is not None:
            # Other requests run their course.
            is_receive = type(ticket.request.operation) is ReceiveMessage
            if is_receive and ticket.link.cancel(ticket.call):
                self._polling.discard(ticket)
                self.retries.undo(ticket)
                return True
            return False
        if not self.retries.remove(ticket):
            return False
        self.retries.undo(ticket)
        return True

    @override
    def end_waiting(self) -> None:
        """End long polls. Requests are held a little longer: this host may have handed over."""
        super().end_waiting()
        self.retries.ends_s = self._monotonic_s() + self._settings.stopping_hold_s
        for ticket in list(self._polling):
            ticket.is_cancelled = True
            assert ticket.link is not None
            if ticket.link.cancel(ticket.call):
                self._polling.discard(ticket)
                self.retries.undo(ticket)
                self.retries.answer_later(ticket, NO_MESSAGES)
        self.retries.hurry_all()

    # -- up ----------------------------------------------------------------------------------------

    def _decided_here(self, ticket: Routed, answer: Answer | QueueError) -> None:
        here, ticket.here = ticket.here, None
        assert here is not None
        self._decided(ticket, here.request, answer)

    def _decided(self, ticket: Routed, request: Request, answer: Answer | QueueError) -> None:
        """`request` is what became of it while it waited."""
        if isinstance(answer, NotDecided):
            self.retries.failed(ticket, Refused(Refusal.NOT_LEADER))
        elif type(answer) is ServiceUnavailable and not self.leads(request.queue.shard):
            self.retries.failed(ticket, Refused(Refusal.LEADERSHIP_LOST))
        else:
            ticket.request = request  # a purge may have given the queue another id
            self.retries.answer(ticket, answer)

    def _outcomes(self, tickets: Sequence[Routed], host: str, outcome: Outcome) -> None:
        """A peer answered a bundle, or did not."""
        alike: Sequence[Answer] = ()
        each: Sequence[Outcome] = [outcome] * len(tickets)
        if isinstance(outcome, bytes):
            try:
                alike, each = decode_answers(outcome, len(tickets))
            except MessageUnreadable as error:
                for ticket in tickets:
                    self.retries.unreadable(ticket, host, error)
                return
        if alike:
            if self.retries.of_shard:
                self.retries.got_through(tickets[0].request.queue.shard)
            answer_all(self._log, zip(tickets, alike, strict=True))
            return
        loop = asyncio.get_running_loop()
        for ticket, outcome_of_it in zip(tickets, each, strict=True):
            # Each in a call of its own, so that a bug in one does not keep others waiting.
            loop.call_soon(self._outcome, ticket, host, outcome_of_it)

    def _outcome(self, ticket: Routed, host: str, outcome: Outcome) -> None:
        """A peer answered, or did not."""
        ticket.link = None
        if ticket.wait_ends_s:
            self._polling.discard(ticket)
        if not isinstance(outcome, bytes):
            if isinstance(outcome, Refused) and outcome.reason == Refusal.NOT_LEADER:
                if not ticket.is_hinted and outcome.detail not in (host, self._host):
                    ticket.is_hinted, ticket.hint = True, outcome.detail
            self.retries.failed(ticket, outcome, host)
            return
        if self.retries.of_shard:
            self.retries.got_through(ticket.request.queue.shard)
        try:
            queue_id, answer = decode_outcome(outcome)
        except MessageUnreadable as error:
            self.retries.unreadable(ticket, host, error)
            return
        if queue_id or type(answer) is Moved:
            self.retries.answer_when_known(ticket, host, queue_id, answer)
        elif isinstance(answer, QueueError):
            self.retries.answer(ticket, answer)
        else:
            ticket.on_answer(answer)

    def _link_opened(self, host: str, channel: Channel) -> None:
        if channel is Channel.REQUESTS:
            self.retries.hurry_all()
