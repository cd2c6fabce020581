"""An emptied cluster leaves the fleet for good, and only one that has nothing any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from cluster.catalog.catalog import Catalog
from cluster.catalog.part_rules import NewParts
from cluster.catalog.queue_rules import Waits
from cluster.catalog.queue_view import QueueView
from cluster.clock import SystemEntropy
from cluster.coordination.coordination import Coordination, Outcome, Transaction
from cluster.fleet.fleet_operations import add_cluster, cluster_of_workers, set_draining
from cluster.fleet.fleet_records import FIRST, ClusterState, NewCluster
from cluster.fleet.fleet_view import FleetView, watched
from cluster.fleet.removing import Removal, ShardLeft
from cluster.members.member_records import MembershipRefused
from cluster.tests.catalog_file import owner
from cluster.tests.catalogs import opened_catalog
from cluster.tests.fleet.test_fleet_records import NOTHING, SECOND, founded_second
from cluster.tests.members.joining import Host, SimulatedWorld
from cluster.tests.planned_hosts import ChoosingHosts
from cluster.tests.virtual_time import virtual
from visibility.contract.errors import ServiceUnavailable, UnsupportedOperation

NOTHING_LEFT = tuple(ShardLeft(shard, 0, 0, ()) for shard in range(6))


class TwoClusters:
    """Clusters of the shards 0 to 2 and 3 to 5, of which the second one is being emptied."""

    def __init__(self) -> None:
        self.world = SimulatedWorld()
        self.said: Sequence[ShardLeft] = NOTHING_LEFT
        self.on_asked: Callable[[], object] = lambda: None
        self.hosts: list[Host]
        self.seconds: list[Host]
        self.view: FleetView
        self.catalog: Catalog
        self.removal: Removal

    async def begin(self) -> TwoClusters:
        self.hosts = await self.world.founded()
        self.seconds = await founded_second(self.world, self.hosts)
        root = self.hosts[0].root
        self.view = FleetView({key: root.below(key) for key in watched(FIRST)}, FIRST)
        await self.view.begin()
        await set_draining(root, self.view.fleet, 2, is_draining=True)
        self.catalog = await self.opened(self.hosts[0], lambda view, name: [0])
        self.removal = Removal(root, self.catalog, self._ask, lambda: 1_000)
        return self

    async def opened(
        self,
        host: Host,
        choose: Callable[[QueueView, object], Sequence[int]],
        records: Coordination | None = None,
    ) -> Catalog:
        return await opened_catalog(
            records or host.root.below("catalog/"),
            entropy=SystemEntropy(),
            shards=range(6),
            waits=Waits(0, 0),
            others=ChoosingHosts(choose),
            restore_window_ms=60_000,
        )

    async def _ask(self) -> Sequence[ShardLeft]:
        said, outcome = self.said, self.on_asked()
        if asyncio.iscoroutine(outcome):
            await outcome
        return said

    async def refusal(self, number: int = 2) -> str:
        before = await self.world.records()
        with pytest.raises(MembershipRefused) as refused:
            await self.removal.remove(self.view.fleet, number)
        assert await self.world.records() == before
        assert await self.removal.reason_against(number) == str(refused.value)
        return str(refused.value)


def with_left(*changed: ShardLeft) -> list[ShardLeft]:
    return [*({each.shard: each for each in (*NOTHING_LEFT, *changed)}.values())]


@virtual
async def test_an_emptied_cluster_is_removed_and_its_numbers_are_not_given_out_again() -> None:
    fleet = await TwoClusters().begin()
    stopped: list[str] = []
    root = fleet.seconds[0].root
    own = FleetView({key: root.below(key) for key in watched(2)}, 2, lambda: stopped.append("d"))
    await own.begin()
    assert await fleet.removal.reason_against(2) == ""

    removed = await fleet.removal.remove(fleet.view.fleet, 2)

    assert removed.state is ClusterState.REMOVED
    await asyncio.sleep(1)
    assert stopped == ["d"]
    assert (fleet.view.founded, fleet.view.neighbours) == ({}, {})
    assert list(fleet.view.fleet.present) == [FIRST]
    assert await fleet.removal.remove(fleet.view.fleet, 2) == removed, "nothing is left to do"
    with pytest.raises(MembershipRefused, match="cluster 2 was removed"):
        await set_draining(root, fleet.view.fleet, 2, is_draining=False)
    with pytest.raises(MembershipRefused, match="no other cluster could take"):
        await set_draining(root, fleet.view.fleet, 1, is_draining=True)
    again = await add_cluster(root, fleet.view.fleet, NewCluster("", SECOND, 3))
    assert (again.number, list(again.numbers)) == (3, [6, 7, 8]), "the same hosts, other numbers"
    await fleet.world.close()


@virtual
async def test_what_a_cluster_still_has_is_named_and_keeps_it() -> None:
    fleet = await TwoClusters().begin()
    assert "cluster 1 stays" in await fleet.refusal(1)
    assert "has no cluster 9" in await fleet.refusal(9)
    for changed, reason in (
        (ShardLeft(4, 2, 0, ()), "shard 4 still has 2 messages"),
        (ShardLeft(5, 0, 3, ()), "3 messages of shard 5 wait for the archive"),
        (ShardLeft(3, 0, 0, (0,)), "messages of shard 3 are on their way to other shards"),
        (ShardLeft(1, 0, 0, (0, 4)), "messages of shard 1 are on their way to shard 4"),
    ):
        fleet.said = with_left(changed)
        assert reason in await fleet.refusal()
    fleet.said = with_left(ShardLeft(1, 7, 7, (0,)))
    assert await fleet.removal.reason_against(2) == "", "others keep what they have"
    fleet.said = [each for each in NOTHING_LEFT if each.shard != 1]
    assert "the leader of shard 1 does not say" in await fleet.refusal()
    fleet.said = NOTHING_LEFT
    of_second = await fleet.opened(fleet.seconds[0], lambda view, name: [3])
    queue = await of_second.create_queue(owner("q"), {}, {})
    await fleet.catalog.caught_up()
    assert "has 1 parts of queues, one of queue q" in await fleet.refusal()
    await of_second.delete_queue(queue)
    await fleet.catalog.caught_up()
    assert "keeps 1 deleted or purged queues" in await fleet.refusal()
    await set_draining(fleet.hosts[0].root, fleet.view.fleet, 2, is_draining=False)
    assert "`holdfast fleet drain-cluster 2` empties it" in await fleet.refusal()
    await fleet.world.close()


@virtual
async def test_a_queue_that_is_made_while_shards_are_asked_keeps_the_cluster() -> None:
    fleet = await TwoClusters().begin()
    lagging = await fleet.opened(fleet.seconds[0], lambda view, name: [3])
    fleet.on_asked = lambda: lagging.create_queue(owner("q"), {}, {})
    with pytest.raises(MembershipRefused, match="one of queue q"):
        await fleet.removal.remove(fleet.view.fleet, 2)
    await fleet.world.close()


@virtual
async def test_shards_are_asked_again_if_a_queue_came_and_went_meanwhile() -> None:
    fleet = await TwoClusters().begin()
    lagging = await fleet.opened(fleet.seconds[0], lambda view, name: [3])

    async def come_and_go() -> None:
        if fleet.said is NOTHING_LEFT:
            queue = await lagging.create_queue(owner("q"), {}, {})
            await lagging.delete_queue(queue)
            await lagging.forget_queue(queue.queue_id)
            fleet.said = with_left(ShardLeft(3, 1, 0, ()))

    fleet.on_asked = come_and_go
    with pytest.raises(MembershipRefused, match="shard 3 still has 1 messages"):
        await fleet.removal.remove(fleet.view.fleet, 2)
    await fleet.world.close()


@virtual
async def test_a_queue_that_was_decided_before_is_not_made_on_a_removed_shard() -> None:
    """The process that makes it has not heard that the cluster is being emptied."""
    fleet = await TwoClusters().begin()
    records = fleet.seconds[0].root.below("catalog/")
    commit, decided, go = records.commit, asyncio.Event(), asyncio.Event()

    async def held(transaction: Transaction) -> Outcome:
        if transaction.changes:
            decided.set()
            await go.wait()
        return await commit(transaction)

    records.commit = held  # type: ignore[method-assign]
    lagging = await fleet.opened(fleet.seconds[0], lambda view, name: [3], records)
    making = asyncio.create_task(lagging.create_queue(owner("q"), {}, {}))
    await decided.wait()
    await fleet.removal.remove(fleet.view.fleet, 2)
    go.set()
    with pytest.raises(ServiceUnavailable):
        await making
    assert len(lagging) == 0
    queue = await fleet.catalog.create_queue(owner("q"), {}, {})
    with pytest.raises(UnsupportedOperation, match="Shard 4 is of a cluster"):
        await fleet.catalog.add_parts(queue, NewParts([4], {queue.queue_id: 1}))
    await fleet.world.close()


@virtual
async def test_clusters_of_workers_go_with_their_hosts() -> None:
    fleet = await TwoClusters().begin()
    root = fleet.seconds[0].root
    workers = await cluster_of_workers(root, 2, 1)
    assert workers is not None
    assert "goes with that one" in await fleet.refusal(workers.number)
    assert f"`holdfast fleet drain-cluster {workers.number}` empties it" in await fleet.refusal(2)
    await set_draining(root, NOTHING, workers.number, is_draining=True)
    await fleet.removal.remove(NOTHING, 2)
    await asyncio.sleep(1)
    assert list(fleet.view.fleet.present) == [FIRST]
    await fleet.world.close()
