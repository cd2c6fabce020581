"""Catalogs of several hosts on one etcd, and on a model of it that loses, compacts and elects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

import pytest

from cluster.catalog.catalog import Catalog
from cluster.catalog.catalog_records import name_of, queue_key
from cluster.catalog.queue_rules import Waits
from cluster.catalog.queue_view import Kind, QueueChange
from cluster.clock import Clock
from cluster.coordination.coordination import Outcome, Transaction
from cluster.coordination.etcd_client import Access
from cluster.coordination.etcd_coordination import EtcdCoordination
from cluster.coordination.etcd_wire import HttpWire
from cluster.tests.catalog_file import owner
from cluster.tests.catalogs import opened_catalog
from cluster.tests.coordinations import Hosts, until
from cluster.tests.etcd_processes import EtcdProcesses
from cluster.tests.simulated_etcd import SimulatedEtcd
from cluster.tests.simulated_wire import SimulatedWire
from cluster.tests.virtual_time import (
    LoopClock,
    SettableClock,
    virtual,
)
from visibility.contract.errors import (
    PurgeQueueInProgress,
    QueueDeletedRecently,
    QueueDoesNotExist,
    QueueError,
    QueueNameExists,
    ServiceUnavailable,
)
from visibility.contract.model import QueueDefinition

pytestmark = pytest.mark.slow

WINDOW_MS = 3_600_000


async def opened(
    coordination: EtcdCoordination,
    clock: Clock,
    *,
    waits: Waits = Waits(),  # noqa: B008  a value
    window_ms: int = WINDOW_MS,
) -> Catalog:
    return await opened_catalog(
        coordination,
        clock=clock,
        waits=waits,
        restore_window_ms=window_ms,
    )


class Catalogs:
    """Two hosts on a running etcd."""

    def __init__(self, etcd: EtcdProcesses) -> None:
        self.hosts = Hosts(Access(etcd.endpoints), HttpWire)
        self.clock = SettableClock()
        self.one: Catalog
        self.other: Catalog

    async def open(self) -> None:
        self.one, self.other = [await self.another() for _ in range(2)]

    async def another(self) -> Catalog:
        return await opened(self.hosts.host(), self.clock)

    async def agree(self) -> None:
        """Wait until both views show the same."""
        await until(lambda: state(self.one) == state(self.other))


@pytest.fixture
async def catalogs(etcd: EtcdProcesses) -> AsyncIterator[Catalogs]:
    made = Catalogs(etcd)
    await made.open()
    yield made
    await made.hosts.close()


def state(catalog: Catalog) -> object:
    """The records as a view shows them; times of purges are remembered beyond them."""
    queues = {
        queue.queue_id: (queue, catalog.revision_of(queue_key(name_of(queue)))) for queue in catalog
    }
    kept = {each.queue.queue_id: each for each in catalog.kept}
    return queues, kept, catalog.highest_queue_id, catalog.freed_at_ms


async def test_a_queue_that_one_host_creates_is_seen_by_the_other(catalogs: Catalogs) -> None:
    one, other = catalogs.one, catalogs.other
    heard: list[QueueChange] = []
    other.subscribe(heard.append)

    queue = await one.create_queue(owner("q"), {"DelaySeconds": "7"}, {"team": "blue"})
    await until(lambda: len(other) == 1)
    assert other.queue(*owner("q")) == queue
    await one.set_attributes(queue, {"DelaySeconds": "8"})
    await one.purge_queue(queue)
    await catalogs.agree()
    await other.delete_queue(other.queue(*owner("q")))
    await catalogs.agree()

    with pytest.raises(QueueDoesNotExist):
        one.queue(*owner("q"))
    assert [change.kind for change in heard] == [Kind.CHANGED, Kind.PURGED, Kind.DELETED]
    third = await catalogs.another()
    assert state(third) == state(one)


async def test_an_id_is_issued_once(catalogs: Catalogs) -> None:
    one, other = catalogs.one, catalogs.other

    made = await asyncio.gather(
        *[one.create_queue(owner(f"a{number}"), {}, {}) for number in range(6)],
        *[other.create_queue(owner(f"b{number}"), {}, {}) for number in range(6)],
    )
    for queue in made[:3]:
        await one.delete_queue(queue)
    catalogs.clock.at_ms += 61_000
    again = [await other.create_queue(owner(f"a{number}"), {}, {}) for number in range(3)]

    ids = [queue.queue_id for queue in [*made, *again]]
    assert sorted(ids) == list(range(1, 16))


async def test_of_two_hosts_that_create_a_name_one_wins(catalogs: Catalogs) -> None:
    one, other = catalogs.one, catalogs.other

    same = await asyncio.gather(
        one.create_queue(owner("same"), {"DelaySeconds": "7"}, {}),
        other.create_queue(owner("same"), {"DelaySeconds": "7"}, {}),
    )
    assert same[0] == same[1]

    outcomes = await asyncio.gather(
        one.create_queue(owner("differs"), {"DelaySeconds": "7"}, {}),
        other.create_queue(owner("differs"), {"DelaySeconds": "8"}, {}),
        return_exceptions=True,
    )
    (winner,) = [each for each in outcomes if isinstance(each, QueueDefinition)]
    (refused,) = [each for each in outcomes if isinstance(each, QueueNameExists)]
    assert "DelaySeconds" in str(refused)
    assert one.queue(*owner("differs")) == other.queue(*owner("differs")) == winner


async def test_waits_that_aws_imposes_hold_on_every_host(catalogs: Catalogs) -> None:
    one, other = catalogs.one, catalogs.other
    queue = await one.create_queue(owner("q"), {}, {})
    await catalogs.agree()

    purges = await asyncio.gather(
        one.purge_queue(queue), other.purge_queue(queue), return_exceptions=True
    )
    assert sum(isinstance(each, PurgeQueueInProgress) for each in purges) == 1
    deletes = await asyncio.gather(
        one.delete_queue(queue), other.delete_queue(queue), return_exceptions=True
    )
    assert sum(isinstance(each, QueueDoesNotExist) for each in deletes) == 1
    await catalogs.agree()
    for catalog in (one, other):
        with pytest.raises(QueueDeletedRecently):
            await catalog.create_queue(owner("q"), {}, {})


async def test_more_queues_end_their_window_than_fit_into_a_transaction(
    catalogs: Catalogs,
) -> None:
    one = catalogs.one
    for number in range(140):
        await one.delete_queue(await one.create_queue(owner(f"q{number}"), {}, {}))
    catalogs.clock.at_ms += WINDOW_MS + 61_000

    await one.end_windows(catalogs.clock.at_ms)
    last = await one.create_queue(owner("last"), {}, {})
    await one.delete_queue(last)

    assert len(one.kept.in_state(one.kept.state_of_removed)) == 1
    await catalogs.agree()


async def test_a_host_that_catches_up_shows_what_another_one_made(catalogs: Catalogs) -> None:
    one, other = catalogs.one, catalogs.other
    for number in range(5):
        queue = await one.create_queue(owner(f"q{number}"), {}, {})
        shown = asyncio.Event()

        other.when_caught_up(shown.set)
        await shown.wait()

        assert other.queue_of_id(queue.queue_id) == queue


class Overtaken:
    """A coordination after whose commits something happens before the committing host goes on."""

    def __init__(self, inner: EtcdCoordination) -> None:
        self._inner = inner
        self.then: Callable[[], Awaitable[None]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, transaction: Transaction) -> Outcome:
        outcome = await self._inner.commit(transaction)
        if self.then is not None:
            await self.then()
        return outcome


async def test_a_queue_that_another_host_deletes_at_once_was_made(catalogs: Catalogs) -> None:
    overtaken = Overtaken(catalogs.hosts.host())
    one = await opened(overtaken, catalogs.clock)  # type: ignore[arg-type]
    overtaken.then = partial(delete_and_see, catalogs.other, one)

    created = await one.create_queue(owner("q"), {"DelaySeconds": "7"}, {})

    assert created.settings.delay_ms == 7_000
    assert one.find(owner("q")) is None


async def test_restoring_a_purge_whose_queue_is_deleted_meanwhile_is_refused(
    catalogs: Catalogs,
) -> None:
    overtaken = Overtaken(catalogs.hosts.host())
    one = await opened(overtaken, catalogs.clock)  # type: ignore[arg-type]
    purged = await one.create_queue(owner("q"), {}, {})
    await one.purge_queue(purged)
    overtaken.then = partial(delete_and_see, catalogs.other, one)

    with pytest.raises(QueueDoesNotExist):
        await one.restore_queue(purged.queue_id)


async def delete_and_see(other: Catalog, one: Catalog) -> None:
    """One host deletes the queue, and the other sees it."""
    await until(lambda: other.find(owner("q")) is not None)
    await other.caught_up()
    await other.delete_queue(other.queue(*owner("q")))
    await until(lambda: one.find(owner("q")) is None)


# -- on the model ----------------------------------------------------------------------------------


class Simulated:
    """Three hosts whose watches break, and whose changes are compacted."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.etcd = SimulatedEtcd(self.random)
        self.wires = [SimulatedWire(self.etcd, self.random) for _ in range(3)]
        self.hosts = Hosts(Access(self.etcd.endpoints), HttpWire, LoopClock())
        self.catalogs: list[Catalog] = []
        self.heard: list[set[tuple[Kind, int]]] = [set() for _ in self.wires]

    async def open(self) -> None:
        for wire, heard in zip(self.wires, self.heard, strict=True):
            host = self.hosts.host(wire, deadline_s=3)
            catalog = await opened(host, LoopClock(), waits=Waits(0, 0), window_ms=5_000)
            catalog.subscribe(
                lambda change, heard=heard: heard.add((change.kind, change.queue.queue_id))  # type: ignore[misc]
            )
            self.catalogs.append(catalog)

    async def trouble(self) -> None:
        for _ in range(12):
            wire = self.random.choice(self.wires[1:])
            wire.is_cut = not wire.is_cut
            wire.loss = self.random.choice([0.0, 0.05])
            await asyncio.sleep(self.random.uniform(0.5, 5))
            self.etcd.compact()
            if self.random.random() < 0.3 and self.etcd.has_leader:
                self.etcd.lose_leader()
        for wire in self.wires:
            wire.is_cut, wire.loss = False, 0.0

    async def act(self, catalog: Catalog) -> None:
        """Any action on any queue."""
        name = owner(self.random.choice("abc"))
        queue = catalog.find(name)
        if queue is None:
            await catalog.create_queue(name, {}, {})
            return
        kept = [each.queue.queue_id for each in catalog.restorable_queues()]
        action = self.random.choice(["purge", "delete", "tag", "restore", "forget", "end"])
        if action == "purge":
            await catalog.purge_queue(queue)
        elif action == "delete":
            await catalog.delete_queue(queue)
        elif action == "tag":
            await catalog.tag_queue(queue, {"n": str(self.random.random())})
        elif action == "restore" and kept:
            await catalog.restore_queue(kept[0])
        elif action == "forget" and kept:
            await catalog.forget_queue(kept[-1])
        elif action == "end":
            await catalog.end_windows(LoopClock().now_ms())

    async def work(self, catalog: Catalog) -> None:
        for _ in range(40):
            with suppress(QueueError, ServiceUnavailable):
                await self.act(catalog)
            await asyncio.sleep(self.random.uniform(0, 1))


@pytest.mark.parametrize("seed", range(5))
def test_views_that_lost_their_place_show_what_others_do(seed: int) -> None:
    @virtual
    async def run() -> None:
        world = Simulated(seed)
        await world.open()

        await asyncio.gather(world.trouble(), *map(world.work, world.catalogs))
        await asyncio.sleep(30)

        states = [state(catalog) for catalog in world.catalogs]
        assert states[1:] == states[:-1]
        for kept in world.catalogs[0].kept:
            if kept.continued_as:
                change = (Kind.PURGED, kept.queue.queue_id)
                assert all(change in heard for heard in world.heard)
        await world.hosts.close()

    run()
