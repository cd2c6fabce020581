"""Router: the gateway's only way to a shard.

Every queue has one shard, named by its definition; with one host all shards are here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from math import inf

from cluster.shards.shard import Shard
from cluster.shards.shard_report import QueueReport, ShardReport, summed_reports
from visibility.contract.errors import QueueError, ServiceUnavailable
from visibility.contract.model import QueueCounters, QueueDefinition, Request
from visibility.contract.move_task import MoveTask
from visibility.contract.operations import Operation
from visibility.contract.outcomes import Answer
from visibility.state.waiters import OnAnswer, Room, Ticket

RefusalOf = Callable[[Operation], QueueError | None]
"""The answer to an operation that a leader cannot take now; None if it can."""


def takes_all(operation: Operation) -> None:
    """The default: a leader takes all operations."""


class Router:
    """Finds the shard of a request."""

    age_s_max = inf
    """The age up to which `ask` finds out cheaply about an earlier try by a client."""
    goes_elsewhere = False
    """True if there are shards besides those of this host."""

    def __init__(self, shards: Iterable[Shard], refusal: RefusalOf = takes_all) -> None:
        """`refusal` is this host's answer to what it cannot take now."""
        self.shards: Mapping[int, Shard] = {shard.number: shard for shard in shards}
        self._refusal = refusal

    @property
    def ready(self) -> bool:
        """True if every shard decides requests."""
        return all(shard.ready for shard in self.shards.values())

    def leads(self, number: int) -> bool:
        """True if this host decides the requests of a shard."""
        shard = self.shards.get(number)
        return shard is not None and shard.ready

    def is_led_elsewhere(self, number: int) -> bool:
        """True if another host decides the requests of a shard, as far as this one knows."""
        return False

    def has_leader(self, number: int) -> bool:
        """True if this or another host leads a shard, as far as this one knows."""
        return self.leads(number) or self.is_led_elsewhere(number)

    def submit(self, request: Request, on_answer: OnAnswer, room: Room | None = None) -> Ticket:
        """Have a request decided by its queue's shard. `room` is asked by a shard of this host.

        `on_answer` is called exactly once, later and on the event loop, when the outcome is as
        durable as configured; it gets a QueueError if the request is refused.
        """
        return self.shards[request.queue.shard].submit(request, on_answer, room=room)

    def offer(self, request: Request, on_answer: OnAnswer) -> Ticket:
        """Submit a request that another shard may get as well: where it would be held although it
        was certainly not decided, it is answered NotDecided."""
        return self.submit(request, on_answer)

    def give_back(self, request: Request, received: Ticket | None) -> None:
        """Return messages that did not reach the client of this receive."""
        self.submit(request, lambda answer: None)

    def submit_or_refuse(self, request: Request, on_answer: OnAnswer, age_ms: int = 0) -> None:
        """Submit a request, unless it is refused; `age_ms` as for `ask`.

        What SQS has is submitted as it is: the gateway knows by itself what is refused, before it
        seals messages. The shards of a single host remember no answers, so nothing is made of the
        age."""
        refused = self._refusal(request.operation)
        if refused is None:
            self.submit(request, on_answer)
        else:
            on_answer(refused)

    async def ask(self, request: Request, age_ms: int = 0) -> Answer:
        """Have a request decided, unless it is refused, and wait until its outcome is durable. In a
        cluster one that was decided before, under the same id and at most `age_ms` ago, gets that
        answer again. Raises QueueError."""
        return await answer_to(partial(self.submit_or_refuse, age_ms=age_ms), request)

    async def ask_here(self, request: Request) -> Answer:
        """The same, but never by another host: raises ServiceUnavailable if this one does not lead
        the shard."""
        if request.queue.shard not in self.shards:
            raise ServiceUnavailable()
        return await answer_to(self.shards[request.queue.shard].submit, request)

    def cancel(self, ticket: Ticket) -> bool:
        """Stop waiting for messages: the client hung up. False if the answer comes all the same."""
        return self.shards[ticket.request.queue.shard].cancel(ticket)

    def end_waiting(self) -> None:
        """Answer long polls now, empty, and let none wait: the node is stopping."""
        for shard in self.shards.values():
            shard.end_long_polls()

    def reports(self) -> list[ShardReport]:
        """All shards as they are now."""
        return [shard.report() for shard in self.shards.values()]

    def trusted_ms(self) -> int:
        """The earliest time on which a shard's retention acts while a leap is not trusted, else
        0."""
        trusted = (report.trusted_ms for report in self.reports())
        return min(filter(None, trusted), default=0)

    def counters(self) -> dict[int, QueueCounters]:
        """Counters by queue id; a queue that never held a message may be absent."""
        counters: dict[int, QueueCounters] = {}
        for shard in self.shards.values():
            counters |= shard.counters()
        return counters

    def queues(
        self, queues: Sequence[QueueDefinition], detailed_ids: Container[int] = ()
    ) -> list[QueueReport]:
        """Report these queues, see `Shard.queues`; of one with parts, the sum of those here."""
        whole: dict[int, int] = {}
        ids: dict[int, list[int]] = {}
        for queue in queues:
            for part in queue.all_parts() if queue.parts else (queue,):
                whole[part.queue_id] = queue.queue_id
                ids.setdefault(part.shard, []).append(part.queue_id)
        detailed = {part_id for part_id, queue_id in whole.items() if queue_id in detailed_ids}
        reports = [
            report
            for number, shard in self.shards.items()
            for report in shard.queues(ids.get(number, ()), detailed)
        ]
        return summed_reports(reports, whole)

    def tasks_since(
        self, queues: Iterable[QueueDefinition], since_ms: int
    ) -> dict[int, list[MoveTask]]:
        """The move tasks of those queues whose shards this host leads, see `Shard.tasks_since`."""
        ids: dict[int, list[int]] = {}
        for queue in queues:
            ids.setdefault(queue.shard, []).append(queue.queue_id)
        found: dict[int, list[MoveTask]] = {}
        for number, shard in self.shards.items():
            found |= shard.tasks_since(ids.get(number, ()), since_ms)
        return found


async def answer_to(submit: Callable[[Request, OnAnswer], object], request: Request) -> Answer:
    """The answer to a request that is submitted. Raises QueueError."""
    future: asyncio.Future[Answer | QueueError] = asyncio.get_running_loop().create_future()

    def on_answer(answer: Answer | QueueError) -> None:
        if not future.done():
            future.set_result(answer)

    submit(request, on_answer)
    answer = await future
    if isinstance(answer, QueueError):
        raise answer
    return answer
