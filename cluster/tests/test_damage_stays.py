"""Damage keeps leaving its neighbours unaffected: after restarts, amid traffic, as time passes."""

from __future__ import annotations

import pytest

from cluster.tests.virtual_time import virtual
from cluster.tests.world import World, pass_time, state_of
from storage.checks import consistency
from storage.rows.stored_rows import StoredRows
from visibility.content.id_digests import group_digest
from visibility.contract.errors import QueueError
from visibility.contract.model import QueueCounters, QueueDefinition, Receipt
from visibility.contract.operations import ListMessageMoveTasks
from visibility.contract.outcomes import Deliveries
from visibility.contract.results import ListMessageMoveTasksResult
from visibility.rows.row_keys import (
    CLOCK,
    DELAYED,
    GROUP,
    GROUP_LINE,
    message_key,
    pair_key,
    queue_of,
)
from visibility.rules.quarantine import quarantine_in
from visibility.state.fairness import IN_FLIGHT_MIN
from visibility.tests import prepared
from visibility.tests.invariants import check_queue

Q = prepared.queue_named("q", 1, VisibilityTimeout="30")
SHORT = prepared.queue_named("short", 2, MessageRetentionPeriod="60")
DEAD, OTHER = (prepared.queue_named(f"{name}.fifo", n) for name, n in (("dead", 4), ("other", 5)))
SLOW = prepared.queue_named("slow.fifo", 3, FifoQueue="true", DelaySeconds="5")
QUICK = prepared.queue_named("slow.fifo", 3, FifoQueue="true")
BODIES = [str(number) for number in range(10)]
FOUR_DAYS_S = 345_600


def quarantined(world: World, queue: QueueDefinition) -> int:
    """The queue's count, which agrees with its rows."""
    state = state_of(world.shard).queues.get(queue.queue_id)
    assert state is not None
    check_queue(state)
    known = quarantine_in(StoredRows(world.store), queue.queue_id)
    assert known.spans == state.quarantined.spans
    assert known.groups == state.quarantined.groups
    return state.quarantined.messages


# -- standard queues -------------------------------------------------------------------------------


@virtual
async def test_a_message_passed_by_before_a_restart_is_passed_by_after_it() -> None:
    world = await World().start()
    for _ in range(3):
        await world.asked(prepared.send_batch(Q, BODIES))
    world = await world.restarted()
    world.store.damage(message_key(1, 25))
    first = await world.asked(*[prepared.receive(Q, 7) for _ in range(4)])
    assert [len(asked.bodies) for asked in first] == [7, 7, 7, 7]

    world = await world.restarted()
    (rest, none) = await world.asked(prepared.receive(Q, 10), prepared.receive(Q, 10))
    await world.asked(prepared.send_batch(Q, ["a", "b"]))
    (new, counted) = await world.asked(prepared.receive(Q, 10), prepared.counters(Q))

    assert (rest.bodies, none.bodies, new.bodies) == (["9"], [], ["a", "b"])
    assert counted.answers == [QueueCounters(0, 31, 0)]
    assert quarantined(world, Q) == 1


@virtual
async def test_a_quarantined_block_stays_so_when_it_can_be_read_again() -> None:
    world = await World().start()
    for _ in range(3):
        await world.asked(prepared.send_batch(Q, BODIES))
    world = await world.restarted()
    world.store.unreadable = {message_key(1, sequence) for sequence in (24, 25)}
    await world.asked(*[prepared.receive(Q, 9) for _ in range(3)])

    world.store.unreadable = set()
    world = await world.restarted()
    (rest, none) = await world.asked(prepared.receive(Q, 10), prepared.receive(Q, 10))
    await world.asked(prepared.send(Q, "a"))
    (new,) = await world.asked(prepared.receive(Q, 10))

    assert (sorted(rest.bodies), none.bodies, new.bodies) == (["9"], [], ["a"])
    assert quarantined(world, Q) == 2
    assert message_key(1, 24) in world.store.durable, "a salvage can read it"


