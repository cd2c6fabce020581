"""ForwardedRequests: decides what other hosts send here, if this host leads the shard.

    request: shard (4), age in ms (4) if it is a retry, else 0; the request's bytes
             or a bundle of several, see `bundles.py`
    answer: the queue's id (8) if it is another than that of the request, else 0; the answer's bytes

It never forwards a request again: the sender looks for the leader.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from struct import Struct
from typing import Protocol

from auth.auth_errors import AuthError
from cluster.encoded_requests import (
    DefinitionUnknown,
    MessageUnreadable,
    decode_answer,
    decode_request,
    decode_requests,
    encode_answer,
)
from cluster.peers.bundles import BUNDLE, REQUEST_HEAD, Bundle
from cluster.peers.incoming import Call, ChannelService
from cluster.peers.peer_outcomes import Refusal, Refused
from cluster.peers.roles import REQUESTS, Role
from cluster.shards.answers import NotDecided, returning
from cluster.shards.issued_ids import is_for_leaders
from cluster.shards.lead import Lead
from cluster.shards.router import RefusalOf, takes_all
from cluster.shards.shard import Shard
from visibility.contract.errors import QueueError, ServiceUnavailable
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.operations import Operation
from visibility.contract.outcomes import Answer, Deliveries
from visibility.rows.row_values import THE_SHARD
from visibility.rules.archive_batches import the_shard
from visibility.rules.decided import NO_MESSAGES
from visibility.state.waiters import Ticket

ANSWER_HEAD = Struct(">Q")
_unpack_head, _HEAD_BYTES = REQUEST_HEAD.unpack_from, REQUEST_HEAD.size
_SAME_QUEUE = ANSWER_HEAD.pack(0)
_DONE = _SAME_QUEUE + encode_answer(None)
"""The answer to many requests."""
_NOTHING = _SAME_QUEUE + encode_answer(NO_MESSAGES)


class Leaders(Protocol):
    """The leader of each shard, as far as this host knows."""

    def leader_of(self, shard: int) -> str | None:
        """The host that leads it, None while there is none."""

    def subscribe(self, on_change: Callable[[int], None]) -> None:
        """Call back with each shard whose leader changed, on the event loop."""


class View(Protocol):
    """This host's definitions of queues."""

    def queue_of_id(self, queue_id: int) -> QueueDefinition | None:
        """The queue with this id, None if it was deleted."""

    def renewed(self, request: Request) -> Request | None:
        """The same request with the definitions of now; None if its queue is gone."""

    def when_caught_up(self, then: Callable[[], None]) -> None:
        """Call back once, later, when the view shows all that was committed before this call, or
        when that cannot be known in bounded time."""


class ForwardedRequests:
    """Belongs to the event loop's thread."""

    def __init__(
        self,
        shards: Mapping[int, Shard],
        leaders: Leaders,
        view: View,
        refusal: RefusalOf = takes_all,
    ) -> None:
        """`refusal` is this host's answer to what it cannot take now."""
        self._shards = shards
        self._leaders = leaders
        self._view = view
        self._refusal = refusal
        self.service = ChannelService(on_request=self._decide)
        """The service of `Channel.REQUESTS`, for the hosts of the cluster."""

    def service_for(self, role: Role) -> ChannelService:
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
            if may_wait:  # the sender may know more
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
            _pass_on(call, shard, ticket, answer, outcome)

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


def _pass_on(
    call: Call, shard: Shard, ticket: Ticket, answer: Answer | QueueError, outcome: bytes | Refused
) -> None:
    """Send the answer; messages that do not reach the other host are given back at once."""
    if isinstance(outcome, Refused):
        call.refuse(outcome.reason, outcome.detail)
        return
    has_it = call.answer(outcome)
    if not has_it and type(answer) is Deliveries and answer.leases:
        shard.submit(returning(ticket.request, answer), lambda answer: None)
