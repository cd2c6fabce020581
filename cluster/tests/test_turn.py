"""One turn: what it decides sees what it changed, and what fails in it costs as little as it can."""

from __future__ import annotations

from collections import Counter

import msgspec
import structlog

from cluster.tests.driver import Driver
from cluster.tests.virtual_time import virtual
from cluster.tests.world import Asked, World, pass_time, settled
from storage.engines.memory import MemoryStore
from storage.rows.keys import DELAYED, MESSAGE
from visibility.contract.errors import QueueDoesNotExist, ServiceUnavailable
from visibility.contract.model import QueueCounters, QueueDefinition, Receipt, Request
from visibility.contract.operations import CloseQueue
from visibility.contract.outcomes import Deduplicated, Progress
from visibility.contract.results import SendMessageResult
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues

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


def sent(asked: Asked) -> SendMessageResult:
    (answer,) = asked.answers
    answer = answer.result if isinstance(answer, Deduplicated) else answer
    assert isinstance(answer, SendMessageResult)
    return answer


# -- a decision sees what its turn changed ------------------------------------------------------------------------------


@virtual
async def test_a_receive_gets_what_was_sent_to_its_group_in_the_same_turn() -> None:
    world = World(auto_sync=False).start()

    asked = await world.asked(
        send_fifo("a"), send_fifo("b"), prepared.receive(FIFO), prepared.receive(FIFO)
    )
    assert [one.answers for one in asked] == [[]] * 4
    world.store.sync()
    await settled()

    *_, received, blocked = asked
    assert (received.bodies, blocked.bodies) == (["a"], []), "one commit for all of it"


@virtual
async def test_a_group_is_free_again_in_the_turn_that_deletes_what_blocked_it() -> None:
    world = World(auto_sync=False).start()

    *_, received, _, freed, counted = await world.asked(
        send_fifo("a"),
        send_fifo("b"),
        prepared.receive(FIFO),
        prepared.delete(FIFO, Receipt(1, 1)),
        prepared.receive(FIFO),
        prepared.counters(FIFO),
    )
    world.store.sync()
    await settled()

    assert (received.bodies, freed.bodies) == (["a"], ["b"])
    assert counted.answers == [QueueCounters(0, 1, 0)]


@virtual
async def test_a_duplicate_in_the_same_turn_is_told_of_the_first() -> None:
    world = World(auto_sync=False).start()

    first, second, counted = await world.asked(
        send_fifo("a"), send_fifo("a"), prepared.counters(FIFO)
    )
    await world.sync()

    assert sent(first).message_id == sent(second).message_id
    assert sent(first).sequence_number == sent(second).sequence_number
    assert counted.answers == [QueueCounters(1, 0, 0)]


@virtual
async def test_what_was_purged_in_the_same_turn_is_neither_received_nor_remembered() -> None:
    world = World(auto_sync=False).start()

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
    world = World(auto_sync=False).start()
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
    world = World().start()
    await world.asked(prepared.send(Q, "a"))

    world = World(store=world.store).start()
    _, received = await world.asked(prepared.send(Q, "b"), prepared.receive(Q, 10))

    assert received.bodies == ["a", "b"]


