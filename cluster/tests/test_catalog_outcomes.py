"""Catalogs of several hosts on one coordination, which at times is away or leaves outcomes
unknown."""

from __future__ import annotations

import asyncio

import pytest

from cluster.catalog.catalog import Catalog
from cluster.catalog.catalog_records import queue_key
from cluster.catalog.other_hosts import NO_OTHERS, OtherHosts
from cluster.catalog.part_rules import NewParts
from cluster.catalog.queue_rules import Waits
from cluster.catalog.queue_view import Kind, QueueChange
from cluster.coordination.coordination import Transaction
from cluster.peers.held_requests import View
from cluster.tests.catalog_file import owner
from cluster.tests.catalogs import opened_catalog
from cluster.tests.memory_coordination import MemoryCoordination
from cluster.tests.planned_hosts import RaisingHosts, SharingHosts
from cluster.tests.virtual_time import SettableClock, virtual
from cluster.tests.world import settled
from visibility.contract.errors import (
    PurgeQueueInProgress,
    QueueDeletedRecently,
    QueueDoesNotExist,
    ServiceUnavailable,
)

NO_WAITS = Waits(0, 0)


async def opened(
    coordination: MemoryCoordination,
    clock: SettableClock | None = None,
    waits: Waits = NO_WAITS,
    others: OtherHosts = NO_OTHERS,
) -> Catalog:
    return await opened_catalog(
        coordination,
        clock=clock,
        waits=waits,
        restore_window_ms=60_000,
        others=others,
    )


async def test_hosts_see_each_others_queues_and_never_issue_an_id_twice() -> None:
    coordination = MemoryCoordination()
    one, other = await opened(coordination), await opened(coordination)

    made = await asyncio.gather(
        *[one.create_queue(owner(f"a{number}"), {}, {}) for number in range(5)],
        *[other.create_queue(owner(f"b{number}"), {}, {}) for number in range(5)],
        one.create_queue(owner("same"), {}, {}),
        other.create_queue(owner("same"), {}, {}),
    )

    assert len({queue.queue_id for queue in made}) == 11
    assert made[-1] == made[-2]
    assert sorted(one, key=str) == sorted(other, key=str)


async def test_an_action_on_what_another_host_changed_meanwhile_is_decided_anew() -> None:
    coordination = MemoryCoordination()
    one, other = await opened(coordination), await opened(coordination)
    queue = await one.create_queue(owner("q"), {}, {})
    coordination.held_back = []

    purge = asyncio.create_task(one.purge_queue(queue))
    tag = asyncio.create_task(other.tag_queue(queue, {"a": "1"}))
    await settled()
    assert not purge.done(), "it waits until its own view shows it"
    assert not tag.done()
    coordination.report()
    successor, _ = await asyncio.gather(purge, tag)

    changed = other.queue(*owner("q"))
    assert (changed.queue_id, changed.tags, changed.version) == (successor.queue_id, {"a": "1"}, 3)


@virtual
async def test_an_action_is_tried_again_for_seconds_while_other_hosts_come_first() -> None:
    coordination = MemoryCoordination()
    catalog = await opened(coordination)

    coordination.next_outcomes = ["conflict"] * 150
    assert (await catalog.create_queue(owner("q"), {}, {})).queue_id == 1

    coordination.next_outcomes = ["conflict"] * 300
    begun_s = asyncio.get_running_loop().time()
    outcomes = await asyncio.gather(
        *[catalog.create_queue(owner(name), {}, {}) for name in "rst"], return_exceptions=True
    )
    assert [type(each) for each in outcomes] == [ServiceUnavailable] * 3
    assert asyncio.get_running_loop().time() - begun_s < 11, "those that wait have no more time"


@pytest.mark.parametrize("what", ["purge", "create", "delete"])
async def test_an_unknown_outcome_is_looked_up(what: str) -> None:
    coordination = MemoryCoordination()
    catalog = await opened(coordination)
    queue = await catalog.create_queue(owner("q"), {}, {})

    coordination.next_outcomes = ["unknown, done"]
    if what == "purge":
        assert (await catalog.purge_queue(queue)).queue_id == 2
    elif what == "create":
        assert (await catalog.create_queue(owner("r"), {}, {})).queue_id == 2
    else:
        await catalog.delete_queue(queue)

    assert coordination.revision == 2, "it happened once"


