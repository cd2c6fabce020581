"""Fetching the rows of another host."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from random import Random

import pytest
import structlog

from cluster.peers.peer_settings import PeerSettings
from cluster.replication.checkpointing import ON_THIS_MACHINE, CheckpointTraffic, StoreSource
from cluster.replication.replacement import Replacement, RowSource
from cluster.tests.peers.peers import Peer
from cluster.tests.peers.simulated_network import SimulatedNetwork
from cluster.tests.replication.shard_hosts import ShardCluster
from cluster.tests.virtual_time import CountingEntropy, LoopClock, virtual
from storage.copies.replaced_rows import Replaced
from storage.log import BEGINNING, Position

ROWS = Replaced(b"l" * 16, BEGINNING)


class Stage:
    """A replacement whose fetches end as told. It is its own store."""

    def __init__(self) -> None:
        self.needs_rows = True
        self.log_start = 0
        self.dropped = 0
        self.ended = 0
        """Fetches that have let go of their files."""
        self.ended_before_left = -1
        self.outcomes: list[asyncio.Future[Replaced]] = []
        self.fetched = 0
        self.replaced: list[Replaced] = []
        source = RowSource(self._fetch, self.replaced.append, self._leave, self._drop)
        self.replacement = Replacement(self, source, structlog.get_logger("test"))

    async def _fetch(self) -> Replaced:
        self.outcomes.append(asyncio.get_running_loop().create_future())
        try:
            return await self.outcomes[-1]
        finally:
            await asyncio.sleep(0.01)
            self.ended += 1

    def rows_fetched(self) -> None:
        self.fetched += 1

    async def _leave(self) -> None:
        self.ended_before_left = self.ended

    async def _drop(self) -> None:
        self.dropped += 1

    async def end(self, number: int, index: int) -> None:
        """This fetch has the rows of an Entry."""
        self.outcomes[number].set_result(Replaced(b"l" * 16, Position(1, index, 0)))
        await asyncio.sleep(0.02)

    async def begin(self) -> None:
        self.replacement.begin()
        await asyncio.sleep(0.01)


async def run(work: object) -> None:
    """Without a thread."""
    assert callable(work)
    work()


@virtual
async def test_a_fetch_that_failed_is_begun_again() -> None:
    stage = Stage()
    await stage.begin()
    stage.outcomes[0].set_exception(AssertionError("a bug"))
    await asyncio.sleep(0.02)

    await stage.begin()
    stage.outcomes[1].set_result(ROWS)
    await asyncio.sleep(0.02)
    await stage.replacement.put_in_place(run)

    assert stage.fetched == 1
    assert stage.replaced == [ROWS]


@virtual
async def test_rows_that_come_when_none_are_needed_are_dropped() -> None:
    stage = Stage()
    await stage.begin()
    stage.needs_rows = False
    await stage.end(0, 5)
    assert (stage.fetched, stage.dropped, len(stage.outcomes)) == (0, 1, 1)

    stage.needs_rows = True
    await stage.begin()
    await stage.end(1, 6)
    await stage.replacement.put_in_place(run)

    assert [rows.position.index for rows in stage.replaced] == [6]


@virtual
async def test_rows_that_the_log_no_longer_reaches_are_fetched_anew() -> None:
    stage = Stage()
    await stage.begin()
    stage.log_start = 6
    await stage.end(0, 5)
    assert (stage.fetched, stage.dropped, len(stage.outcomes)) == (0, 1, 2)

    await stage.end(1, 6)
    await stage.replacement.put_in_place(run)

    assert [rows.position.index for rows in stage.replaced] == [6]


@virtual
async def test_one_fetch_at_a_time() -> None:
    stage = Stage()
    for _ in range(3):
        await stage.begin()

    assert len(stage.outcomes) == 1
    stage.replacement.cancel()
    await stage.replacement.leave()


@virtual
async def test_a_store_that_ends_waits_for_its_fetch() -> None:
    stage = Stage()
    await stage.begin()

    stage.replacement.cancel()
    await stage.replacement.leave()

    assert stage.ended_before_left == 1


async def test_a_fetch_that_is_cancelled_waits_for_its_thread() -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def write() -> None:
        begun.set()
        may_end.wait()
        ended.set()

    async def fetch() -> None:
        await ON_THIS_MACHINE.in_thread(write)

    task = asyncio.create_task(fetch())
    await asyncio.to_thread(begun.wait)
    task.cancel()
    await asyncio.sleep(0)
    was_done = task.done()
    may_end.set()
    await asyncio.wait([task])

    assert not was_done
    assert ended.is_set()
    assert task.cancelled()


@virtual
async def test_a_host_whose_entries_the_others_lost_gives_no_rows() -> None:
    cluster = ShardCluster(Random(1))
    cluster.start()
    store = (await cluster.leader()).store
    source = StoreSource(store, ON_THIS_MACHINE.read_rows)
    before = source.conflict

    store.replica.forget_after(0, lambda: None)

    assert (before, source.conflict) == ("", f"up to {store.replica.log.last_index}")


@virtual
async def test_a_host_whose_entries_the_others_lost_takes_no_rows_that_were_asked_for() -> None:
    """A fetch takes minutes: meanwhile a leader may come that lacks what this host has."""
    cluster = ShardCluster(Random(1))
    cluster.start()
    store = (await cluster.leader()).store
    store.replica.damage = "a flipped bit"
    before = store.needs_rows

    store.replica.forget_after(0, lambda: None)

    assert (before, store.needs_rows) == (True, False)


@virtual
async def test_damage_is_healed_once_a_leader_has_what_was_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = ShardCluster(Random(1))
    cluster.start()
    store = (await cluster.leader()).store
    begun: list[bool] = []
    monkeypatch.setattr(store.replacement, "begin", lambda: begun.append(store.needs_rows))
    store.replica.forget_after(0, lambda: None)
    store.damaged.met(store.replica, "a flipped bit")
    before = list(begun)

    store.replica.keep_no_longer()

    assert (before, begun) == ([], [True])


@virtual
async def test_rows_are_fetched_while_the_log_is_closed() -> None:
    cluster = ShardCluster(Random(1))
    cluster.start()
    store = (await cluster.leader()).store
    link = Peer("a", SimulatedNetwork(), PeerSettings())
    traffic = CheckpointTraffic(
        link.transport, monotonic_s=LoopClock().monotonic_s, entropy=CountingEntropy()
    )
    store.folder = Path("/nowhere")
    closed = asyncio.Event()
    store.replica.journal.close(closed.set)  # as it is while its files are opened anew
    await closed.wait()

    fetching = asyncio.create_task(traffic.fetch(0, store))
    await asyncio.sleep(0)

    assert not fetching.done(), "it asks the other hosts"
    fetching.cancel()
