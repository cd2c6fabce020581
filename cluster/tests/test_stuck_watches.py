"""Watches whose member of etcd is cut off: each begins anew on another member, in virtual time."""

from __future__ import annotations

import asyncio

from cluster.coordination.coordination import EMPTY, Done, Transaction
from cluster.tests.etcd_world import Host, World
from cluster.tests.virtual_time import virtual


async def watched(world: World) -> tuple[Host, list[int]]:
    """A host whose watch is on a member that it cannot reach any more, and the revisions that the
    watch reports."""
    host = world.hosts[0]
    reported: list[int] = []
    await host.coordination.watch(EMPTY, lambda change: reported.append(change.revision))
    await host.coordination.commit(Transaction({}, {"a": b"0"}))
    await asyncio.sleep(1)
    assert reported
    host.wire.cut_members = {world.etcd.endpoints[0]}
    return host, reported


async def seconds_until_reported(world: World, reported: list[int], revision: int) -> float:
    begun_s = world.now_s()
    while reported[-1] < revision:  # noqa: ASYNC110  virtual time
        await asyncio.sleep(0.01)
    return world.now_s() - begun_s


@virtual
async def test_a_watch_that_does_not_report_a_write_of_its_process_begins_anew() -> None:
    world = World(seed=1)
    host, reported = await watched(world)

    outcome = await host.coordination.commit(Transaction({}, {"a": b"1"}))

    assert isinstance(outcome, Done)
    seconds = await seconds_until_reported(world, reported, outcome.revision)
    assert seconds < 2.0, "one for a test that asks the member, and half for the write"
    await world.close()


@virtual
async def test_a_watch_that_does_not_report_an_expected_write_begins_anew() -> None:
    world = World(seed=1)
    host, reported = await watched(world)
    outcome = await world.hosts[1].coordination.commit(Transaction({}, {"a": b"1"}))
    assert isinstance(outcome, Done)

    host.coordination.expect(outcome.revision)

    assert await seconds_until_reported(world, reported, outcome.revision) < 1.0
    await world.close()


@virtual
async def test_a_watch_that_is_tested_leaves_a_member_that_is_cut_off() -> None:
    world = World(seed=1)
    host, reported = await watched(world)

    host.coordination.test_watches()
    outcome = await world.hosts[1].coordination.commit(Transaction({}, {"a": b"1"}))

    assert isinstance(outcome, Done)
    seconds = await seconds_until_reported(world, reported, outcome.revision)
    assert seconds < 2.0, "one for the member that does not answer, and half for the write"
    await world.close()


@virtual
async def test_a_watch_is_not_begun_anew_for_writes_that_it_reports() -> None:
    world = World(seed=1)
    host = world.hosts[0].coordination
    await host.watch(EMPTY, lambda change: None)

    for number in range(20):
        await host.commit(Transaction({}, {"a": b"%d" % number}))
        await asyncio.sleep(0.4)

    assert world.etcd.watches_begun == 1
    await world.close()
