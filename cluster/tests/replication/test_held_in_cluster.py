"""Held messages after a failover: the next leader keeps, deletes or releases them."""

from __future__ import annotations

from cluster.tests.replication.shard_hosts import ShardCluster, ShardHost
from cluster.tests.replication.test_shards import Q, bodies, received, sent, staged
from cluster.tests.world import pass_time
from visibility.contract.outcomes import BrowsedPage, SelectedChanged
from visibility.rules.browse import BrowseMessages
from visibility.rules.hold_messages import HoldMessages, ReleaseMessages
from visibility.tests import prepared


async def listed(cluster: ShardCluster, host: ShardHost) -> list[tuple[int, str, str]]:
    """Sequence, state and owner of the held messages."""
    page = await cluster.answer(host, prepared.prepared(Q, BrowseMessages(held=True)))
    assert isinstance(page, BrowsedPage)
    found = [(each, each.hold) for each in page.messages]
    return [(each.sequence, each.state, mark.owner) for each, mark in found if mark is not None]


@staged
async def test_the_next_leader_holds_deletes_and_releases(cluster: ShardCluster) -> None:
    old = await cluster.leader()
    await sent(cluster, old, "a", "b", "c")
    for operation in (
        HoldMessages([1], owner="ann", reference="T-1"),
        HoldMessages([2], owner="bob", delete_after_ms=60_000),
    ):
        answer = await cluster.answer(old, prepared.prepared(Q, operation))
        assert answer == SelectedChanged(1, 0)

    old.crash(is_power_loss=True)
    new = await cluster.leader()

    assert new is not old
    assert await listed(cluster, new) == [(1, "held", "ann"), (2, "deleting", "bob")]
    assert bodies(await received(cluster, new)) == ["c"]
    old.start()
    await pass_time(61)
    leader = await cluster.leader()
    assert await listed(cluster, leader) == [(1, "held", "ann")]
    released = prepared.prepared(Q, ReleaseMessages([1, 2]))
    assert await cluster.answer(leader, released) == SelectedChanged(1, 1)
    assert bodies(await received(cluster, leader)) == ["a", "c"]
    await cluster.alike()
