"""Sends to a FIFO queue while the shard of an earlier part is away, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest
from typing_extensions import override

from cluster.parts.split_queues import SplitQueues
from cluster.shards.router import Router
from cluster.tests.driver import Driver
from cluster.tests.shard_pair import ShardPair
from cluster.tests.virtual_time import CountingEntropy, LoopClock, virtual
from cluster.tests.world import pass_time
from visibility.contract.errors import Moved, QueueError, ServiceUnavailable
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.outcomes import Answer, Deduplicated, GroupsHeld
from visibility.contract.queue_parts import Part, PartState
from visibility.contract.results import SendMessageResult
from visibility.rules.earlier_parts import FindGroups, UnlockGroups
from visibility.state.waiters import OnAnswer, Room, Ticket
from visibility.tests import prepared
from visibility.tests.prepared import START_MS

GROUP = prepared.content("x", group="g").group
OVER_S = 330.0
"""Five minutes and a half."""


class _Fleet(Router):
    """Shard 0 has the part that closed, shard 1 the one that takes its groups."""

    def __init__(self, drains_since_ms: int = START_MS) -> None:
        super().__init__([])
        whole = prepared.queue_named("q.fifo", 11)
        closed = Part(0, 11, 0, PartState.DRAINING, heir=16, drains_since_ms=drains_since_ms)
        self.queue = msgspec.structs.replace(
            whole, queue_id=12, shard=1, version=2, parts=(Part(16, 12, 1), closed)
        )
        self.opened, self.closed = self.queue.all_parts()
        self.pair = ShardPair()
        self.pair.queues.define(whole)
        self.away = False
        """Shard 0 does not answer."""
        self.asked = 0
        """Questions to the shard of the closed part."""
        self.is_led = True
        """Somebody leads it all the same, as far as the gateway knows."""
        self.now(0).submit(self._send_of(whole, "first"))
        self.pair.queues.define(self.opened)
        self.pair.queues.define(self.closed)
        self.split = SplitQueues(self, self, CountingEntropy(), LoopClock().wall_s)

    def find(self, name: object) -> QueueDefinition:
        """See `View`."""
        return self.queue

    def when_caught_up(self, then: Callable[[], None]) -> None:
        """See `View`."""
        asyncio.get_running_loop().call_soon(then)

    @override
    def leads(self, number: int) -> bool:
        return number == 1

    @override
    def is_led_elsewhere(self, number: int) -> bool:
        return number == 0 and self.is_led

    @override
    def submit(self, request: Request, on_answer: OnAnswer, room: Room | None = None) -> Ticket:
        self.asked += request.queue.shard == 0
        (answer,) = (
            [ServiceUnavailable()]
            if self.away and request.queue.shard == 0
            else self.now(request.queue.shard).submit(request).answers
        )
        asyncio.get_running_loop().call_soon(on_answer, answer)
        return Ticket(request, on_answer)

    def now(self, shard: int) -> Driver:
        """A shard, at the loop's time."""
        driver = self.pair.shards[shard]
        driver.now_ms = LoopClock().now_ms()
        return driver

    @staticmethod
    def _send_of(queue: QueueDefinition, name: str) -> Request:
        return prepared.send(queue, name, group="g", deduplication_id=name)

    async def send(self, name: str) -> Answer | QueueError:
        """Send a message through the gateway; its name is its id."""
        answered: asyncio.Future[Answer | QueueError] = asyncio.get_running_loop().create_future()
        self.split.submit(self._send_of(self.find(name), name), answered.set_result)
        return await answered

    def received(self) -> list[str]:
        """Receive from the open part."""
        return self.now(1).submit(prepared.receive(self.opened, 10)).bodies

    def unlock(self) -> bool:
        """Unlock the open part's group, if the other one has none of it; False if it waits."""
        found = self.now(0).submit(prepared.prepared(self.closed, FindGroups([GROUP]))).answer
        assert isinstance(found, GroupsHeld)
        if not found.groups:
            self.now(1).submit(prepared.prepared(self.opened, UnlockGroups([GROUP])))
        return not found.groups


@virtual
async def test_a_send_waits_no_longer_than_ids_are_remembered_and_order_holds() -> None:
    fleet = _Fleet()
    assert isinstance(await fleet.send("first"), Deduplicated)
    fleet.away, fleet.is_led = True, False
    assert isinstance(await fleet.send("second"), ServiceUnavailable)
    await pass_time(OVER_S - 0.1)
    assert isinstance(await fleet.send("second"), ServiceUnavailable)
    await pass_time(0.1)

    assert isinstance(await fleet.send("second"), SendMessageResult)
    assert isinstance(await fleet.send("second"), Deduplicated)
    assert not fleet.received(), "the group waits for the messages of the closed part"

    await pass_time(3_600)
    fleet.away, fleet.is_led = False, True
    assert not fleet.unlock()
    assert not fleet.received()
    fleet.pair.deliver()
    assert fleet.unlock()
    assert fleet.received() == ["first", "second"]


@pytest.mark.parametrize("is_led", [True, False])
@virtual
async def test_a_part_is_asked_as_long_as_somebody_leads_it(is_led: bool) -> None:
    """Perhaps it has not heard yet that it drains, and takes messages until it is asked."""
    fleet = _Fleet(drains_since_ms=START_MS if is_led else 0)
    fleet.away, fleet.is_led = True, is_led
    await pass_time(3_600)

    assert isinstance(await fleet.send("second"), ServiceUnavailable)


@virtual
async def test_that_ids_are_over_holds_for_this_part_not_for_another_one_with_its_id() -> None:
    """etcd was restored, and gave the id again."""
    fleet = _Fleet()
    await fleet.send("second")  # the part closes
    await pass_time(3_600)
    await fleet.send("third")
    asked = fleet.asked
    await fleet.send("fourth")
    assert fleet.asked == asked, "its ids are over"

    opened, closed = fleet.queue.parts
    closed = msgspec.structs.replace(closed, drains_since_ms=START_MS + 3_600_000)
    fleet.queue = msgspec.structs.replace(fleet.queue, parts=(opened, closed))
    await fleet.send("fifth")

    assert fleet.asked == asked + 1


class _Behind(_Fleet):
    """The gateway's etcd is away: its view has the news with the refusal, and a wait for more is
    long."""

    def __init__(self) -> None:
        super().__init__()
        self.known = msgspec.structs.replace(
            self.queue, queue_id=11, shard=0, version=1, parts=(), number=0
        )

    @override
    def find(self, name: object) -> QueueDefinition:
        return self.known

    @override
    def when_caught_up(self, then: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(5.0, then)

    @override
    def submit(self, request: Request, on_answer: OnAnswer, room: Room | None = None) -> Ticket:
        if self.known is self.queue:
            return super().submit(request, on_answer, room)
        self.known = self.queue
        asyncio.get_running_loop().call_soon(on_answer, Moved())
        return Ticket(request, on_answer)


@virtual
async def test_a_send_does_not_wait_for_news_that_the_view_has() -> None:
    fleet = _Behind()
    async with asyncio.timeout(1.0):
        assert isinstance(await fleet.send("second"), SendMessageResult)
        assert isinstance(await fleet.send("first"), Deduplicated)