@virtual
async def test_a_message_whose_row_went_bad_while_memory_held_it() -> None:
    world = await World().start()
    await world.asked(prepared.send_batch(SHORT, BODIES[:3]))
    world.store.damage(message_key(2, 1))
    await pass_time(50)
    await world.asked(prepared.send_batch(SHORT, ["x", "y"]))
    (held,) = await world.asked(prepared.receive(SHORT, 1, timeout_s=20))
    assert held.bodies == ["0"], "memory has it still"
    await pass_time(15)
    counted, deferred = await world.asked(prepared.counters(SHORT), prepared.receive(SHORT, 1))
    assert counted.answers == [QueueCounters(2, 1, 0)], "a message in flight stays so"
    assert (deferred.bodies, quarantined(world, SHORT)) == (["x"], 0)
    await pass_time(10)

    received, counted = await world.asked(prepared.receive(SHORT, 10), prepared.counters(SHORT))

    assert received.bodies == ["y"]
    assert counted.answers == [QueueCounters(0, 2, 0)]
    assert quarantined(world, SHORT) == 1


@virtual
async def test_a_row_found_bad_before_its_message_is_received_leaves_memory() -> None:
    world = await World().start()
    await world.asked(prepared.send_batch(SHORT, BODIES[:1]))
    world.store.damage(message_key(2, 1))
    await pass_time(61)  # retention looks at it
    await world.asked(prepared.send(SHORT, "x"))

    received, counted = await world.asked(prepared.receive(SHORT, 10), prepared.counters(SHORT))

    assert received.bodies == ["x"]
    assert counted.answers == [QueueCounters(0, 1, 0)]
    assert quarantined(world, SHORT) == 1


@virtual
async def test_the_ages_of_a_queue_of_which_nothing_can_be_read_are_not_known() -> None:
    world = await (await World().start()).restarted()
    await world.asked(prepared.send_batch(Q, ["a", "b"]))
    world.store.damage(message_key(1, 1), message_key(1, 2))
    again = await world.restarted()
    (received,) = await again.asked(prepared.receive(Q, 10))

    (report,) = again.shard.queues([1], detailed_ids=[1])

    assert (received.bodies, report.stored, quarantined(again, Q)) == ([], 0, 2)
    assert report.oldest is None or report.oldest.unspent_ms == 0


@virtual
async def test_messages_expire_beside_one_that_cannot_be_read_and_then_it_does() -> None:
    world = await World().start()
    await world.asked(prepared.send_batch(SHORT, BODIES))
    world = await world.restarted()
    world.store.damage(message_key(2, 3))
    await pass_time(50)
    (counted,) = await world.asked(prepared.counters(SHORT))
    assert counted.answers == [QueueCounters(9, 0, 0)]
    assert quarantined(world, SHORT) == 1, "retention looked at it when the shard was loaded"

    await pass_time(15)
    (counted,) = await world.asked(prepared.counters(SHORT))

    assert counted.answers == [QueueCounters(0, 0, 0)]
    assert quarantined(world, SHORT) == 0
    assert message_key(2, 3) not in world.store.durable


@virtual
async def test_messages_with_a_clock_of_their_own_expire_beside_one_that_cannot_be_read() -> None:
    world = await World().start()
    for body in BODIES:
        await world.asked(prepared.send(SHORT, body, delay_s=1))
    await pass_time(2)
    (counted,) = await world.asked(prepared.counters(SHORT))
    assert counted.answers == [QueueCounters(10, 0, 0)]
    first = min(k for k in world.store.durable if k[:9] == message_key(2, 0)[:9])
    world.store.damage(first)

    await pass_time(70)
    (counted,) = await world.asked(prepared.counters(SHORT))

    assert counted.answers == [QueueCounters(0, 0, 0)]
    assert quarantined(world, SHORT) == 1


@virtual
async def test_messages_expire_though_their_clocks_cannot_be_read() -> None:
    world = await World().start()
    for body in BODIES:
        await world.asked(prepared.send(SHORT, body, delay_s=1))
    await pass_time(2)
    world.store.unreadable = {key for key in world.store.durable if key[8:9] == CLOCK}

    await pass_time(70)
    (counted,) = await world.asked(prepared.counters(SHORT))

    assert counted.answers == [QueueCounters(0, 0, 0)]


