"""Deliveries between shards of one host: what a start and a bug must not spoil."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from structlog.testing import capture_logs

from cluster.shards.delivery import Deliveries
from cluster.shards.router import Router
from cluster.shards.shard import Shard
from cluster.shards.shard_report import News
from cluster.tests.virtual_time import CountingEntropy, virtual
from cluster.tests.world import FragileStore, World, pass_time, state_of
from visibility.contract.errors import ServiceUnavailable
from visibility.contract.model import Request
from visibility.contract.outcomes import Accepted, Answer, OutboxPage
from visibility.contract.stored_message import Arrival, StoredMessage
from visibility.rows.row_codec import encode_row
from visibility.rows.row_values import TARGET_MOVED, OutboxRow
from visibility.rows.state_rows import OUTBOX_KEY
from visibility.rules.departures import ClearOutbox, ReadOutbox

ARRIVAL = Arrival(b"origin", 1, 9, "arn:aws:sqs:eu-west-1:1:q", StoredMessage("m", 1, 1, b"x"))


async def test_a_start_with_lost_entries_has_a_new_origin() -> None:
    """Other shards may know their numbers."""
    store = FragileStore(auto_sync=True)
    store.rows[OUTBOX_KEY] = encode_row(OutboxRow(b"of an earlier one", 7))

    store.came_back_shorter = True

    world = await World(store=store).start()

    outbox = state_of(world.shard).outbox
    assert (outbox.origin, outbox.next_number) == (b"", 7)
    assert outbox.floors(1) == [(b"of an earlier one", 7)], "the other shard is told to forget"


class _Leads(Router):
    """Leads every shard."""

    def leads(self, number: int) -> bool:
        return True


async def _two_shards() -> list[Shard]:
    shards = [(await World().start()).shard for _ in range(2)]
    shards[1].number = 1
    return shards


@virtual
async def test_a_delivery_that_fails_by_a_bug_is_made_again() -> None:
    asked: list[Request] = []

    class Failing(_Leads):
        async def ask_here(self, request: Request) -> Answer:
            if request.operation == ReadOutbox(0):  # its own messages
                return OutboxPage([], [])
            asked.append(request)
            if len(asked) == 1:
                raise RuntimeError("a bug")
            return OutboxPage([], [])

    shards = await _two_shards()
    deliveries = Deliveries(Failing(shards), CountingEntropy())

    deliveries.wake(0, News.LEADS)
    await pass_time(1)

    assert len(asked) == 2
    await deliveries.stop()


@virtual
async def test_a_delivery_that_brings_nothing_forward_is_made_again_less_and_less_often() -> None:
    """The other shard does not know the queue yet: it answers none of the messages."""
    asked_s: list[float] = []
    takes = 0

    class NotYet(_Leads):
        async def ask_here(self, request: Request) -> Answer:
            is_over = takes == 2 or request.operation == ReadOutbox(0)  # its own messages
            return OutboxPage([] if is_over else [ARRIVAL], [])

        async def ask(self, request: Request, age_ms: int = 0) -> Answer:
            nonlocal takes
            asked_s.append(asyncio.get_running_loop().time())
            if len(asked_s) < 8:
                return Accepted([])
            takes += 1
            return Accepted([(ARRIVAL.origin, ARRIVAL.number, "")])

    shards = await _two_shards()
    deliveries = Deliveries(NotYet(shards), CountingEntropy())

    deliveries.wake(0, News.LEADS)
    await pass_time(20)

    pauses = [later - earlier for earlier, later in pairwise(asked_s)]
    assert pauses[:7] == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2])
    assert pauses[7:] == pytest.approx([0.0]), "what is taken goes on at once"
    await deliveries.stop()


@virtual
async def test_a_backup_begins_when_nothing_is_on_its_way_and_all_is_committed() -> None:
    """Rule 31."""
    asked: list[object] = []
    is_cleared, is_copied = asyncio.Event(), asyncio.Event()

    class Slow(_Leads):
        async def ask_here(self, request: Request) -> Answer:
            asked.append(request.operation)
            if isinstance(request.operation, ClearOutbox):
                return await is_cleared.wait() and None
            is_left = request.operation == ReadOutbox(1) and not is_cleared.is_set()
            return OutboxPage([ARRIVAL] if is_left else [], [])

        async def ask(self, request: Request, age_ms: int = 0) -> Answer:
            return Accepted([(ARRIVAL.origin, ARRIVAL.number, "")])

    shards = await _two_shards()
    deliveries = Deliveries(Slow(shards), CountingEntropy())

    async def backup() -> None:
        async with deliveries.paused():
            asked.append(ReadOutbox(-1))
            await is_copied.wait()

    deliveries.wake(0, News.LEADS)
    await pass_time(1)
    copying = asyncio.create_task(backup())
    await pass_time(1)
    assert isinstance(asked[-1], ClearOutbox)
    assert not any(state_of(shard).prepares for shard in shards)

    is_cleared.set()
    await pass_time(1)
    deliveries.wake(0, News.LEADS)
    await pass_time(1)
    assert asked[-3:] == [ReadOutbox(0), ReadOutbox(1), ReadOutbox(-1)]

    is_copied.set()
    await pass_time(1)
    assert len(asked) > asked.index(ReadOutbox(-1)) + 1
    assert all(state_of(shard).prepares for shard in shards)
    await copying
    await deliveries.stop()


class _OneWaits(_Leads):
    """In shard 0 one message for shard 1 waits in its place; others go to it meanwhile."""

    def __init__(self, shards: list[Shard]) -> None:
        super().__init__(shards)
        self.others: list[Arrival] = []
        self.floors: list[tuple[bytes, int]] = []
        self.reads = 0
        self.accepted_s: list[float] = []
        self.away = False

    async def ask_here(self, request: Request) -> Answer:
        if request.operation == ReadOutbox(1):
            self.reads += 1
            return OutboxPage(list(self.others), self.floors, True)
        if isinstance(request.operation, ClearOutbox):
            self.others.clear()
            return None
        return OutboxPage([], [])

    async def ask(self, request: Request, age_ms: int = 0) -> Answer:
        self.accepted_s.append(asyncio.get_running_loop().time())
        if self.away:
            raise ServiceUnavailable()
        return Accepted([(ARRIVAL.origin, ARRIVAL.number, "")])


async def _sending_shards(monkeypatch: pytest.MonkeyPatch) -> list[Shard]:
    shards = await _two_shards()
    monkeypatch.setattr(shards[0], "departs_to", lambda: {1})
    return shards


@pytest.mark.parametrize("idle_s", [0, 0.5, 2, 5, 17])
@virtual
async def test_what_departs_goes_at_once_beside_one_that_waits(
    monkeypatch: pytest.MonkeyPatch, idle_s: float
) -> None:
    router = _OneWaits(await _sending_shards(monkeypatch))
    deliveries = Deliveries(router, CountingEntropy())
    deliveries.wake(0, News.LEADS)
    await pass_time(idle_s)

    begun_s = asyncio.get_running_loop().time()
    router.others.append(ARRIVAL)
    deliveries.wake(0, News.DEPARTURES)
    await pass_time(10)

    assert [each - begun_s for each in router.accepted_s] == pytest.approx([0.0])
    reads = router.reads
    for _ in range(3):  # departures to others
        deliveries.wake(0, News.DEPARTURES)
        await pass_time(0.01)
    assert router.reads == reads + 3
    await deliveries.stop()


@virtual
async def test_what_departs_beside_one_that_waits_is_tried_again_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long that one has waited."""
    router = _OneWaits(await _sending_shards(monkeypatch))
    deliveries = Deliveries(router, CountingEntropy())
    deliveries.wake(0, News.LEADS)
    await pass_time(60)

    router.others.append(ARRIVAL)
    router.away = True
    deliveries.wake(0, News.DEPARTURES)
    await pass_time(2)

    pauses = [later - earlier for earlier, later in pairwise(router.accepted_s)]
    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8])
    await deliveries.stop()


