"""A request that waited is decided by the definitions of now, not by those of its arrival."""

from __future__ import annotations

from cluster.tests.virtual_time import virtual
from cluster.tests.world import AskedShard, World, lead_of, pass_time
from visibility.contract.errors import QueueDoesNotExist
from visibility.contract.model import QueueCounters, QueueDefinition
from visibility.contract.outcomes import Progress
from visibility.rules.dead_letters import MOVES_MAX
from visibility.state.waiters import Ticket
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues

DEAD = prepared.queue_named("dead", 3)
SPENT = prepared.queue_named("spent", 4, dead_letters_to=DEAD, VisibilityTimeout="0")
WITHOUT_POLICY = prepared.queue_named("spent", 4, VisibilityTimeout="0")


def known() -> KnownQueues:
    """The catalog's present definitions."""
    return KnownQueues(SPENT, DEAD)


async def spent_with_a_poll(world: World) -> AskedShard:
    """A message in its last allowed flight for 3 s, and a long poll that waits for it."""
    await world.asked(
        prepared.send(SPENT, "a"), prepared.receive(SPENT, timeout_s=3, dead_letter_queue=DEAD)
    )
    (poll,) = await world.asked(prepared.receive(SPENT, wait_s=20, dead_letter_queue=DEAD))
    assert poll.answers == []
    return poll


async def counted(world: World, queue: QueueDefinition) -> QueueCounters:
    (asked,) = await world.asked(prepared.counters(queue))
    (answer,) = asked.answers
    assert isinstance(answer, QueueCounters)
    return answer


@virtual
async def test_a_spent_message_goes_where_the_policy_points_as_long_as_nothing_changed() -> None:
    world = await World(definitions=known()).start()
    poll = await spent_with_a_poll(world)

    await pass_time(4)

    assert poll.answers == []
    assert (await counted(world, DEAD)).visible == 1


@virtual
async def test_nothing_is_lost_when_the_dead_letter_queue_is_deleted_under_a_long_poll() -> None:
    definitions = known()
    world = await World(definitions=definitions).start()
    poll = await spent_with_a_poll(world)
    del definitions.queues[DEAD.queue_id]
    await world.asked(prepared.drop(DEAD))

    await pass_time(4)

    assert poll.bodies == ["a"]
    assert await counted(world, DEAD) == QueueCounters(0, 0, 0)
    assert (await counted(world, SPENT)).visible == 1


@virtual
async def test_a_policy_that_was_removed_under_a_long_poll_moves_nothing() -> None:
    definitions = known()
    world = await World(definitions=definitions).start()
    poll = await spent_with_a_poll(world)
    definitions.define(WITHOUT_POLICY)

    await pass_time(4)

    assert poll.bodies == ["a"]
    assert await counted(world, DEAD) == QueueCounters(0, 0, 0)


@virtual
async def test_a_policy_that_was_set_under_a_long_poll_moves_what_is_spent() -> None:
    definitions = known()
    definitions.define(WITHOUT_POLICY)
    world = await World(definitions=definitions).start()
    await world.asked(prepared.send(WITHOUT_POLICY, "a"))
    await world.asked(prepared.receive(WITHOUT_POLICY, timeout_s=3))
    (poll,) = await world.asked(prepared.receive(WITHOUT_POLICY, wait_s=20))
    definitions.define(SPENT)

    await pass_time(4)

    assert poll.answers == []
    assert (await counted(world, DEAD)).visible == 1


@virtual
async def test_a_long_poll_of_a_queue_that_is_gone_is_told_so_and_takes_nothing() -> None:
    definitions = known()
    world = await World(definitions=definitions).start()
    poll = await spent_with_a_poll(world)
    del definitions.queues[SPENT.queue_id]

    await pass_time(4)

    assert poll.refusal is QueueDoesNotExist
    assert await counted(world, SPENT) == QueueCounters(1, 0, 0)
    assert await counted(world, DEAD) == QueueCounters(0, 0, 0)


@virtual
async def test_a_deferred_receive_moves_nothing_more_once_the_dead_letter_queue_is_gone() -> None:
    definitions = known()
    world = await World(auto_sync=False, definitions=definitions).start()
    for _ in range(MOVES_MAX // 10 + 1):
        await world.asked(prepared.send_batch(SPENT, ["a"] * 10))
        await world.asked(prepared.receive(SPENT, 10, timeout_s=1))
        await world.sync()
    await pass_time(1.1)
    (received,) = await world.asked(prepared.receive(SPENT, 10, dead_letter_queue=DEAD))
    assert received.answers == []

    del definitions.queues[DEAD.queue_id]
    await world.sync()

    assert received.bodies == ["a"] * 10


@virtual
async def test_a_drop_that_waited_drops_no_queue_that_continues_the_purged_one() -> None:
    queue = prepared.queue_named("q", 1)
    definitions = KnownQueues(queue)
    world = await World(definitions=definitions).start()
    await world.asked(prepared.send(queue, "purged"))
    successor = definitions.purge(queue)
    await world.asked(prepared.purge(queue, successor), prepared.send(successor, "kept"))
    dropped: list[object] = []

    lead_of(world.shard)._deferred.append(Ticket(prepared.drop(queue), dropped.append))
    await world.asked(prepared.counters(successor))

    assert dropped == [Progress(is_done=True)]
    assert await counted(world, successor) == QueueCounters(1, 0, 0)
    assert queue.queue_id not in world.shard.counters()
