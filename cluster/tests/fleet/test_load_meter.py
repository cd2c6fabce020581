"""A host's report: the loop's time goes to the shards by what they decided, and to parts by a
sample of Turns."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cluster.fleet.load_meter import Counters, Figures, LoadMeter
from cluster.fleet.loads import HostLoad
from cluster.shards.router import Router
from cluster.shards.turn_sample import TurnSample
from cluster.tests.virtual_time import virtual
from cluster.tests.world import World
from visibility.contract.model import Request
from visibility.contract.queue_parts import Part
from visibility.state.waiters import Ticket
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues

BUSY = prepared.queue_named("busy", 1)
QUIET = prepared.queue_named("quiet", 2)
FIFO = prepared.queue_named("q.fifo", 3)
FIGURES = Figures(disk_used=5, disk_size=10, connections=3, connections_max=100)


class Queues(KnownQueues):
    """The catalog, as far as a report needs it."""

    split: dict[Any, Any]


class Meter:
    """A report each ten seconds of a host whose loop is half busy."""

    def __init__(self, world: World, *queues: Any) -> None:
        catalog: Any = Queues(*queues)
        catalog.split = {each.name: each for each in queues if each.parts}
        self.meter = LoadMeter("a", "1", Router([world.shard]), catalog, lambda: 7)
        self.at = Counters(0.0, 0.0, 0, 0.0, 0)

    def report(self, requests: int = 0, sync_s: float = 0.0, syncs: int = 0) -> HostLoad | None:
        s, loop_s, before, synced_s, synced = self.at
        self.at = Counters(s + 10, loop_s + 5, before + requests, synced_s + sync_s, synced + syncs)
        return self.meter.report(self.at, FIGURES)


async def asked(world: World, count: int, queue: Any, **options: Any) -> None:
    for _ in range(count):
        await world.asked(prepared.send(queue, "m", **options))


def ticket(request: Request) -> Ticket:
    return Ticket(request, lambda answer: None)


@virtual
async def test_a_shard_is_not_looked_into_before_somebody_asks() -> None:
    world = await World().start()
    meter = Meter(world, BUSY)
    await asked(world, 40, BUSY)

    assert meter.report() is None
    found = meter.report()

    assert found is not None
    assert (found.host, found.cluster, found.at_ms, found.loop) == ("a", "1", 7, 0.5)
    assert [(each.asked, each.parts) for each in found.shards] == [(0.0, ())]


@virtual
async def test_the_loop_is_shared_by_reading_and_deciding_and_by_queues() -> None:
    world = await World().start()
    meter = Meter(world, BUSY, QUIET)
    meter.report()
    for _ in range(160):
        await world.asked(
            prepared.send_batch(BUSY, ["a"]),
            prepared.receive(BUSY),
            prepared.receive(BUSY),
            prepared.receive(QUIET),
        )
    found = meter.report(requests=640)

    assert found is not None
    (shard,) = found.shards
    assert shard.asked == pytest.approx(0.25)
    assert {part.queue: part.messages for part in shard.parts} == {"1": 160, "2": 0}


def test_of_sixteen_turns_one_is_looked_at_and_its_time_is_shared_by_its_requests() -> None:
    sample = TurnSample()
    turn = [ticket(prepared.receive(BUSY))] * 3 + [ticket(prepared.receive(QUIET))]
    for _ in range(32):
        sample.see(turn, 0.4)
        sample.see([], 9.0)

    shares = sample.take()

    assert shares.keys() == {1, 2}
    assert shares[1].seconds == pytest.approx(3 * shares[2].seconds)
    assert sum(share.seconds for share in shares.values()) == pytest.approx(0.8)
    assert sample.take() == {}


@virtual
async def test_the_parts_of_a_split_queue_are_reported_when_nobody_asks_for_them() -> None:
    world = await World().start()
    split = prepared.queue_named("split", 4)
    split = msgspec.structs.replace(split, parts=(Part(0, 4, 0), Part(16, 5, 0), Part(32, 6, 1)))
    meter = Meter(world, *split.all_parts())
    meter.report()
    found = meter.report()

    assert found is not None
    (shard,) = found.shards
    assert [(part.queue, part.number, part.asked) for part in shard.parts] == [
        ("4", 0, 0.0),
        ("4", 16, 0.0),
    ]


@virtual
async def test_the_busiest_group_of_a_fifo_queue_is_known() -> None:
    world = await World().start()
    meter = Meter(world, FIFO)
    meter.report()
    for number in range(160):
        await asked(world, 1, FIFO, group="a" if number % 4 else "b", deduplication_id=str(number))
    found = meter.report(requests=160)

    assert found is not None
    (part,) = found.shards[0].parts
    assert 0.5 < part.top_group <= 1.0


@virtual
async def test_a_disk_that_takes_longer_than_usual_is_told_as_latency() -> None:
    world = await World().start()
    meter = Meter(world)
    meter.report()
    usual = meter.report(sync_s=0.1, syncs=100)
    slow = meter.report(sync_s=0.5, syncs=100)
    few = meter.report(sync_s=0.5, syncs=3)

    assert usual is not None
    assert slow is not None
    assert few is not None
    assert usual.sync == pytest.approx(0.01)
    assert slow.sync == pytest.approx(0.05)
    assert usual.shards[0].latency == pytest.approx(1.0)
    assert slow.shards[0].latency > 3
    assert few.shards[0].latency == pytest.approx(1.0)
