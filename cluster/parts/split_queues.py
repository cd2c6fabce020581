"""SplitQueues: requests on queues of several parts.

    send              the less busy of two open parts, drawn by chance, of this process's if it has
                      some and they are not much busier; a part that closed meanwhile answers Moved,
                      and another one is drawn; so it is where nobody decides, and for what a full
                      part refuses, of a batch for those entries; FIFO: `split_fifo_sends.py`
    receive           `split_receives.py`
    delete, change    the part that the handle names, then its heirs (`followed_receipts.py`);
                      batches are cut by part
    counters          all parts; the sum

A request that was cut into others goes to the shards through the Router like any other, so what may
have been decided is tried again at the same part. A send that certainly was not is tried at others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from cluster.catalog.catalog_records import name_of
from cluster.clock import Entropy
from cluster.parts.asked_anew import asked_anew
from cluster.parts.followed_receipts import Following
from cluster.parts.part_requests import (
    View,
    by_receipts,
    gathering,
    only,
    sum_of,
    to_part,
    with_rest,
    without_room,
)
from cluster.parts.split_fifo_sends import SplitFifoSends
from cluster.parts.split_receives import SplitReceive, SplitReceives
from cluster.shards.answers import NotDecided
from cluster.shards.router import Router
from visibility.contract.errors import (
    Moved,
    OverLimit,
    QueueDoesNotExist,
    QueueError,
    ServiceUnavailable,
)
from visibility.contract.model import QueueCounters, QueueDefinition, Request
from visibility.contract.operations import ReceiveMessage, SendMessage, SendMessageBatch
from visibility.contract.outcomes import Answer
from visibility.contract.results import SendMessageBatchResult
from visibility.state.waiters import OnAnswer, Room, Ticket

_SENDS = (SendMessage, SendMessageBatch)
_SLACK, _FACTOR = 32, 4
"""A part of this process gets a send unless it has this many more under way than another one: to
pass a send on costs a third of it."""
_FULL_MAX = 4
"""Parts that a send asks which are full, before it is refused."""
_UNDECIDED_MAX = 3
"""Parts without anybody who decides that a send passes by, before it waits at one."""
_ROUNDS_MAX = 3
"""Times that a send asks all parts that it knows: each round begins with the news of parts."""
_SICK_MAX = 1_000
_SICK_SHIFT = 124
"""Of 128 bits by chance: a sick part is among those drawn from once in 16 times."""


class _Draws(NamedTuple):
    """The parts that a send was drawn for so far."""

    rounds: int = 1
    tried: frozenset[int] = frozenset()
    """Ids of those that are closed or full."""
    full: tuple[OverLimit, ...] = ()
    """The refusals of those without room."""
    undecided: frozenset[int] = frozenset()
    """Ids of those that certainly did not decide it: nobody leads them, or can be reached."""

    def past(self, queue_id: int, *full: OverLimit) -> _Draws:
        """The same with a part that is closed, or `full`."""
        return self._replace(tried=self.tried | {queue_id}, full=self.full + full)


_NO_DRAWS = _Draws()


class SplitQueues:
    """Takes each request to the parts that answer it."""

    def __init__(
        self, router: Router, view: View, entropy: Entropy, wall_s: Callable[[], float]
    ) -> None:
        """`wall_s` reads the time in epoch seconds."""
        self._router = router
        self._view = view
        self._bits128 = entropy.bits128
        self._receives = SplitReceives(router, view, entropy)
        self._fifo_sends = SplitFifoSends(router, view, wall_s)
        self._following = Following(router, view)
        self._sending = Counter[int]()
        """Sends under way by the id of the part."""
        self._sick: set[int] = set()
        """Ids of parts whose last send was not decided, or is not known to be."""

    def submit(self, request: Request, on_answer: OnAnswer, room: Room | None = None) -> Ticket:
        """Have parts decide a request, which names the whole queue; `on_answer` is called exactly
        once, later."""
        operation = request.operation
        if type(operation) is ReceiveMessage:
            return self._receives.begin(request, on_answer, room)
        ticket = Ticket(request, on_answer)
        if type(operation) in _SENDS and request.queue.settings.fifo:
            self._receives.notice(request.queue)
            self._fifo_sends.begin(ticket)
        elif type(operation) in _SENDS:
            self._send(ticket, _NO_DRAWS)
        else:
            self._act(request, on_answer)
        return ticket

    def cancel(self, ticket: Ticket) -> bool:
        """Stop waiting for messages; False if the answer comes all the same."""
        return isinstance(ticket, SplitReceive) and self._receives.cancel(ticket)

    def give_back(self, request: Request, received: SplitReceive) -> None:
        """Return messages that did not reach the client of this receive."""
        assert received.part is not None
        self._router.give_back(to_part(request, received.part), received.part_ticket)

    def remove_taken(self, request: Request, received: SplitReceive) -> None:
        """Have the part that answered a receive remove what it took for good."""
        assert received.part is not None
        self._router.submit(to_part(request, received.part), lambda answer: None)

    async def counters(self, request: Request) -> QueueCounters:
        """The sum of the parts' counters, also of an unsplit queue; the request is a ReadCounters.
        Raises QueueError."""
        return await asked_anew(self._view, request, self._sum)

    async def _sum(self, request: Request) -> QueueCounters:
        asked = (self._router.ask(to_part(request, part)) for part in request.queue.all_parts())
        answers = await asyncio.gather(*asked)
        return sum_of(answer for answer in answers if isinstance(answer, QueueCounters))

    def is_led_elsewhere(self, queue: QueueDefinition) -> bool:
        """True if another host decides requests of some part."""
        return any(self._router.is_led_elsewhere(part.shard) for part in queue.parts)

    def end_waiting(self) -> None:
        """Answer every parked receive now, empty, and park no more."""
        self._receives.end_waiting()

    # -- send --------------------------------------------------------------------------------------

    def _send(self, ticket: Ticket, draws: _Draws) -> None:
        """Send to a part that was not drawn before."""
        queue = self._view.find(name_of(ticket.request.queue))
        if queue is None:
            self._answer_later(ticket, QueueDoesNotExist())
            return
        taking = [
            part
            for part in queue.all_parts()
            if part.queue_id not in draws.tried and (not part.parts or part.part.is_open)
        ]
        if draws.full and (not taking or len(draws.full) == _FULL_MAX):
            self._answer_later(ticket, draws.full[0])
            return
        if not taking:
            self._send_again(ticket, draws.rounds)
            return
        submit = self._router.offer if len(taking) > 1 else self._router.submit
        if draws.undecided:
            others = [part for part in taking if part.queue_id not in draws.undecided]
            taking = others or taking
            if not others or len(draws.undecided) == _UNDECIDED_MAX:
                submit = self._router.submit
        place = self._place_among(taking)
        self._sending[place.queue_id] += 1
        self._receives.notice(queue)
        on_answer = partial(self._sent, ticket, draws, place.queue_id)
        submit(to_part(ticket.request, place), on_answer)

    def _place_among(self, taking: Sequence[QueueDefinition]) -> QueueDefinition:
        """The part for a send."""
        bits = self._bits128()
        if self._sick and bits >> _SICK_SHIFT:
            taking = [part for part in taking if part.queue_id not in self._sick] or taking
        near = [part for part in taking if self._router.leads(part.shard)]
        place = self._less_busy(near or taking, bits)
        if near and len(near) < len(taking):
            other = self._less_busy(taking, bits >> 32)
            sending = self._sending
            if sending[place.queue_id] > _SLACK + _FACTOR * sending[other.queue_id]:
                return other
        return place

    def _less_busy(self, parts: Sequence[QueueDefinition], bits: int) -> QueueDefinition:
        """The less busy of two parts by chance: one that does not answer is left as soon as it has
        a send."""
        place = bits % len(parts)
        after = 1 + (bits >> 64) % max(1, len(parts) - 1)
        one, other = parts[place], parts[(place + after) % len(parts)]
        is_less = self._sending[other.queue_id] < self._sending[one.queue_id]
        return other if is_less else one

    def _sent(
        self, ticket: Ticket, draws: _Draws, queue_id: int, answer: Answer | QueueError
    ) -> None:
        self._sending[queue_id] -= 1
        if not self._sending[queue_id]:
            del self._sending[queue_id]
        if self._sick:
            self._sick.discard(queue_id)
        if isinstance(answer, QueueError):
            self._refused(ticket, draws, queue_id, answer)
        elif isinstance(answer, SendMessageBatchResult) and (
            places := without_room(ticket.request, answer)
        ):
            on_rest = partial(self._sent_rest, ticket, answer, places)
            rest = Ticket(only(ticket.request, places), on_rest)
            self._send(rest, draws.past(queue_id, OverLimit()))
        else:
            ticket.on_answer(answer)

    def _refused(self, ticket: Ticket, draws: _Draws, queue_id: int, refusal: QueueError) -> None:
        if isinstance(refusal, Moved | QueueDoesNotExist):  # that part decided nothing
            self._send(ticket, draws.past(queue_id))
            return
        if isinstance(refusal, OverLimit):
            self._send(ticket, draws.past(queue_id, refusal))
            return
        if isinstance(refusal, ServiceUnavailable):
            self._note_sick(queue_id)
        if isinstance(refusal, NotDecided) and queue_id not in draws.undecided:
            undecided = draws.undecided | {queue_id}
            self._send(ticket, draws._replace(undecided=undecided))
        else:
            ticket.on_answer(refusal)

    def _note_sick(self, queue_id: int) -> None:
        if len(self._sick) >= _SICK_MAX:  # some are long gone
            self._sick.clear()
        self._sick.add(queue_id)

    @staticmethod
    def _sent_rest(
        ticket: Ticket,
        first: SendMessageBatchResult,
        places: Sequence[int],
        answer: Answer | QueueError,
    ) -> None:
        ticket.on_answer(with_rest(ticket.request, first, places, answer))

    def _send_again(self, ticket: Ticket, rounds: int) -> None:
        """Ask the parts that the view shows once it has the latest news."""
        if rounds >= _ROUNDS_MAX:
            self._answer_later(ticket, ServiceUnavailable())
        else:
            again = partial(self._send, ticket, _Draws(rounds + 1))
            self._view.when_caught_up(again)

    # -- delete, change visibility -----------------------------------------------------------------

    def _act(self, request: Request, on_answer: OnAnswer) -> None:
        queue = self._view.find(name_of(request.queue))
        if queue is None:
            asyncio.get_running_loop().call_soon(on_answer, QueueDoesNotExist())
            return
        if queue.version < request.queue.version:
            queue = request.queue
        cut = by_receipts(msgspec.structs.replace(request, queue=queue))
        if len(cut) == 1:
            self._following.submit(cut[0], on_answer)
            return
        answered = gathering(request, cut, on_answer)
        for place, each in enumerate(cut):
            self._following.submit(each, partial(answered, place))

    def _answer_later(self, ticket: Ticket, answer: Answer | QueueError) -> None:
        asyncio.get_running_loop().call_soon(ticket.on_answer, answer)