@virtual
async def test_what_departs_to_others_asks_no_shard_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is to forget what was cleared."""
    router = _OneWaits(await _sending_shards(monkeypatch))
    router.floors = [(b"origin", 7)]
    router.away = True
    deliveries = Deliveries(router, CountingEntropy())
    deliveries.wake(0, News.LEADS)
    for _ in range(200):
        await pass_time(0.1)
        deliveries.wake(0, News.DEPARTURES)

    assert len(router.accepted_s) == 10
    await deliveries.stop()


@virtual
async def test_what_is_refused_and_departs_again_is_tried_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each clear lets it depart again, and others depart all the time."""
    asked_s: list[float] = []

    class Refusing(_Leads):
        async def ask_here(self, request: Request) -> Answer:
            if isinstance(request.operation, ClearOutbox):
                deliveries.wake(0, News.DEPARTURES)
                return None
            mine = request.operation == ReadOutbox(1)
            return OutboxPage([ARRIVAL] if mine else [], [], waits=mine)

        async def ask(self, request: Request, age_ms: int = 0) -> Answer:
            asked_s.append(asyncio.get_running_loop().time())
            return Accepted([(ARRIVAL.origin, ARRIVAL.number, TARGET_MOVED)])

    deliveries = Deliveries(Refusing(await _sending_shards(monkeypatch)), CountingEntropy())
    deliveries.wake(0, News.LEADS)
    for _ in range(600):
        await pass_time(0.1)
        deliveries.wake(0, News.DEPARTURES)

    assert len(asked_s) == 18
    pauses = [later - earlier for earlier, later in pairwise(asked_s)]
    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, *[5.0] * 10])
    await deliveries.stop()


