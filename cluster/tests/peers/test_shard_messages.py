"""Messages between the replicas of a shard."""

from __future__ import annotations

from functools import partial

from structlog.testing import capture_logs

from cluster.peers.peer_outcomes import NotSent, Reason
from cluster.peers.peer_settings import Channel
from cluster.peers.shard_messages import ShardMessages
from cluster.tests.peers.peers import SETTINGS, Peer, start
from cluster.tests.peers.simulated_network import SimulatedNetwork
from cluster.tests.virtual_time import virtual
from cluster.tests.world import pass_time


def keep(messages: list[tuple[str, bytes]], peer: str, body: bytes) -> None:
    messages.append((peer, body))


@virtual
async def test_each_shard_gets_its_own_messages_in_order() -> None:
    network = SimulatedNetwork()
    a, b = Peer("a", network, SETTINGS), Peer("b", network, SETTINGS)
    sender, receiver = ShardMessages(a.transport), ShardMessages(b.transport)
    got: dict[int, list[tuple[str, bytes]]] = {1: [], 2: []}
    for shard, messages in got.items():
        receiver.join(shard, partial(keep, messages))
    await start([a, b])

    for number in range(3):
        for shard in (1, 2, 3):
            assert sender.send("b", shard, b"%d.%d" % (shard, number)) is None
    assert sender.send("z", 1, b"lost") == NotSent(Reason.NOT_CONNECTED)
    await pass_time(0.01)

    assert got == {n: [("a", b"%d.%d" % (n, number)) for number in range(3)] for n in (1, 2)}
    receiver.leave(1)
    sender.send("b", 1, b"too late")
    with capture_logs() as logs:
        a.link(b, Channel.REPLICATION).message(b"abc")
        await pass_time(0.01)
    assert len(got[1]) == 3
    assert [line["event"] for line in logs] == ["message_failed"]
    for peer in (a, b):
        await peer.transport.stop()
