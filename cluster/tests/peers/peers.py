"""Hosts of a cluster on a simulated network, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import msgspec

from cluster.peers.link import Call, ChannelService, Link
from cluster.peers.peer_outcomes import NotSent, Outcome, Reason
from cluster.peers.peer_settings import Address, Channel, PeerSettings
from cluster.peers.roles import FIRST_MARK
from cluster.peers.transport import Transport
from cluster.replication.replica_port import PeerMessages
from cluster.tests.peers.simulated_network import HostNetwork, SimulatedNetwork
from cluster.tests.virtual_time import CountingEntropy, LoopClock
from cluster.tests.world import pass_time

SETTINGS = PeerSettings()
TIMEOUT_S = 5.0
SHARD = 1


class Peer:
    """A host: what arrives, and what it asks. Requests are answered with "re:" and their body."""

    def __init__(
        self,
        name: str,
        network: SimulatedNetwork,
        settings: PeerSettings,
        *,
        cluster: str = "c1",
        versions: tuple[int, ...] = (1,),
        log_ids: dict[int, bytes] | None = None,
        mark: str = FIRST_MARK,
    ) -> None:
        self.name = name
        self.address = Address(name, 1)
        self.network: HostNetwork = network.of(name)
        self.messages: list[tuple[str, bytes]] = []
        self.calls: list[Call] = []
        self.holds = False
        """True to leave requests open, in `calls`."""
        self.log_ids = log_ids or {}
        self.transport = Transport(
            cluster=cluster,
            host=name,
            log_ids=lambda: self.log_ids,
            network=self.network,
            settings=settings,
            clock=LoopClock(),
            entropy=CountingEntropy(),
            versions=versions,
            mark=mark,
        )
        for channel in Channel:
            if channel is not Channel.REPLICATION:
                self.transport.serve(channel, ChannelService(self._on_request))
        self.replicas = PeerMessages(self.transport)
        self.replicas.join(SHARD, self._on_message)

    def _on_message(self, peer: str, body: bytes) -> None:
        if body == b"bug":
            raise RuntimeError("a bug")
        self.messages.append((peer, body))

    def _on_request(self, call: Call) -> None:
        if call.body == b"bug":
            raise RuntimeError("a bug")
        if self.holds:
            self.calls.append(call)
        else:
            call.answer(b"re:" + call.body)

    def link(self, peer: Peer, channel: Channel = Channel.REQUESTS) -> Link:
        link = self.transport.link(peer.name, channel)
        assert link is not None
        return link

    def reaches(self, peer: Peer) -> bool:
        return self.transport.link(peer.name, Channel.REQUESTS) is not None

    def ask(self, peer: Peer, body: bytes, timeout_s: float = TIMEOUT_S) -> AskedPeer:
        asked = AskedPeer()
        link = self.transport.link(peer.name, Channel.REQUESTS)
        if link is None:
            asked.number = NotSent(Reason.NOT_CONNECTED)
        else:
            asked.link = link
            asked.number = link.request(body, asked.outcomes.append, timeout_s)
        return asked


class AskedPeer:
    """A request and its outcomes."""

    def __init__(self) -> None:
        self.link: Link
        self.number: int | NotSent
        self.outcomes: list[Outcome] = []

    def cancel(self) -> bool:
        """True if there will be no outcome."""
        return isinstance(self.number, int) and self.link.cancel(self.number)

    @property
    def outcome(self) -> Outcome:
        """The only one."""
        if isinstance(self.number, NotSent):
            assert not self.outcomes
            return self.number
        (outcome,) = self.outcomes
        return outcome


async def start(peers: Iterable[Peer]) -> None:
    peers = list(peers)
    addresses = {peer.name: peer.address for peer in peers}
    for peer in peers:
        await peer.transport.start(peer.address)
        peer.transport.set_peers(addresses)
    await pass_time(0.01)


@asynccontextmanager
async def pair(
    network: SimulatedNetwork | None = None, **changed: float
) -> AsyncIterator[tuple[Peer, Peer, SimulatedNetwork]]:
    """Two hosts that are connected."""
    network = network or SimulatedNetwork()
    settings = msgspec.structs.replace(SETTINGS, **changed)
    a, b = Peer("a", network, settings), Peer("b", network, settings)
    await start([a, b])
    try:
        yield a, b, network
    finally:
        network.mend()
        for peer in (a, b):
            for call in peer.calls:
                call.refuse("test_over")
            await peer.transport.stop()
        assert not network.ends
