"""Unreadable rows stay in place, and do not affect their neighbours."""

from __future__ import annotations

import pytest

from cluster.shards.issued_ids import CatalogOlder
from cluster.tests.virtual_time import virtual
from cluster.tests.world import World, pass_time, state_of
from visibility.contract.errors import QueueError
from visibility.contract.model import QueueCounters, QueueDefinition
from visibility.contract.outcomes import Deliveries
from visibility.rows.row_keys import LEASE, message_key, queue_of, row_key
from visibility.rules.dead_letters import MOVES_MAX
from visibility.tests import prepared

Q = prepared.queue_named("q", 1, VisibilityTimeout="0")
OTHER = prepared.queue_named("other", 2)
DEAD = prepared.queue_named("dead", 3)
SPENT = prepared.queue_named("spent", 4, dead_letters_to=DEAD, VisibilityTimeout="0")
BODIES = [str(number) for number in range(10)]


async def returned(world: World, queue: QueueDefinition, batches: int = 1) -> None:
    """Messages "0" to "9", each received once and visible again."""
    for _ in range(batches):
        await world.asked(prepared.send_batch(queue, BODIES))
    for _ in range(batches):
        await world.asked(prepared.receive(queue, 10, timeout_s=1))
    await pass_time(1.1)


def quarantined(world: World, queue: QueueDefinition) -> int:
    """The queue's count."""
    state = state_of(world.shard).queues.get(queue.queue_id)
    assert state is not None
    return state.quarantined.messages


# -- one damaged message ---------------------------------------------------------------------------


@virtual
async def test_a_damaged_returned_message_does_not_keep_back_its_neighbours() -> None:
    world = await World().start()
    await returned(world, Q)
    world.store.damage(message_key(1, 4))

    (received,) = await world.asked(prepared.receive(Q, 10, timeout_s=30))

    assert received.bodies == [body for body in BODIES if body != "3"]
    (answer,) = received.answers
    assert isinstance(answer, Deliveries)
    assert {lease.receive_count for lease in answer.leases} == {2}, "each is handed out once"


@virtual
async def test_a_damaged_returned_message_is_quarantined_and_its_row_stays() -> None:
    world = await World().start()
    await returned(world, Q)
    world.store.damage(message_key(1, 4))

    await world.asked(prepared.receive(Q, 10, timeout_s=30))
    again, counted = await world.asked(prepared.receive(Q, 10), prepared.counters(Q))

    assert again.bodies == []
    assert counted.answers == [QueueCounters(0, 9, 0)]
    assert quarantined(world, Q) == 1
    assert row_key(1, LEASE, 4) not in world.store.durable
    assert message_key(1, 4) in world.store.durable


@virtual
async def test_receives_of_one_message_pass_by_the_damaged_one() -> None:
    world = await World().start()
    await returned(world, Q)
    world.store.damage(message_key(1, 1), message_key(1, 2))

    received = await world.asked(*[prepared.receive(Q, 1, timeout_s=30) for _ in range(9)])

    assert [asked.bodies for asked in received] == [*([body] for body in BODIES[2:]), []]


@virtual
async def test_a_long_poll_that_finds_only_damage_waits_to_its_end() -> None:
    world = await World().start()
    await returned(world, Q)
    world.store.damage(*(message_key(1, sequence) for sequence in range(1, 11)))

    (poll,) = await world.asked(prepared.receive(Q, 10, wait_s=5))
    assert poll.answers == []
    reads = world.store.reads
    await pass_time(5.1)

    assert poll.bodies == []
    assert world.store.reads == reads, "nothing is read again while it waits"


# -- damaged messages that were received too often -------------------------------------------------


@virtual
async def test_a_damaged_spent_message_stays_and_the_others_are_moved() -> None:
    world = await World().start()
    await returned(world, SPENT)
    world.store.damage(message_key(4, 1), message_key(4, 5))

    (received,) = await world.asked(prepared.receive(SPENT, 10, dead_letter_queue=DEAD))
    dead, counted = await world.asked(prepared.receive(DEAD, 10), prepared.counters(SPENT))

    assert received.bodies == []
    assert dead.bodies == [body for body in BODIES if body not in "04"]
    assert counted.answers == [QueueCounters(0, 0, 0)]
    assert quarantined(world, SPENT) == 2


