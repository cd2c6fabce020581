"""A cluster that is emptied: begun, shown until nothing is left, cancelled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cluster.catalog.part_rules import NewParts
from cluster.coordination.coordination import Done, Transaction
from cluster.fleet.abandoning import Abandoning
from cluster.fleet.depths import DEPTHS
from cluster.fleet.fleet_records import CLUSTERS, FLEET, ClusterState, FleetCluster, read_fleet
from cluster.fleet.fleet_records import Fleet as Fleets
from cluster.fleet.plan_records import Mode
from cluster.fleet.removing import Removal, ShardLeft
from cluster.members.member_records import Cluster, Members
from cluster.tests.fleet.planned_fleet import CLUSTERS as IN_PLAN
from cluster.tests.fleet.planned_fleet import World
from sqs_api.admin.fleet_pages import FleetPages
from sqs_api.admin.routes import API, Refused
from sqs_api.operators.abandon_answers import AskedAbandoning, abandon_cluster
from sqs_api.operators.emptying_answers import (
    AskedEmptying,
    AskedRemoval,
    EmptyingPages,
    drain_cluster,
    remove_cluster,
    show_emptied_clusters,
)
from sqs_api.tests.test_plan_answers import Request, as_documented, pages_of

FOUNDED = Cluster("c2", (b"3", b"4", b"5"), first_shard=3)


class Fleet:
    """A host's answers; both clusters are founded."""

    def __init__(self, world: World) -> None:
        self.own = 1
        self.world = world
        self.asked: Any = Request()
        view = SimpleNamespace(fleet=read_fleet({}))
        pages: Any = SimpleNamespace(
            root=world.a.root,
            view=view,
            catalog=world.a.catalog,
            hosts_of=lambda number: ["b"],
            is_of=lambda number: number == self.own,
        )
        router: Any = world.a.router
        self.left = {shard: ShardLeft(shard, 0, 0, ()) for shard in range(6)}
        removal = Removal(world.a.root, world.a.catalog, self._ask, lambda: world.now_ms)
        abandoning = Abandoning(
            world.a.root,
            world.a.root.below(DEPTHS),
            world.a.catalog,
            self._ask,
            lambda: world.now_ms,
        )
        self.pages = EmptyingPages(pages, pages_of(world.a, {}), router, removal, abandoning)

    async def _ask(self) -> list[ShardLeft]:
        return list(self.left.values())

    async def begin(self) -> Fleet:
        records: dict[str, bytes | None] = {
            "members/cluster": msgspec.json.encode(Cluster("c1", (b"0", b"1", b"2"))),
            "fleet/2/members/cluster": msgspec.json.encode(FOUNDED),
        }
        for number, first in ((1, 0), (2, 3)):
            record = FleetCluster(
                number=number, name=f"c{number}", first_shard=first, shards=3, founders=()
            )
            records[f"{FLEET}{CLUSTERS}{number}"] = msgspec.json.encode(record)
        assert isinstance(await self.world.a.root.commit(Transaction({}, records)), Done)
        await self.look()
        return self

    async def look(self) -> None:
        """The host hears what the records say."""
        part = self.world.a.root.below(FLEET)
        found: Any = await part.read_all()
        fleet: Any = self.pages.fleet
        fleet.view.fleet = read_fleet({each.key: each.value for each in found.records})
        self.world.clusters = [
            each._replace(is_draining=int(each.name) in fleet.view.fleet.draining)
            for each in IN_PLAN
        ]
        await part.close()


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    world = await World().begin()
    yield await Fleet(world).begin()
    await world.hosts.close()


async def test_a_cluster_is_emptied_and_shown_until_nothing_is_left(fleet: Fleet) -> None:
    world = fleet.world
    queue = await world.hot_queue("q")
    world.loads.clear()
    await world.ticks(1)

    begun = await drain_cluster(fleet.pages, fleet.asked, AskedEmptying(1))

    as_documented("POST", API + "fleet/drain", begun)
    assert fleet.asked.noted == {"cluster": 1, "cancel": False}
    (shown,) = begun.clusters
    assert (shown.number, shown.to_move, shown.under_way, shown.messages) == (1, 1, 0, 1)
    assert "mode shadow" in shown.blocked
    (part,) = shown.parts
    assert (part.queue, part.shard, part.state) == ("q", queue.shard, "open")
    assert part.waits_for.startswith("its turn")

    await fleet.look()
    await world.a.manager.set_mode(Mode.ON)
    await world.ticks(1)
    home = await world.home_of(queue)
    (shown,) = (await show_emptied_clusters(fleet.pages, fleet.asked)).clusters
    assert (shown.to_move, shown.under_way, shown.blocked) == (0, 1, "")
    await world.a.catalog.remove_part(queue.queue_id, home.version)
    await world.home_of(queue)
    found = await show_emptied_clusters(fleet.pages, fleet.asked)
    as_documented("GET", API + "fleet/emptied", found)
    (shown,) = found.clusters
    assert (shown.to_move, shown.under_way, shown.messages, shown.parts) == (0, 0, 0, [])


