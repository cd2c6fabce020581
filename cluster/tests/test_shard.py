"""A shard decides in turns and answers when the disk has it."""

from __future__ import annotations

import asyncio

import pytest

from cluster.shards.turn_timing import TURN_REQUESTS_MAX
from cluster.tests.virtual_time import virtual
from cluster.tests.world import World, pass_time, settled, state_of
from visibility.contract.errors import QueueDoesNotExist, ReceiptHandleIsInvalid
from visibility.contract.model import QueueCounters, Receipt, Request
from visibility.contract.outcomes import Deliveries, Progress
from visibility.contract.results import SendMessageResult
from visibility.rows.row_keys import DELAYED, message_key, pair_key, queue_of
from visibility.tests import prepared
from visibility.tests.prepared import START_MS

Q = prepared.queue_named("q", 1, VisibilityTimeout="5")
OTHER = prepared.queue_named("other", 2)
DEAD = prepared.queue_named("dead", 3)
SPENT = prepared.queue_named("spent", 4, dead_letters_to=DEAD, VisibilityTimeout="0")


def poll(wait_s: int = 20, most: int = 1) -> Request:
    return prepared.receive(Q, most, wait_s=wait_s)


# -- answers wait for the disk ---------------------------------------------------------------------


@virtual
async def test_an_answer_is_held_until_its_turn_is_durable() -> None:
    world = await World(auto_sync=False).start()

    (sent,) = await world.asked(prepared.send(Q, "a"))
    assert sent.answers == []

    await world.sync()
    assert sent.refusal is SendMessageResult


@pytest.mark.parametrize("under_way_max", [1, 4])
@virtual
async def test_a_read_is_held_until_what_it_saw_is_durable(under_way_max: int) -> None:
    world = await World(auto_sync=False, under_way_max=under_way_max).start()
    _, counted = await world.asked(prepared.send(Q, "a"), prepared.counters(Q))
    (later,) = await world.asked(prepared.counters(Q))
    assert counted.answers == later.answers == []

    await world.sync()

    assert counted.answers == later.answers == [QueueCounters(1, 0, 0)]


@virtual
async def test_a_refusal_is_held_like_any_answer() -> None:
    world = await World(auto_sync=False).start()
    _, refused = await world.asked(
        prepared.send(Q, "a"), prepared.change(Q, Receipt(1, 1), timeout_s=5)
    )
    assert refused.answers == []

    await world.sync()

    assert len(refused.answers) == 1


@virtual
async def test_what_changes_nothing_needs_no_disk() -> None:
    world = await World(auto_sync=False).start()

    counted, received, deleted = await world.asked(
        prepared.counters(Q), prepared.receive(Q), prepared.delete(Q, Receipt(1, 1))
    )

    assert counted.answers == [QueueCounters(0, 0, 0)]
    assert received.bodies == []
    assert deleted.answers == [None]


@virtual
async def test_the_next_turn_fills_while_one_is_on_its_way_to_the_disk() -> None:
    world = await World(auto_sync=False).start()
    await world.asked(prepared.send(Q, "a"))
    (received,) = await world.asked(prepared.receive(Q, 10))
    world.store.sync_all()
    await settled()
    assert received.answers == []

    await world.sync()

    assert received.bodies == ["a"]


@virtual
async def test_a_receive_that_the_disk_held_up_is_answered_empty() -> None:
    """Rule 12: else a consumer gets a message while the next one does."""
    world = await World(auto_sync=False).start()
    await world.asked(prepared.send(Q, "a"))
    await world.sync()
    (late,) = await world.asked(prepared.receive(Q))

    await pass_time(2)
    await world.sync()
    await world.sync()

    assert late.answers == [Deliveries([], [])]
    (again,) = await world.asked(prepared.receive(Q))
    await world.sync()
    assert isinstance(again.answers[0], Deliveries)
    assert [lease.receive_count for lease in again.answers[0].leases] == [1]


@virtual
async def test_every_request_of_a_burst_is_answered_once_and_in_order() -> None:
    world = await World(auto_sync=False).start()
    count = 2 * TURN_REQUESTS_MAX + 1

    burst = await world.asked(*[prepared.send(Q, "a") for _ in range(count)])
    await world.sync()

    assert sum(len(asked.answers) for asked in burst) == count
    assert world.order == burst


@virtual
async def test_one_pass_of_the_loop_decides_no_more_than_one_turn() -> None:
    world = await World(auto_sync=True).start()

    for _ in range(4 * TURN_REQUESTS_MAX):
        world.ask(prepared.send(Q, "a"))
    await asyncio.sleep(0)

    assert len(world.order) <= TURN_REQUESTS_MAX


@virtual
async def test_a_lone_request_is_decided_at_the_next_pass_though_another_one_comes() -> None:
    world = await World(auto_sync=True).start()

    first = world.ask(prepared.send(Q, "a"))
    await asyncio.sleep(0)
    second = world.ask(prepared.send(Q, "b"))

    assert first.answers
    assert not second.answers


