"""Messages that the shards of a fleet still have, from their leaders: a cluster is removed only
when its shards have none.

A leader answers as for a client: it knows from a majority that it leads, and so says the latest.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import msgspec

from auth.caller import Caller
from cluster.fleet.removing import ShardLeft
from cluster.peers.questions import Question, Questions, Said
from cluster.shards.router import Router
from cluster.shards.shard import Shard
from visibility.contract.errors import QueueError
from visibility.contract.model import Request
from visibility.contract.outcomes import Answer
from visibility.rules.archive_batches import the_shard
from visibility.rules.queues import ReadQueues

_ACTION = "fleet/left"
_CALLER = Caller("", "", "shards-left")
_WAIT_S = 3.0


class ShardsLeft(NamedTuple):
    """Counts them."""

    questions: Questions
    router: Router

    def serve(self) -> None:
        """Answer other hosts from now on."""
        self.questions.serve(_ACTION, self._answer)

    async def ask(self) -> list[ShardLeft]:
        """The shards whose leader answers, with all that each has."""
        hosts, question = self.questions.hosts_of_all_clusters, Question(_ACTION, b"", b"")
        answers = await self.questions.ask_all(hosts, question, _WAIT_S)
        return [
            shard
            for said in answers.values()
            if said is not None and said.status == 200
            for shard in msgspec.json.decode(said.body, type=list[ShardLeft])
        ]

    async def _answer(self, question: Question) -> Said:
        found = await asyncio.gather(*map(_left, self.router.shards.values()))
        return Said(200, msgspec.json.encode([each for each in found if each is not None]))


async def _left(shard: Shard) -> ShardLeft | None:
    """A shard with all that it has; None if another host leads it, or this one cannot be sure."""
    known: asyncio.Future[ShardLeft | None] = asyncio.get_running_loop().create_future()

    def on_answer(answer: Answer | QueueError) -> None:
        if not known.done():
            known.set_result(None if isinstance(answer, QueueError) else _report(shard))

    shard.submit(Request(ReadQueues(), the_shard(shard.number), _CALLER, "shards-left"), on_answer)
    try:
        async with asyncio.timeout(_WAIT_S):
            return await known
    except TimeoutError:
        return None


def _report(shard: Shard) -> ShardLeft:
    messages = sum(each.stored for each in shard.counters().values())
    report = shard.report()
    return ShardLeft(shard.number, messages, report.archive.messages, tuple(shard.departs_to()))
