"""A change of the queues waits until the hosts that can be reached show it."""

from __future__ import annotations

import asyncio

from cluster.peers.peer_outcomes import Refusal, Refused
from cluster.peers.peer_settings import Channel
from cluster.peers.revision_barrier import RevisionBarrier, spread
from cluster.tests.peers.peers import SETTINGS, Peer, start
from cluster.tests.peers.simulated_network import SimulatedNetwork
from cluster.tests.virtual_time import virtual
from cluster.tests.world import pass_time
from visibility.contract.errors import ServiceUnavailable


class ShownSoFar:
    """A view whose watch reports when the test says so."""

    def __init__(self) -> None:
        self.revision = 0
        self.is_away = False
        self._news = asyncio.Event()

    def show(self, revision: int) -> None:
        self.revision = revision
        self._news.set()

    async def shown(self, revision: int) -> None:
        if self.is_away:
            raise ServiceUnavailable()
        while self.revision < revision:
            self._news.clear()
            await self._news.wait()


class Cluster:
    """Three hosts that spread what they change."""

    def __init__(self) -> None:
        self.network = SimulatedNetwork()
        self.peers = [Peer(name, self.network, SETTINGS) for name in "abc"]
        self.views = [ShownSoFar() for _ in self.peers]
        for peer, view in zip(self.peers, self.views, strict=True):
            peer.transport.serve(Channel.CATALOG, RevisionBarrier(view).service)

    async def stop(self) -> None:
        for peer in self.peers:
            await peer.transport.stop()


@virtual
async def test_a_change_waits_for_every_host_that_can_be_reached() -> None:
    cluster = Cluster()
    await start(cluster.peers)

    spreading = asyncio.create_task(spread(cluster.peers[0].transport, 7))
    await pass_time(0.01)
    cluster.views[1].show(7)
    await pass_time(0.01)
    assert not spreading.done()
    cluster.views[2].show(8)
    await pass_time(0.01)
    assert spreading.done()
    await cluster.stop()


@virtual
async def test_a_change_does_not_wait_for_a_host_without_a_connection() -> None:
    cluster = Cluster()
    await start(cluster.peers[:2])

    spreading = asyncio.create_task(spread(cluster.peers[0].transport, 7))
    await pass_time(0.01)
    assert not spreading.done()
    cluster.views[1].show(7)
    await pass_time(0.01)
    assert spreading.done()
    await cluster.stop()


@virtual
async def test_a_change_waits_for_a_bounded_time() -> None:
    cluster = Cluster()
    await start(cluster.peers)

    spreading = asyncio.create_task(spread(cluster.peers[0].transport, 7))
    await pass_time(2.9)
    assert not spreading.done()
    await pass_time(1.0)
    assert spreading.done()
    for view in cluster.views:
        view.show(7)
    await cluster.stop()


@virtual
async def test_a_host_that_does_not_see_changes_says_so() -> None:
    cluster = Cluster()
    await start(cluster.peers)
    cluster.views[1].is_away = True
    asked: list[object] = []

    link = cluster.peers[0].link(cluster.peers[1], Channel.CATALOG)
    link.request(b"\0" * 7 + b"\1", asked.append, 5.0)
    link.request(b"short", asked.append, 5.0)
    await pass_time(0.01)

    refusals = {answer.reason for answer in asked if isinstance(answer, Refused)}
    assert refusals == {Refusal.DEFINITION_UNKNOWN, Refusal.UNREADABLE}
    await cluster.stop()
