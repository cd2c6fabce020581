"""The traffic of a run: lanes of every kind of work on one service, in one event loop, from one
seed.

A lane expects the service to be away at times: it reconnects and continues. The history records its
operations.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Coroutine, Iterable
from typing import Any

from compat_tests.benchmarks.bench_wire import Endpoint
from compat_tests.facade import Members
from compat_tests.faults.fault_history import History, Outcome, Queue
from compat_tests.faults.retrying_caller import Caller, Reply, caller

VISIBILITY_S = 5
PAUSE_S_MAX = 0.02
"""Pause between two sends of a lane, for each message."""

_BY_GROUP = {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}

Lane = Coroutine[Any, Any, None]


class Traffic:
    """Queues, chance and history that the lanes share."""

    def __init__(
        self,
        endpoint: Endpoint,
        seed: int,
        *,
        visibility_s: int = VISIBILITY_S,
        pause_s_max: float = PAUSE_S_MAX,
        tags: dict[str, str] | None = None,
        has_parts: bool = False,
    ) -> None:
        """With `has_parts` the FIFO queue of the kind "fifo" is one that can be split."""
        self.endpoint = endpoint
        self.history = History()
        self.visibility_s = visibility_s
        self.pause_s_max = pause_s_max
        self.numbers = itertools.count(1)
        self.is_sending = True
        self._chance = random.Random(seed)
        self._tags = tags
        self._of_fifo = _BY_GROUP if has_parts else None

    async def run(self, work: Lane, lanes: Iterable[Lane], endless: Iterable[Lane] = ()) -> None:
        """Run the lanes while `work` runs; then let each end its present call, and stop the endless
        ones."""
        self.is_sending = True
        ending = [asyncio.create_task(lane) for lane in lanes]
        working = asyncio.create_task(work)
        tasks = [working, *ending, *(asyncio.create_task(lane) for lane in endless)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():  # a lane ends early only because of a bug of its own
                await asyncio.gather(*(task for task in tasks if task.done()))
                raise AssertionError("a lane ended early")
            self.is_sending = False
            await asyncio.gather(working, *ending)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def draw(self) -> random.Random:
        """A source of chance for one lane."""
        return random.Random(self._chance.getrandbits(64))

    async def insist(self, calls: Caller, action: str, **members: Any) -> Reply:
        """Repeat the call until it succeeds."""
        while (reply := await calls.call(action, **members)).outcome is not Outcome.DONE:
            pass
        return reply

    # -- queues ------------------------------------------------------------------------------------

    async def make_queues(self, kinds: Iterable[str]) -> None:
        """Make the queues that exist for the whole run."""
        async with caller(self.endpoint, self.history) as calls:
            if "standard" in kinds:
                await self.make_queue(calls, "plain")
                await self.make_queue(calls, "fair")
            if "fifo" in kinds:
                await self.make_queue(calls, "order.fifo", self._of_fifo, is_ordered=True)
            if "moves" in kinds:
                await self.make_queue(calls, "rescued")
                await self._make_failing(calls, "", {"letters", "rescued"})
                await self._make_failing(calls, ".fifo", {"letters.fifo"})

    async def _make_failing(self, calls: Caller, end: str, reach: set[str]) -> None:
        """A queue whose messages are never deleted, and its dead-letter queue."""
        letters = await self.make_queue(calls, f"letters{end}")
        policy = json.dumps(
            {"deadLetterTargetArn": await self.arn(calls, letters), "maxReceiveCount": 2}
        )
        attributes = {"RedrivePolicy": policy}
        await self.make_queue(calls, f"failing{end}", attributes, reach=frozenset(reach))

    async def make_queue(
        self,
        calls: Caller,
        name: str,
        attributes: dict[str, str] | None = None,
        *,
        reach: frozenset[str] = frozenset(),
        is_ordered: bool = False,
    ) -> Queue:
        """Make a queue of the traffic."""
        given = {"VisibilityTimeout": str(self.visibility_s), **(attributes or {})}
        if name.endswith(".fifo"):
            given["FifoQueue"] = "true"
        members: Members = {"QueueName": name, "Attributes": given}
        if self._tags:
            members["tags"] = self._tags
        reply = await self.insist(calls, "CreateQueue", **members)
        made = Queue(name, reply.answer["QueueUrl"], reach, is_ordered)
        self.history.queues[name] = made
        return made

    async def arn(self, calls: Caller, queue: Queue) -> str:
        """The queue's ARN."""
        asked = {"QueueUrl": queue.url, "AttributeNames": ["QueueArn"]}
        reply = await self.insist(calls, "GetQueueAttributes", **asked)
        return str(reply.answer["Attributes"]["QueueArn"])
