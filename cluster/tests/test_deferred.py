"""A receive that is woken, or must be decided again in the next turn, is never lost on its way
there."""

from __future__ import annotations

import pytest

from cluster.tests.virtual_time import virtual
from cluster.tests.world import AskedShard, AsSubmitted, World, pass_time, settled
from visibility.contract.errors import ServiceUnavailable
from visibility.contract.model import QueueCounters, QueueDefinition, Receipt, Request
from visibility.contract.results import SendMessageResult
from visibility.rules.dead_letters import MOVES_MAX
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues

DEAD = prepared.queue_named("dead", 3)
SPENT = prepared.queue_named("spent", 4, dead_letters_to=DEAD, VisibilityTimeout="0")
SELF = prepared.queue_named(
    "self", 5, dead_letters_to=prepared.queue_named("self", 5), VisibilityTimeout="0"
)
REOPENED_S = 1.1
BATCHES = 2 * MOVES_MAX // 10 + 1


class Waking:
    """A message in its last allowed flight, a long poll, and the request that wakes it."""

    def __init__(self, queue: QueueDefinition, waits_in: QueueDefinition, wake: Request) -> None:
        self.queue = queue
        self.waits_in = waits_in
        self.wake = wake

    async def begin(self, world: World, bodies: str = "a") -> AskedShard:
        """The long poll, about to be woken."""
        await world.asked(prepared.send_batch(self.queue, list(bodies)))
        await world.sync()
        await world.asked(prepared.receive(self.queue, 10, timeout_s=1, dead_letter_queue=DEAD))
        await world.sync()
        (poll,) = await world.asked(self.poll())
        assert poll.answers == []
        return poll

    def poll(self, most: int = 1) -> Request:
        target = SELF if self.waits_in is SELF else None
        return prepared.receive(
            self.waits_in, most, timeout_s=30, wait_s=20, dead_letter_queue=target
        )

    async def received_after_reopening(self, world: World) -> list[str]:
        """The content of the queues after the shard is reloaded."""
        await pass_time(REOPENED_S)
        target = SELF if self.queue is SELF else DEAD
        received: list[AskedShard] = []
        for _ in range(2):  # the first may move what the second takes
            received += await world.asked(
                prepared.receive(self.queue, 10, timeout_s=30, dead_letter_queue=target),
                prepared.receive(DEAD, 10, timeout_s=30),
            )
            await world.sync()
        return [body for asked in received for body in asked.bodies]


DEFERRED = Waking(SELF, SELF, prepared.change_batch(SELF, [Receipt(1, 1), Receipt(2, 1)], [0, 0]))
"""The visible message was received too often: the woken poll moves it to its own queue, and is
decided again."""


class WakingByMove(Waking):
    """The spent message is visible; a receive moves it to the queue of the long poll."""

    def __init__(self) -> None:
        super().__init__(SPENT, DEAD, prepared.receive(SPENT, dead_letter_queue=DEAD))

    async def begin(self, world: World, bodies: str = "a") -> AskedShard:
        await world.asked(prepared.send_batch(SPENT, list(bodies)))
        await world.sync()
        await world.asked(prepared.receive(SPENT, 10, dead_letter_queue=DEAD))
        await world.sync()
        (poll,) = await world.asked(self.poll())
        assert poll.answers == []
        return poll


MOVED = WakingByMove()
both = pytest.mark.parametrize("case", [DEFERRED, MOVED], ids=["deferred", "served at once"])


@both
@virtual
async def test_a_woken_long_poll_gets_its_message(case: Waking) -> None:
    world = await World().start()
    poll = await case.begin(world)

    await world.asked(case.wake)

    assert poll.bodies == ["a"]


