"""The gateway of the simulators is as late as a real one."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, cast

import pytest

from cluster.catalog.catalog_records import name_of
from cluster.catalog.part_rules import NewParts
from cluster.tests.simulation.known_parts import KnownParts, split_queues
from cluster.tests.virtual_time import virtual
from visibility.contract.model import Receipt, Request
from visibility.state.waiters import OnAnswer, Ticket
from visibility.tests import prepared


class _Router:
    """Notes the parts that deletes go to."""

    def __init__(self) -> None:
        self.asked: set[int] = set()

    def submit(self, request: Request, on_answer: OnAnswer, **room: object) -> Ticket:
        self.asked.add(request.queue.queue_id)
        on_answer(None)
        return Ticket(request, on_answer)

    offer = submit

    def leads(self, number: int) -> bool:
        return True

    has_leader = leads


class _Latest(Random):
    """Chance that has a view lag as far as it can."""

    def choice(self, seq: Any) -> Any:
        return seq[-1]


@pytest.mark.parametrize("name", ["q", "q.fifo"])
@pytest.mark.parametrize("heard", [False, True])
@virtual
async def test_it_takes_a_request_for_the_queue_that_it_knows(name: str, *, heard: bool) -> None:
    known, router = KnownParts(), _Router()
    queue = known.define(prepared.queue_named(name, 1))
    await asyncio.sleep(10)
    known.move(queue, queue.part_number, NewParts([0], {queue.queue_id: 1}))
    await asyncio.sleep(10 if heard else 0)
    moved = known.find(name_of(queue))
    assert moved is not None

    gateway = split_queues(cast(Any, router), known, _Latest(1))
    gateway.submit(prepared.delete(moved, Receipt(moved.first_sequence, 1)), lambda answer: None)
    await asyncio.sleep(1)
    gateway.end_waiting()

    assert router.asked == {moved.queue_id if heard else queue.queue_id}