async def test_the_reason_why_a_queue_stays_is_shown(fleet: Fleet) -> None:
    world = fleet.world
    await world.a.catalog.create_queue(
        ("000000000000", "us-east-1", "q"), {}, {"holdfast:receive-rate": "50"}
    )
    await world.a.manager.set_mode(Mode.ON)
    await world.ticks(2)
    await drain_cluster(fleet.pages, fleet.asked, AskedEmptying(1))
    await fleet.look()
    await world.ticks(1)
    (shown,) = (await show_emptied_clusters(fleet.pages, fleet.asked)).clusters
    assert "tag holdfast:receive-rate is below 100" in shown.parts[0].waits_for


async def test_an_emptied_cluster_is_removed(fleet: Fleet) -> None:
    await drain_cluster(fleet.pages, fleet.asked, AskedEmptying(2))
    await fleet.look()
    fleet.left[4] = ShardLeft(4, 1, 0, ())
    (shown,) = (await show_emptied_clusters(fleet.pages, fleet.asked)).clusters
    assert shown.stays == "shard 4 still has 1 messages: try again"
    with pytest.raises(Refused, match="Not removed: shard 4 still has 1") as refusal:
        await remove_cluster(fleet.pages, fleet.asked, AskedRemoval(2))
    assert refusal.value.status == 409
    fleet.own = 2
    with pytest.raises(Refused, match="Ask a host of another cluster"):
        await remove_cluster(fleet.pages, fleet.asked, AskedRemoval(2))
    fleet.own = 1
    fleet.left[4] = ShardLeft(4, 0, 0, ())
    (shown,) = (await show_emptied_clusters(fleet.pages, fleet.asked)).clusters
    assert shown.stays == ""

    removed = await remove_cluster(fleet.pages, fleet.asked, AskedRemoval(2))

    as_documented("POST", API + "fleet/remove", removed)
    assert fleet.asked.noted["cluster"] == 2
    assert (removed.number, removed.name, removed.hosts) == (2, "c2", ["b"])
    await fleet.look()
    assert (await show_emptied_clusters(fleet.pages, fleet.asked)).clusters == []


async def test_emptying_is_cancelled_and_refused(fleet: Fleet) -> None:
    await drain_cluster(fleet.pages, fleet.asked, AskedEmptying(1))
    await fleet.look()
    with pytest.raises(Refused, match="no other cluster could take") as refusal:
        await drain_cluster(fleet.pages, fleet.asked, AskedEmptying(2))
    assert refusal.value.status == 409
    left = await drain_cluster(fleet.pages, fleet.asked, AskedEmptying(1, cancel=True))
    assert left.clusters == []
    with pytest.raises(Refused, match="has no cluster 9"):
        await drain_cluster(fleet.pages, fleet.asked, AskedEmptying(9))
    with pytest.raises(Refused, match="Only the hosts of a fleet"):
        await show_emptied_clusters(None, fleet.asked)


async def test_a_lost_cluster_is_given_up_once_its_name_is_typed(fleet: Fleet) -> None:
    asked = AskedAbandoning(2, "c1")
    with pytest.raises(Refused, match="confirm its name, c2") as refusal:
        await abandon_cluster(fleet.pages, fleet.asked, asked)
    assert refusal.value.status == 409
    fleet.left = {shard: ShardLeft(shard, 0, 0, ()) for shard in range(3)}
    world = fleet.world
    queue = await world.hot_queue("q")
    await world.a.catalog.move_part(queue, 0, NewParts([3], {queue.queue_id: 1}))
    moved = world.a.catalog.queue(queue.account, queue.region, "q")
    await world.a.catalog.remove_part(queue.queue_id, moved.version)

    done = await abandon_cluster(fleet.pages, fleet.asked, AskedAbandoning(2, "c2"))

    as_documented("POST", API + "fleet/abandon", done)
    assert (done.number, done.name, done.left) == (2, "c2", 0)
    assert [(each.queue, each.parts, each.messages) for each in done.queues] == [("q", 1, None)]
    assert (fleet.asked.noted["queues"], fleet.asked.noted["messages"]) == (1, 0)


async def test_what_is_not_at_its_end_is_a_problem(fleet: Fleet) -> None:
    world = fleet.world
    queue = await world.hot_queue("q")
    members: Any = SimpleNamespace(shown=Members(None, {}, {}, {}))
    leaders: Any = SimpleNamespace(leader_of=lambda shard: "a")
    view: Any = SimpleNamespace(fleet=fleet.pages.fleet.view.fleet, own=9, gateways={})
    view.zones_of = view.alive_of = lambda number: {}
    pages = FleetPages(
        "f", "a", view, members, leaders, world.a.catalog, world.a.root, unheard=tuple
    )
    assert pages.status().problems == []
    record = msgspec.structs.replace(view.fleet.clusters[1], state=ClusterState.ABANDONED)
    view.fleet = Fleets({**view.fleet.clusters, 1: record}, None)
    assert "`holdfast fleet abandon 1` goes on" in pages.status().problems[0]
    await world.a.catalog.delete_queue(queue)
    assert pages.status().problems == []
    pages = pages._replace(unheard=lambda: {4, 3})
    assert pages.status().problems == [
        "shards 3, 4 have not answered a yet: splits, shrinks and moves wait for them"
    ]
