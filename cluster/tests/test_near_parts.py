"""Requests on a queue of several parts go to those that this process leads, if they can."""

from __future__ import annotations

import asyncio
from collections import Counter

from typing_extensions import override

from cluster.parts.split_queues import SplitQueues
from cluster.shards.router import Router
from cluster.tests.split_view import SplitView
from cluster.tests.virtual_time import SeededEntropy, SettableClock
from visibility.contract.model import Request
from visibility.contract.outcomes import Answer
from visibility.contract.results import SendMessageResult
from visibility.rules.decided import NO_MESSAGES
from visibility.state.waiters import OnAnswer, Room, Ticket
from visibility.tests import prepared

REQUESTS = 200


class _Router(Router):
    """Leads one shard, and says to which shards requests went."""

    def __init__(self, *, answers: bool = True, sick: int = -1, led: int = 0) -> None:
        """The shard that is `sick` answers nothing."""
        super().__init__([])
        self.asked = Counter[int]()
        self._answers = answers
        self._sick = sick
        self._led = led

    @override
    def leads(self, number: int) -> bool:
        return number == self._led

    @override
    def submit(self, request: Request, on_answer: OnAnswer, room: Room | None = None) -> Ticket:
        self.asked[request.queue.shard] += 1
        if self._answers and request.queue.shard != self._sick:
            is_receive = type(request.operation).__name__ == "ReceiveMessage"
            answer: Answer = NO_MESSAGES if is_receive else SendMessageResult("0" * 32, "id")
            asyncio.get_running_loop().call_soon(on_answer, answer)
        return Ticket(request, on_answer)


async def _asked(router: _Router, view: SplitView, request: Request) -> Counter[int]:
    """The shards that requests went to which came all at once."""
    split = SplitQueues(router, view, SeededEntropy("near"), SettableClock().wall_s)
    for _ in range(REQUESTS):
        split.submit(request, lambda answer: None)
    return Counter(router.asked)


async def test_a_send_goes_to_the_part_that_is_here() -> None:
    view = SplitView(2)
    router = _Router()
    split = SplitQueues(router, view, SeededEntropy("near"), SettableClock().wall_s)
    for _ in range(REQUESTS):
        split.submit(prepared.send(view.queue, "x"), lambda answer: None)
        await asyncio.sleep(0)

    assert router.asked == {0: REQUESTS}


async def test_a_part_that_is_here_and_much_busier_does_not_get_all_sends() -> None:
    view = SplitView(2)

    asked = await _asked(_Router(answers=False), view, prepared.send(view.queue, "x"))

    assert asked[0] + asked[1] == REQUESTS
    assert REQUESTS * 3 // 4 <= asked[0] < REQUESTS


async def test_a_part_that_does_not_answer_gets_few_sends() -> None:
    """Its shard may be without a leader: sends would wait there until they are given up."""
    view = SplitView(2)
    router = _Router(sick=1, led=-1)
    split = SplitQueues(router, view, SeededEntropy("sick"), SettableClock().wall_s)
    for _ in range(REQUESTS):
        split.submit(prepared.send(view.queue, "x"), lambda answer: None)
        await asyncio.sleep(0)

    assert router.asked[1] <= 2


async def test_a_receive_begins_mostly_at_the_part_that_is_here() -> None:
    view = SplitView(2)

    asked = await _asked(_Router(answers=False), view, prepared.receive(view.queue))

    assert REQUESTS * 2 // 3 < asked[0] < REQUESTS
