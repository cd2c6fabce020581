"""A gateway of three hosts, for queues of several parts: in place of the Router."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, cast

from cluster.parts.split_queues import SplitQueues
from cluster.tests.simulation.known_parts import KnownParts, split_queues
from cluster.tests.simulation.simulation import Call, Reply
from compat_tests.faults.fault_history import Outcome
from visibility.contract.errors import QueueError
from visibility.contract.model import Request
from visibility.contract.operations import ReceiveMessage
from visibility.contract.outcomes import Answer
from visibility.state.waiters import OnAnswer, Room, Ticket

if TYPE_CHECKING:
    from cluster.tests.simulation.cluster_simulation import ClusterSimulation


class PartTicket(Ticket):
    """A request to a part, and its call."""

    call: Any = None


class Leaders:
    """Takes the requests that a request on a queue of several parts becomes to whoever leads the
    shards of these parts."""

    def __init__(self, simulation: ClusterSimulation) -> None:
        self._simulation = simulation
        self._asking: set[asyncio.Task[Call]] = set()

    def submit(self, request: Request, on_answer: OnAnswer, room: Room | None = None) -> Ticket:
        """See `Router.submit`."""
        return self._ask(request, on_answer, is_offered=False)

    def offer(self, request: Request, on_answer: OnAnswer) -> Ticket:
        """See `Router.offer`."""
        return self._ask(request, on_answer, is_offered=True)

    def _ask(self, request: Request, on_answer: OnAnswer, *, is_offered: bool) -> Ticket:
        ticket = PartTicket(request, on_answer)
        calling = self._simulation.call_part(request, is_offered=is_offered)
        asking = asyncio.create_task(calling)
        self._asking.add(asking)
        asking.add_done_callback(partial(self._asked, ticket))
        return ticket

    def _asked(self, ticket: PartTicket, asking: asyncio.Task[Call]) -> None:
        self._asking.discard(asking)
        if asking.cancelled():
            return
        ticket.call = asking.result()
        ticket.call.reply.add_done_callback(partial(self._answered, ticket))
        if ticket.is_cancelled:
            self.cancel(ticket)

    def _answered(self, ticket: PartTicket, reply: asyncio.Future[Reply]) -> None:
        if reply.cancelled():
            return
        given = reply.result()
        operation, queue = ticket.request.operation, ticket.request.queue
        if given.outcome is Outcome.UNKNOWN and isinstance(operation, ReceiveMessage):
            self._simulation.history.unknown_receives[queue.name] += 1
        ticket.on_answer(given.answer)

    def cancel(self, ticket: Ticket) -> bool:
        """See `Router.cancel`."""
        assert isinstance(ticket, PartTicket)
        ticket.is_cancelled = True
        return ticket.call is not None and self._simulation.hang_up(ticket.call)

    async def ask(self, request: Request) -> Answer:
        """See `Router.ask`."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def answered(given: Answer | QueueError) -> None:
            if isinstance(given, QueueError):
                answer.set_exception(given)
            else:
                answer.set_result(given)

        self.submit(request, answered)
        return await answer

    def leads(self, number: int) -> bool:
        """See `Router.leads`: none is led by the gateway."""
        return False

    def has_leader(self, shard: int) -> bool:
        """See `Router.has_leader`."""
        return self._simulation.clusters[shard].leading() is not None


def split_of(simulation: ClusterSimulation, known: KnownParts, random: Random) -> SplitQueues:
    """The gateway, which hears of changes late."""
    return split_queues(cast(Any, Leaders(simulation)), known, random)


def count_parts(
    split: SplitQueues, request: Request, then: Callable[[Answer | QueueError], None]
) -> asyncio.Task[None]:
    """Ask all parts for their counters."""

    async def ask() -> None:
        try:
            then(await split.counters(request))
        except QueueError as refusal:
            then(refusal)

    return asyncio.create_task(ask())
