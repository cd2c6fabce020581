"""Requests whose answer is lost with a leader or a connection: they are tried again, and what
happened is reported. Hosts with real shards, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from cluster.peers.peer_settings import ForwardingSettings, PeerSettings
from cluster.tests.peers.peer_hosts import COUNT, QUEUE, Cluster, Host, running
from cluster.tests.virtual_time import virtual
from cluster.tests.world import AskedShard, pass_time
from visibility.contract.errors import InvalidParameterValue, ServiceUnavailable
from visibility.contract.model import QueueCounters, QueueDefinition, Receipt, Request
from visibility.contract.outcomes import Deliveries
from visibility.contract.results import (
    DeleteMessageBatchResult,
    SendMessageBatchResult,
    SendMessageResult,
    StartMessageMoveTaskResult,
)
from visibility.contract.stored_message import Lease, StoredMessage
from visibility.rows.row_codec import decode_row
from visibility.rows.row_keys import LEASE, MESSAGE
from visibility.tests import prepared

FIFO = prepared.queue_named("ordered.fifo", 2, ContentBasedDeduplication="true")
OTHER = prepared.queue_named("other", 3)
KINDS = ("crash", "deposed", "here")
kinds = pytest.mark.parametrize("kind", KINDS)


class LostAnswers:
    """A cluster whose leader, b, falls once it has decided a request; c takes over."""

    def __init__(self, cluster: Cluster, kind: str) -> None:
        self.cluster = cluster
        self.kind = kind
        self.a, self.b, self.c = cluster.hosts

    async def ask(self, request: Request, *, is_committed: bool = True) -> AskedShard:
        """Ask, lose the answer, and see what the next leader says."""
        store = self.cluster.store
        store.auto_sync = False
        asked = (self.b if self.kind == "here" else self.a).ask(request)
        await pass_time(0.01)
        assert not asked.answers
        if is_committed:
            store.commit_unnoticed()
        if self.kind == "crash":
            self.cluster.network.crash("b")
        await self.b.fall()
        await pass_time(1.0)
        store.auto_sync = True
        await self.c.lead()
        self.cluster.learn("c")
        await pass_time(1.0)
        return asked

    async def done(self, request: Request, host: Host | None = None) -> AskedShard:
        """Ask the leader in peace."""
        asked = (host or self.b).ask(request)
        await pass_time(0.1)
        return asked

    @property
    def messages(self) -> list[StoredMessage]:
        return [decode_row(StoredMessage, *row) for row in self._rows(MESSAGE)]

    @property
    def leases(self) -> list[Lease]:
        return [decode_row(Lease, *row) for row in self._rows(LEASE)]

    def _rows(self, table: bytes) -> list[tuple[bytes, bytes]]:
        return [row for row in sorted(self.cluster.store.rows.items()) if row[0][8:9] == table]


@asynccontextmanager
async def losing(kind: str) -> AsyncIterator[LostAnswers]:
    cluster = Cluster("abc")
    cluster.define(prepared.counters(QUEUE), prepared.counters(FIFO))
    async with running(cluster):
        yield LostAnswers(cluster, kind)


# -- after a failover ------------------------------------------------------------------------------


@kinds
@virtual
async def test_a_send_is_answered_with_the_id_that_it_got(kind: str) -> None:
    async with losing(kind) as lost:
        sent = await lost.ask(prepared.send(QUEUE, "hello"))

        (answer,), (message,) = sent.answers, lost.messages
        assert isinstance(answer, SendMessageResult)
        assert answer.message_id == message.message_id


@kinds
@virtual
async def test_a_send_whose_entry_was_lost_is_decided_once_more(kind: str) -> None:
    async with losing(kind) as lost:
        sent = await lost.ask(prepared.send(QUEUE, "hello"), is_committed=False)

        (answer,), (message,) = sent.answers, lost.messages
        assert isinstance(answer, SendMessageResult)
        assert answer.message_id == message.message_id


@kinds
@virtual
async def test_a_fifo_send_is_no_duplicate_of_itself(kind: str) -> None:
    async with losing(kind) as lost:
        sent = await lost.ask(prepared.send(FIFO, "hello", group="g"))

        (answer,), (message,) = sent.answers, lost.messages
        assert isinstance(answer, SendMessageResult)
        assert answer.message_id == message.message_id
        assert answer.sequence_number is not None


@kinds
@virtual
async def test_a_batch_is_not_sent_twice(kind: str) -> None:
    refused = InvalidParameterValue("refused by the gateway")
    async with losing(kind) as lost:
        sent = await lost.ask(prepared.send_batch(QUEUE, ["a", refused, "b"]))

        (answer,) = sent.answers
        assert isinstance(answer, SendMessageBatchResult)
        ids = [(entry.id, entry.message_id) for entry in answer.successful or ()]
        stored = [message.message_id for message in lost.messages]
        assert ids == list(zip(("0", "2"), stored, strict=True))
        assert [entry.id for entry in answer.failed or ()] == ["1"]


@kinds
@pytest.mark.parametrize("wait_s", [None, 20])
@virtual
async def test_a_receive_gets_its_messages_and_counts_once(kind: str, wait_s: int | None) -> None:
    async with losing(kind) as lost:
        await lost.done(prepared.send_batch(QUEUE, ["a", "b", "c"]))

        received = await lost.ask(prepared.receive(QUEUE, 2, wait_s=wait_s))

        assert received.bodies == ["a", "b"]
        assert [lease.receive_count for lease in lost.leases] == [1, 1]
        (answer,) = received.answers
        assert isinstance(answer, Deliveries)
        assert answer.leases == lost.leases
        counted = await lost.done(COUNT, lost.c)
        assert counted.answers == [QueueCounters(1, 2, 0)]


@kinds
@virtual
async def test_a_receive_whose_leases_ended_meanwhile_counts_once(kind: str) -> None:
    async with losing(kind) as lost:
        await lost.done(prepared.send(QUEUE, "a"))

        received = await lost.ask(prepared.receive(QUEUE, timeout_s=1))

        assert received.bodies == []
        assert [lease.receive_count for lease in lost.leases] == [1]


async def receipts(lost: LostAnswers, queue: QueueDefinition) -> list[Receipt]:
    received = await lost.done(prepared.receive(queue, 10))
    (answer,) = received.answers
    assert isinstance(answer, Deliveries)
    return [Receipt(lease.sequence, lease.receive_count) for lease in answer.leases]


@kinds
@virtual
async def test_a_delete_batch_reports_what_it_did(kind: str) -> None:
    async with losing(kind) as lost:
        await lost.done(prepared.send_batch(FIFO, ["a", "b"], groups=["g", "g"]))
        first, second = await receipts(lost, FIFO)
        expired = Receipt(second.sequence, second.delivery + 1)

        deleted = await lost.ask(prepared.delete_batch(FIFO, [first, expired]))

        (answer,) = deleted.answers
        assert isinstance(answer, DeleteMessageBatchResult)
        assert [entry.id for entry in answer.successful or ()] == ["0"]
        assert [entry.id for entry in answer.failed or ()] == ["1"]
        assert [message.data for message in lost.messages] == [b"b"]


@kinds
@virtual
async def test_a_change_that_ended_a_lease_is_not_refused_as_too_late(kind: str) -> None:
    async with losing(kind) as lost:
        await lost.done(prepared.send(FIFO, "a", group="g"))
        (receipt,) = await receipts(lost, FIFO)

        changed = await lost.ask(prepared.change(FIFO, receipt, 0))

        assert changed.answers == [None]


@kinds
@virtual
async def test_a_move_task_is_started_once(kind: str) -> None:
    async with losing(kind) as lost:
        lost.cluster.define(prepared.counters(OTHER))
        await lost.done(prepared.send_batch(QUEUE, ["a"] * 10))

        started = await lost.ask(prepared.start_move_task(QUEUE, OTHER, rate=1))

        assert started.refusal is StartMessageMoveTaskResult  # not: one is running already


# -- with the same leader --------------------------------------------------------------------------


async def under_way(cluster: Cluster, request: Request) -> AskedShard:
    """A request that b has decided; its Entry is under way when the connection breaks, and the
    retry is there before it is committed."""
    a, _, _ = cluster.hosts
    cluster.store.auto_sync = False
    asked = a.ask(request)
    await pass_time(0.01)
    for end in cluster.network.open_ends("a"):
        end.abort()
    await pass_time(0.5)
    assert not asked.answers
    assert a.router.forwarded >= 2
    return asked


@virtual
async def test_a_connection_that_breaks_costs_no_send() -> None:
    cluster = Cluster("abc")
    cluster.define(prepared.counters(QUEUE))
    async with running(cluster):
        sent = await under_way(cluster, prepared.send(QUEUE, "hello"))

        cluster.store.auto_sync = True
        cluster.store.sync_all()
        await pass_time(0.1)

        assert sent.refusal is SendMessageResult
        assert LostAnswers(cluster, "here").messages[1:] == []


@virtual
async def test_messages_that_were_asked_for_again_are_not_given_back_as_well() -> None:
    cluster = Cluster("abc", under_way_max=4)
    cluster.define(prepared.counters(QUEUE))
    async with running(cluster) as (_, b, _):
        sent = b.ask(prepared.send(QUEUE, "hello"))
        await pass_time(0.1)
        assert sent.refusal is SendMessageResult

        received = await under_way(cluster, prepared.receive(QUEUE))
        cluster.store.auto_sync = True
        cluster.store.sync_all()
        await pass_time(0.1)

        assert received.bodies == ["hello"]
        lost = LostAnswers(cluster, "here")
        counted = await lost.done(COUNT)
        assert counted.answers == [QueueCounters(0, 1, 0)]
        assert [lease.receive_count for lease in lost.leases] == [1]


@virtual
async def test_only_requests_that_may_have_happened_are_looked_up() -> None:
    cluster = Cluster("abc")
    cluster.define(prepared.counters(QUEUE))
    async with running(cluster) as (a, b, c):
        a.leaders.learn("c")  # it names b
        redirected = a.ask(prepared.send(QUEUE, "hello"))
        a.leaders.learn(None)
        held = a.ask(prepared.send(QUEUE, "hello"))
        await pass_time(1.0)
        a.leaders.learn("b")
        await pass_time(0.1)

        for asked in (redirected, held):
            assert asked.refusal is SendMessageResult
            assert not asked.ticket.is_retry  # type: ignore[attr-defined]
        assert c.router.forwarded == 0
        assert b.shard.ready


@pytest.mark.slow
@virtual
async def test_a_retry_older_than_ten_minutes_is_refused() -> None:
    forwarding = ForwardingSettings(hold_s=3_600.0)
    cluster = Cluster("abc", forwarding, settings=PeerSettings(reconnect_max_s=100.0))
    cluster.define(prepared.counters(QUEUE))
    async with running(cluster) as (a, b, c):
        cluster.store.auto_sync = False
        sent = a.ask(prepared.send(QUEUE, "hello"))
        await pass_time(0.01)
        cluster.store.commit_unnoticed()
        await b.fall()
        cluster.learn(None)
        await pass_time(600.0)
        assert not sent.answers

        cluster.store.auto_sync = True
        await c.lead()
        cluster.learn("c")
        await pass_time(1.0)

        assert sent.refusal is ServiceUnavailable
        assert len(LostAnswers(cluster, "here").messages) == 1
