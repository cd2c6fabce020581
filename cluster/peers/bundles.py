"""Bundles: requests that are passed on at the same time cross to their leader as one.

    bundle: shard (4), BUNDLE (4); the context that all have in common, and the requests
    answer: 1 (1); the type's name and the answers, all of this type and for this queue
            or 0 (1); for each an answer of `forwarded.py`, or a Refused

A request by itself takes about 9 µs to pass on, one of a bundle of 32 about 3. Only requests that
nobody cancels and that never wait are bundled: the answer leaves when all of them are decided,
which is after one Turn. What happens to a bundle (lost, late, refused) happens to each of its
requests, which are then tried again each for itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from operator import attrgetter, is_
from struct import Struct

import msgspec
import structlog

from cluster.encoded_requests import (
    PART_IN_BUNDLE,
    MessageUnreadable,
    decode_alike,
    encode_alike,
    encode_context,
    encode_requests,
)
from cluster.peers.held_requests import Routed
from cluster.peers.incoming import Call
from cluster.peers.peer_outcomes import Reason, Refused
from cluster.shards.lead import Lead, TurnBatching
from visibility.contract.errors import QueueError
from visibility.contract.model import Content, Request
from visibility.contract.operations import Operation
from visibility.contract.outcomes import Answer
from visibility.state.waiters import Ticket

VERSION = 3
"""The first version of links that has bundles."""
REQUEST_HEAD = Struct(">II")
BUNDLE = 0xFFFF_FFFF
"""Stands in the place of a retry's age."""
_SINGLE, _ALIKE = b"\x00", b"\x01"
_REQUESTS_MAX = 256
_BYTES_MAX = 16 << 10
"""Bytes of a message; one that has more goes by itself. So a bundle has room in a frame."""
_request_of = attrgetter("request")
_log = structlog.get_logger("forwarding")
_NOT_ENCODED = (msgspec.MsgspecError, TypeError, ValueError, LookupError, OverflowError)
"""Raised by encoders."""
_encode = msgspec.msgpack.Encoder().encode
_decode_single = msgspec.msgpack.Decoder(list[bytes | Refused]).decode


def may_join(request: Request) -> bool:
    """True for a request that may be one of a bundle."""
    kind, parts = PART_IN_BUNDLE.get(type(request.operation)), request.parts
    if kind is None or len(parts) != 1 or type(parts[0]) is not kind:
        return False
    if type(parts[0]) is Content:
        return len(parts[0].data) <= _BYTES_MAX
    return not request.queue.settings.fifo  # whose leader needs the handle


class Gathered:
    """The requests of the last passes of the loop. Belongs to the event loop's thread."""

    def __init__(
        self,
        as_sent: Callable[[Request], Operation],
        send: Callable[[str, bytes, Sequence[Routed]], None],
        send_alone: Callable[[Routed, str], None],
        give_up: Callable[[Routed, str], None],
    ) -> None:
        """`as_sent` is a request's operation as the leader needs it; `send` sends a bundle to a
        host; `give_up` answers a request that cannot be sent, for this reason."""
        self._as_sent = as_sent
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
        context = encode_context(request, self._as_sent(request))
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
            for begin in range(0, len(tickets), _REQUESTS_MAX):
                some = tickets[begin : begin + _REQUESTS_MAX]
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
