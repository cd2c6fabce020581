"""A host is ready while requests to it are decided, here or elsewhere, or will be soon."""

from __future__ import annotations

from cluster.tests.peers.peer_hosts import running, the_cluster
from cluster.tests.virtual_time import virtual
from cluster.tests.world import pass_time


@virtual
async def test_hosts_stay_ready_while_a_leader_is_found() -> None:
    cluster = the_cluster("abc")
    async with running(cluster) as (a, b, c):
        assert a.router.ready
        cluster.learn(None)
        await pass_time(8.0)
        assert a.router.ready
        assert b.router.ready
        cluster.learn("c")
        assert c.router.ready
        cluster.learn(None)
        await pass_time(11.0)
        assert not a.router.ready


@virtual
async def test_a_host_that_never_knew_a_leader_is_not_ready() -> None:
    cluster = the_cluster("abc")
    assert not cluster.hosts[0].router.ready
    async with running(cluster) as (a, *_):
        assert a.router.ready


@virtual
async def test_a_host_that_is_cut_off_is_not_ready_for_long() -> None:
    cluster = the_cluster("abc")
    async with running(cluster) as (a, b, c):
        cluster.network.cut("a", "b")
        cluster.network.cut("a", "c")

        await pass_time(3.0)

        assert (a.router.ready, b.router.ready, c.router.ready) == (False, True, True)


@virtual
async def test_another_cluster_without_leaders_leaves_this_one_ready() -> None:
    cluster = the_cluster("abc")
    async with running(cluster) as (a, *_):
        a.leaders.tell(7)
        await pass_time(30.0)
        assert a.router.ready