@both
@virtual
async def test_a_woken_long_poll_is_refused_once_when_the_turn_fails(case: Waking) -> None:
    unlucky: list[Request] = []

    class Unlucky(AsSubmitted):
        def renewed(self, request: Request) -> Request:
            if request in unlucky:
                raise RuntimeError("a bug behind the one that was deferred")
            return request

    world = await World(definitions=Unlucky(DEAD, SPENT, SELF)).start()
    poll = await case.begin(world, "ab")
    unlucky.append(case.poll(7))
    (second,) = await world.asked(*unlucky)

    (waking,) = await world.asked(case.wake)

    for asked in (poll, second, waking):
        assert asked.refusal is ServiceUnavailable
    unlucky.clear()
    assert sorted(await case.received_after_reopening(world)) == ["a", "b"]
    assert len(poll.answers) == 1


@both
@pytest.mark.parametrize("fault", ["has_bug", "fails"])
@virtual
async def test_everybody_is_refused_once_when_the_commit_fails(case: Waking, fault: str) -> None:
    world = await World().start()
    poll = await case.begin(world)
    setattr(world.store, fault, True)

    (waking,) = await world.asked(case.wake)

    assert poll.refusal is waking.refusal is ServiceUnavailable
    assert await case.received_after_reopening(world) == ["a"]
    assert len(poll.answers) == 1


@both
@virtual
async def test_a_woken_long_poll_is_refused_once_when_the_sync_fails(case: Waking) -> None:
    world = await World(auto_sync=False).start()
    poll = await case.begin(world)
    (waking,) = await world.asked(case.wake)
    assert poll.answers == waking.answers == []

    world.store.fail_to_sync()
    await settled()

    assert poll.refusal is waking.refusal is ServiceUnavailable
    assert await case.received_after_reopening(world) == ["a"]
    assert len(poll.answers) == 1


@both
@virtual
async def test_a_woken_long_poll_is_decided_before_receives_that_came_later(case: Waking) -> None:
    world = await World(auto_sync=False).start()
    poll = await case.begin(world)

    await world.asked(case.wake)
    (later,) = await world.asked(prepared.receive(case.waits_in))
    await world.sync()

    assert (poll.bodies, later.bodies) == (["a"], [])


@virtual
async def test_a_stop_answers_a_woken_long_poll() -> None:
    world = await World().start()
    poll = await MOVED.begin(world)
    moving = world.ask(MOVED.wake)

    await world.shard.stop()

    assert (poll.bodies, moving.bodies) == ([], [])


@virtual
async def test_a_stop_answers_a_deferred_receive() -> None:
    world = await World().start()
    await world.asked(prepared.send(SELF, "a"))
    await world.asked(prepared.receive(SELF, dead_letter_queue=SELF))
    deferred = world.ask(prepared.receive(SELF, wait_s=20, dead_letter_queue=SELF))

    await world.shard.stop()

    assert deferred.bodies == ["a"]


# -- more dead letters than one decision moves -----------------------------------------------------


async def with_many_spent(world: World) -> None:
    """More visible messages than one receive moves were received too often, and "new" waits behind
    them."""
    for _ in range(BATCHES):
        await world.asked(prepared.send_batch(SPENT, ["a"] * 10))
        await world.sync()
    for _ in range(BATCHES):
        await world.asked(prepared.receive(SPENT, 10, timeout_s=1, dead_letter_queue=DEAD))
        await world.sync()
    await pass_time(1.1)
    await world.asked(prepared.send(SPENT, "new"))
    await world.sync()


@virtual
async def test_a_receive_goes_on_in_the_next_turns_until_it_has_moved_all() -> None:
    world = await World(auto_sync=False).start()
    await with_many_spent(world)

    (received,) = await world.asked(prepared.receive(SPENT, 10, dead_letter_queue=DEAD))
    moved = []
    while not received.answers:
        world.store.sync_all()
        await settled()
        moved += [queue.visible for queue in world.shard.queues([3])]

    assert received.bodies == ["new"]
    assert moved[:2] == [2 * MOVES_MAX, 2 * MOVES_MAX + 10]


