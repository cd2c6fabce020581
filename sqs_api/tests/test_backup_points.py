"""The point of a cluster's backup: hosts that hold still, over simulated connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.clock import SystemClock
from cluster.coordination.coordination import Transaction
from cluster.copies.backup import CopiedRows
from cluster.fleet.fleet_records import FIRST
from cluster.peers.questions import Question, Questions
from cluster.tests.memory_coordination import MemoryCoordination
from cluster.tests.peers.peers import SETTINGS, Peer, start
from cluster.tests.peers.simulated_network import SimulatedNetwork
from cluster.tests.virtual_time import CountingEntropy, virtual
from sqs_api.admin.backup_points import ClusterPoint
from sqs_api.admin.backups import Backups
from sqs_api.admin.quiesce import ACTION, HOLD_S, QuiescedHost
from sqs_api.gateway_host import GatewayHost
from storage.copies.manifest import BackupRefused
from storage.log import Position

QUEUE = "catalog/queues/1/r/q"
TERM, COMMITTED = 7, 40
_meanwhile: list[Awaitable[None]] = []
"""Happens before the thread that copies has ended."""


@pytest.fixture(autouse=True)
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual time would pass while a thread works."""

    async def at_once(work: Callable[..., Any], *arguments: Any) -> Any:
        made = work(*arguments)
        while _meanwhile:
            await _meanwhile.pop()
        return made

    monkeypatch.setattr(asyncio, "to_thread", at_once)


class Host:
    """A host of three; a and b lead a shard each."""

    def __init__(self, peer: Peer) -> None:
        self.name = peer.name
        self.is_still = False
        self.led = {"a": [0], "b": [1], "c": []}[peer.name]
        self.stores = {number: _Store(number) for number in (0, 1)}
        self.questions = Questions(peer.transport)
        self.quiesced = QuiescedHost(self._quiesce, self.opened, lambda number: number in self.led)
        self.questions.serve(ACTION, self.quiesced.answer)

    def opened(self) -> Any:
        return self.stores

    @asynccontextmanager
    async def _quiesce(self) -> AsyncIterator[None]:
        self.is_still = True
        try:
            yield
        finally:
            self.is_still = False


class _Store:
    """A host's rows of a shard, and its replica."""

    def __init__(self, number: int) -> None:
        self.applied = Position(TERM, COMMITTED, 0)
        promise = SimpleNamespace(term=TERM)
        self.replica = SimpleNamespace(
            commit=COMMITTED, journal=SimpleNamespace(promise=promise), damage=""
        )
        self.is_confirmed = True
        self.checkpoint = number

    def confirm(self, done: Callable[[bool], None]) -> None:
        asyncio.get_running_loop().call_soon(done, self.is_confirmed)


class World:
    """The cluster, and a backup that its host c makes."""

    def __init__(self) -> None:
        self.network = SimulatedNetwork()
        self.root = MemoryCoordination()
        self.peers = [Peer(name, self.network, SETTINGS) for name in "abc"]
        self.hosts = {peer.name: Host(peer) for peer in self.peers}
        self.still_at_copies: list[list[str]] = []
        """The hosts that held still, each time that rows were copied."""
        self.copied = {number: Position(TERM, COMMITTED, 0) for number in (0, 1)}
        self.on_copy: Callable[[], None] = lambda: None
        self.put: dict[str, bytes] = {}

    def take_rows(self, checkpoints: dict[str, Any]) -> dict[str, CopiedRows]:
        assert sorted(checkpoints) == ["shard-0", "shard-1"]
        self.still_at_copies.append(self.still())
        self.on_copy()
        return {f"shard-{n}": CopiedRows(self.copied[n], 10 + n) for n in self.copied}

    def check(self) -> None:
        """The service does not stop."""

    def put_records(self, records: dict[str, bytes]) -> None:
        self.put = records

    def still(self) -> list[str]:
        return [name for name, host in self.hosts.items() if host.is_still]

    async def commit(self, key: str, value: bytes) -> None:
        found = self.root.records.get(key)
        revision = 0 if found is None else found.revision
        await self.root.commit(Transaction({key: revision}, {key: value}))

    async def back_up(self) -> int:
        host = self.hosts["c"]
        point = ClusterPoint(
            "holdfast",
            host.questions,
            self.root,
            host.opened,
            CountingEntropy(),
            number=FIRST,
            others=dict,
        )
        draft: Any = self
        named: Any = {number: (f"shard-{number}", None) for number in (0, 1)}
        return await point.copy(draft, named)

    async def refused(self) -> str:
        with pytest.raises(BackupRefused) as refused:
            await self.back_up()
        await asyncio.sleep(30)
        assert self.still() == []
        assert self.put == {}
        return str(refused.value)


@asynccontextmanager
async def three_hosts() -> AsyncIterator[World]:
    world = World()
    await start(world.peers)
    await world.commit(QUEUE, b"1")
    await world.commit("keyring/root", b"2")
    await world.commit("members/cluster", b"3")
    await world.commit("catalog/.writers/a/1", b"4")
    try:
        yield world
    finally:
        for host in world.hosts.values():
            await host.quiesced.stop()
        for peer in world.peers:
            await peer.transport.stop()


