"""Processes of other clusters: connected when they are asked, and allowed what their role is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from cluster.encoded_requests import encode_request
from cluster.peers.forwarded import REQUEST_HEAD, ForwardedRequests
from cluster.peers.hello import VERSIONS, Hello, agreed
from cluster.peers.link import Call
from cluster.peers.peer_outcomes import Reason, Refusal, Refused
from cluster.peers.peer_settings import Channel
from cluster.peers.roles import (
    GATEWAY_MARK,
    GATEWAYS,
    REQUESTS,
    Neighbour,
    PeerRole,
    Place,
    cluster_mark,
)
from cluster.peers.transport import ask
from cluster.shards.router import takes_all
from cluster.tests.peers.peer_hosts import the_cluster
from cluster.tests.peers.peers import SETTINGS, TIMEOUT_S, Peer
from cluster.tests.peers.simulated_network import SimulatedNetwork
from cluster.tests.virtual_time import virtual
from cluster.tests.world import pass_time
from visibility.contract.operations import SendMessage
from visibility.rules.acknowledge import UndoReceive
from visibility.rules.arrivals import AcceptMessages
from visibility.rules.browse import BrowseMessages
from visibility.rules.closing_parts import FindMessages, PartsAdded
from visibility.rules.departures import ClearOutbox, ReadOutbox
from visibility.tests import prepared

SECOND = Place("c2", PeerRole.NEIGHBOUR, cluster_mark(2))
FIRST = Place("c1", PeerRole.NEIGHBOUR)
GATEWAY = Place(GATEWAYS, PeerRole.GATEWAY, GATEWAY_MARK)


@asynccontextmanager
async def neighbours(mark: str = cluster_mark(2)) -> AsyncIterator[tuple[Peer, Peer]]:
    """Two hosts of two clusters."""
    network = SimulatedNetwork()
    network.names = {"d": ("d", mark)}
    a, d = Peer("a", network, SETTINGS), Peer("d", network, SETTINGS, cluster="c2", mark=mark)
    a.transport.set_neighbours({"d": Neighbour(d.address, SECOND)})
    d.transport.set_neighbours({"a": Neighbour(a.address, FIRST)})
    for peer in (a, d):
        await peer.transport.start(peer.address)
        peer.transport.set_peers({peer.name: peer.address})
    try:
        yield a, d
    finally:
        for peer in (a, d):
            await peer.transport.stop()
        assert not network.ends


@virtual
async def test_a_neighbour_is_connected_when_it_is_asked_and_let_go_when_it_is_not() -> None:
    async with neighbours() as (a, d):
        await pass_time(5)
        assert not a.network.whole.ends, "nobody asked"

        assert a.ask(d, b"one").outcome.reason == Reason.NOT_CONNECTED  # type: ignore[union-attr]
        await pass_time(0.1)
        asked = a.ask(d, b"two")
        await pass_time(0.1)
        assert asked.outcome == b"re:two"

        a.transport.close_idle()
        assert a.reaches(d), "it was used"
        d.holds = True
        held = a.ask(d, b"three")
        a.transport.close_idle()
        a.transport.close_idle()
        assert a.reaches(d), "an answer is outstanding"
        await pass_time(0.1)
        (call,) = d.calls
        call.answer(b"late")
        await pass_time(0.1)
        assert held.outcome == b"late"

        a.transport.close_idle()
        a.transport.close_idle()
        await pass_time(1)
        assert not a.network.whole.ends


@virtual
async def test_a_question_waits_for_the_connection() -> None:
    async with neighbours() as (a, d):
        answer = await ask(a.transport, "d", Channel.PAGES, b"?", TIMEOUT_S)
        assert answer == b"re:?"
        d.network.whole.crash("d")
        await pass_time(1)
        a.transport.close_idle()
        a.transport.close_idle()
        answer = await ask(a.transport, "d", Channel.PAGES, b"?", TIMEOUT_S)
        assert answer.reason == Reason.NOT_CONNECTED  # type: ignore[union-attr]


@virtual
async def test_replicas_and_rows_stay_in_their_cluster() -> None:
    async with neighbours() as (a, _):
        for channel in (Channel.REPLICATION, Channel.CHECKPOINTS):
            assert a.transport.link("d", channel) is None
        await pass_time(1)
        assert not a.network.whole.ends


@pytest.mark.parametrize("mark", [cluster_mark(1), GATEWAY_MARK, cluster_mark(3)])
@virtual
async def test_a_certificate_says_which_cluster_a_host_is_of(mark: str) -> None:
    async with neighbours(mark) as (a, d):
        a.ask(d, b"one")
        await pass_time(1)
        assert not a.reaches(d)


def _said(channel: str, place: Place, mark: str) -> int | str:
    own = Hello(VERSIONS, "c1", "a", "x", channel, {})
    theirs = Hello(VERSIONS, place.cluster, "x", "a", channel, {})
    found = agreed(own, theirs, frozenset({"x", mark}), {"x": place}.get)
    return found.reason if isinstance(found, Refused) else found


def test_each_role_has_its_channels() -> None:
    open_to = {
        place.role: {
            channel for channel in Channel if _said(channel, place, place.mark) == VERSIONS[-1]
        }
        for place in (Place("c1"), SECOND, GATEWAY)
    }
    assert open_to == {
        PeerRole.MEMBER: set(Channel),
        PeerRole.NEIGHBOUR: {
            Channel.REQUESTS,
            Channel.CATALOG,
            Channel.STATUS,
            Channel.PAGES,
            Channel.COUNTS,
        },
        PeerRole.GATEWAY: {Channel.REQUESTS, Channel.CATALOG, Channel.COUNTS},
    }
    assert _said(Channel.PAGES, GATEWAY, GATEWAY_MARK) == Reason.NOT_ALLOWED
    assert _said(Channel.REQUESTS, SECOND, GATEWAY_MARK) == Reason.WRONG_CERTIFICATE


def test_each_role_has_its_operations() -> None:
    neighbour, gateway = REQUESTS[PeerRole.NEIGHBOUR], REQUESTS[PeerRole.GATEWAY]
    assert {SendMessage, AcceptMessages, UndoReceive, BrowseMessages} <= neighbour
    assert not {ReadOutbox, ClearOutbox, PartsAdded} & neighbour
    assert {SendMessage, UndoReceive, FindMessages} <= gateway
    assert not {AcceptMessages, ReadOutbox, ClearOutbox, BrowseMessages} & gateway


class _Refused(Call):
    """A request and the reason of its refusal."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.refused = ""
        self.is_cancelled = False

    def refuse(self, reason: str, detail: str = "") -> bool:
        self.refused = reason
        return True


@virtual
async def test_a_gateway_brings_no_messages_of_an_outbox() -> None:
    cluster = the_cluster("a")
    (host,) = cluster.hosts
    await host.lead()
    decided = ForwardedRequests({0: host.shard}, host.leaders, host.view, refusal=takes_all)
    request = msgspec.structs.replace(
        prepared.send(prepared.queue_named("q", 1), "x"), operation=AcceptMessages([])
    )
    call = _Refused(REQUEST_HEAD.pack(0, 0) + encode_request(request))
    on_request = decided.service_for(PeerRole.GATEWAY).on_request
    assert on_request is not None
    on_request(call)
    assert call.refused == Refusal.NOT_ALLOWED
