"""ForwardedRequests: decides what other hosts send here, if this host leads the shard.

    request: shard (4), age in ms (4) if it is a retry, else 0; the request's bytes
    answer: the queue's id (8) if it is another than that of the request, else 0; the answer's bytes

    bundle: shard (4), BUNDLE (4); the context that all have in common, and the requests
    answer: 1 (1); the type's name and the answers, all of this type and for this queue
            or 0 (1); for each an answer as above, or a Refused

It never forwards a request again: the sender looks for the leader.

Requests that are passed on at the same time cross to their leader as one, a bundle: `Gathered` has
the sender's side. A request by itself takes about 9 µs to pass on, one of a bundle of 32 about 3.
Only requests that nobody cancels and that never wait are bundled: the answer leaves when all of
them are decided, which is after one Turn. What happens to a bundle (lost, late, refused) happens to
each of its requests, which are then tried again each for itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import repeat
from operator import attrgetter, is_
from struct import Struct

import msgspec
import structlog

from auth.auth_errors import AuthError
from cluster.encoded_requests import (
    PART_IN_BUNDLE,
    DefinitionUnknown,
    MessageUnreadable,
    decode_alike,
    decode_answer,
    decode_request,
    decode_requests,
    encode_alike,
    encode_answer,
    encode_context,
    encode_requests,
)
from cluster.peers.held_requests import Routed, View
from cluster.peers.link import Call, ChannelService
from cluster.peers.peer_outcomes import Reason, Refusal, Refused
from cluster.peers.readiness import Leaders
from cluster.peers.roles import REQUESTS, PeerRole
from cluster.shards.answers import NotDecided, returning
from cluster.shards.issued_ids import is_for_leaders
from cluster.shards.lead import Lead
from cluster.shards.router import RefusalOf
from cluster.shards.shard import Shard
from cluster.shards.turn_timing import TurnBatching
from visibility.contract.errors import QueueError, ServiceUnavailable
from visibility.contract.model import Content, QueueDefinition, Request
from visibility.contract.operations import (
    DeleteMessage,
    Operation,
    SendMessage,
    SendMessageBatch,
    SendMessageBatchRequestEntry,
)
from visibility.contract.outcomes import Answer, Deliveries
from visibility.rows.row_values import THE_SHARD
from visibility.rules.archive_batches import the_shard
from visibility.rules.decided import NO_MESSAGES
from visibility.state.waiters import Ticket

VERSION = 3
"""The first version of links that has bundles."""
REQUEST_HEAD = Struct(">II")
BUNDLE = 0xFFFF_FFFF
"""Stands in the place of a retry's age."""
_SINGLE, _ALIKE = b"\x00", b"\x01"
REQUESTS_MAX = 256
BYTES_MAX = 16 << 10
"""Bytes of a message; one that has more goes by itself. So a bundle has room in a frame."""
_request_of = attrgetter("request")
_log = structlog.get_logger("forwarding")
_NOT_ENCODED = (msgspec.MsgspecError, TypeError, ValueError, LookupError, OverflowError)
"""Raised by encoders."""
_encode = msgspec.msgpack.Encoder().encode
_decode_single = msgspec.msgpack.Decoder(list[bytes | Refused]).decode
ANSWER_HEAD = Struct(">Q")
_unpack_head, _HEAD_BYTES = REQUEST_HEAD.unpack_from, REQUEST_HEAD.size
_SAME_QUEUE = ANSWER_HEAD.pack(0)
_SENT, _DELETED = SendMessage(), DeleteMessage()
_DONE = _SAME_QUEUE + encode_answer(None)
"""The answer to many requests."""
_NOTHING = _SAME_QUEUE + encode_answer(NO_MESSAGES)