@virtual
async def test_a_request_between_two_turns_of_a_deferred_receive_is_not_kept_back() -> None:
    world = await World(auto_sync=False).start()
    await with_many_spent(world)
    (received,) = await world.asked(prepared.receive(SPENT, 10, dead_letter_queue=DEAD))
    (counted,) = await world.asked(prepared.counters(DEAD))

    world.store.sync_all()
    await settled()
    assert received.answers == counted.answers == []

    world.store.sync_all()
    await settled()
    assert counted.answers == [QueueCounters(2 * MOVES_MAX, 0, 0)]
    await world.sync()
    assert received.bodies == ["new"]


@virtual
async def test_a_stop_lets_a_deferred_receive_end() -> None:
    world = await World().start()
    await with_many_spent(world)
    deferred = world.ask(prepared.receive(SPENT, 10, wait_s=20, dead_letter_queue=DEAD))

    await world.shard.stop()

    assert deferred.bodies == ["new"]


@virtual
async def test_a_deferred_receive_that_finds_nothing_waits_for_the_rest_of_its_time() -> None:
    world = await World().start()
    await with_many_spent(world)
    await world.asked(prepared.delete(SPENT, Receipt(1, 1)))
    first, poll = await world.asked(
        prepared.receive(SPENT, wait_s=20, timeout_s=60, dead_letter_queue=DEAD),
        prepared.receive(SPENT, wait_s=5, dead_letter_queue=DEAD),
    )
    assert (first.bodies, poll.answers) == (["new"], [])

    await pass_time(4.9)
    assert poll.answers == []
    await pass_time(0.2)
    assert poll.bodies == []


# -- a queue that is its own dead-letter queue -----------------------------------------------------


@virtual
async def test_a_long_poll_gets_the_message_that_it_moved_to_its_own_queue() -> None:
    world = await World().start()
    await world.asked(prepared.send(SELF, "a"))
    await world.asked(prepared.receive(SELF, dead_letter_queue=SELF))

    (poll,) = await world.asked(prepared.receive(SELF, wait_s=20, dead_letter_queue=SELF))

    assert poll.bodies == ["a"]


@virtual
async def test_a_parked_long_poll_gets_what_moves_to_its_own_queue_when_a_timeout_ends() -> None:
    world = await World().start()
    await world.asked(prepared.send(SELF, "a"))
    await world.asked(prepared.receive(SELF, timeout_s=3, dead_letter_queue=SELF))
    (poll,) = await world.asked(prepared.receive(SELF, wait_s=20, dead_letter_queue=SELF))
    assert poll.answers == []

    await pass_time(3.1)

    assert poll.bodies == ["a"]


@virtual
async def test_a_short_poll_moves_a_message_to_its_own_queue_and_loses_nothing() -> None:
    world = await World().start()
    await world.asked(prepared.send(SELF, "a"))
    await world.asked(prepared.receive(SELF, dead_letter_queue=SELF))

    await world.asked(prepared.receive(SELF, dead_letter_queue=SELF))
    (counted,) = await world.asked(prepared.counters(SELF))

    assert counted.answers == [QueueCounters(1, 0, 0)]


@virtual
async def test_a_long_poll_that_is_woken_before_its_queue_is_continued_waits_at_the_successor() -> (
    None
):
    """The catalog has purged the queue; the shard does not know it yet."""
    queue = prepared.queue_named("purged", 7)
    queues = KnownQueues(queue)
    world = await World(definitions=queues).start()
    await world.asked(prepared.send(queue, "old"))
    await world.asked(prepared.receive(queue, timeout_s=5))
    (poll,) = await world.asked(prepared.receive(queue, wait_s=20))

    successor = queues.purge(queue)
    await pass_time(5.1)
    assert poll.answers == []
    (purged,) = await world.asked(prepared.purge(queue, successor))
    (sent,) = await world.asked(prepared.send(successor, "new"))

    assert purged.answers == [None]
    assert sent.refusal is SendMessageResult
    assert poll.bodies == ["new"]
    assert world.shard.report().failures == 0
