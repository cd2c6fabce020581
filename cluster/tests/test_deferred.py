"""A receive that must be decided again in the next turn is never lost on its way there."""

from __future__ import annotations

from cluster.tests.virtual_time import virtual
from cluster.tests.world import Asked, World, pass_time, settled
from visibility.errors import ServiceUnavailable
from visibility.model import QueueCounters, Request
from visibility.tests import prepared

DEAD = prepared.queue_named("dead", 3)
SPENT = prepared.queue_named("spent", 4, dead_letters_to=DEAD, VisibilityTimeout="0")
SELF = prepared.queue_named(
    "self", 5, dead_letters_to=prepared.queue_named("self", 5), VisibilityTimeout="0"
)
REOPENED_S = 1.1

MOVE = prepared.receive(SPENT, dead_letter_queue=DEAD)
"""Moves the spent message: that wakes the poll of DEAD, which must read a page first, so it is deferred."""


async def about_to_be_deferred(world: World) -> Asked:
    """A long poll of DEAD, and a message that MOVE moves there."""
    await world.asked(prepared.send(SPENT, "a"))
    await world.sync()
    await world.asked(prepared.receive(SPENT, dead_letter_queue=DEAD))
    await world.sync()
    (poll,) = await world.asked(prepared.receive(DEAD, wait_s=20))
    assert poll.answers == []
    return poll


async def received_after_reopening(world: World) -> list[str]:
    """What SPENT and DEAD hold once the shard was loaded anew."""
    await pass_time(REOPENED_S)
    received = await world.asked(prepared.receive(SPENT, 10), prepared.receive(DEAD, 10))
    await world.sync()
    return [body for asked in received for body in asked.bodies]


@virtual
async def test_a_woken_and_deferred_long_poll_gets_its_message_in_the_next_turn() -> None:
    world = World().start()
    poll = await about_to_be_deferred(world)

    await world.asked(MOVE)

    assert poll.bodies == ["a"]


@virtual
async def test_a_woken_and_deferred_long_poll_is_refused_once_when_the_turn_fails() -> None:
    unlucky: list[Request] = []

    def renew(request: Request) -> Request:
        if request in unlucky:
            raise RuntimeError("a bug behind the one that was deferred")
        return request

    world = World(renew=renew).start()
    await world.asked(prepared.send_batch(SPENT, ["a", "b"]))
    await world.asked(prepared.receive(SPENT, 10, dead_letter_queue=DEAD))
    unlucky.append(prepared.receive(DEAD, 7, wait_s=20))
    poll, second = await world.asked(prepared.receive(DEAD, wait_s=20), *unlucky)

    (moving,) = await world.asked(MOVE)

    for asked in (poll, second, moving):
        assert asked.refusal is ServiceUnavailable
    assert sorted(await received_after_reopening(world)) == ["a", "b"]
    assert len(poll.answers) == 1


@virtual
async def test_everybody_is_refused_once_when_a_store_has_a_bug() -> None:
    world = World().start()
    poll = await about_to_be_deferred(world)
    world.store.has_bug = True

    (moving,) = await world.asked(MOVE)

    assert poll.refusal is moving.refusal is ServiceUnavailable
    assert await received_after_reopening(world) == ["a"]
    assert len(poll.answers) == 1


@virtual
async def test_a_woken_and_deferred_long_poll_is_refused_once_when_the_commit_fails() -> None:
    world = World().start()
    poll = await about_to_be_deferred(world)
    world.store.fails = True

    (moving,) = await world.asked(MOVE)

    assert poll.refusal is moving.refusal is ServiceUnavailable
    assert await received_after_reopening(world) == ["a"]
    assert len(poll.answers) == 1


@virtual
async def test_a_woken_and_deferred_long_poll_is_refused_once_when_the_sync_fails() -> None:
    world = World(auto_sync=False).start()
    poll = await about_to_be_deferred(world)
    (moving,) = await world.asked(MOVE)
    assert poll.answers == moving.answers == []

    world.store.fail_to_sync()
    await settled()

    assert poll.refusal is moving.refusal is ServiceUnavailable
    assert await received_after_reopening(world) == ["a"]
    assert len(poll.answers) == 1


@virtual
async def test_a_deferred_long_poll_is_decided_before_receives_that_came_later() -> None:
    world = World(auto_sync=False).start()
    poll = await about_to_be_deferred(world)

    await world.asked(MOVE)
    (later,) = await world.asked(prepared.receive(DEAD))
    await world.sync()

    assert (poll.bodies, later.bodies) == (["a"], [])


@virtual
async def test_a_stop_answers_a_deferred_receive() -> None:
    world = World().start()
    poll = await about_to_be_deferred(world)
    moving = world.ask(MOVE)

    await world.shard.stop()

    assert (poll.bodies, moving.bodies) == ([], [])


# -- a queue that is its own dead-letter queue ----------------------------------------------------------------------------


@virtual
async def test_a_long_poll_gets_the_message_that_it_moved_to_its_own_queue() -> None:
    world = World().start()
    await world.asked(prepared.send(SELF, "a"))
    await world.asked(prepared.receive(SELF, dead_letter_queue=SELF))

    (poll,) = await world.asked(prepared.receive(SELF, wait_s=20, dead_letter_queue=SELF))

    assert poll.bodies == ["a"]


@virtual
async def test_a_parked_long_poll_gets_what_moves_to_its_own_queue_when_a_timeout_ends() -> None:
    world = World().start()
    await world.asked(prepared.send(SELF, "a"))
    await world.asked(prepared.receive(SELF, timeout_s=3, dead_letter_queue=SELF))
    (poll,) = await world.asked(prepared.receive(SELF, wait_s=20, dead_letter_queue=SELF))
    assert poll.answers == []

    await pass_time(3.1)

    assert poll.bodies == ["a"]


@virtual
async def test_a_short_poll_moves_a_message_to_its_own_queue_and_loses_nothing() -> None:
    world = World().start()
    await world.asked(prepared.send(SELF, "a"))
    await world.asked(prepared.receive(SELF, dead_letter_queue=SELF))

    await world.asked(prepared.receive(SELF, dead_letter_queue=SELF))
    (counted,) = await world.asked(prepared.counters(SELF))

    assert counted.answers == [QueueCounters(1, 0, 0)]