@virtual
async def test_messages_for_a_lost_shard_go_another_way() -> None:
    cleared: list[ClearOutbox] = []

    class Lost(_Leads):
        async def ask(self, request: Request, age_ms: int = 0) -> Answer:
            raise AssertionError("nobody asks a lost shard")

        async def ask_here(self, request: Request) -> Answer:
            if request.operation == ReadOutbox(0):
                return OutboxPage([], [])
            if isinstance(request.operation, ClearOutbox):
                cleared.append(request.operation)
                return None
            return OutboxPage([] if cleared else [ARRIVAL], [(b"floor", 1)])

    shards = await _two_shards()
    deliveries = Deliveries(Lost(shards), CountingEntropy(), lost={1})

    deliveries.wake(0, News.LEADS)
    await pass_time(20)

    assert cleared == [ClearOutbox([(ARRIVAL.origin, ARRIVAL.number, TARGET_MOVED)])]
    await deliveries.stop()


@virtual
async def test_so_do_those_that_wait_for_a_while() -> None:
    """In their place: for others, or for a queue that is restored."""
    cleared: list[ClearOutbox] = []
    reads = 0

    class Lost(_Leads):
        async def ask_here(self, request: Request) -> Answer:
            nonlocal reads
            if request.operation == ReadOutbox(0):
                return OutboxPage([], [])
            if isinstance(request.operation, ClearOutbox):
                cleared.append(request.operation)
                return None
            reads += 1
            waits = reads < 3
            return OutboxPage([] if waits or cleared else [ARRIVAL], [], waits)

    shards = await _two_shards()
    deliveries = Deliveries(Lost(shards), CountingEntropy(), lost={1})

    deliveries.wake(0, News.LEADS)
    await pass_time(20)

    assert cleared == [ClearOutbox([(ARRIVAL.origin, ARRIVAL.number, TARGET_MOVED)])]
    assert reads == 4, "then nothing is left"
    await deliveries.stop()


@virtual
async def test_all_who_subscribe_get_a_shards_news() -> None:
    told: list[tuple[int, News]] = []

    def broken(number: int, news: News) -> None:
        raise RuntimeError("a bug")

    world = World()
    for listener in (broken, lambda *each: told.append(each)):
        world.shard.subscribe(listener)

    with capture_logs() as logs:
        await world.start()

    assert told == [(0, News.LEADS)]
    assert [line["event"] for line in logs] == ["news_failed"]
    await world.shard.stop()
