"""A request whose message is followed from part to part: it ends, and does not ask without a
pause."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import msgspec

from cluster.parts.followed_receipts import LONGEST_S, Following
from cluster.parts.part_requests import to_part
from cluster.tests.virtual_time import VirtualLoop
from visibility.contract.errors import Moved, QueueError, ServiceUnavailable
from visibility.contract.model import QueueDefinition, Receipt, Request
from visibility.contract.outcomes import Answer
from visibility.contract.queue_parts import Part, PartState
from visibility.state.waiters import OnAnswer
from visibility.tests import prepared

_PARTS = (Part(16, 2, 1), Part(0, 1, 0, PartState.DRAINING, heir=16))
QUEUE = msgspec.structs.replace(prepared.queue_named("q", 2), parts=_PARTS, last_part=16)


class _Closed:
    """All parts say that they are closed; this host hears of no others."""

    def __init__(self) -> None:
        self.asked = 0

    def submit(self, request: Request, on_answer: OnAnswer) -> None:
        """See `Router.submit`."""
        self.asked += 1
        asyncio.get_running_loop().call_soon(on_answer, Moved())

    def find(self, name: object) -> QueueDefinition:
        """See `View`."""
        return QUEUE

    def when_caught_up(self, then: Callable[[], None]) -> None:
        """See `View`."""
        asyncio.get_running_loop().call_soon(then)


def test_closed_parts_that_send_it_round_are_asked_less_and_less_often() -> None:
    closed = _Closed()
    loop = VirtualLoop()

    async def followed() -> Answer | QueueError:
        answer: asyncio.Future[Answer | QueueError] = loop.create_future()
        request = prepared.delete(QUEUE, Receipt(1, 1))
        following = Following(cast(Any, closed), cast(Any, closed))
        following.submit(to_part(request, QUEUE.all_parts()[1]), answer.set_result)
        return await asyncio.wait_for(answer, 2 * LONGEST_S)

    assert type(loop.run_until_complete(followed())) is ServiceUnavailable
    assert closed.asked < 60
    loop.close()
