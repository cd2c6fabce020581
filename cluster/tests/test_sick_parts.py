"""Sends to a queue of four parts of which nobody decides for one: a gateway and a host with real
shards, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from cluster.parts.split_queues import SplitQueues
from cluster.peers.forwarded import ForwardedRequests
from cluster.peers.forwarding import PeerRouter
from cluster.peers.peer_settings import Address, Channel, ForwardingSettings, PeerSettings
from cluster.peers.transport import Transport
from cluster.shards.router import takes_all
from cluster.tests.peers.simulated_network import SimulatedNetwork
from cluster.tests.split_view import SplitView
from cluster.tests.virtual_time import CountingEntropy, LoopClock, SeededEntropy, virtual
from cluster.tests.world import World, pass_time
from visibility.contract.errors import QueueError
from visibility.contract.outcomes import Answer
from visibility.contract.results import SendMessageBatchResult, SendMessageResult
from visibility.tests import prepared

PARTS = 4
SICK = 3
PAUSE_S = 0.05


class _Leaders:
    """The host leads all shards, as far as anybody knows."""

    def __init__(self) -> None:
        self.leaders: list[str | None] = ["host"] * PARTS
        self._listeners: list[Callable[[int], None]] = []

    def leader_of(self, shard: int) -> str | None:
        return self.leaders[shard]

    def subscribe(self, on_change: Callable[[int], None]) -> None:
        self._listeners.append(on_change)

    def learn(self, shard: int, leader: str | None) -> None:
        """The watch reports a leader."""
        self.leaders[shard] = leader
        for listener in self._listeners:
            listener(shard)


class _Fleet:
    """A gateway, and a host whose shard of the last part may be sick."""

    def __init__(self, *, is_gateway: bool) -> None:
        """Unless it is a gateway, the host itself takes the sends."""
        self.view = SplitView(PARTS)
        self.leaders = _Leaders()
        self.network = SimulatedNetwork()
        self.worlds = [
            World(
                definitions=self.view,
                entropy=SeededEntropy(f"{number}"),
                remembers=True,
                number=number,
            )
            for number in range(PARTS)
        ]
        self.shards = {world.shard.number: world.shard for world in self.worlds}
        self.transports = [self._transport(name) for name in ("gateway", "host")]
        decided = ForwardedRequests(self.shards, self.leaders, self.view, refusal=takes_all)
        self.transports[1].serve(Channel.REQUESTS, decided.service)
        self.router = PeerRouter(
            [] if is_gateway else self.shards.values(),
            transport=self.transports[not is_gateway],
            leaders=self.leaders,
            view=self.view,
            settings=ForwardingSettings(),
            clock=LoopClock(),
            entropy=CountingEntropy(),
        )
        entropy = SeededEntropy("sick")
        self.split = SplitQueues(self.router, self.view, entropy, LoopClock().wall_s)
        self.answers: list[tuple[float, Answer | QueueError]] = []
        """With the times that they took."""
        self._sent = 0

    def _transport(self, name: str) -> Transport:
        return Transport(
            cluster="c1",
            host=name,
            log_ids=dict,
            network=self.network.of(name),
            settings=PeerSettings(),
            clock=LoopClock(),
            entropy=CountingEntropy(),
        )

    def send(self, *, is_batch: bool = False) -> None:
        """Send a message, or three."""
        self._sent += 1
        queue = self.view.queue
        request = prepared.send_batch(queue, [*"abc"]) if is_batch else prepared.send(queue, "a")
        request = msgspec.structs.replace(request, request_id=f"{self._sent}")
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        self.split.submit(
            request, lambda answer: self.answers.append((loop.time() - begun_s, answer))
        )

    async def send_for(self, seconds: float) -> None:
        """Send all the while, single messages and batches."""
        for number in range(int(seconds / PAUSE_S)):
            self.send(is_batch=number % 2 == 1)
            await pass_time(PAUSE_S)

    @property
    def stored(self) -> list[int]:
        """Messages of each part."""
        found = [world.shard.counters() for world in self.worlds]
        return [sum(each.visible for each in counters.values()) for counters in found]

    @property
    def acknowledged(self) -> int:
        """Messages that were sent."""
        found = [_count(answer) for _, answer in self.answers]
        assert len(found) == self._sent
        return sum(found)


def _count(answer: Answer | QueueError) -> int:
    if isinstance(answer, SendMessageBatchResult):
        assert not answer.failed
        return len(answer.successful or ())
    assert isinstance(answer, SendMessageResult)
    return 1


@asynccontextmanager
async def _running(*, is_gateway: bool = True, sick: int | None = SICK) -> AsyncIterator[_Fleet]:
    fleet = _Fleet(is_gateway=is_gateway)
    addresses = {each.host: Address(each.host, 1) for each in fleet.transports}
    for transport in fleet.transports:
        await transport.start(addresses[transport.host])
        transport.set_peers(addresses)
    for world in fleet.worlds:
        if world.shard.number != sick:
            await world.start()
    await pass_time(0.1)
    try:
        yield fleet
    finally:
        fleet.network.mend()
        for transport in fleet.transports:
            await transport.stop()
        for shard in fleet.shards.values():
            await shard.stop()


@pytest.mark.parametrize("leader", [None, "host", "away"])
@pytest.mark.parametrize("is_gateway", [True, False])
@virtual
async def test_a_part_that_nobody_decides_for_delays_no_send(
    is_gateway: bool, leader: str | None
) -> None:
    """Nobody leads it, or who is said to lead it does not, or cannot be reached."""
    async with _running(is_gateway=is_gateway) as fleet:
        fleet.leaders.learn(SICK, leader)
        await fleet.send_for(60.0)

        assert max(took_s for took_s, _ in fleet.answers) < 1.0
        assert sum(fleet.stored) == fleet.acknowledged == 600 + 3 * 600
        assert fleet.stored[SICK] == 0

        await fleet.worlds[SICK].start()
        fleet.leaders.learn(SICK, "host")
        await fleet.send_for(20.0)

        assert fleet.stored[SICK] > fleet.acknowledged // 40, "it gets sends again"
        assert sum(fleet.stored) == fleet.acknowledged


@virtual
async def test_few_sends_ask_a_part_that_did_not_decide_the_last_one() -> None:
    async with _running() as fleet:
        await fleet.send_for(60.0)

        in_vain = fleet.router.forwarded - len(fleet.answers)
        assert 0 < in_vain < len(fleet.answers) // 20


@pytest.mark.parametrize("is_batch", [False, True])
@virtual
async def test_a_send_that_may_have_happened_stays_with_its_part(is_batch: bool) -> None:
    """Decided anew elsewhere it would be there twice."""
    async with _running(sick=None) as fleet:
        fleet.network.cut("host", "gateway")
        for _ in range(8):
            fleet.send(is_batch=is_batch)
        await pass_time(1.0)
        assert not fleet.answers
        assert sum(fleet.stored) == 8 * (3 if is_batch else 1)
        for end in fleet.network.open_ends("gateway"):
            end.abort()
        fleet.network.mend()
        await pass_time(5.0)

        assert fleet.router.forwarded > 8
        assert sum(fleet.stored) == fleet.acknowledged == 8 * (3 if is_batch else 1)


@virtual
async def test_a_send_waits_while_nobody_decides_for_any_part() -> None:
    async with _running(sick=None) as fleet:
        for number in range(PARTS):
            fleet.leaders.learn(number, None)
        fleet.send()
        fleet.send(is_batch=True)
        await pass_time(5.0)
        assert not fleet.answers
        assert len(fleet.router.retries) == 2

        for number in range(PARTS):
            fleet.leaders.learn(number, "host")
        await pass_time(0.1)

        assert sum(fleet.stored) == fleet.acknowledged == 4
