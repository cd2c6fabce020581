"""A long poll whose queue gets other parts meanwhile waits there for the rest of its time."""

from __future__ import annotations

import asyncio
from typing import Any

from cluster.tests.virtual_time import CountingEntropy, LoopClock, virtual
from sqs_api.gateway.exchange import Exchange
from sqs_api.gateway.gateway import Bounds, Gateway
from sqs_api.gateway.rates import Rates
from sqs_api.settings.origins import AllowedOrigins
from visibility.contract.errors import Moved
from visibility.contract.model import Request
from visibility.contract.operations import ReceiveMessage
from visibility.state.waiters import OnAnswer, Ticket
from visibility.tests import prepared


class Polls:
    """A gateway, and where it takes its polls."""

    def __init__(self) -> None:
        self.waits_s: list[int | None] = []
        self.clock = LoopClock()
        unused: Any = None
        rates = Rates(self.clock.monotonic_s, account_rate=None, queue_rate=None, fifo_quotas=False)
        parts: Any = self
        self.gateway = Gateway(
            authenticate=unused,
            queues=unused,
            router=unused,
            split=parts,
            accounting=unused,
            clock=self.clock,
            entropy=CountingEntropy(),
            public_url=None,
            payloads=unused,
            access=unused,
            bounds=Bounds(unused, rates, None, waiting_polls_max=9),
            counts=unused,
            origins=AllowedOrigins(""),
            recheck_refusal=unused,
            services=(),
        )

    def submit(self, request: Request, on_answer: OnAnswer, room: object) -> Ticket:
        """As `SplitQueues`."""
        assert isinstance(request.operation, ReceiveMessage)
        self.waits_s.append(request.operation.wait_time_seconds)
        return Ticket(request, on_answer)

    def begin(self, request: Request) -> Exchange:
        """A poll that waits."""
        nobody: Any = None
        exchange = Exchange(self.gateway, nobody, "1", self.clock.monotonic_s(), 0)
        exchange.operation, exchange.queue = request.operation, request.queue
        exchange.ticket = Ticket(request, exchange.on_answer)
        return exchange


@virtual
async def test_a_poll_that_goes_on_twice_waits_for_as_long_as_its_client_asked() -> None:
    polls = Polls()
    poll = polls.begin(prepared.receive(prepared.queue_named("q", 1), wait_s=20))

    for pause_s in (5, 4.5, 30):
        await asyncio.sleep(pause_s)
        poll.on_answer(Moved())

    assert polls.waits_s == [15, 11, 0]


@virtual
async def test_a_poll_that_names_no_time_goes_on_for_that_of_its_queue() -> None:
    polls = Polls()
    queue = prepared.queue_named("q", 1, ReceiveMessageWaitTimeSeconds="10")
    poll = polls.begin(prepared.receive(queue))

    for _ in range(2):
        await asyncio.sleep(3)
        poll.on_answer(Moved())

    assert polls.waits_s == [7, 4]