async def test_what_did_not_happen_is_refused_and_can_be_asked_again() -> None:
    coordination = MemoryCoordination()
    catalog = await opened(coordination)
    queue = await catalog.create_queue(owner("q"), {}, {})

    coordination.next_outcomes = ["unknown, not done", "unavailable"]
    for _ in range(2):
        with pytest.raises(ServiceUnavailable):
            await catalog.delete_queue(queue)
    assert catalog.queue(*owner("q")) == queue
    coordination.is_away = True
    with pytest.raises(ServiceUnavailable):
        await catalog.delete_queue(queue)
    assert catalog.queue(*owner("q")) == queue, "reading goes on"
    coordination.is_away = False

    await catalog.delete_queue(queue)
    with pytest.raises(QueueDoesNotExist):
        catalog.queue(*owner("q"))


async def test_a_host_of_a_cluster_does_not_name_a_queue_that_another_one_deleted() -> None:
    coordination = MemoryCoordination()
    one, other = [await opened(coordination, others=SharingHosts()) for _ in range(2)]
    queue = await one.create_queue(owner("q"), {}, {})
    coordination.held_back = []
    deleted = asyncio.create_task(one.delete_queue(queue))
    await settled()

    created = asyncio.create_task(other.create_queue(owner("q"), {}, {}))
    await settled()
    assert not created.done(), "its view shows the queue"
    coordination.report()

    await deleted
    assert (await created).queue_id > queue.queue_id


async def test_a_queue_that_exists_is_named_while_etcd_is_away() -> None:
    coordination = MemoryCoordination()
    catalog = await opened(coordination, others=SharingHosts())
    queue = await catalog.create_queue(owner("q"), {}, {})
    coordination.is_away = True

    assert await catalog.create_queue(owner("q"), {}, {}) == queue


@virtual
async def test_changes_that_wait_for_others_give_up_when_their_own_time_is_over() -> None:
    coordination = MemoryCoordination()
    catalog = await opened(coordination)
    coordination.is_away, coordination.away_s = True, 6.0
    now_s = asyncio.get_running_loop().time
    begun_s = now_s()

    made = [catalog.create_queue(owner(f"q{number}"), {}, {}) for number in range(20)]
    outcomes = await asyncio.gather(*made, return_exceptions=True)

    assert {type(outcome) for outcome in outcomes} == {ServiceUnavailable}
    assert now_s() - begun_s < 17


async def test_a_wait_of_a_minute_holds_for_a_clock_that_is_behind() -> None:
    coordination = MemoryCoordination()
    clock = SettableClock()
    clock.at_ms -= 15_000
    ahead = await opened(coordination, waits=Waits())
    behind = await opened(coordination, clock, Waits())
    queue = await ahead.create_queue(owner("q"), {}, {})

    await ahead.purge_queue(queue)
    with pytest.raises(PurgeQueueInProgress):
        await behind.purge_queue(behind.queue(*owner("q")))
    await ahead.delete_queue(queue)
    with pytest.raises(QueueDeletedRecently):
        await behind.create_queue(owner("q"), {}, {})


async def test_a_change_that_other_hosts_do_not_show_yet_holds_up_no_other() -> None:
    shown = asyncio.Event()

    async def spread(revision: int) -> None:
        if revision == 1:
            await shown.wait()

    catalog = await opened(MemoryCoordination(), others=SharingHosts(spread))

    first = asyncio.create_task(catalog.create_queue(owner("q"), {}, {}))
    await settled()
    again = asyncio.create_task(catalog.create_queue(owner("q"), {}, {}))
    await settled()
    assert not again.done(), "it is not shown there either"
    async with asyncio.timeout(10):
        await catalog.create_queue(owner("r"), {}, {})
    assert not first.done()
    shown.set()
    assert await first == await again


