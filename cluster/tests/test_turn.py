"""One turn: decisions see its earlier changes, and a failure in it affects as little as
possible."""

from __future__ import annotations

import msgspec

from cluster.tests.virtual_time import virtual
from cluster.tests.world import AskedShard, World, pass_time, settled
from visibility.contract.errors import QueueDoesNotExist
from visibility.contract.model import QueueCounters, QueueDefinition, Receipt, Request
from visibility.contract.outcomes import Deduplicated, Progress
from visibility.contract.results import SendMessageResult
from visibility.rules.queues import CloseQueue
from visibility.tests import prepared

Q = prepared.queue_named("q", 1, VisibilityTimeout="5")
OTHER = prepared.queue_named("other", 2)
FIFO = prepared.queue_named("f.fifo", 3, VisibilityTimeout="30")
DEAD = prepared.queue_named("dead", 4)
PURGED = msgspec.structs.replace(FIFO, queue_id=9)
"""Continues FIFO after a purge."""
SPENT = prepared.queue_named("spent", 5, dead_letters_to=DEAD, VisibilityTimeout="0")
REOPENED_S = 1.1


def send_fifo(body: str, group: str = "g", queue: QueueDefinition = FIFO) -> Request:
    return prepared.send(queue, body, group=group)


def sent(asked: AskedShard) -> SendMessageResult:
    (answer,) = asked.answers
    answer = answer.result if isinstance(answer, Deduplicated) else answer
    assert isinstance(answer, SendMessageResult)
    return answer


# -- a decision sees its turn's earlier changes ----------------------------------------------------


@virtual
async def test_a_receive_gets_what_was_sent_to_its_group_in_the_same_turn() -> None:
    world = await World(auto_sync=False).start()

    asked = await world.asked(
        send_fifo("a"), send_fifo("b"), prepared.receive(FIFO), prepared.receive(FIFO)
    )
    assert [one.answers for one in asked] == [[]] * 4
    world.store.sync_all()
    await settled()

    *_, received, blocked = asked
    assert (received.bodies, blocked.bodies) == (["a"], []), "one commit for all of it"


@virtual
async def test_a_group_is_free_again_in_the_turn_that_deletes_what_blocked_it() -> None:
    world = await World(auto_sync=False).start()

    *_, received, _, freed, counted = await world.asked(
        send_fifo("a"),
        send_fifo("b"),
        prepared.receive(FIFO),
        prepared.delete(FIFO, Receipt(1, 1)),
        prepared.receive(FIFO),
        prepared.counters(FIFO),
    )
    world.store.sync_all()
    await settled()

    assert (received.bodies, freed.bodies) == (["a"], ["b"])
    assert counted.answers == [QueueCounters(0, 1, 0)]


@virtual
async def test_a_duplicate_in_the_same_turn_is_told_of_the_first() -> None:
    world = await World(auto_sync=False).start()

    first, second, counted = await world.asked(
        send_fifo("a"), send_fifo("a"), prepared.counters(FIFO)
    )
    await world.sync()

    assert sent(first).message_id == sent(second).message_id
    assert sent(first).sequence_number == sent(second).sequence_number
    assert counted.answers == [QueueCounters(1, 0, 0)]


@virtual
async def test_what_was_purged_in_the_same_turn_is_neither_received_nor_remembered() -> None:
    world = await World(auto_sync=False).start()

    first, _, second, received, counted = await world.asked(
        send_fifo("a"),
        prepared.purge(FIFO, PURGED),
        send_fifo("a", queue=PURGED),
        prepared.receive(PURGED, 10),
        prepared.counters(PURGED),
    )
    await world.sync()

    assert sent(first).message_id != sent(second).message_id
    assert received.bodies == ["a"]
    assert counted.answers == [QueueCounters(0, 1, 0)]


@virtual
async def test_a_queue_that_is_used_in_the_turn_that_dropped_it_begins_with_nothing() -> None:
    """A request may have been on its way when the queue was deleted."""
    world = await World(auto_sync=False).start()
    await world.asked(send_fifo("old"), send_fifo("older"))
    await world.sync()

    dropped, new, received, counted = await world.asked(
        prepared.drop(FIFO), send_fifo("new"), prepared.receive(FIFO, 10), prepared.counters(FIFO)
    )
    await world.sync()

    assert dropped.answers == [Progress(is_done=True)]
    assert sent(new).sequence_number is not None
    assert received.bodies == ["new"]
    assert counted.answers == [QueueCounters(0, 1, 0)]


@virtual
async def test_what_was_sent_to_a_queue_on_disk_in_the_same_turn_comes_behind_the_backlog() -> None:
    world = await World().start()
    await world.asked(prepared.send(Q, "a"))

    world = await World(store=world.store).start()
    _, received = await world.asked(prepared.send(Q, "b"), prepared.receive(Q, 10))

    assert received.bodies == ["a", "b"]


# -- closing a queue -------------------------------------------------------------------------------


def close(queue: QueueDefinition) -> Request:
    return prepared.prepared(queue, CloseQueue())


@virtual
async def test_closing_a_queue_ends_its_long_polls_and_no_others_and_keeps_its_messages() -> None:
    world = await World().start()
    await world.asked(prepared.send(Q, "a"), prepared.receive(Q))
    first, second, other = await world.asked(
        prepared.receive(Q, wait_s=20),
        prepared.receive(Q, wait_s=20),
        prepared.receive(OTHER, wait_s=20),
    )

    closed, counted = await world.asked(close(Q), prepared.counters(Q))

    assert closed.answers == [None]
    assert first.refusal is second.refusal is QueueDoesNotExist
    assert other.answers == []
    assert counted.answers == [QueueCounters(0, 1, 0)]
    assert world.order[-4:] == [first, second, closed, counted], "polls before the one who closed"
    assert not world.shard.cancel(first.ticket)

    await pass_time(21)
    assert len(first.answers) == len(second.answers) == 1
    assert other.bodies == []


@virtual
async def test_closing_a_queue_ends_what_began_to_wait_in_the_same_turn() -> None:
    world = await World(auto_sync=False).start()

    _, waiting, closed = await world.asked(
        prepared.send(OTHER, "a"), prepared.receive(Q, wait_s=20), close(Q)
    )
    assert waiting.answers == closed.answers == [], "held with the rest of the turn"
    await world.sync()

    assert waiting.refusal is QueueDoesNotExist
    assert closed.answers == [None]