class ForwardedRequests:
    """The service of `Channel.REQUESTS`."""

    def __init__(
        self,
        shards: Mapping[int, Shard],
        leaders: Leaders,
        view: View,
        refusal: RefusalOf,
    ) -> None:
        """`refusal` is this host's answer to what it cannot take now."""
        self._shards = shards
        self._leaders = leaders
        self._view = view
        self._refusal = refusal
        self.service = ChannelService(on_request=self._decide)
        """The service of `Channel.REQUESTS`, for the hosts of the cluster."""

    def service_for(self, role: PeerRole) -> ChannelService:
        """The same for others, which may not ask for everything."""
        return ChannelService(on_request=partial(self._decide, allowed=REQUESTS[role]))

    def _decide(
        self,
        call: Call,
        *,
        may_wait: bool = True,
        allowed: Collection[type[Operation]] | None = None,
    ) -> None:
        """Submit a request, or refuse it: all that may be asked for are `allowed` if given."""
        body = call.body
        if len(body) < _HEAD_BYTES:
            call.refuse(Refusal.UNREADABLE, "no request")
            return
        number, age_ms = _unpack_head(body)
        shard = self._shards.get(number)
        if shard is None or shard.lead is None:
            call.refuse(Refusal.NOT_LEADER, self._leaders.leader_of(number) or "")
            return
        find, bundle = partial(self._find, number), None
        try:
            if age_ms == BUNDLE:
                bundle = decode_requests(body, find, _HEAD_BYTES)
                request = bundle[0]
            else:
                request = decode_request(body, find, _HEAD_BYTES)
        except DefinitionUnknown as error:
            if may_wait and not self._knows_more(error):  # the sender may know more
                self._view.when_caught_up(partial(self._decide_again, call, allowed))
            else:
                call.refuse(Refusal.DEFINITION_UNKNOWN, str(error))
        except MessageUnreadable as error:
            call.refuse(Refusal.UNREADABLE, str(error))
        else:
            if allowed is not None and type(request.operation) not in allowed:
                call.refuse(Refusal.NOT_ALLOWED, type(request.operation).__name__)
            elif bundle is not None:
                self._submit_all(call, shard, shard.lead, bundle)
            elif may_wait and is_for_leaders(request):
                shard.when_knows_all(partial(self._decide_if_known, call, allowed))
            else:
                self._submit(call, shard, shard.lead, request, age_ms)

    def _find(self, number: int, queue_id: int) -> QueueDefinition | None:
        """The queue, or what stands for the shard itself."""
        return the_shard(number) if queue_id == THE_SHARD else self._view.queue_of_id(queue_id)

    def _knows_more(self, error: DefinitionUnknown) -> bool:
        """True if this host has a later version of the queue than the sender."""
        queue = self._view.queue_of_id(error.queue_id)
        return queue is not None and queue.version > error.version

    def _decide_again(self, call: Call, allowed: Collection[type[Operation]] | None) -> None:
        if call.is_cancelled:
            call.answer(_NOTHING)
        else:
            self._decide(call, may_wait=False, allowed=allowed)

    def _decide_if_known(
        self, call: Call, allowed: Collection[type[Operation]] | None, knows_all: bool
    ) -> None:
        """Decide once etcd has what the shard knows; else the sender is to ask again."""
        if knows_all:
            self._decide_again(call, allowed)
        else:
            call.refuse(Refusal.NOT_LEADER)

    def _submit(self, call: Call, shard: Shard, lead: Lead, request: Request, age_ms: int) -> None:
        def on_answer(answer: Answer | QueueError) -> None:
            outcome = self._outcome(shard, ticket.request, request, answer)
            if isinstance(outcome, Refused):
                call.refuse(outcome.reason, outcome.detail)
            elif not call.answer(outcome) and type(answer) is Deliveries and answer.leases:
                # Messages that do not reach the other host are given back at once.
                shard.submit(returning(ticket.request, answer), lambda answer: None)

        refused = self._refusal(request.operation)
        if refused is not None and not age_ms:
            call.answer(encode_outcome(request, request, refused))
            return
        ticket = lead.submit(request, on_answer, age_ms, call)
        ticket.if_first = refused  # a retry is told what it did
        call.on_cancel = partial(_cancel, call, shard, ticket)

    def _submit_all(
        self, call: Call, shard: Shard, lead: Lead, requests: Sequence[Request]
    ) -> None:
        bundle = Bundle(call, requests, partial(self._outcome, shard))
        refused = self._refusal(requests[0].operation)
        if refused is None:
            bundle.decide(lead)
        else:
            bundle.refuse(refused)

    def _outcome(
        self, shard: Shard, request: Request, asked: Request, answer: Answer | QueueError
    ) -> bytes | Refused:
        """The answer to what was asked, or the reason why there is none; `request` is what became
        of it while it waited."""
        if isinstance(answer, NotDecided):
            return Refused(Refusal.NOT_LEADER, self._leaders.leader_of(shard.number) or "")
        if type(answer) is ServiceUnavailable and not shard.ready:
            return Refused(Refusal.LEADERSHIP_LOST)
        return encode_outcome(request, asked, answer)