@virtual
async def test_a_quiet_group_is_served_beside_its_message_that_cannot_be_read() -> None:
    world = await World().start()
    for _ in range(4):
        await world.asked(prepared.send_batch(Q, BODIES, groups=["noisy"] * 10))
    for _ in range(IN_FLIGHT_MIN // 10):
        await world.asked(prepared.receive(Q, 10))
    await world.asked(prepared.send_batch(Q, ["q1", "q2", "q3"], groups=["quiet"] * 3))
    world.store.damage(message_key(1, 42))

    (received,) = await world.asked(prepared.receive(Q, 2))

    assert received.bodies == ["q1", "q3"]


@virtual
async def test_memory_does_not_grow_beside_a_returned_message_that_cannot_be_read() -> None:
    world = await World().start()
    await world.asked(prepared.send(Q, "bad"))
    await world.asked(prepared.receive(Q, timeout_s=1))
    await pass_time(1.1)
    world.store.damage(message_key(1, 1))
    for _ in range(500):
        await world.asked(prepared.send_batch(Q, BODIES))
        await world.asked(prepared.receive(Q, 10, timeout_s=0))
        (again,) = await world.asked(prepared.receive(Q, 10))
        (answer,) = again.answers
        assert isinstance(answer, Deliveries)
        receipts = [Receipt(lease.sequence, lease.receive_count) for lease in answer.leases]
        await world.asked(prepared.delete_batch(Q, receipts))
    queue = state_of(world.shard).queues.get(1)
    assert queue is not None

    assert (queue.visible, quarantined(world, Q)) == (0, 1)
    assert sum(map(len, queue.visible_again.values())) < 4200, "they came back and were deleted"


# -- FIFO queues -----------------------------------------------------------------------------------


@virtual
async def test_a_fifo_queue_goes_on_beside_a_delayed_message_that_cannot_be_read() -> None:
    world = await World().start()
    await world.asked(prepared.send(SLOW, "0", group="g"), prepared.send(SLOW, "1", group="h"))
    world.store.damage(pair_key(3, DELAYED, 0, 1))
    await pass_time(6)
    (first,) = await world.asked(prepared.receive(SLOW, 10))
    assert first.bodies == ["1"]

    await world.asked(prepared.send(QUICK, "2", group="i"))
    await pass_time(2)
    (second,) = await world.asked(prepared.receive(QUICK, 10))

    assert second.bodies == ["2"]


@virtual
async def test_the_row_of_a_fifo_group_that_is_damaged_is_made_anew() -> None:
    world = await World().start()
    await world.asked(*[prepared.send(QUICK, f"{g}{n}", group=g) for n in "12" for g in "ghi"])
    (first,) = await world.asked(prepared.receive(QUICK, 1, timeout_s=5))
    assert first.bodies == ["g1"]
    world = await world.restarted()
    damage_index(world, QUICK, "gh")

    (second, third) = await world.asked(prepared.receive(QUICK, 10), prepared.receive(QUICK, 10))
    assert (second.bodies, third.bodies) == (["h1", "h2", "i1", "i2"], []), "g is in flight"
    await pass_time(6)
    (again,) = await world.asked(prepared.receive(QUICK, 10))

    assert again.bodies == ["g1", "g2"]
    assert quarantined(world, QUICK) == 0
    assert [*consistency.check_queue(world.store, 3)] == []


@virtual
async def test_the_row_of_a_group_of_a_standard_queue_that_is_damaged_is_made_anew() -> None:
    world = await World().start()
    await world.asked(prepared.send_batch(Q, BODIES, groups=["g"] * 10))
    world = await world.restarted()
    damage_index(world, Q, "g")

    received = await world.asked(prepared.receive(Q, 9), prepared.receive(Q, 9))
    await world.asked(prepared.send(Q, "later", group="g"))

    assert [asked.bodies for asked in received] == [BODIES[:9], BODIES[9:]]
    assert [*consistency.check_queue(world.store, 1)] == []


def damage_index(world: World, queue: QueueDefinition, groups: str) -> None:
    """Damage the rows of these groups."""
    digests = {group_digest(group) for group in groups}
    keys = [key for key in world.store.durable if key[8:9] == GROUP and key[9:] in digests]
    world.store.damage(*(key for key in keys if queue_of(key) == queue.queue_id))


def damage_line(world: World, queue: QueueDefinition, group: str) -> None:
    """Damage the block with the line of this group."""
    world.store.unreadable |= {
        key
        for key in world.store.durable
        if key[8:9] == GROUP_LINE
        and queue_of(key) == queue.queue_id
        and key[9:25] == group_digest(group)
    }


@virtual
async def test_a_fifo_group_whose_line_cannot_be_read_is_blocked_and_keeps_back_no_other() -> None:
    world = await World().start()
    await world.asked(*[prepared.send(QUICK, group, group=group) for group in "ghi"])
    await world.asked(prepared.send(QUICK, "g2", group="g"))
    world = await world.restarted()
    damage_line(world, QUICK, "g")

    first, second = await world.asked(prepared.receive(QUICK, 10), prepared.receive(QUICK, 10))
    await world.asked(prepared.send(QUICK, "later", group="k"))
    (third,) = await world.asked(prepared.receive(QUICK, 10))

    assert (first.bodies, second.bodies, third.bodies) == (["h", "i"], [], ["later"])
    assert quarantined(world, QUICK) == 2


@virtual
async def test_a_damaged_message_of_a_fifo_group_blocks_the_group_until_it_would_have_expired() -> (
    None
):
    world = await World().start()
    await world.asked(*[prepared.send(QUICK, f"{n}", group="g") for n in range(5)])
    await world.asked(prepared.send(QUICK, "h", group="h"))
    world = await world.restarted()
    world.store.damage(message_key(3, 3))

    first, second = await world.asked(prepared.receive(QUICK, 10), prepared.receive(QUICK, 10))
    (counted,) = await world.asked(prepared.counters(QUICK))
    assert (first.bodies, second.bodies) == (["h"], [])
    assert counted.answers == [QueueCounters(0, 1, 0)]
    assert quarantined(world, QUICK) == 5

    world = await world.restarted()
    (sent, third) = await world.asked(
        prepared.send(QUICK, "5", group="g"), prepared.receive(QUICK, 10)
    )
    assert not issubclass(sent.refusal, QueueError)
    assert (third.bodies, quarantined(world, QUICK)) == ([], 6)
    assert [*consistency.check_queue(world.store, 3)] == []

    await pass_time(FOUR_DAYS_S - 3600)
    await world.asked(prepared.send(QUICK, "6", group="g"))
    (none,) = await world.asked(prepared.receive(QUICK, 10))
    assert (none.bodies, quarantined(world, QUICK)) == (["h"], 7)
    await pass_time(3700)
    (last,) = await world.asked(prepared.receive(QUICK, 10))

    assert (last.bodies, quarantined(world, QUICK)) == (["6"], 0)


@virtual
async def test_a_message_in_flight_of_a_blocked_group_can_be_deleted() -> None:
    world = await World().start()
    await world.asked(*[prepared.send(QUICK, f"{n}", group="g") for n in range(3)])
    (first,) = await world.asked(prepared.receive(QUICK, 1, timeout_s=5))
    world = await world.restarted()
    world.store.damage(message_key(3, 2))
    await world.asked(prepared.delete_batch(QUICK, [Receipt(1, 1)]))

    (second,) = await world.asked(prepared.receive(QUICK, 1))

    assert (first.bodies, second.bodies, quarantined(world, QUICK)) == (["0"], [], 2)


@virtual
@pytest.mark.parametrize("damaged", [DEAD, OTHER], ids=["source", "destination"])
async def test_a_move_task_goes_on_beside_a_blocked_group(damaged: QueueDefinition) -> None:
    world = await World().start()
    for queue in (DEAD, OTHER):
        sends = [prepared.send(queue, f"{queue.name} {g}", group=g) for g in "ghi"]
        await world.asked(*sends)
    world = await world.restarted()
    damage_line(world, damaged, "g")
    await world.asked(prepared.receive(damaged, 10, timeout_s=0))

    await world.asked(prepared.start_move_task(DEAD, OTHER))

    (listed,) = await world.asked(prepared.prepared(DEAD, ListMessageMoveTasks()))
    (answer,) = listed.answers
    assert isinstance(answer, ListMessageMoveTasksResult)
    assert answer.results is not None
    (task,) = answer.results
    assert (task.approximate_number_of_messages_moved, task.failure_reason) == (
        2,
        None if damaged is DEAD else "InternalFailure",
    )
    (left,) = await world.asked(prepared.counters(DEAD))
    assert left.answers == [QueueCounters(0 if damaged is DEAD else 1, 0, 0)]
    assert quarantined(world, damaged) == 1