async def test_listeners_hear_what_a_shard_must_know_when_the_view_shows_it() -> None:
    coordination = MemoryCoordination()
    one, other = await opened(coordination), await opened(coordination)
    heard: list[tuple[Kind, int, int, int]] = []

    def listen(change: QueueChange) -> None:
        assert other.revision == coordination.revision
        successor = change.successor.queue_id if change.successor else 0
        heard.append((change.kind, change.queue.queue_id, successor, change.queue.version))

    other.subscribe(listen)
    queue = await one.create_queue(owner("q"), {}, {})
    await one.set_attributes(queue, {"DelaySeconds": "7"})
    await one.tag_queue(queue, {"team": "blue"})
    await one.purge_queue(queue)
    await one.delete_queue(queue)
    await one.restore_queue(2)
    await one.restore_queue(1)
    await one.forget_queue(1)

    assert heard == [
        (Kind.CHANGED, 1, 0, 2),
        (Kind.PURGED, 1, 2, 3),
        (Kind.DELETED, 2, 0, 4),
        (Kind.CHANGED, 2, 0, 5),
        (Kind.RESTORING, 1, 0, 3),
    ]


@virtual
@pytest.mark.parametrize("seen", ["never", "before", "deleted"])
async def test_a_purge_in_a_gap_of_the_watch_is_heard_with_what_followed(seen: str) -> None:
    whole, with_gap = MemoryCoordination(), MemoryCoordination()
    one = await opened(whole)
    other = await opened(with_gap)
    heard: list[Kind] = []
    other.subscribe(lambda change: heard.append(change.kind))

    async def report_difference() -> None:
        values = {key: record.value for key, record in whole.records.items()}
        gone = dict.fromkeys(with_gap.records.keys() - values.keys())
        await with_gap.commit(Transaction({}, values | gone))

    queue = await one.create_queue(owner("q"), {}, {})
    if seen != "never":
        await report_difference()
    await one.delete_queue(queue)
    if seen == "deleted":
        await report_difference()
    await one.restore_queue(queue.queue_id)
    await one.purge_queue(one.queue(*owner("q")))
    await one.restore_queue(queue.queue_id)
    await report_difference()

    deleted = [Kind.DELETED] if seen == "deleted" else []
    assert heard == [*deleted, Kind.PURGED, Kind.RESTORING]


@virtual
async def test_a_record_that_cannot_be_read_stays_as_the_view_shows_it() -> None:
    coordination = MemoryCoordination()
    one, other = await opened(coordination), await opened(coordination)
    queue = await one.create_queue(owner("q"), {}, {})
    key = queue_key(owner("q"))

    await coordination.commit(Transaction({}, {key: b"from a later version"}))
    await one.create_queue(owner("r"), {}, {})

    assert other.queue(*owner("q")) == queue
    assert len(other) == 2
    with pytest.raises(ServiceUnavailable):
        await other.delete_queue(queue)


@virtual
async def test_an_action_does_not_wait_for_ever_for_a_watch_that_is_away() -> None:
    coordination = MemoryCoordination()
    catalog = await opened(coordination)
    coordination.held_back = []

    with pytest.raises(ServiceUnavailable):
        await catalog.create_queue(owner("q"), {}, {})
    coordination.report()

    assert (await catalog.create_queue(owner("q"), {}, {})).queue_id == 1, "it was made"


# -- catching up -----------------------------------------------------------------------------------

IMPLEMENTATION: type[View] = Catalog
"""Checked by the type checker."""


async def test_a_view_has_caught_up_when_it_shows_what_was_committed_before() -> None:
    coordination = MemoryCoordination()
    one = await opened(coordination)
    shown: list[int] = []
    await one.create_queue(owner("q"), {}, {})
    coordination.held_back = []
    await coordination.commit(Transaction({}, {queue_key(owner("q")): None}))

    for _ in range(3):
        one.when_caught_up(lambda: shown.append(len(one)))
    await settled()
    assert shown == []
    marks = coordination.revision
    coordination.report()
    await settled()

    assert shown == [0, 0, 0]
    assert coordination.revision == marks, "one mark serves all of them"
    one.when_caught_up(lambda: shown.append(-1))
    assert shown[-1] == 0, "later, not at once"
    await settled()
    assert shown[-1] == -1
    await one.close()


@virtual
async def test_who_waits_for_a_view_to_catch_up_waits_for_a_bounded_time() -> None:
    coordination = MemoryCoordination()
    one = await opened(coordination)
    loop = asyncio.get_running_loop()
    called: list[float] = []

    coordination.held_back = []
    one.when_caught_up(lambda: called.append(loop.time()))
    await asyncio.sleep(6)
    coordination.report()
    coordination.is_away = True
    one.when_caught_up(lambda: called.append(loop.time()))
    await asyncio.sleep(1)

    assert called == [5.0, 6.0]
    await one.close()


