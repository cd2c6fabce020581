"""One line for a host, however many channels it has."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from cluster.peers.link import ChannelService
from cluster.peers.peer_settings import Channel
from cluster.tests.peers.peers import SETTINGS, Peer, start
from cluster.tests.peers.simulated_network import SimulatedNetwork
from cluster.tests.virtual_time import virtual


@virtual
async def test_a_host_comes_goes_and_comes_back_with_a_line_each() -> None:
    network = SimulatedNetwork()
    peers = [Peer(name, network, SETTINGS) for name in "ab"]
    for peer in peers:
        for channel in Channel:
            peer.transport.serve(channel, ChannelService())
    with capture_logs() as logs:
        await start(peers)
        network.cut("a", "b")
        network.cut("b", "a")
        await asyncio.sleep(60)
        network.mend()
        await asyncio.sleep(10)
    for peer in peers:
        await peer.transport.stop()

    events = [line["event"] for line in logs if line.get("peer") == "b"]
    assert [each for each in events if each != "peer_cut_off"] == [
        "peer_connected",
        "peer_disconnected",
        "peer_unreachable",
        "peer_connected",
    ]
    (unreachable,) = (
        line for line in logs if line["event"] == "peer_unreachable" and line["peer"] == "b"
    )
    assert unreachable["means"]
    assert unreachable["action"]


@virtual
async def test_a_refusal_is_said_once() -> None:
    network = SimulatedNetwork()
    peers = [Peer(name, network, SETTINGS, log_ids={0: name.encode()}) for name in "ab"]
    with capture_logs() as logs:
        await start(peers)
        await asyncio.sleep(60)
    for peer in peers:
        await peer.transport.stop()

    refused = [line["peer"] for line in logs if line["event"] == "peer_refused"]
    assert sorted(refused) == ["a", "b"]
