"""A gateway whose etcd is away shows queues as hosts say, until its watch knows better."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import pytest

from cluster.catalog import adopted_records
from cluster.catalog.catalog import Catalog
from cluster.catalog.catalog_records import name_of
from cluster.catalog.part_rules import NewParts
from cluster.catalog.queue_rules import Waits
from cluster.coordination.coordination import Change
from cluster.tests.catalog_file import owner, policy_for
from cluster.tests.catalogs import opened_catalog
from cluster.tests.cut_off import CutOff
from cluster.tests.memory_coordination import MemoryCoordination
from cluster.tests.virtual_time import (
    SeededEntropy,
    virtual,
)
from visibility.contract.errors import QueueDoesNotExist, ServiceUnavailable
from visibility.contract.model import QueueDefinition

HOUR_MS = 3_600_000
NAME = owner("q")


async def opened(records: MemoryCoordination | CutOff, name: str) -> Catalog:
    return await opened_catalog(
        records,
        entropy=SeededEntropy(name),
        shards=[0, 1],
        waits=Waits(0, 0),
        restore_window_ms=HOUR_MS,
    )


class Two:
    """A host, and a gateway whose etcd goes away."""

    host: Catalog
    gateway: Catalog

    async def open(self) -> Two:
        self.etcd = MemoryCoordination()
        self.way = CutOff(self.etcd)
        self.host = await opened(self.etcd, "host")
        self.gateway = await opened(self.way, "gateway")
        return self

    def told(self, *names: str) -> bool:
        """The host tells the gateway of these queues."""
        records = self.host.records_of([owner(name) for name in names or ("q",)])
        return self.gateway.adopt(self.host.revision, records)

    async def moved(self, queue: QueueDefinition, shard: int) -> QueueDefinition:
        """The queue, in another shard; its former part is gone."""
        added = NewParts([shard], {queue.queue_id: 5})
        moved = await self.host.move_part(queue, queue.part_number, added)
        await self.host.remove_part(queue.queue_id, moved.version)
        return self.host.queue(*NAME)


@virtual
async def test_a_queue_that_moved_is_shown_where_it_is() -> None:
    two = await Two().open()
    queue = await two.host.create_queue(NAME, {}, {})
    revision, record = two.gateway.revision, two.gateway.revision_of("queues/" + "/".join(NAME))
    two.way.is_away = True
    moved = await two.moved(queue, 1)
    assert two.gateway.queue(*NAME) == queue

    assert two.told()

    assert two.gateway.queue(*NAME) == moved
    assert two.gateway.queue_of_id(moved.queue_id) == moved
    assert two.gateway.queue_of_id(queue.queue_id) is None
    assert two.gateway.revision == revision, "the watch goes on from where it was"
    assert two.gateway.revision_of("queues/" + "/".join(NAME)) == record
    assert not len(two.host.adopted)


@virtual
async def test_the_watch_knows_better_once_it_got_as_far() -> None:
    two = await Two().open()
    queue = await two.host.create_queue(NAME, {}, {})
    two.way.is_away = True
    await two.host.create_queue(owner("other"), {}, {})
    moved = await two.moved(queue, 1)
    two.told()

    two.way.back(one_by_one=1)
    assert two.gateway.queue(*NAME) == moved, "it is behind the host still"
    two.way.back()
    assert two.gateway.queue(*NAME) == moved
    assert not len(two.gateway.adopted)
    later = await two.moved(moved, 0)
    assert two.gateway.queue(*NAME) == later


@virtual
async def test_the_watch_knows_better_once_it_tells_of_the_queue() -> None:
    two = await Two().open()
    queue = await two.host.create_queue(NAME, {}, {})
    two.way.is_away = True
    await two.host.set_attributes(queue, {"DelaySeconds": "7"})
    before = two.host.queue(*NAME)
    await two.host.set_attributes(before, {"DelaySeconds": "8"})
    two.told()

    two.way.back(one_by_one=1)

    assert two.gateway.queue(*NAME) == before
    assert not len(two.gateway.adopted)


@virtual
async def test_a_deleted_queue_and_one_made_anew_under_its_name() -> None:
    two = await Two().open()
    queue = await two.host.create_queue(NAME, {}, {})
    await two.host.set_attributes(queue, {"DelaySeconds": "7"})
    two.way.is_away = True
    await two.host.delete_queue(queue)
    assert two.told()
    with pytest.raises(QueueDoesNotExist):
        two.gateway.queue(*NAME)
    assert len(two.gateway) == 0

    anew = await two.host.create_queue(NAME, {}, {})
    assert two.told()

    found = two.gateway.queue(*NAME)
    assert found == anew
    assert found.version < queue.version + 1
    assert not found.is_same_queue(queue)
    two.way.back()
    assert two.gateway.queue(*NAME) == anew
    assert [each.queue.queue_id for each in two.gateway.kept] == [queue.queue_id]


@virtual
async def test_the_dead_letter_queue_comes_along() -> None:
    two = await Two().open()
    queue = await two.host.create_queue(NAME, {}, {})
    two.way.is_away = True
    letters = await two.host.create_queue(owner("letters"), {}, {})
    await two.host.set_attributes(queue, {"RedrivePolicy": policy_for("letters")})

    assert two.told()

    assert two.gateway.dead_letter_queue(two.gateway.queue(*NAME)) == letters


@virtual
async def test_a_host_that_is_behind_is_not_believed() -> None:
    two = await Two().open()
    queue = await two.host.create_queue(NAME, {}, {})
    behind = two.host.revision, two.host.records_of([NAME])
    moved = await two.moved(queue, 1)
    assert two.gateway.queue(*NAME) == moved

    assert not two.gateway.adopt(*behind)
    assert two.gateway.queue(*NAME) == moved

    two.way.is_away = True
    again = await two.moved(moved, 0)
    between = two.host.revision, two.host.records_of([NAME])
    later = await two.moved(again, 1)
    assert two.told()
    assert not two.gateway.adopt(*between), "nor against what another host said"
    assert two.gateway.queue(*NAME) == later


@virtual
async def test_a_record_that_an_older_etcd_does_not_have_goes_with_its_restore() -> None:
    two = await Two().open()
    queue = await two.host.create_queue(NAME, {}, {})
    revision = two.gateway.revision
    two.way.is_away = True
    moved = await two.moved(queue, 1)
    two.told()
    await two.moved(moved, 0)
    await two.host.create_queue(owner("lost"), {}, {})
    two.told("q", "lost")

    two.way.restored(Change(revision + 1, {}, {"queues/x/y/z": 1}))  # as of before the move

    assert two.gateway.queue(*NAME) == queue
    assert two.gateway.find(owner("lost")) is None
    assert not len(two.gateway.adopted)
    await two.host.set_attributes(two.host.queue(*NAME), {"DelaySeconds": "7"})
    assert two.gateway.queue(*NAME) == two.host.queue(*NAME)


@virtual
async def test_a_later_version_counts_where_an_older_etcd_counts_anew() -> None:
    """Revisions of a restored etcd may be below those that the gateway saw before."""
    two = await Two().open()
    queue = await two.host.create_queue(NAME, {}, {})
    two.way.is_away = True
    moved = await two.moved(queue, 1)
    records = two.host.records_of([NAME])

    await two.host.delete_queue(moved)
    anew = await two.host.create_queue(NAME, {}, {})
    while anew.version <= moved.version:
        await two.host.set_attributes(anew, {"DelaySeconds": str(anew.version)})
        anew = two.host.queue(*NAME)
    other = two.host.records_of([NAME])

    assert not two.gateway.adopt(two.gateway.revision - 1, other), "of another queue"
    assert two.gateway.adopt(two.gateway.revision - 1, records)
    assert two.gateway.queue(*NAME) == moved
    assert not two.gateway.adopt(two.gateway.revision - 1, {NAME: None})


@virtual
async def test_ids_that_were_issued_again_are_not_shown_twice() -> None:
    two = await Two().open()
    await two.host.create_queue(NAME, {}, {})
    records = two.host.records_of([NAME])
    other = await Two().open()  # another life of the same etcd
    first = await other.host.create_queue(owner("first"), {}, {})

    assert not other.gateway.adopt(100, records)

    assert other.gateway.queue_of_id(first.queue_id) == first
    assert other.gateway.find(NAME) is None


@virtual
async def test_a_record_that_cannot_be_read_is_not_shown() -> None:
    two = await Two().open()
    queue = await two.host.create_queue(NAME, {}, {})
    assert not two.gateway.adopt(two.host.revision + 1, {NAME: b"{"})
    assert two.gateway.queue(*NAME) == queue


@virtual
async def test_they_are_bounded() -> None:
    two = await Two().open()
    names = [f"q{number}" for number in range(4)]
    queues = [await two.host.create_queue(owner(name), {}, {}) for name in names]
    two.way.is_away = True
    for queue in queues:
        await two.host.set_attributes(queue, {"DelaySeconds": "7"})
    with patch.object(adopted_records, "ADOPTED_MAX", 2):
        for name in names:
            assert two.told(name)

    assert len(two.gateway.adopted) == 2
    shown = [two.gateway.queue(*name_of(queue)).settings.delay_ms for queue in queues]
    assert shown == [0, 0, 7000, 7000], "the first are as they were"


@virtual
async def test_changes_are_decided_on_what_etcd_has() -> None:
    two = await Two().open()
    queue = await two.host.create_queue(NAME, {}, {})
    two.way.is_away = True
    moved = await two.moved(queue, 1)
    two.told()
    with pytest.raises(ServiceUnavailable):
        await two.gateway.set_attributes(moved, {"DelaySeconds": "7"})

    two.way.is_away = False
    changing = asyncio.create_task(two.gateway.set_attributes(moved, {"DelaySeconds": "7"}))
    await asyncio.sleep(0)
    two.way.back()
    await changing

    changed = two.host.queue(*NAME)
    assert (changed.queue_id, changed.settings.delay_ms) == (moved.queue_id, 7000)
    assert two.gateway.queue(*NAME) == changed


@virtual
async def test_who_waits_for_the_view_waits_only_once_while_etcd_is_silent() -> None:
    two = await Two().open()
    two.etcd.away_s = 30.0
    two.etcd.is_away = True
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    assert not await two.gateway.caught_up()
    assert loop.time() - begun_s == pytest.approx(5.0)
    assert two.gateway.is_away
    for _ in range(4):
        assert not await two.gateway.caught_up()
    assert loop.time() - begun_s == pytest.approx(7.0)

    two.etcd.is_away = False
    assert await two.gateway.caught_up()
    assert not two.gateway.is_away