def encode_outcome(request: Request, asked: Request, answer: Answer | QueueError) -> bytes:
    """The answer to what was asked; `request` is what became of it while it waited."""
    head = _SAME_QUEUE
    if answer is None and request is asked:
        return _DONE
    if request is not asked and request.queue.queue_id != asked.queue.queue_id:
        head = ANSWER_HEAD.pack(request.queue.queue_id)  # it was purged meanwhile
    return head + encode_answer(answer)


def decode_outcome(body: bytes) -> tuple[int, Answer | QueueError]:
    """The queue's id, 0 for the one that was asked for, and the answer. Raises
    MessageUnreadable."""
    if body == _DONE:
        return 0, None
    if len(body) < ANSWER_HEAD.size:
        raise MessageUnreadable("no answer")
    (queue_id,) = ANSWER_HEAD.unpack_from(body)
    answer = decode_answer(body, ANSWER_HEAD.size)
    if isinstance(answer, AuthError):
        raise MessageUnreadable(f"a shard does not answer {type(answer).__name__}")
    return queue_id, answer


def _cancel(call: Call, shard: Shard, ticket: Ticket) -> None:
    if shard.cancel(ticket):
        call.answer(_NOTHING)


# -- bundles ---------------------------------------------------------------------------------------


def may_join(request: Request) -> bool:
    """True for a request that may be one of a bundle."""
    kind, parts = PART_IN_BUNDLE.get(type(request.operation)), request.parts
    if kind is None or len(parts) != 1 or type(parts[0]) is not kind:
        return False
    if type(parts[0]) is Content:
        return len(parts[0].data) <= BYTES_MAX
    return not request.queue.settings.fifo  # whose leader needs the handle


def as_sent(request: Request) -> Operation:
    """A request's operation as the leader needs it: what it stores of a send are the sealed parts,
    and what a delete is for stands in its part, too. An expired handle of a FIFO queue is named in
    the refusal."""
    operation = request.operation
    if type(operation) is SendMessage:
        delay_s = operation.delay_seconds
        return _SENT if delay_s is None else SendMessage(delay_seconds=delay_s)
    if type(operation) is DeleteMessage:
        is_named = request.queue.settings.fifo
        return DeleteMessage(receipt_handle=operation.receipt_handle) if is_named else _DELETED
    if type(operation) is SendMessageBatch:
        entries = [
            SendMessageBatchRequestEntry(entry.id, delay_seconds=entry.delay_seconds)
            for entry in operation.entries or ()
        ]
        return SendMessageBatch(entries=entries)
    return operation


