"""One line for a host, however many channels it has."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from cluster.peers.link import ChannelService
from cluster.peers.peer_log import PeerLog
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


@pytest.mark.parametrize(
    ("host", "peer", "is_between_workers", "action"),
    [
        ("a", "b", False, "start that host"),
        ("a.worker-2", "b.worker-3", False, "start that host"),
        ("a.worker-2", "a", False, "the service replaces it"),
        ("a", "a.worker-2", False, "the service replaces it"),
        ("worker-0", "worker-1", True, "the service replaces it"),
    ],
)
def test_nobody_is_told_to_start_a_worker(
    host: str, peer: str, is_between_workers: bool, action: str
) -> None:
    with capture_logs() as logs:
        PeerLog(host, is_between_workers=is_between_workers).failed(peer, "refused")

    (line,) = logs
    assert line["event"] == "peer_unreachable"
    assert action in line["action"]
