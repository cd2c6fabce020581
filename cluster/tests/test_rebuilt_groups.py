"""Rebuilt FIFO queues keep the order of their groups: a later message waits for an earlier one that
is hidden or lost."""

from __future__ import annotations

import pytest

from cluster.tests.virtual_time import virtual
from cluster.tests.world import World, pass_time, state_of
from storage.checks.consistency import check_queue
from visibility.content.id_digests import group_digest
from visibility.contract.model import QueueCounters, QueueDefinition, Receipt
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import (
    BLOCKED,
    DELAYED,
    QUARANTINED,
    group_key,
    message_key,
    pair_key,
    queue_key,
    row_key,
)
from visibility.rows.row_values import NOWHERE, Quarantined
from visibility.tests import prepared

FIFO = prepared.queue_named("q.fifo", 1, VisibilityTimeout="30")
SLOW = prepared.queue_named("q.fifo", 1, DelaySeconds="5")
Q = prepared.queue_named("q", 1)
FOUR_DAYS_S = 345_600


async def filled() -> World:
    """Three messages of group g, of which the first is in flight for 30 s, and one of h."""
    world = await World().start()
    await world.asked(*[prepared.send(FIFO, f"g{number}", group="g") for number in range(3)])
    (first,) = await world.asked(prepared.receive(FIFO, 1))
    await world.asked(prepared.send(FIFO, "h0", group="h"))
    assert first.bodies == ["g0"]
    return world


async def rebuilt(world: World, *damaged: bytes) -> World:
    """The shard after a start on damaged rows, the queue's own among them."""
    await world.shard.stop()
    world.store.damage(queue_key(1), *damaged)
    return await World(store=world.store, definitions=world.queues).start()


async def received(world: World, queue: QueueDefinition = FIFO) -> list[str]:
    (asked,) = await world.asked(prepared.receive(queue, 10, timeout_s=600))
    return asked.bodies


def quarantined(world: World) -> int:
    state = state_of(world.shard).queues.get(1)
    assert state is not None
    return state.quarantined.messages


@virtual
async def test_a_group_waits_for_its_lost_message_in_flight_and_then_for_its_retention() -> None:
    world = await rebuilt(await filled(), message_key(1, 1))

    assert await received(world) == ["h0"]
    (counted,) = await world.asked(prepared.counters(FIFO))
    assert counted.answers == [QueueCounters(2, 2, 0)], "the lost one is in flight still"
    await pass_time(31)

    assert await received(world) == []
    assert quarantined(world) == 3, "one is lost, two wait in its group"
    assert [*check_queue(world.store, 1)] == []


@virtual
async def test_a_lost_message_in_flight_can_be_deleted_by_its_consumer() -> None:
    world = await rebuilt(await filled(), message_key(1, 1))

    await world.asked(prepared.delete_batch(FIFO, [Receipt(1, 1)]))

    assert await received(world) == ["h0", "g1", "g2"]
    assert quarantined(world) == 0
    assert [*check_queue(world.store, 1)] == []


@virtual
async def test_a_group_that_lost_a_waiting_message_is_blocked_by_a_rebuild() -> None:
    world = await rebuilt(await filled(), message_key(1, 2))
    await pass_time(31)

    assert await received(world) == ["h0"]
    assert quarantined(world) == 3
    assert [*check_queue(world.store, 1)] == []


@virtual
async def test_a_blocked_group_is_still_blocked_after_a_rebuild() -> None:
    world = await (await filled()).restarted()
    world.store.damage(message_key(1, 2))
    await pass_time(31)
    assert await received(world) == ["h0"]
    assert quarantined(world) == 3

    world = await rebuilt(world)

    assert await received(world) == []
    assert quarantined(world) == 3


@virtual
@pytest.mark.parametrize("queue", [Q, FIFO], ids=["standard", "fifo"])
async def test_a_quarantine_of_unknown_time_ends_after_the_retention(
    queue: QueueDefinition,
) -> None:
    world = await World().start()
    group = "g" if queue is FIFO else None
    await world.asked(prepared.send(queue, "a", group=group))
    await world.shard.stop()
    rows = {row_key(1, QUARANTINED, NOWHERE): encode_row(Quarantined(NOWHERE, 2, 0))}
    if queue is FIFO:
        rows[group_key(1, BLOCKED, group_digest("g"))] = encode_row(0)
    world.store.rows |= rows
    world.store.durable |= rows

    world = await World(store=world.store, definitions=world.queues).start()
    await pass_time(FOUR_DAYS_S - 60)
    assert quarantined(world) == 2 + (queue is FIFO)
    await world.asked(prepared.send(queue, "b", group=group))
    await pass_time(120)

    assert quarantined(world) == 0
    assert await received(world, queue) == ["b"]
    assert [*check_queue(world.store, 1)] == []


@virtual
async def test_a_lost_delayed_message_leaves_its_group_and_blocks_it() -> None:
    world = await World().start()
    sends = [prepared.send(SLOW, body, group=body[0]) for body in ("g0", "g1", "h0")]
    await world.asked(*sends)
    world.store.damage(pair_key(1, DELAYED, 0, 1))
    await pass_time(6)

    assert await received(world, SLOW) == ["h0"]
    assert quarantined(world) == 2
    (counted,) = await world.asked(prepared.counters(SLOW))
    assert counted.answers == [QueueCounters(0, 1, 0)]
    assert [*check_queue(world.store, 1)] == []
