"""The rows of remembered answers: what later leaders find there, and for how long."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.tests.remembering import STANDARD, a_world, answer_to, named, remembered, rows
from cluster.tests.virtual_time import LoopClock, SeededEntropy, virtual
from cluster.tests.world import FragileStore, World, pass_time
from storage.rows.damage import check_rows
from visibility.contract.errors import ServiceUnavailable
from visibility.contract.model import Receipt
from visibility.contract.results import SendMessageResult
from visibility.rows.row_keys import ANSWERS, MESSAGE
from visibility.rules.tables import Finding
from visibility.state.short_answers import ANSWERS_KEPT_MS, EARLIER_MS
from visibility.tests import prepared

MANY_MS = ANSWERS_KEPT_MS - EARLIER_MS


@virtual
async def test_a_shard_finds_what_it_remembered_before_a_restart() -> None:
    world = await a_world()
    request = named(prepared.send(STANDARD, "m"))
    first = await answer_to(world, request)
    await world.shard.stop()
    world = await a_world(store=world.store)

    assert await answer_to(world, request, age_ms=10) == first


class OffClock(LoopClock):
    """A clock that is off by some milliseconds."""

    def __init__(self, off_ms: int) -> None:
        self._off_ms = off_ms

    def now_ms(self) -> int:
        return super().now_ms() + self._off_ms


@pytest.mark.parametrize("off_ms", [(-10_000, 10_000), (10_000, 10_000), (0, 0)])
@virtual
async def test_leaders_whose_clocks_differ(off_ms: tuple[int, int]) -> None:
    store = FragileStore(auto_sync=True)
    first_leader, second_leader = [
        World(store=store, clock=OffClock(off), entropy=SeededEntropy(str(off)), remembers=True)
        for off in off_ms
    ]
    await first_leader.start()
    request = named(prepared.send(STANDARD, "m"))
    first = await answer_to(first_leader, request)
    await pass_time(15.0)
    await second_leader.start()

    assert await answer_to(second_leader, request, age_ms=15_000) == first
    assert len(rows(second_leader, MESSAGE)) == 1


@virtual
async def test_leaders_that_write_at_the_same_instant_keep_each_others_answers() -> None:
    store = FragileStore(auto_sync=True)
    requests = [named(prepared.send(STANDARD, "m")) for _ in range(2)]
    answers = []
    for number, request in enumerate(requests):
        world = World(store=store, entropy=SeededEntropy(str(number)), remembers=True)
        await world.start()
        answers.append(await answer_to(world, request))

    assert [await answer_to(world, request, age_ms=1) for request in requests] == answers


@pytest.mark.parametrize("off_ms", [-10_000, 0, 10_000])
@virtual
async def test_a_leader_finds_its_own_answers_beside_those_of_one_whose_clock_was_ahead(
    off_ms: int,
) -> None:
    """Also after a retry, which has all rows until then indexed."""
    store = FragileStore(auto_sync=True)
    first_leader, second_leader = [
        World(store=store, clock=OffClock(off), entropy=SeededEntropy(str(off)), remembers=True)
        for off in (10_000, off_ms)
    ]
    await first_leader.start()
    await answer_to(first_leader, named(prepared.send(STANDARD, "before")))
    await second_leader.start()
    await answer_to(second_leader, named(prepared.send(STANDARD, "retried")), age_ms=1)
    request = named(prepared.send(STANDARD, "m"))
    first = await answer_to(second_leader, request)

    assert await answer_to(second_leader, request, age_ms=1) == first
    await pass_time(30.0)
    assert await answer_to(second_leader, request, age_ms=30_000) == first
    assert len(rows(second_leader, MESSAGE)) == 3


class CountedStore(FragileStore):
    """Counts the rows of remembered answers that are scanned."""

    def __init__(self) -> None:
        super().__init__(auto_sync=True)
        self.scanned = 0

    def scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, value in super().scan(begin, end):
            self.scanned += key[8:9] == ANSWERS
            yield key, value


@virtual
async def test_a_leadership_scans_each_row_once_however_many_requests_are_tried_again() -> None:
    store = CountedStore()
    world = await a_world(store=store)
    requests, answers = [named(prepared.send(STANDARD, "m")) for _ in range(100)], []
    for request in requests:
        answers.append(await answer_to(world, request))
        await pass_time(0.01)
    await world.shard.stop()
    world = await a_world(store=store)

    assert [await answer_to(world, each, age_ms=2_000) for each in requests] == answers
    assert store.scanned < 2 * len(requests)

    await pass_time(60.0)
    assert [await answer_to(world, each, age_ms=70_000) for each in requests[:3]] == answers[:3]
    new = named(prepared.send(STANDARD, "m"))
    first = await answer_to(world, new)
    await pass_time(50.0)
    assert await answer_to(world, new, age_ms=1) != first, "it is too old for that age"
    assert await answer_to(world, requests[5], age_ms=120_000) == answers[5]


# -- bounds ----------------------------------------------------------------------------------------


@virtual
async def test_one_row_for_each_entry_and_none_older_than_eleven_minutes() -> None:
    world = await a_world()
    for _ in range(120):
        for _ in range(3):
            world.ask(named(prepared.send(STANDARD, "m")))
        world.ask(named(prepared.counters(STANDARD)))
        world.ask(named(prepared.delete(STANDARD, Receipt(10_000, 1))))  # changes nothing
        await pass_time(30.0)

    kept = remembered(world)
    assert {len(row.request_ids) for row in kept} == {3}
    assert 20 <= len(kept) <= 23
    assert not [found for found in check_rows(world.store) if isinstance(found, Finding)]


@virtual
async def test_a_retry_is_answered_up_to_its_bound_and_refused_beyond() -> None:
    world = await a_world()
    request = named(prepared.send(STANDARD, "m"))
    first = await answer_to(world, request)
    await pass_time(MANY_MS / 1000)
    await answer_to(world, named(prepared.send(STANDARD, "other")))

    assert await answer_to(world, request, age_ms=MANY_MS) == first
    too_old = await answer_to(world, request, age_ms=MANY_MS + 1)

    assert isinstance(too_old, ServiceUnavailable)
    assert len(rows(world, MESSAGE)) == 2


@virtual
async def test_a_shard_that_does_not_remember_writes_no_such_rows() -> None:
    world = await World().start()
    (sent,) = await world.asked(named(prepared.send(STANDARD, "m")))

    assert sent.refusal is SendMessageResult
    assert remembered(world) == []
