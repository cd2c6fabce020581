"""A report is frozen plain data: it could be sent to another process, and later changes do not
reach it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cluster.shards.shard_report import ArchiveLimits, Phase, QueueReport, ShardReport, TimesReport
from cluster.tests.virtual_time import virtual
from cluster.tests.world import World, pass_time
from visibility.contract.model import Receipt
from visibility.tests import prepared

Q = prepared.queue_named("q", 1, VisibilityTimeout="5")
FIFO = prepared.queue_named("q.fifo", 2)
POLLED = prepared.queue_named("polled", 3)


async def busy() -> World:
    """A shard whose queues hold messages, one of them in flight, and one deleted after a second."""
    world = await World(archive=ArchiveLimits(1 << 20, retains=False)).start()
    await world.asked(prepared.send_batch(Q, ["a", "b", "c"]), prepared.send(FIFO, "d", group="g"))
    await world.asked(prepared.receive(Q, 2), prepared.receive(FIFO))
    await pass_time(1)
    await world.asked(prepared.delete(Q, Receipt(1, 1)), prepared.receive(POLLED, wait_s=20))
    return world


@virtual
async def test_reports_are_plain_data_that_another_process_can_read() -> None:
    world = await busy()
    reports: list[tuple[Any, Any]] = [
        (world.shard.report(), ShardReport),
        (world.shard.queues([1, 2, 3], detailed_ids=[1, 2]), list[QueueReport]),
        (world.shard.times_in_queues([1, 2]), list[TimesReport]),
    ]

    for report, form in reports:
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=form) == report


@virtual
async def test_a_report_says_how_the_shard_is() -> None:
    world = await busy()

    report = world.shard.report()

    assert (report.number, report.phase, report.ready) == (0, Phase.LEADING, True)
    assert (report.parked, report.failures) == (1, 0)
    assert sum(report.turn_s.buckets) == sum(report.turn_requests.buckets) > 0
    assert report.archive.size_max == 1 << 20
    assert (report.archive.messages, report.archive.waiting_since_ms) == (0, 0)


@virtual
async def test_queues_are_reported_in_detail_only_where_it_is_asked_for() -> None:
    world = await busy()

    standard, fifo = world.shard.queues([1, 2, 4], detailed_ids=[2])

    assert (standard.visible, standard.in_flight, standard.stored) == (1, 1, 2)
    assert (standard.sent, standard.received, standard.deleted) == (3, 2, 1)
    assert (standard.oldest, standard.groups) == (None, None)
    assert fifo.oldest is not None
    assert fifo.groups is not None
    assert fifo.groups.groups_in_flight == 1
    ((_, times),) = world.shard.times_in_queues([1])
    assert list(times.values()) == [1]


@virtual
async def test_a_report_stays_as_it_was() -> None:
    world = await busy()
    report, (queue,), (times,) = (
        world.shard.report(),
        world.shard.queues([1]),
        world.shard.times_in_queues([1]),
    )
    before = msgspec.msgpack.encode((report, queue, times))

    await world.asked(prepared.send(Q, "e"), prepared.delete(Q, Receipt(2, 1)))

    assert msgspec.msgpack.encode((report, queue, times)) == before
    assert world.shard.queues([1]) != [queue]
    with pytest.raises(AttributeError):
        queue.visible = 7  # type: ignore[misc]


@virtual
async def test_a_shard_that_is_away_reports_counters_and_reads_no_rows() -> None:
    world = await busy()
    world.store.fails = True
    await world.asked(prepared.send(Q, "lost"))

    (queue,) = world.shard.queues([1], detailed_ids=[1])

    assert world.shard.report().phase is Phase.FAILED
    assert (queue.oldest, queue.groups) == (None, None)


@virtual
async def test_counts_that_begin_anew_are_told_by_the_time_of_loading() -> None:
    world = await busy()
    before = world.shard.report()
    world.store.fails = True
    await world.asked(prepared.send(Q, "lost"))
    await pass_time(2)

    after = world.shard.report()

    assert after.ready
    assert (before.failures, after.failures) == (0, 1)
    assert after.loaded_at_ms > before.loaded_at_ms
    assert [queue.sent for queue in world.shard.queues([1])] == [0]
