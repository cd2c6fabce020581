"""A host hears the leader of each shard, here or on another host, before it makes queues."""

from __future__ import annotations

import asyncio

import pytest

from cluster.shards.issued_ids import RaisedIds
from cluster.tests.peers.peer_hosts import FORWARDING, running, the_cluster
from cluster.tests.virtual_time import virtual
from visibility.contract.errors import ServiceUnavailable


@virtual
async def test_leaders_are_heard_once_wherever_they_are() -> None:
    async with running(the_cluster()) as hosts:
        for host in hosts:
            raised = RaisedIds(host.router.ask_leader, lambda: 0)
            await raised.wait([0])
            forwarded = host.router.forwarded
            await raised.wait([0])
            assert host.router.forwarded == forwarded, "it is known by now"


@virtual
async def test_who_waits_for_a_leader_goes_on_once_it_leads() -> None:
    cluster = the_cluster()
    async with running(cluster) as (a, b):
        await b.fall()
        cluster.learn(None)
        raised = RaisedIds(a.router.ask_leader, lambda: 0)
        waiting = asyncio.create_task(raised.wait([0]))
        await asyncio.sleep(FORWARDING.hold_s / 2)
        assert not waiting.done()

        await b.lead()
        cluster.learn("b")
        await waiting


@virtual
async def test_a_leader_that_stays_away_is_not_waited_for_without_end() -> None:
    cluster = the_cluster()
    async with running(cluster) as (a, b):
        await b.fall()
        cluster.learn("b")  # as etcd from an older snapshot says
        raised = RaisedIds(a.router.ask_leader, lambda: 0)
        for _ in range(2):
            with pytest.raises(ServiceUnavailable):
                await raised.wait([0])
        await b.lead()
        await raised.wait([0])


@virtual
async def test_after_etcd_went_back_all_are_heard_again() -> None:
    async with running(the_cluster()) as (_, b):
        restored = 0
        raised = RaisedIds(b.router.ask_leader, lambda: restored)
        await raised.wait([0])
        await b.fall()
        await raised.wait([0])

        restored = 1
        with pytest.raises(ServiceUnavailable):
            await raised.wait([0])


@virtual
async def test_a_leader_that_does_not_know_all_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """etcd went back: its view does not show that yet, or later parts are not written back."""
    async with running(the_cluster()) as (a, b):
        knows_all = False

        async def answer() -> bool:
            return knows_all

        monkeypatch.setattr(b.shard, "knows_all", answer)
        for host in (a, b):
            with pytest.raises(ServiceUnavailable):
                await RaisedIds(host.router.ask_leader, lambda: 0).wait([0])
        waiting = [
            asyncio.create_task(RaisedIds(host.router.ask_leader, lambda: 0).wait([0]))
            for host in (a, b)
        ]
        await asyncio.sleep(FORWARDING.hold_s / 2)
        assert not any(task.done() for task in waiting)

        knows_all = True
        await asyncio.gather(*waiting)


@virtual
async def test_a_leader_that_is_another_by_then_is_asked_where_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = the_cluster()
    async with running(cluster) as (_, b):

        async def falls() -> bool:
            await b.fall()
            cluster.learn(None)
            return False

        monkeypatch.setattr(b.shard, "knows_all", falls)
        waiting = asyncio.create_task(RaisedIds(b.router.ask_leader, lambda: 0).wait([0]))
        await asyncio.sleep(FORWARDING.hold_s / 2)
        assert not waiting.done()

        monkeypatch.undo()
        await b.lead()
        cluster.learn("b")
        await waiting