async def test_a_view_of_before_etcd_went_back_has_not_caught_up() -> None:
    coordination = MemoryCoordination()
    one = await opened(coordination)
    for _ in range(5):
        await one.create_queue(owner("q"), {}, {})
        await one.caught_up()
    heard: list[int] = []
    one.on_restored.append(lambda: heard.append(one.revision))
    coordination.revision = 1
    coordination.held_back = []

    assert not await one.caught_up()
    assert (heard, one.times_restored) == ([], 0)
    coordination.report()
    assert (heard, one.times_restored) == ([2], 1)
    assert await one.caught_up()
    await one.close()


async def test_it_is_known_whether_a_view_has_caught_up() -> None:
    coordination = MemoryCoordination()
    one = await opened(coordination)

    coordination.is_away = True
    assert not await one.caught_up()
    coordination.is_away = False
    assert await one.caught_up()
    await one.close()


async def test_ids_are_raised_for_all_hosts_beside_queues_that_they_make() -> None:
    coordination = MemoryCoordination()
    one, other = await opened(coordination), await opened(coordination)
    await one.create_queue(owner("a"), {}, {})
    coordination.held_back = []

    raising = asyncio.create_task(one.raise_ids(7))
    making = asyncio.create_task(other.create_queue(owner("b"), {}, {}))
    await settled()
    assert not raising.done(), "it waits until its own view shows it"
    coordination.report()
    await raising

    assert (await making).queue_id == 8
    assert (await one.create_queue(owner("c"), {}, {})).queue_id == 9
    before = coordination.revision
    await other.raise_ids(8)
    assert (coordination.revision, other.highest_queue_id) == (before, 9), "never lowered"
    for each in (one, other):
        await each.close()


async def test_ids_that_cannot_be_raised_stay() -> None:
    coordination = MemoryCoordination()
    one = await opened(coordination)

    coordination.is_away = True
    with pytest.raises(ServiceUnavailable):
        await one.raise_ids(7)

    assert one.highest_queue_id == 0
    await one.close()


async def test_no_id_is_issued_before_those_of_all_shards_are_raised() -> None:
    coordination = MemoryCoordination()
    other = await opened(coordination)
    queue = await other.create_queue(owner("a"), {}, {})
    heard = asyncio.Event()

    async def ids_raised(shard: int) -> None:
        await heard.wait()
        await one.raise_ids(max(7, one.highest_queue_id))

    one = await opened(coordination, others=RaisingHosts(ids_raised))
    making = asyncio.create_task(one.create_queue(owner("b"), {}, {}))
    purging = asyncio.create_task(one.purge_queue(queue))
    await settled()
    assert (making.done(), purging.done(), one.highest_queue_id) == (False, False, 1)
    await one.tag_queue(queue, {"other": "changes go on"})
    assert (await one.create_queue(owner("a"), {}, {})).queue_id == 1, "it is there"
    heard.set()

    assert {(await making).queue_id, (await purging).queue_id} == {8, 9}
    for each in (one, other):
        await each.close()


async def test_ids_are_raised_on_the_shards_of_new_parts() -> None:
    coordination = MemoryCoordination()
    raised: list[int] = []

    async def ids_raised(shard: int) -> None:
        raised.append(shard)

    one = await opened(coordination, others=RaisingHosts(ids_raised))
    queue = await one.create_queue(owner("a"), {}, {})
    await one.add_parts(queue, NewParts([5, 6], {queue.queue_id: 1}))

    assert raised == [0, 5, 6]
    await one.close()


async def test_no_id_is_issued_unheard_for_a_queue_that_went_meanwhile() -> None:
    coordination = MemoryCoordination()

    async def no_leader(shard: int) -> None:
        raise ServiceUnavailable

    other = await opened(coordination)
    one = await opened(coordination, others=RaisingHosts(no_leader))
    queue = await other.create_queue(owner("a"), {}, {})
    coordination.held_back = []
    deleting = asyncio.create_task(other.delete_queue(queue))
    await settled()
    making = asyncio.create_task(one.create_queue(owner("a"), {}, {}))
    await settled()
    coordination.report()
    await deleting

    with pytest.raises(ServiceUnavailable):
        await making
    assert one.highest_queue_id == 1
    for each in (one, other):
        await each.close()
