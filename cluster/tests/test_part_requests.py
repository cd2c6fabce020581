"""Requests that are cut by part: each has an id of its own, also where parts share a shard, which
remembers answers by id."""

from __future__ import annotations

import msgspec

from cluster.parts.part_requests import by_receipts, of_places
from cluster.tests.remembering import answer_to, named, rows
from cluster.tests.virtual_time import SettableClock
from cluster.tests.world import World
from visibility.contract.errors import QueueError
from visibility.contract.model import QueueDefinition, Receipt, Request
from visibility.contract.outcomes import Answer, Deliveries, PartReading
from visibility.contract.queue_parts import Part, PartState
from visibility.contract.results import SendMessageBatchResult
from visibility.rows.row_keys import MESSAGE
from visibility.rules.closing_parts import RETRIES_OVER_MS, CheckPart
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues

_AGE_MS = 1_000
HOLD_MS = 40_000
"""Longer than a router holds a request."""

QUEUE = msgspec.structs.replace(
    prepared.queue_named("q", 1), parts=(Part(0, 1, 0), Part(16, 2, 0)), version=2
)
FIRST, SECOND = QUEUE.all_parts()


async def a_shard() -> World:
    """One shard with both parts."""
    world = World(remembers=True)
    for part in (FIRST, SECOND):
        world.queues.define(part)
    return await world.start()


def sends(*, own_ids: bool = True) -> list[Request]:
    """A batch of two, cut."""
    batch = named(prepared.send_batch(QUEUE, ["a", "b"]))
    cut = [of_places(batch, FIRST, [0]), of_places(batch, SECOND, [1])]
    if own_ids:
        return cut
    return [msgspec.structs.replace(each, request_id=batch.request_id) for each in cut]


async def answers(
    world: World, requests: list[Request], age_ms: int = 0
) -> list[Answer | QueueError]:
    return [await answer_to(world, each, age_ms) for each in requests]


def stored(world: World) -> int:
    return len(rows(world, MESSAGE))


def ids_of(answer: Answer | QueueError) -> list[str]:
    assert isinstance(answer, SendMessageBatchResult)
    return [each.message_id for each in answer.successful or ()]


async def receipts(world: World, part: QueueDefinition) -> list[Receipt]:
    answer = await answer_to(world, named(prepared.receive(part, 10)))
    assert isinstance(answer, Deliveries)
    return [Receipt(lease.sequence, lease.receive_count) for lease in answer.leases]


async def test_a_retry_gets_the_answer_of_its_own_part() -> None:
    world = await a_shard()
    cut = sends()
    first = await answers(world, cut)
    assert first[0] != first[1]
    assert await answers(world, cut, _AGE_MS) == first
    assert stored(world) == 2


async def test_parts_that_shared_an_id_would_share_an_answer() -> None:
    """The first part's message would be told as sent under the id of the second one's."""
    world = await a_shard()
    cut = sends(own_ids=False)
    first = await answers(world, cut)
    again, _ = await answers(world, cut, _AGE_MS)
    assert ids_of(again) == ids_of(first[1]) != ids_of(first[0])


async def test_deletes_are_decided_by_each_part_once() -> None:
    world = await a_shard()
    await answers(world, sends())
    known = [*await receipts(world, FIRST), *await receipts(world, SECOND)]
    cut = by_receipts(named(prepared.delete_batch(QUEUE, list(known))))
    assert len({each.request_id for each in cut}) == 2
    first = await answers(world, cut)
    assert stored(world) == 0
    assert await answers(world, cut, _AGE_MS) == first


async def test_a_part_is_not_gone_while_its_last_sends_may_be_asked_for_again() -> None:
    """Else the retry of a send that happened would be told that there is no such queue."""
    clock = SettableClock()
    world = World(remembers=True, clock=clock, definitions=KnownQueues(SECOND))
    await world.start()
    request = named(prepared.send(SECOND, "a"))
    first = await answer_to(world, request)
    (receipt,) = await receipts(world, SECOND)
    await answer_to(world, named(prepared.delete(SECOND, receipt)))
    drains = Part(16, 2, 0, PartState.DRAINING)
    closed = msgspec.structs.replace(QUEUE, parts=(QUEUE.parts[0], drains), version=3)
    closed = closed.of_part(drains)

    async def look() -> PartReading:
        answer = await answer_to(world, named(prepared.prepared(closed, CheckPart())))
        assert isinstance(answer, PartReading)
        return answer

    assert (await look()).closed_version == 3
    clock.at_ms += HOLD_MS
    late = msgspec.structs.replace(request, queue=closed)
    assert await answer_to(world, late, HOLD_MS) == first
    clock.at_ms += RETRIES_OVER_MS - HOLD_MS - 1
    reading = await look()
    assert (reading.drained_version, reading.waits_for) == (0, "retries of the last sends")
    clock.at_ms += 1
    assert (await look()).drained_version == 3