@virtual
async def test_after_a_turn_of_several_requests_the_next_one_waits_while_more_come() -> None:
    world = await World(auto_sync=True).start()
    await world.asked(prepared.send(Q, "a"), prepared.send(Q, "b"))

    asked = []
    for body in "cde":
        asked.append(world.ask(prepared.send(Q, body)))
        await asyncio.sleep(0)
    assert not any(each.answers for each in asked)
    await asyncio.sleep(0)

    assert all(each.answers for each in asked)


@virtual
async def test_after_a_turn_of_one_request_nothing_is_waited_for_again() -> None:
    world = await World(auto_sync=True).start()
    await world.asked(prepared.send(Q, "a"), prepared.send(Q, "b"))
    await world.asked(prepared.send(Q, "c"))

    alone = world.ask(prepared.send(Q, "d"))
    await asyncio.sleep(0)

    assert alone.answers


@virtual
async def test_an_answer_that_cannot_be_taken_does_not_concern_the_others() -> None:
    world = await World().start()

    def refuse(answer: object) -> None:
        raise ConnectionResetError

    world.shard.submit(prepared.send(Q, "a"), refuse)
    (sent,) = await world.asked(prepared.send(Q, "b"))

    assert sent.refusal is SendMessageResult


# -- long polls ------------------------------------------------------------------------------------


@virtual
async def test_long_polls_wake_longest_waiting_first() -> None:
    world = await World().start()
    first, second, third = await world.asked(poll(), poll(), poll())

    await world.asked(prepared.send(Q, "a"), prepared.send(Q, "b"))

    assert (first.bodies, second.bodies, third.answers) == (["a"], ["b"], [])
    assert world.shard.cancel(third.ticket)


@virtual
async def test_a_long_poll_ends_with_nothing_when_its_time_is_up() -> None:
    world = await World().start()
    (asked,) = await world.asked(poll(wait_s=5))

    await pass_time(4.99)
    assert asked.answers == []

    await pass_time(0.02)
    assert asked.bodies == []


@virtual
async def test_a_long_poll_wakes_when_a_delay_and_when_a_timeout_ends() -> None:
    world = await World().start()
    await world.asked(prepared.send(Q, "a", delay_s=3))
    first, second = await world.asked(poll(), poll())

    await pass_time(3.01)
    assert (first.bodies, second.answers) == (["a"], [])

    await pass_time(5.01)
    assert second.bodies == ["a"]


@virtual
async def test_a_long_poll_is_held_until_its_receive_is_durable() -> None:
    world = await World(auto_sync=False).start()
    (asked,) = await world.asked(poll())
    await world.asked(prepared.send(Q, "a"))
    assert asked.answers == []

    await world.sync()

    assert asked.bodies == ["a"]


@virtual
async def test_a_poller_that_hung_up_is_out_of_the_line() -> None:
    world = await World().start()
    gone, waiting = await world.asked(poll(), poll())

    assert world.shard.cancel(gone.ticket)
    await world.asked(prepared.send(Q, "a"))

    assert (gone.answers, waiting.bodies) == ([], ["a"])
    assert not world.shard.cancel(gone.ticket)
    assert not world.shard.cancel(waiting.ticket)


@virtual
async def test_hanging_up_says_false_once_the_answer_is_on_its_way() -> None:
    world = await World(auto_sync=False).start()
    (ended,) = await world.asked(poll(wait_s=1))
    await asyncio.sleep(1)
    await world.asked(prepared.send(OTHER, "a"))
    assert ended.answers == []

    hung_up = world.shard.cancel(ended.ticket)
    await world.sync()

    assert hung_up is (ended.answers == [])


@virtual
async def test_the_move_of_a_waiting_receive_wakes_the_one_that_waits_for_dead_letters() -> None:
    world = await World().start()
    await world.asked(prepared.send(SPENT, "a"))
    await world.asked(prepared.receive(SPENT, timeout_s=3, dead_letter_queue=DEAD))
    dead, source = await world.asked(
        prepared.receive(DEAD, wait_s=20),
        prepared.receive(SPENT, wait_s=20, dead_letter_queue=DEAD),
    )

    await pass_time(4)

    assert (dead.answers and dead.bodies, source.answers) == (["a"], [])


@virtual
async def test_ending_long_polls_answers_all_of_them_and_parks_none() -> None:
    world = await World().start()
    waiting = await world.asked(poll(), prepared.receive(OTHER, wait_s=20))

    world.shard.end_long_polls()
    await settled()
    waiting += await world.asked(poll())

    assert [asked.bodies for asked in waiting] == [[], [], []]


@virtual
async def test_dropping_a_queue_ends_its_long_polls_and_no_others() -> None:
    world = await World().start()
    waiting, other = await world.asked(poll(), prepared.receive(OTHER, wait_s=20))

    (dropped,) = await world.asked(prepared.drop(Q))

    assert (waiting.refusal, other.answers) == (QueueDoesNotExist, [])
    assert dropped.answers == [Progress(is_done=True)]


# -- damage of one queue ---------------------------------------------------------------------------