class Gathered:
    """The requests of the last passes of the loop."""

    def __init__(
        self,
        send: Callable[[str, bytes, Sequence[Routed]], None],
        send_alone: Callable[[Routed, str], None],
        give_up: Callable[[Routed, str], None],
    ) -> None:
        """`send` sends a bundle to a host; `give_up` answers a request that cannot be sent, for
        this reason."""
        self._send = send
        self._send_alone = send_alone
        self._give_up = give_up
        self._tickets: dict[tuple[str, int, bytes], list[Routed]] = {}
        """By host, shard and context."""
        self._count = 0
        self._batching = TurnBatching(self._flush, lone_waits=False)
        """A bundle costs as much as ten of its requests, so it waits for those just coming, too."""

    def add(self, host: str, ticket: Routed) -> None:
        """Send a request to this host, after this pass, or some passes later if more come."""
        request = ticket.request
        context = encode_context(request, as_sent(request))
        key = host, request.queue.shard, context
        self._count += 1
        if not self._tickets:
            asyncio.get_running_loop().call_soon(self._flush)
        tickets = self._tickets.get(key)
        if tickets is None:
            self._tickets[key] = [ticket]
        else:
            tickets.append(ticket)

    def _flush(self) -> None:
        if self._batching.goes_on(self._count):
            return
        self._count = 0
        gathered, self._tickets = self._tickets, {}
        for (host, shard, context), tickets in gathered.items():
            for begin in range(0, len(tickets), REQUESTS_MAX):
                some = tickets[begin : begin + REQUESTS_MAX]
                try:
                    self._send_some(host, shard, context, some)
                except _NOT_ENCODED:  # a bug, which must not keep the others
                    _log.exception("requests_not_encoded", peer=host, shard=shard)
                    for ticket in some:
                        self._give_up(ticket, "not_encoded")

    def _send_some(self, host: str, shard: int, context: bytes, some: Sequence[Routed]) -> None:
        if len(some) == 1:
            self._send_alone(some[0], host)
            return
        requests = encode_requests(context, [ticket.request for ticket in some])
        self._send(host, REQUEST_HEAD.pack(shard, BUNDLE) + requests, some)


OutcomeOf = Callable[[Request, Request, Answer | QueueError], bytes | Refused]
"""Makes an outcome of what became of a request while it waited, the request, and its answer."""


class Bundle:
    """The leader's side of a bundle, until all its requests are decided."""

    def __init__(self, call: Call, requests: Sequence[Request], outcome_of: OutcomeOf) -> None:
        self._call = call
        self._requests = requests
        self._outcome_of = outcome_of
        self._answers: list[Answer | QueueError] = [None] * len(requests)
        self._tickets: list[Ticket] = []
        self._left = len(requests)

    def decide(self, lead: Lead) -> None:
        """Have all decided."""
        on_answers = map(partial, repeat(self._answered), range(self._left))
        self._tickets = lead.submit_all(self._requests, on_answers)

    def refuse(self, refusal: QueueError) -> None:
        """Answer all with this."""
        single = [self._outcome_of(each, each, refusal) for each in self._requests]
        self._call.answer(_SINGLE + _encode(single))

    def _answered(self, place: int, answer: Answer | QueueError) -> None:
        self._answers[place] = answer
        self._left -= 1
        if self._left:
            return
        try:
            self._call.answer(self._outcomes())
        except _NOT_ENCODED:  # a bug: each is asked for again by itself
            _log.exception("answers_not_encoded", peer=self._call.peer)
            self._call.refuse(Reason.FULL, "its answers cannot be encoded")

    def _outcomes(self) -> bytes:
        decided = list(map(_request_of, self._tickets))
        if all(map(is_, decided, self._requests)):  # else the queue was purged
            alike = encode_alike(self._answers)
            if alike is not None:
                return _ALIKE + alike
        answered = zip(decided, self._requests, self._answers, strict=True)
        return _SINGLE + _encode([self._outcome_of(*each) for each in answered])


def decode_answers(body: bytes, count: int) -> tuple[list[Answer], list[bytes | Refused]]:
    """The answers to a bundle if they are alike, else the outcomes. Raises MessageUnreadable."""
    alike: list[Answer] = []
    single: list[bytes | Refused] = []
    if body.startswith(_ALIKE):
        alike = decode_alike(body, 1)
    elif body.startswith(_SINGLE):
        try:
            single = _decode_single(body[1:])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise MessageUnreadable(f"no answers: {error}") from error
    if len(alike or single) != count:
        raise MessageUnreadable(f"not the answers to {count} requests")
    return alike, single