class Snapshots(MemoryStore):
    """Keeps what a crash at any write could leave on the disk: what was written may have got there."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[dict[bytes, bytes]] = []

    def write(self) -> None:
        super().write()
        self.taken.append(dict(self.rows))


def test_a_crash_between_two_writes_of_a_turn_leaves_whole_decisions() -> None:
    queues = KnownQueues(Q, OTHER, FIFO, DEAD, SPENT)
    store = Snapshots()
    driver = Driver(queues, store=store)
    driver.submit(prepared.send_batch(SPENT, ["a", "b"], groups=["g", "h"]))
    driver.submit(prepared.receive(SPENT, 10, dead_letter_queue=DEAD))
    store.taken.clear()

    driver.turn(
        [
            send_fifo("a"),
            send_fifo("b", "h"),
            prepared.receive(FIFO, 10, attempt="attempt"),
            prepared.send(Q, "a", delay_s=1),
            prepared.send(Q, "b", group="g"),
            prepared.receive(Q),
            prepared.receive(SPENT, 10, dead_letter_queue=DEAD),
            prepared.delete(FIFO, Receipt(1, 1)),
            prepared.receive(DEAD, 10),
            prepared.purge(Q, queues.purge(Q)),
            prepared.send(queues.queues[queues.purged[Q.queue_id]], "c"),
            prepared.change(FIFO, Receipt(2, 1), 0),
            prepared.receive(FIFO, 10),
            prepared.drop(OTHER),
            send_fifo("c"),
            prepared.receive(FIFO, 10),
        ]
    )

    assert len(store.taken) > 5, "the turn had to write that often"
    for rows in store.taken:
        left = MemoryStore()
        left.rows, left.durable = dict(rows), dict(rows)
        after = Driver(queues, store=left, now_ms=driver.now_ms)
        stored = Counter(
            (int.from_bytes(key[:8], "big"), key[8:9] == DELAYED)
            for key in rows
            if key[8:9] in (MESSAGE, DELAYED)
        )
        for queue in after.engine.state.queues.values():
            there = queue.visible + queue.in_flight
            assert (there, queue.delayed) == (
                stored[queue.queue_id, False],
                stored[queue.queue_id, True],
            )


# -- a store that fails in the middle of a turn --------------------------------------------------------------------------


@virtual
async def test_a_write_that_fails_refuses_the_whole_turn_once_and_nothing_of_it_remains() -> None:
    world = World().start()
    (kept,) = await world.asked(prepared.send(Q, "kept"))
    (parked,) = await world.asked(prepared.receive(OTHER, wait_s=20))
    world.store.refuses_to_write = True

    all_asked = await world.asked(
        prepared.send(Q, "lost"),
        prepared.counters(Q),
        prepared.receive(OTHER, wait_s=20),
        prepared.delete(Q, Receipt(1, 9)),
        send_fifo("lost"),
        prepared.receive(FIFO),  # reads, so what the turn changed is written
        prepared.send(Q, "never decided"),
    )

    assert not world.store.refuses_to_write, "it came to the write"
    assert kept.refusal is SendMessageResult
    for asked in (parked, *all_asked):
        assert asked.refusal is ServiceUnavailable
    assert not world.shard.ready

    await pass_time(REOPENED_S)
    received, fifo, again = await world.asked(
        prepared.receive(Q, 10), prepared.receive(FIFO), send_fifo("lost")
    )

    assert world.store.abandoned == 1
    assert world.opened == 2
    assert (received.bodies, fifo.bodies) == (["kept"], [])
    assert again.refusal is SendMessageResult, "its id was not remembered"
    await pass_time(30)
    assert all(len(asked.answers) == 1 for asked in (parked, *all_asked)), "nobody hears twice"


@virtual
async def test_a_write_that_fails_is_logged_as_the_disks_error_and_not_as_a_bug() -> None:
    world = World().start()
    world.store.refuses_to_write = True

    with structlog.testing.capture_logs() as lines:
        await world.asked(send_fifo("lost"), prepared.receive(FIFO))

    assert [line["event"] for line in lines] == ["store_failed"]
    assert lines[0]["error"] == "cannot write: no space left on device"


@virtual
async def test_a_write_that_fails_after_another_one_leaves_nothing_of_either() -> None:
    world = World().start()
    await world.asked(send_fifo("kept"))
    world.store.refuses_to_write = True
    world.store.writes_before_refusal = 1

    all_asked = await world.asked(
        send_fifo("new"),
        prepared.receive(FIFO),  # writes
        prepared.delete(FIFO, Receipt(2, 1)),
        send_fifo("newer"),
        prepared.receive(FIFO),  # would write
    )

    assert not world.store.refuses_to_write
    for asked in all_asked:
        assert asked.refusal is ServiceUnavailable
    await pass_time(REOPENED_S)
    (left,) = await world.asked(prepared.receive(FIFO, 10))
    assert left.bodies == ["kept"]


@virtual
async def test_a_write_that_fails_while_a_long_poll_is_woken_refuses_it_once() -> None:
    world = World().start()
    (poll,) = await world.asked(prepared.receive(FIFO, wait_s=20))
    world.store.refuses_to_write = True

    (asked,) = await world.asked(send_fifo("a"))

    assert not world.store.refuses_to_write
    assert poll.refusal is asked.refusal is ServiceUnavailable
    await pass_time(REOPENED_S)
    (received,) = await world.asked(prepared.receive(FIFO))
    assert received.bodies == []
    await pass_time(30)
    assert len(poll.answers) == 1


@virtual
async def test_a_write_that_fails_in_a_pulse_is_no_step_that_failed() -> None:
    """What the steps before it did is unknown too: the shard is loaded anew, at once."""
    world = World().start()
    await world.asked(send_fifo("a"), prepared.receive(FIFO, timeout_s=3))
    ended, parked = await world.asked(
        prepared.receive(OTHER, wait_s=3), prepared.receive(OTHER, wait_s=20)
    )
    world.store.refuses_to_write = True

    await pass_time(3.01)

    assert not world.store.refuses_to_write, "ending the lease, then looking for old messages"
    assert parked.refusal is ServiceUnavailable
    assert len(ended.answers) == 1
    assert not world.shard.ready
    await pass_time(REOPENED_S)
    (received,) = await world.asked(prepared.receive(FIFO))
    assert received.bodies == ["a"]


# -- closing a queue ------------------------------------------------------------------------------------------------------


def close(queue: QueueDefinition) -> Request:
    return prepared.prepared(queue, CloseQueue())


@virtual
async def test_closing_a_queue_ends_its_long_polls_and_no_others_and_keeps_its_messages() -> None:
    world = World().start()
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
    world = World(auto_sync=False).start()

    _, waiting, closed = await world.asked(
        prepared.send(OTHER, "a"), prepared.receive(Q, wait_s=20), close(Q)
    )
    assert waiting.answers == closed.answers == [], "held with the rest of the turn"
    await world.sync()

    assert waiting.refusal is QueueDoesNotExist
    assert closed.answers == [None]