@virtual
async def test_a_page_passes_by_the_messages_that_cannot_be_read() -> None:
    world = await World().start()
    await world.asked(prepared.send_batch(Q, ["a", "b", "c"]))
    world.store.damage(message_key(1, 2))
    restarted = await World(store=world.store).start()

    received, none, counted = await restarted.asked(
        prepared.receive(Q, 10), prepared.receive(Q), prepared.counters(Q)
    )

    assert (received.bodies, none.bodies) == (["a", "c"], [])
    assert counted.answers == [QueueCounters(0, 2, 0)]
    assert message_key(1, 2) in world.store.durable


@virtual
async def test_a_damaged_message_holds_back_neither_retention_nor_delays() -> None:
    world = await World().start()
    queue = prepared.queue_named("q", 1, MessageRetentionPeriod="60")
    await world.asked(prepared.send_batch(queue, ["a", "b", "c"]))
    await world.asked(prepared.send_batch(queue, ["d", "e"], delay_s=5))
    world.store.damage(message_key(1, 1), pair_key(1, DELAYED, START_MS + 5_000, 4))

    await pass_time(6)
    (counted,) = await world.asked(prepared.counters(queue))
    assert counted.answers == [QueueCounters(3, 0, 0)]
    state = state_of(world.shard).queues.get(1)
    assert state is not None
    assert state.quarantined.messages == 2

    await pass_time(55)
    (counted,) = await world.asked(prepared.counters(queue))
    assert counted.answers == [QueueCounters(0, 0, 0)], "only what cannot be read is left"
    assert state.quarantined.messages == 2

    await pass_time(10)
    assert state.quarantined.messages == 0, "it would have expired, too"


@virtual
async def test_a_damaged_spent_message_does_not_stop_the_shard() -> None:
    world = await World().start()
    await world.asked(prepared.send(SPENT, "a"), prepared.send(OTHER, "b"))
    await world.asked(prepared.receive(SPENT, dead_letter_queue=DEAD))
    world.store.rows[message_key(4, 1)] = world.store.durable[message_key(4, 1)] = b"\x01rubbish"

    damaged, sound = await world.asked(
        prepared.receive(SPENT, dead_letter_queue=DEAD), prepared.receive(OTHER)
    )

    assert len(damaged.answers) == 1
    assert sound.bodies == ["b"]


# -- restart ---------------------------------------------------------------------------------------


@virtual
async def test_a_restarted_shard_goes_on_where_the_disk_was() -> None:
    world = await World().start()
    await world.asked(
        prepared.send_batch(Q, ["a", "b", "c", ReceiptHandleIsInvalid()]),
        prepared.send(Q, "d", delay_s=10),
        prepared.receive(Q),
    )
    await world.shard.stop()

    restarted = await World(store=world.store).start()
    counted, received = await restarted.asked(prepared.counters(Q), prepared.receive(Q, 10))
    await pass_time(10.1)
    (later,) = await restarted.asked(prepared.receive(Q, 10))

    assert counted.answers == [QueueCounters(2, 1, 1)]
    assert received.bodies == ["b", "c"]
    assert later.bodies == ["a", "b", "c", "d"]


@virtual
async def test_a_dropped_queue_leaves_nothing_when_it_is_answered() -> None:
    world = await World(auto_sync=False).start()
    await world.asked(prepared.send(Q, "a"), prepared.send(OTHER, "b"))
    await world.sync()

    (dropped,) = await world.asked(prepared.drop(Q))
    assert dropped.answers == []

    await world.sync()
    assert dropped.answers == [Progress(is_done=True)]
    assert {queue_of(key) for key in world.store.durable} == {2}


@virtual
async def test_stopping_finishes_what_was_submitted() -> None:
    world = await World().start()
    (waiting,) = await world.asked(poll())
    sent = world.ask(prepared.send(OTHER, "a"))

    await world.shard.stop()

    assert (waiting.bodies, sent.refusal) == ([], SendMessageResult)
    assert not world.shard.ready


# -- who follows rows ------------------------------------------------------------------------------


@virtual
async def test_who_follows_a_queue_is_told_of_its_committed_rows_and_of_no_others() -> None:
    world = await World(auto_sync=False).start()
    told: list[bytes] = []
    world.shard.follow([Q.queue_id], lambda ops: told.extend(ops[::2]))  # type: ignore[arg-type]

    await world.asked(prepared.send(Q, "a"))
    before = list(told)
    await world.sync()
    message = [key for key in told if key == message_key(Q.queue_id, 1)]
    told.clear()
    await world.asked(prepared.send(OTHER, "b"))
    await world.sync()

    assert before == []
    assert len(message) == 1
    assert told == []


@virtual
async def test_a_follower_with_a_bug_does_not_stop_the_shard() -> None:
    world = await World().start()

    def fail(ops: object) -> None:
        raise ZeroDivisionError

    world.shard.follow([Q.queue_id], fail)
    (sent,) = await world.asked(prepared.send(Q, "a"))

    assert sent.refusal is SendMessageResult
    assert world.shard.ready
