"""Pulses in a turn: a failed step affects as little as possible, and many do not hold the loop."""

from __future__ import annotations

from collections import Counter

import pytest

from cluster.tests.driver import Driver
from cluster.tests.virtual_time import virtual
from cluster.tests.world import World, pass_time
from visibility.contract.model import QueueCounters, QueueDefinition
from visibility.contract.results import SendMessageResult
from visibility.rows.row_codec import DamagedRecord
from visibility.rows.row_keys import DELAYED, pair_key
from visibility.rules.events import Event
from visibility.rules.message_events import MessagesMoved
from visibility.rules.pulse import STEPS
from visibility.rules.pulses import PULSE_MESSAGES_MAX, PULSES_MAX
from visibility.state.stamp import Stamp
from visibility.tests import prepared
from visibility.tests.prepared import START_MS, KnownQueues

Q = prepared.queue_named("q", 1, VisibilityTimeout="5")
OTHER = prepared.queue_named("other", 2)
DEAD = prepared.queue_named("dead", 4)


async def with_damaged_delay(world: World, queue: QueueDefinition) -> bytes:
    """A message of the queue whose delay ends in a minute and that cannot be read. The bytes it
    had."""
    await world.asked(prepared.send(queue, "late", delay_s=60))
    key = damaged_key(queue)
    sound = world.store.durable[key]
    world.store.damage(key)
    return sound


def damaged_key(queue: QueueDefinition) -> bytes:
    return pair_key(queue.queue_id, DELAYED, START_MS + 60_000, 1)


@virtual
async def test_a_step_that_cannot_read_costs_nothing_else() -> None:
    short = prepared.queue_named("short", 6, MessageRetentionPeriod="60")
    world = await World().start()
    await with_damaged_delay(world, short)
    await world.asked(prepared.send(short, "old"), prepared.send(OTHER, "late", delay_s=60))

    await pass_time(60.01)
    counted, other, new, received = await world.asked(
        prepared.counters(short),
        prepared.receive(OTHER),
        prepared.send(short, "new"),
        prepared.receive(short),
    )

    assert counted.answers == [QueueCounters(0, 0, 0)], "what was too old is gone all the same"
    assert other.bodies == ["late"]
    assert new.refusal is SendMessageResult
    assert received.bodies == ["new"]


@virtual
async def test_a_step_that_could_not_read_is_tried_again_once_the_queue_is_rebuilt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried_at_ms: list[int] = []

    def step(shard: object, queue: object, definition: QueueDefinition, stamp: Stamp) -> object:
        tried_at_ms.append(stamp.now_ms - START_MS)
        if len(tried_at_ms) == 1:
            raise DamagedRecord(b"a key that is no message's", "cannot be read")
        return (), None

    monkeypatch.setattr("visibility.rules.pulses.STEPS", (step,))
    world = await World().start()

    await world.asked(prepared.send(Q, "a", delay_s=3))
    await pass_time(200)

    assert [at_ms // 1000 for at_ms in tried_at_ms] == [3, 4]
    assert world.store.abandoned == 1, "the shard was opened again, which rebuilds queues"


@virtual
async def test_a_step_with_a_bug_costs_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = 0

    def step(shard: object, queue: object, definition: QueueDefinition, stamp: object) -> object:
        nonlocal bad
        if definition is Q:
            bad += 1
            raise RuntimeError("a bug in a step")
        return (), None

    monkeypatch.setattr("visibility.rules.pulses.STEPS", (step, *STEPS))
    world = await World().start()

    await world.asked(prepared.send(Q, "a", delay_s=3), prepared.send(OTHER, "b", delay_s=3))
    await pass_time(3.01)
    mine, other = await world.asked(prepared.receive(Q), prepared.receive(OTHER))

    assert (mine.bodies, other.bodies) == (["a"], ["b"])
    tried = bad
    assert tried > 0
    await pass_time(61)
    assert bad > tried, "it is tried again"


def test_a_fifo_message_waits_behind_delayed_ones_though_the_delay_was_removed() -> None:
    """The sender is told of the change before the queue's shard is."""
    delayed = prepared.queue_named("q.fifo", 1, DelaySeconds="60")
    driver = Driver(KnownQueues(delayed))
    driver.submit(prepared.send(delayed, "a", group="g"))
    changed = driver.queues.define(prepared.queue_named("q.fifo", 1, DelaySeconds="0"))
    driver.submit(prepared.send(changed, "b", group="g"))

    assert not driver.submit(prepared.receive(changed, 10)).bodies
    driver.pass_time(60_000)
    assert driver.submit(prepared.receive(changed, 10, timeout_s=0)).bodies == ["a", "b"]


def test_many_due_queues_are_spread_over_several_turns() -> None:
    count = 2 * PULSES_MAX + PULSES_MAX // 2
    queues = [prepared.queue_named(f"q{number}", number) for number in range(1, count + 1)]
    moved: list[tuple[int, int]] = []

    def on_event(event: Event) -> None:
        if isinstance(event, MessagesMoved):
            moved.append((driver.turns, event.queue_id))

    driver = Driver(KnownQueues(*queues), on_event=on_event)
    driver.turn([prepared.send(queue, "a", delay_s=60) for queue in queues])
    assert moved == []

    driver.now_ms += 60_000
    first = driver.turns + 1
    (reply,) = driver.turn([prepared.counters(queues[-1])])

    assert [queue_id for _, queue_id in moved] == [queue.queue_id for queue in queues]
    per_turn = Counter(turn for turn, _ in moved)
    assert per_turn == {first: PULSES_MAX, first + 1: PULSES_MAX, first + 2: PULSES_MAX // 2}
    assert reply.answer == QueueCounters(0, 0, 1), "requests wait for no more than one turn's"


@virtual
async def test_a_shard_goes_on_at_once_until_no_queue_is_due() -> None:
    count = 5 * PULSES_MAX + 1
    queues = [prepared.queue_named(f"q{number}", number) for number in range(1, count + 1)]
    world = await World().start()
    await world.asked(*[prepared.send(queue, "a", delay_s=3) for queue in queues])
    assert set(world.shard.counters().values()) == {QueueCounters(0, 0, 1)}

    await pass_time(3.0006)  # the timer's turn and those that need no time

    assert set(world.shard.counters().values()) == {QueueCounters(1, 0, 0)}


@virtual
async def test_messages_of_many_queues_that_expire_together_do_not_hold_one_turn() -> None:
    world = await World(auto_sync=False).start()
    queues = [
        prepared.queue_named(f"q{number}", number, MessageRetentionPeriod="60")
        for number in range(1, 21)
    ]
    for queue in queues:
        for _ in range(10):
            world.ask(prepared.send_batch(queue, ["b"] * 10))
    await world.sync()

    await pass_time(61)

    left = sum(queue.visible for queue in world.shard.counters().values())
    assert 2000 - PULSE_MESSAGES_MAX - 100 <= left < 2000, "one turn's, which is not durable yet"
    for _ in range(3):
        await world.sync()
    assert sum(queue.visible for queue in world.shard.counters().values()) == 0


@virtual
async def test_a_queue_that_this_host_hears_of_late_has_its_pulses_all_the_same() -> None:
    short = prepared.queue_named("short", 6, MessageRetentionPeriod="60")
    known = KnownQueues(short)
    world = await World(definitions=known).start()
    await world.asked(prepared.send(short, "old"))
    del known.queues[short.queue_id]

    await pass_time(70)
    known.define(short)
    await pass_time(1.1)

    (counted,) = await world.asked(prepared.counters(short))
    assert counted.answers == [QueueCounters(0, 0, 0)]
