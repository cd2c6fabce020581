"""Receives that were answered with an error although they were decided, or would yet be: they are
undone. Hosts with real shards, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from cluster.peers.forwarding import PeerRouter
from cluster.peers.held_requests import Routed
from cluster.peers.peer_settings import ForwardingSettings
from cluster.shards.answers import returning
from cluster.tests.peers.peer_hosts import QUEUE, RECEIVE, Cluster, Host, running
from cluster.tests.virtual_time import virtual
from cluster.tests.world import AskedShard, pass_time
from visibility.contract.errors import ServiceUnavailable
from visibility.contract.model import QueueDefinition
from visibility.contract.outcomes import Deliveries
from visibility.tests import prepared

FIFO = prepared.queue_named("ordered.fifo", 2, ContentBasedDeduplication="true")
queues = pytest.mark.parametrize("queue", [QUEUE, FIFO], ids=["standard", "fifo"])
HOLD_S = ForwardingSettings().hold_s
GIVEN_UP_S = HOLD_S + 1.0


class Undone:
    """Hosts a, b and c; b leads a queue with one message."""

    def __init__(self, cluster: Cluster, queue: QueueDefinition) -> None:
        self.cluster = cluster
        self.queue = queue
        self.a, self.b, self.c = cluster.hosts

    async def decided(self, host: Host, wait_s: int | None = None) -> AskedShard:
        """A receive that b has decided and not committed."""
        self.cluster.store.auto_sync = False
        asked = host.ask(prepared.receive(self.queue, wait_s=wait_s))
        await pass_time(0.01)
        assert not asked.answers
        return asked

    async def lead(self, host: Host) -> None:
        """Another host leads."""
        self.cluster.store.auto_sync = True
        await host.lead()
        self.cluster.learn(host.name)
        await pass_time(1.0)

    def apart(self, host: str, peer: str) -> None:
        """Nothing gets from one host to the other, or back."""
        self.cluster.network.cut(host, peer)
        self.cluster.network.cut(peer, host)

    async def received(self, host: Host) -> list[tuple[str, int]]:
        """The message and how often it was received, if it can be received now."""
        asked = host.ask(prepared.receive(self.queue))
        await pass_time(0.1)
        (answer,) = asked.answers
        assert isinstance(answer, Deliveries)
        counts = [lease.receive_count for lease in answer.leases]
        return list(zip(asked.bodies, counts, strict=True))


@asynccontextmanager
async def holding(queue: QueueDefinition = QUEUE) -> AsyncIterator[Undone]:
    cluster = Cluster("abc")
    cluster.define(prepared.counters(QUEUE), prepared.counters(FIFO))
    async with running(cluster):
        undone = Undone(cluster, queue)
        undone.b.ask(prepared.send(queue, "hello", group="g" if queue is FIFO else None))
        await pass_time(0.1)
        yield undone


@queues
@pytest.mark.parametrize("asks", ["a", "b"])
@pytest.mark.parametrize("is_committed", [True, False])
@virtual
async def test_without_a_leader(queue: QueueDefinition, asks: str, *, is_committed: bool) -> None:
    async with holding(queue) as undone:
        asked = await undone.decided(undone.a if asks == "a" else undone.b)
        if is_committed:
            undone.cluster.store.commit_unnoticed()
        await undone.b.fall()
        undone.cluster.learn(None)
        await pass_time(GIVEN_UP_S)
        assert asked.refusal is ServiceUnavailable

        await undone.lead(undone.c)

        assert await undone.received(undone.c) == [("hello", 1)]


@virtual
async def test_what_another_client_got_since_is_not_given_back() -> None:
    async with holding() as undone:
        asked = await undone.decided(undone.a)  # which does not come true
        await undone.b.fall()
        undone.cluster.learn(None)
        undone.apart("a", "c")
        await pass_time(GIVEN_UP_S)
        assert asked.refusal is ServiceUnavailable

        await undone.lead(undone.c)
        assert await undone.received(undone.c) == [("hello", 1)]
        undone.cluster.network.mend()
        await pass_time(5.0)

        assert await undone.received(undone.c) == []


@queues
@virtual
async def test_while_hosts_do_not_reach_each_other(queue: QueueDefinition) -> None:
    async with holding(queue) as undone:
        asked = await undone.decided(undone.a)
        undone.apart("a", "b")
        undone.cluster.store.auto_sync = True
        undone.cluster.store.sync_all()
        await pass_time(GIVEN_UP_S)
        assert asked.refusal is ServiceUnavailable

        undone.cluster.network.mend()
        await pass_time(5.0)

        assert await undone.received(undone.b) == [("hello", 1)]


@queues
@pytest.mark.parametrize("wait_s", [None, 1])
@virtual
async def test_a_leader_that_commits_after_the_answer(
    queue: QueueDefinition, wait_s: int | None
) -> None:
    async with holding(queue) as undone:
        asked = await undone.decided(undone.a, wait_s)
        await pass_time(GIVEN_UP_S + (wait_s or 0) + 5)
        assert asked.refusal is ServiceUnavailable

        undone.cluster.store.auto_sync = True
        undone.cluster.store.sync_all()
        await pass_time(1.0)

        assert await undone.received(undone.b) == [("hello", 1)]


@virtual
async def test_a_client_that_hangs_up_while_its_receive_is_held() -> None:
    async with holding() as undone:
        asked = await undone.decided(undone.a, 20)
        undone.cluster.store.commit_unnoticed()
        await undone.b.fall()
        undone.cluster.learn(None)
        await pass_time(1.0)

        assert undone.a.router.cancel(asked.ticket)
        await undone.lead(undone.c)

        assert await undone.received(undone.c) == [("hello", 1)]


@virtual
async def test_a_receive_that_was_never_sent_needs_no_undoing() -> None:
    async with holding() as undone:
        undone.cluster.learn(None)
        asked = undone.a.ask(RECEIVE)
        await pass_time(GIVEN_UP_S)

        assert asked.refusal is ServiceUnavailable
        assert len(undone.a.router.retries) == 0


@virtual
async def test_the_number_of_receives_to_undo_is_bounded() -> None:
    cluster = Cluster("abc", ForwardingSettings(held_max=2))
    cluster.define(prepared.counters(QUEUE))
    async with running(cluster) as (a, b, _):
        undone = Undone(cluster, QUEUE)
        b.ask(prepared.send_batch(QUEUE, ["hello"] * 5))
        await pass_time(0.1)
        asked = [await undone.decided(a, 1) for _ in range(5)]
        await b.fall()
        cluster.learn(None)
        await pass_time(GIVEN_UP_S + 5)

        assert [each.refusal for each in asked] == [ServiceUnavailable] * 5
        assert len(a.router.retries) == 2
        sent = a.ask(prepared.send(QUEUE, "other requests are still held"))
        await pass_time(0.1)
        assert not sent.answers


async def _lose_the_answer(undone: Undone, wait_s: int) -> AskedShard:
    """A receive that a sent and b decided, and whose answer cannot arrive."""
    asked = await undone.decided(undone.a, wait_s)
    undone.apart("a", "b")
    undone.cluster.store.auto_sync = True
    undone.cluster.store.sync_all()
    await pass_time(4.0)
    return asked


@queues
@virtual
async def test_what_the_second_answer_brings_can_be_given_back(queue: QueueDefinition) -> None:
    """Its client hung up, or has no room for it."""
    async with holding(queue) as undone:
        asked = await _lose_the_answer(undone, 1)
        undone.cluster.network.mend()
        await pass_time(4.0)
        (answer,) = asked.answers
        assert isinstance(answer, Deliveries)
        assert len(answer.leases) == 1

        undone.a.router.give_back(returning(asked.ticket.request, answer), asked.ticket)
        await pass_time(1.0)

        assert await undone.received(undone.a) == [("hello", 1)]


@pytest.mark.parametrize("stops", [True, False])
@virtual
async def test_a_poll_that_ends_before_its_second_try_leaves(
    monkeypatch: pytest.MonkeyPatch, *, stops: bool
) -> None:
    async with holding() as undone:
        asked = await _lose_the_answer(undone, 20)
        router, send = undone.a.router, PeerRouter._send

        def send_and_end(self: PeerRouter, ticket: Routed, host: str) -> None:
            send(self, ticket, host)
            if ticket is asked.ticket and ticket.link is not None:
                if stops:
                    router.end_waiting()
                else:
                    assert router.cancel(ticket)

        monkeypatch.setattr(PeerRouter, "_send", send_and_end)
        undone.cluster.network.mend()
        await pass_time(4.0)

        assert await undone.received(undone.b) == [("hello", 1)]
