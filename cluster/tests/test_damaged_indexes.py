"""Damage in rows that only help to find messages: the queue is rebuilt, and requests are served
again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from cluster.tests.test_damaged_blocks import flip_one
from cluster.tests.test_healing import FIFO as LARGE
from cluster.tests.test_healing import Served
from cluster.tests.virtual_time import virtual
from cluster.tests.world import World, pass_time
from storage.checks.consistency import check_queue
from storage.tests.on_disk import rows_of
from visibility.content.id_digests import group_digest
from visibility.contract.errors import ServiceUnavailable
from visibility.contract.model import QueueCounters, Receipt, Request
from visibility.contract.outcomes import Deliveries
from visibility.rows.row_keys import ALIAS, GROUP_LINE, HEAD, REMEMBERED
from visibility.state.fairness import IN_FLIGHT_MIN
from visibility.tests import prepared

Q = prepared.queue_named("q", 1, VisibilityTimeout="30")
FIFO = prepared.queue_named("q.fifo", 1, VisibilityTimeout="30")
OTHER = prepared.queue_named("other", 2)
REOPENED_S = 1.5
GROUPS = 1_000
READY = "ready groups"


def damage_table(world: World, table: bytes, *, is_block: bool) -> None:
    """Damage all rows of this table, or the block that they are in."""
    keys = [key for key in world.store.durable if key[8:9] == table]
    assert keys
    if is_block:
        world.store.unreadable |= set(keys)
    else:
        world.store.damage(*keys)


async def with_alias(world: World) -> Request:
    """A message at the back of its queue, under another sequence than that of its handles."""
    await world.asked(prepared.send(Q, "a"))
    for _ in range(3):
        await world.asked(prepared.receive(Q, timeout_s=1))
        await pass_time(1.1)
    return prepared.delete_batch(Q, [Receipt(1, 3)])


async def with_groups(world: World) -> Request:
    """FIFO groups of which only the rows are known."""
    await world.asked(*[prepared.send(FIFO, group, group=group) for group in "ghi"])
    return prepared.receive(FIFO, 10)


async def with_remembered(world: World) -> Request:
    """A deduplication id that is sent again: it cannot be known that it was."""
    send = prepared.send(FIFO, "a", group="g")
    await world.asked(send)
    return send


async def with_fair_groups(world: World) -> Request:
    """A standard queue with a noisy group, and a quiet one."""
    for _ in range(4):
        await world.asked(prepared.send_batch(Q, [*"0123456789"], groups=["noisy"] * 10))
    for _ in range(IN_FLIGHT_MIN // 10):
        await world.asked(prepared.receive(Q, 10))
    await world.asked(prepared.send_batch(Q, ["q1", "q2"], groups=["quiet"] * 2))
    return prepared.receive(Q, 2)


CASES: dict[str, tuple[bytes, Callable[[World], Awaitable[Request]], bool, QueueCounters]] = {
    "alias": (ALIAS, with_alias, True, QueueCounters(0, 0, 0)),
    READY: (HEAD, with_groups, True, QueueCounters(0, 3, 0)),
    "remembered ids": (REMEMBERED, with_remembered, True, QueueCounters(2, 0, 0)),
    "group lines": (GROUP_LINE, with_fair_groups, False, QueueCounters(10, 32, 0)),
}

HARMS = [(case, True) for case in CASES] + [(case, False) for case in CASES if case != READY]
"""Rows of ready groups have no checksum but that of their block."""


@virtual
@pytest.mark.parametrize(("case", "is_block"), HARMS)
async def test_a_queue_whose_index_cannot_be_read_is_rebuilt_and_served(
    case: str, is_block: bool
) -> None:
    table, prepare, restarts, expected = CASES[case]
    world = await World().start()
    request = await prepare(world)
    await world.asked(prepared.send(OTHER, "other"))
    if restarts:
        world = await world.restarted()
    damage_table(world, table, is_block=is_block)

    refused, beside = await world.asked(request, prepared.counters(OTHER))
    assert refused.refusal is ServiceUnavailable
    assert beside.answers == [QueueCounters(1, 0, 0)], "other requests of the Turn are answered"
    await pass_time(REOPENED_S)
    served, counted = await world.asked(request, prepared.counters(request.queue))

    assert not isinstance(served.answers[0], Exception)
    assert counted.answers == [expected]
    assert world.store.abandoned == 1
    assert [*check_queue(world.store, 1)] == []


@virtual
async def test_damage_that_a_rebuild_does_not_remove_reopens_the_shard_once() -> None:
    world = await World().start()
    request = await with_groups(world)
    world = await world.restarted()
    damage_table(world, HEAD, is_block=True)
    damaged = set(world.store.unreadable)

    for _ in range(3):
        (refused,) = await world.asked(request)
        assert refused.refusal is ServiceUnavailable
        await pass_time(REOPENED_S)
        world.store.unreadable = set(damaged)
    (beside,) = await world.asked(prepared.send(OTHER, "other"))

    assert world.store.abandoned == 1
    assert not isinstance(beside.answers[0], Exception)


# -- on a disk -------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_block_of_an_index_that_a_request_meets_is_removed_from_the_disk(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "shard-0"
    served = Served(folder)
    await served.shard.start()
    bodies = [str(number) for number in range(GROUPS)]
    for first in range(0, GROUPS, 10):
        batch = bodies[first : first + 10]
        await served.ask(prepared.send_batch(LARGE, batch, groups=batch))
    await served.shard.stop()
    damage_last(folder, group_digest(str(GROUPS // 2)))  # the list of ready groups sorts last
    served = Served(folder)
    await served.shard.start()

    found: list[str] = []
    receive = prepared.receive(LARGE, 10, timeout_s=600)
    while isinstance(answer := await served.outcome(receive), Deliveries) and answer.messages:
        found += [message.data.decode() for message in answer.messages]
    await asyncio.sleep(0)
    assert isinstance(answer, ServiceUnavailable)
    assert len(found) < GROUPS
    assert not served.shard.ready
    await served.shard.reopened()

    assert sorted(found + await served.bodies(LARGE)) == sorted(bodies)
    assert [*(tmp_path / "shard-0.damaged").glob("*.sst")]
    await served.shard.stop()
    with rows_of(folder) as rows:
        assert [*check_queue(rows, 3)] == []


def damage_last(folder: Path, text: bytes) -> None:
    """Flip a bit of the last occurrence."""
    (file,) = [each for each in folder.glob("*.sst") if text in each.read_bytes()]
    flip_one(file, file.read_bytes().rindex(text))
