"""Routes between the shards of a simulated cluster: requests and answers that are lost, late or
doubled."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, cast

from cluster.parts.shared_tasks import LOOK_S, SharedTasks
from cluster.shards.delivery import Deliveries
from cluster.shards.router import Router
from cluster.shards.shard_report import OnNews
from cluster.tasks import start_task
from cluster.tests.replication.shard_hosts import ShardCluster
from cluster.tests.replication.shard_process import Process
from cluster.tests.simulation.known_parts import KnownParts
from cluster.tests.simulation.simulated_worker import SimulatedEntropy
from visibility.contract.errors import QueueError, ServiceUnavailable
from visibility.contract.model import Request
from visibility.contract.outcomes import Answer

_LOST = 0.1
"""Share of requests, and of answers, that are lost."""
_DOUBLED = 0.1
"""Share of requests that arrive once more, later."""
_LATE_S = 8.0
_WAY_S = 0.02
_ANSWER_S = 10.0


class Elsewhere:
    """A shard of another host."""

    ready = False

    def subscribe(self, on_news: OnNews) -> None:
        """See Shard. There is no news."""


class Routes:
    """Stands in for a process's `PeerRouter`, for its deliveries only."""

    goes_elsewhere = True

    def __init__(
        self, clusters: Sequence[ShardCluster], process: Process, number: int, random: Random
    ) -> None:
        self._clusters = clusters
        self._process = process
        self._number = number
        self._random = random
        own: Mapping[int, Any] = {number: process.shard}
        self.shards = {each.number: own.get(each.number, Elsewhere()) for each in clusters}

    def leads(self, number: int) -> bool:
        """See Router."""
        process = self._process
        return number == self._number and not process.is_over and process.shard.ready

    async def ask_here(self, request: Request) -> Answer:
        """See Router."""
        return await self._ask(self._process, request)

    async def ask(self, request: Request) -> Answer:
        """See Router: one try. Raises ServiceUnavailable where it got lost, or its answer."""
        random = self._random
        await asyncio.sleep(random.uniform(0, _WAY_S))
        if random.random() < _DOUBLED:
            loop = asyncio.get_running_loop()
            loop.call_later(random.uniform(0, _LATE_S), self._again, request)
        process = self._leader(request)
        if process is None or random.random() < _LOST:
            raise ServiceUnavailable
        try:
            answer = await asyncio.wait_for(self._ask(process, request), _ANSWER_S)
        except TimeoutError:
            raise ServiceUnavailable from None
        await asyncio.sleep(random.uniform(0, _WAY_S))
        if random.random() < _LOST:
            raise ServiceUnavailable
        return answer

    def _leader(self, request: Request) -> Process | None:
        hosts = self._clusters[request.queue.shard].hosts.values()
        leading = [host.process for host in hosts if host.leads]
        return self._random.choice(leading) if leading else None

    def _again(self, request: Request) -> None:
        process = self._leader(request)
        if process is not None:
            process.enter(partial(process.shard.submit, request, _ignore))

    async def _ask(self, process: Process, request: Request) -> Answer:
        future: asyncio.Future[Answer | QueueError] = asyncio.get_running_loop().create_future()
        process.enter(partial(process.shard.submit, request, partial(_settle, future)))
        answer = await future
        if isinstance(answer, QueueError):
            raise answer
        return answer


def connect(clusters: Sequence[ShardCluster], known: KnownParts, random: Random) -> None:
    """Let messages and the orders of move tasks go between the shards."""
    looking: set[asyncio.Task[None]] = set()

    def begin(number: int, process: Process) -> None:
        routes = Routes(clusters, process, number, Random(random.getrandbits(64)))
        entropy = SimulatedEntropy(Random(random.getrandbits(64)))
        process.deliveries = Deliveries(cast("Router", routes), entropy)
        shared = SharedTasks(cast("Router", routes), known, entropy, lost=())
        start_task(looking, _look(process, shared))

    for cluster in clusters:
        cluster.began = partial(begin, cluster.number)


async def _look(process: Process, shared: SharedTasks) -> None:
    while not process.is_over:
        await shared.look()
        await asyncio.sleep(LOOK_S)
    shared.stop()


def _settle(future: asyncio.Future[Answer | QueueError], answer: Answer | QueueError) -> None:
    if not future.done():
        future.set_result(answer)


def _ignore(answer: Answer | QueueError) -> None:
    """Does nothing: the answer is not awaited."""
