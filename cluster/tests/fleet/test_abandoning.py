"""A cluster whose disks are lost for good is given up, never one of which something answers."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from cluster.catalog.part_rules import NewParts
from cluster.coordination.coordination import Transaction
from cluster.fleet.abandoning import Abandoning, GivenUp
from cluster.fleet.depths import DEPTHS, depth_of
from cluster.fleet.fleet_operations import set_draining
from cluster.fleet.fleet_records import FIRST, ClusterState
from cluster.members.member_records import MembershipRefused
from cluster.tests.catalog_file import owner
from cluster.tests.fleet.test_removing import NOTHING_LEFT, TwoClusters
from cluster.tests.virtual_time import virtual
from visibility.contract.model import QueueDefinition

OF_FIRST = NOTHING_LEFT[:3]


class LostCluster(TwoClusters):
    """Clusters of the shards 0 to 2 and 3 to 5; the second one is lost."""

    async def begin(self) -> LostCluster:
        await super().begin()
        await set_draining(self.hosts[0].root, self.view.fleet, 2, is_draining=False)
        self.said = OF_FIRST
        root = self.hosts[0].root
        self.abandoning = Abandoning(
            root, root.below(DEPTHS), self.catalog, self._ask, lambda: 1_000
        )
        return self

    async def lose(self) -> LostCluster:
        for host in self.seconds:
            await host.crash()
        await asyncio.sleep(10)
        return self

    async def queue(self, name: str, *shards: int) -> QueueDefinition:
        first = await self.opened(self.hosts[1], lambda view, name: [shards[0]])
        queue = await first.create_queue(owner(name), {}, {})
        if shards[1:]:
            new = NewParts(shards[1:], {queue.queue_id: 1})
            queue = await first.add_parts(queue, new)
        await self.catalog.caught_up()
        return queue

    async def abandon(self, confirmed: str = "cluster-2", steps: int = 100) -> GivenUp:
        left = iter(range(steps))
        return await self.abandoning.abandon(
            self.view.fleet, 2, confirmed, lambda: next(left, None) is not None
        )

    async def is_refused(self, confirmed: str = "cluster-2") -> str:
        before = await self.world.records()
        with pytest.raises(MembershipRefused) as refused:
            await self.abandon(confirmed)
        assert await self.world.records() == before
        return str(refused.value)


@virtual
async def test_queues_of_a_lost_cluster_go_on_and_the_loss_is_named() -> None:
    fleet = await LostCluster().begin()
    whole = await fleet.queue("whole", 3)
    split = await fleet.queue("split", 4, 1)
    silent = await fleet.queue("silent", 5)
    kept = await fleet.queue("kept", 3)
    await fleet.catalog.delete_queue(kept)
    stays = await fleet.queue("stays", 2)
    root = fleet.hosts[0].root
    for host, at_ms, messages in (("d", 500, 9), ("e", 900, 7)):
        found = [depth_of(3, at_ms, {whole.queue_id: messages}), depth_of(4, at_ms, {})]
        await root.commit(Transaction({}, {DEPTHS + host: msgspec.json.encode(found)}))
    await fleet.lose()

    done = await fleet.abandon()

    assert (done.cluster.number, done.left) == (2, 0)
    told = {each.queue: (each.parts, each.messages, each.at_ms) for each in done.queues}
    assert told == {"whole": (1, 7, 900), "split": (1, 0, 900), "silent": (1, None, None)}
    for queue in (whole, split, silent):
        now = fleet.catalog.queue(*owner(queue.name))
        assert {part.shard for part in now.all_parts()} <= {0, 1}
    assert fleet.catalog.queue(*owner("stays")) == stays
    deleted = fleet.catalog.kept.get(kept.queue_id)
    assert deleted is not None
    assert not deleted.is_needed
    await asyncio.sleep(1)
    assert list(fleet.view.fleet.present) == [FIRST]
    assert fleet.view.fleet.clusters[2].state is ClusterState.ABANDONED
    assert (await fleet.abandon("")).queues == [], "it goes on with what is left, which is nothing"
    with pytest.raises(MembershipRefused, match="cluster 2 was given up"):
        await fleet.removal.remove(fleet.view.fleet, 2)
    await fleet.world.close()


@virtual
async def test_whoever_gives_up_may_die_and_is_asked_again() -> None:
    fleet = await LostCluster().begin()
    for number in range(3):
        await fleet.queue(f"q{number}", 3 + number)
    await fleet.lose()
    done = await fleet.abandon(steps=1)
    assert (len(done.queues), done.left) == (1, 2)
    done = await fleet.abandon("")
    assert (len(done.queues), done.left) == (2, 0)
    await fleet.world.close()


@virtual
async def test_a_cluster_of_which_something_answers_is_not_given_up() -> None:
    fleet = await LostCluster().begin()
    assert "host d of cluster 2 is running" in await fleet.is_refused()
    await fleet.lose()
    assert "confirm its name, cluster-2" in await fleet.is_refused("2")
    assert "confirm its name, cluster-2" in await fleet.is_refused("")
    fleet.said = (*OF_FIRST, NOTHING_LEFT[4])
    assert "shard 4 answers" in await fleet.is_refused()
    fleet.said = OF_FIRST
    with pytest.raises(MembershipRefused, match="cluster 1 stays"):
        await fleet.abandoning.abandon(fleet.view.fleet, 1, "cluster-1", lambda: True)
    await set_draining(fleet.hosts[0].root, fleet.view.fleet, 1, is_draining=True)
    assert "no other cluster could take the queues" in await fleet.is_refused()
    await fleet.world.close()


def test_the_deepest_queues_of_a_shard_are_named() -> None:
    found = depth_of(1, 5, dict(enumerate([0, *range(1, 600)])))
    assert (len(found.queues), found.queues[599], 99 in found.queues) == (500, 599, False)
    assert found.others == sum(range(1, 100))