@virtual
async def test_damaged_spent_messages_do_not_keep_back_what_is_behind_them() -> None:
    world = await World().start()
    await returned(world, SPENT)
    world.store.damage(*(message_key(4, sequence) for sequence in range(1, 11)))
    await world.asked(prepared.send(SPENT, "new"))

    (received,) = await world.asked(prepared.receive(SPENT, 10, dead_letter_queue=DEAD))

    assert received.bodies == ["new"]


@virtual
async def test_a_queue_full_of_damaged_spent_messages_does_not_hold_the_shard() -> None:
    world = await World().start()
    batches = 2 * MOVES_MAX // 10 + 1
    await returned(world, SPENT, batches)
    world.store.damage(*(message_key(4, sequence) for sequence in range(1, 10 * batches + 1)))
    reads = world.store.reads

    polls = await world.asked(
        *[prepared.receive(SPENT, 10, wait_s=20, dead_letter_queue=DEAD) for _ in range(3)]
    )
    sound, sent = await world.asked(prepared.counters(SPENT), prepared.send(OTHER, "b"))

    assert [asked.answers for asked in polls] == [[], [], []], "they wait"
    assert sound.answers == [QueueCounters(0, 0, 0)]
    assert quarantined(world, SPENT) == 10 * batches
    assert not issubclass(sent.refusal, QueueError)
    assert world.store.reads - reads <= 10 * batches + 10, "each is tried once"


# -- a damaged block -------------------------------------------------------------------------------


@virtual
async def test_a_damaged_block_costs_its_own_messages_and_no_others() -> None:
    world = await World().start()
    await world.asked(prepared.send_batch(Q, BODIES), prepared.send(OTHER, "b"))
    world.store.unreadable = {message_key(1, sequence) for sequence in (4, 5, 6)}
    again = await World(store=world.store).start()

    first, second = await again.asked(prepared.receive(Q, 10, timeout_s=9), prepared.receive(Q, 10))
    (counted,) = await again.asked(prepared.counters(Q))
    (sent,) = await again.asked(prepared.send(Q, "new"))
    (received, others) = await again.asked(prepared.receive(Q, 10), prepared.receive(OTHER))

    assert first.bodies == [body for body in BODIES if body not in "345"]
    assert second.bodies == []
    assert counted.answers == [QueueCounters(0, 7, 0)]
    assert quarantined(again, Q) == 3
    assert not issubclass(sent.refusal, QueueError)
    assert (received.bodies, others.bodies) == (["new"], ["b"])
    assert again.store.abandoned == 0


# -- a catalog that is behind the shard ------------------------------------------------------------


@virtual
async def test_a_shard_with_queues_that_the_catalog_never_made_refuses_and_changes_nothing() -> (
    None
):
    world = await World().start()
    await world.asked(prepared.send(Q, "a"), prepared.send(DEAD, "b"))
    before = dict(world.store.durable)
    behind = World(store=world.store)

    with pytest.raises(CatalogOlder, match="holds queue 3, but the catalog has issued ids up to 2"):
        await behind.start(highest_queue_id=2)

    assert world.store.durable == before
    assert world.store.abandoned == 1
    assert not behind.shard.ready


@virtual
async def test_a_shard_beside_an_empty_catalog_keeps_its_messages_for_the_right_one() -> None:
    world = await World().start()
    await world.asked(prepared.send(Q, "a"))
    with pytest.raises(CatalogOlder):
        await World(store=world.store).start(highest_queue_id=0)

    right = await World(store=world.store).start(highest_queue_id=1)
    (received,) = await right.asked(prepared.receive(Q))

    assert received.bodies == ["a"]


@virtual
async def test_queues_that_the_catalog_does_not_list_stay_where_they_are() -> None:
    """Only a deletion that the catalog noted takes messages away."""
    world = await World().start()
    await world.asked(prepared.send(Q, "a"), prepared.send(OTHER, "b"), prepared.send(DEAD, "c"))

    again = await World(store=world.store).start(highest_queue_id=3)
    (received,) = await again.asked(prepared.receive(OTHER))

    assert {queue_of(key) for key in world.store.durable} == {1, 2, 3}
    assert received.bodies == ["b"]