@virtual
async def test_all_hosts_hold_still_while_rows_are_copied_and_records_are_of_later() -> None:
    async with three_hosts() as world:
        assert await world.back_up() == 11

        assert world.still_at_copies == [["a", "b", "c"]]
        assert world.still() == []
        assert world.put == {QUEUE: b"1", "keyring/root": b"2"}


@virtual
async def test_rows_are_copied_once_they_have_what_leaders_had_committed() -> None:
    async with three_hosts() as world:
        store = world.hosts["c"].stores[1]
        store.applied = Position(TERM, COMMITTED - 1, 0)
        backing_up = asyncio.create_task(world.back_up())
        await asyncio.sleep(3)
        assert world.still() == ["a", "b", "c"]
        assert world.still_at_copies == []

        store.applied = Position(TERM, COMMITTED, 0)

        await backing_up
        assert len(world.still_at_copies) == 1


@virtual
async def test_a_host_whose_rows_stay_behind_makes_no_backup() -> None:
    async with three_hosts() as world:
        world.hosts["c"].stores[1].applied = Position(TERM, COMMITTED - 1, 0)

        assert (await world.refused()).startswith("the rows of shard 1 on this host lack what")


@virtual
async def test_a_host_with_damaged_rows_makes_no_backup() -> None:
    async with three_hosts() as world:
        world.hosts["c"].stores[0].replica.damage = "a block"

        assert (await world.refused()).startswith("the rows of shard 0 on this host are damaged")


@virtual
async def test_a_change_of_leaders_meanwhile_makes_the_copies_worthless() -> None:
    async with three_hosts() as world:
        world.copied[1] = Position(TERM + 1, COMMITTED + 1, 0)

        assert await world.refused() == "shard 1 changed its leader or its rows; try again"

        assert world.still_at_copies == 3 * [["a", "b", "c"]]


@virtual
async def test_copies_are_made_again_after_a_disturbance() -> None:
    async with three_hosts() as world:
        world.copied[1] = Position(TERM + 1, COMMITTED + 1, 0)

        def lead() -> None:
            world.on_copy = lambda: None
            world.hosts["b"].stores[1].replica.journal.promise.term = TERM + 1

        world.on_copy = lead
        await world.back_up()

        assert len(world.still_at_copies) == 2


@virtual
async def test_a_leader_that_cannot_be_asked_is_one_too_many() -> None:
    async with three_hosts() as world:
        world.network.crash("b")
        await asyncio.sleep(10)

        assert await world.refused() == "no host that answers leads shard 1; try again"

        assert world.still_at_copies == []


@virtual
async def test_a_leader_that_a_majority_does_not_confirm_is_none() -> None:
    async with three_hosts() as world:
        world.hosts["a"].stores[0].is_confirmed = False

        assert await world.refused() == "no host that answers leads shard 0; try again"


@virtual
async def test_a_host_that_leads_nothing_may_be_away() -> None:
    async with three_hosts() as world:
        world.hosts["a"].led = [0, 1]
        world.network.crash("b")
        await asyncio.sleep(10)

        await world.back_up()

        assert world.still_at_copies == [["a", "c"]]


@virtual
async def test_queues_that_an_absent_host_changed_make_the_copies_worthless() -> None:
    async with three_hosts() as world:

        def change() -> None:
            world.on_copy = lambda: None
            _meanwhile.append(world.commit(QUEUE, b"changed"))

        world.on_copy = change
        await world.back_up()

        assert len(world.still_at_copies) == 2
        assert world.put[QUEUE] == b"changed"


@virtual
async def test_a_host_that_went_on_too_early_makes_the_copies_worthless() -> None:
    async with three_hosts() as world:
        world.on_copy = lambda: _meanwhile.append(world.hosts["b"].quiesced.stop())

        assert await world.refused() == "host b did not hold still until all was copied; try again"


@virtual
async def test_two_backups_at_once_do_not_release_each_other() -> None:
    async with three_hosts() as world:
        body = json.dumps({"name": "hold", "token": "other"}).encode()
        await world.hosts["c"].questions.ask("b", Question(ACTION, b"", body), 5)

        with pytest.raises(BackupRefused, match="another backup holds host b still"):
            await world.back_up()

        assert world.still() == ["b"]


@virtual
async def test_a_hold_ends_by_itself_if_its_backup_does_not_come_back() -> None:
    async with three_hosts() as world:
        body = json.dumps({"name": "hold", "token": "lost"}).encode()
        await world.hosts["c"].questions.ask("b", Question(ACTION, b"", body), 5)
        await asyncio.sleep(HOLD_S - 1)
        assert world.still() == ["b"]

        await asyncio.sleep(2)

        assert world.still() == []


@virtual
async def test_without_etcd_there_is_no_backup() -> None:
    async with three_hosts() as world:
        world.root.is_away = True

        assert await world.refused() == "cannot read the cluster's records: it is away"


async def test_a_gateway_names_who_makes_the_backup(tmp_path: Path) -> None:
    nothing: Any = SimpleNamespace()
    point = GatewayHost.backup_point(nothing, nothing, nothing)
    backups = Backups(
        tmp_path / "data", {}, point=point, store_of=nothing, clock=SystemClock(), version="1"
    )

    with pytest.raises(BackupRefused, match="have a host make the backup"):
        await backups.make(tmp_path / "backup", with_master_key=False)

    assert not (tmp_path / "backup").exists()
