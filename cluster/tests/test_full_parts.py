"""Sends to a queue of several parts, some of which are full."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from typing_extensions import override

from cluster.parts.split_queues import SplitQueues
from cluster.shards.router import Router
from cluster.tests.split_view import SplitView
from cluster.tests.virtual_time import SeededEntropy, SettableClock
from visibility.contract.errors import (
    InvalidParameterValue,
    OverLimit,
    QueueError,
    ServiceUnavailable,
)
from visibility.contract.model import Request
from visibility.contract.operations import SendMessageBatch
from visibility.contract.outcomes import Answer, batch_failure
from visibility.contract.results import (
    SendMessageBatchResult,
    SendMessageBatchResultEntry,
    SendMessageResult,
)
from visibility.state.waiters import OnAnswer, Room, Ticket
from visibility.tests import prepared

PARTS = 6


class _View(SplitView):
    @override
    def when_caught_up(self, then: Callable[[], None]) -> None:
        raise AssertionError("a full part is no news")


class _Parts(Router):
    """Parts that have room for so many messages each; `failing` ones answer that."""

    def __init__(self, *room: int) -> None:
        super().__init__([])
        self.room = list(room)
        self.failing: dict[int, Exception] = {}
        self.asked: list[int] = []
        self.ids: set[str] = set()

    def leads(self, number: int) -> bool:
        """See `Router`."""
        return number == 0

    def submit(self, request: Request, on_answer: OnAnswer, room: Room | None = None) -> Ticket:
        """See `Router`."""
        self.asked.append(request.queue.shard)
        assert request.request_id not in self.ids
        self.ids.add(request.request_id)
        answer: Any = self.failing.get(request.queue.shard) or self._answer(request)
        asyncio.get_running_loop().call_soon(on_answer, answer)
        return Ticket(request, on_answer)

    def _take(self, shard: int) -> bool:
        has_room = self.room[shard] > 0
        self.room[shard] -= has_room
        return has_room

    def _answer(self, request: Request) -> Answer | OverLimit:
        shard, operation = request.queue.shard, request.operation
        if not isinstance(operation, SendMessageBatch):
            return SendMessageResult("0" * 32, "id") if self._take(shard) else OverLimit()
        sent, failed = [], []
        for entry, part in zip(operation.entries or (), request.parts, strict=True):
            entry_id = entry.id or ""
            if isinstance(part, InvalidParameterValue):
                failed.append(batch_failure(entry_id, part))
            elif self._take(shard):
                sent.append(SendMessageBatchResultEntry(entry_id, f"{shard}", "0" * 32))
            else:
                failed.append(batch_failure(entry_id, OverLimit()))
        return SendMessageBatchResult(sent or None, failed or None)


async def _sent(parts: _Parts, request: Request) -> Any:
    answered = asyncio.get_running_loop().create_future()
    split = SplitQueues(parts, _View(PARTS), SeededEntropy("full"), SettableClock().wall_s)
    split.submit(request, answered.set_result)
    return await answered


async def test_a_send_goes_to_a_part_that_has_room() -> None:
    parts = _Parts(0, 0, 0, 1, 1, 1)

    answer = await _sent(parts, prepared.send(_View(PARTS).queue, "x"))

    assert isinstance(answer, SendMessageResult)
    assert parts.asked[0] == 0, "the part of this process first"
    assert sum(parts.room) == 2


async def test_a_full_queue_asks_few_of_its_parts() -> None:
    parts = _Parts(*[0] * PARTS)

    answer = await _sent(parts, prepared.send(_View(PARTS).queue, "x"))

    assert isinstance(answer, OverLimit)
    assert len(parts.asked) == len({*parts.asked}) == 4


async def test_the_rest_of_a_batch_goes_to_other_parts() -> None:
    parts = _Parts(*[2] * PARTS)
    bodies: list[str | QueueError] = ["a", "b", InvalidParameterValue("no"), "c", "d", "e"]

    answer = await _sent(parts, prepared.send_batch(_View(PARTS).queue, bodies))

    assert [entry.id for entry in answer.successful] == ["0", "1", "3", "4", "5"]
    assert [(entry.id, entry.code) for entry in answer.failed] == [("2", "InvalidParameterValue")]
    assert len(parts.asked) == 3
    assert sum(parts.room) == 2 * PARTS - 5


async def test_what_fits_nowhere_is_refused_entry_by_entry() -> None:
    parts = _Parts(*[1] * PARTS)

    answer = await _sent(parts, prepared.send_batch(_View(PARTS).queue, [*"abcdef"]))

    assert [entry.id for entry in answer.successful] == ["0", "1", "2", "3"]
    assert [(entry.id, entry.code) for entry in answer.failed] == [
        ("4", "OverLimit"),
        ("5", "OverLimit"),
    ]


@pytest.mark.parametrize("is_batch", [False, True])
async def test_a_part_that_fails_behind_a_full_one_is_no_lack_of_room(is_batch: bool) -> None:
    parts = _Parts(*[0] * PARTS)
    parts.failing = {number: ServiceUnavailable() for number in range(1, PARTS)}
    queue = _View(PARTS).queue

    if is_batch:
        answer = await _sent(parts, prepared.send_batch(queue, ["a"]))
        assert [entry.code for entry in answer.failed] == [ServiceUnavailable.code]
    else:
        assert isinstance(await _sent(parts, prepared.send(queue, "a")), ServiceUnavailable)
    assert len(parts.asked) == 2
