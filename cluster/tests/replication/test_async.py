"""Asynchronous replication: some answers leave once the leader has durably what they tell. All else
waits for a majority, and so only what was answered and not copied can be lost."""

from __future__ import annotations

import asyncio

import msgspec

from cluster.replication.replica_messages import Append
from cluster.shards.answers import NotDecided
from cluster.tests.replication.shard_hosts import Reply, ShardCluster, ShardHost, restart
from cluster.tests.replication.test_shards import Q, bodies, received, sent, staged
from storage.engines.store_options import Replication
from visibility.contract.errors import ServiceUnavailable
from visibility.contract.model import QueueCounters, Receipt, Request
from visibility.contract.outcomes import Deliveries
from visibility.contract.results import SendMessageResult
from visibility.rules.archive_batches import SealArchive, the_shard
from visibility.rules.departures import ReadOutbox
from visibility.tests import prepared

GONE = Receipt(1_000, 1)


async def answering_early(cluster: ShardCluster, **timing: int) -> ShardHost:
    """Start the hosts anew with asynchronous replication; returns their leader."""
    cluster.timing = cluster.timing._replace(**timing)
    cluster.options = cluster.options._replace(replication=Replication.ASYNC)
    restart(cluster)
    leader = await cluster.leader()
    await sent(cluster, leader, "first")
    await cluster.alike()
    return leader


def cut_off(cluster: ShardCluster, host: ShardHost) -> None:
    """Cut it from its peers only."""
    for other in cluster.names:
        cluster.network.cut.update({(host.name, other), (other, host.name)})


def receipt_of(deliveries: Deliveries) -> Receipt:
    (lease,) = deliveries.leases
    return Receipt(lease.sequence, lease.receive_count)


@staged
async def test_an_answer_leaves_while_only_the_leader_has_the_entry(cluster: ShardCluster) -> None:
    leader = await answering_early(cluster)
    rows, applied = dict(leader.rows), leader.store.applied
    cut_off(cluster, leader)

    await sent(cluster, leader, "a", "b")

    assert leader.leads
    assert leader.store.replica.log.last_index == applied.index + 2
    assert leader.store.applied == applied
    assert leader.rows == rows
    for host in cluster.hosts.values():
        assert host is leader or host.store.replica.log.last_index == applied.index


@staged
async def test_everything_but_sends_deletes_and_changes_waits_for_a_majority(
    cluster: ShardCluster,
) -> None:
    leader = await answering_early(cluster)
    receipt = receipt_of(await received(cluster, leader))
    poll = cluster.ask(leader, prepared.receive(Q, wait_s=20))
    await cluster.alike()
    cut_off(cluster, leader)

    await sent(cluster, leader, "a", "b")
    assert await cluster.answer(leader, prepared.change(Q, receipt, 60)) is None
    assert await cluster.answer(leader, prepared.delete(Q, receipt)) is None
    shard = the_shard(0)
    others = (
        prepared.receive(Q),
        prepared.counters(Q),
        prepared.prepared(shard, ReadOutbox(1)),
        prepared.prepared(shard, SealArchive()),
    )
    waiting = [poll, *(cluster.ask(leader, request) for request in others)]
    await asyncio.sleep(0.3)

    assert not any(reply.answers for reply in waiting)
    cluster.heal()
    await cluster.until(lambda: all(reply.answers for reply in waiting))
    found = [reply.answers[0] for reply in waiting]
    assert [bodies(each) for each in found if isinstance(each, Deliveries)] == [["a"], ["b"]]
    assert QueueCounters(0, 2, 0) in found


@staged
async def test_an_answer_waits_for_the_leaders_own_disk(cluster: ShardCluster) -> None:
    leader = await answering_early(cluster)
    leader.disk.sync_s = (0.5, 0.5)
    cut_off(cluster, leader)

    first = cluster.ask(leader, prepared.send(Q, "a"))
    await asyncio.sleep(0.1)
    second = cluster.ask(leader, prepared.send(Q, "b"))
    await asyncio.sleep(0.1)
    again = cluster.ask(leader, prepared.delete(Q, GONE))
    await asyncio.sleep(0.2)
    assert not first.answers

    await asyncio.sleep(0.2)
    assert isinstance(first.answers[0], SendMessageResult)
    assert second.answers == again.answers == [], "the last one saw the second"
    await asyncio.sleep(0.5)
    assert second.answers
    assert again.answers == [None]


@staged
async def test_a_read_waits_for_the_entry_that_it_saw(cluster: ShardCluster) -> None:
    """Rule 7: its term is confirmed long before the Entry is committed."""
    leader = await answering_early(cluster)
    cluster.network.drops = lambda sender, to, message: isinstance(message, Append)
    await sent(cluster, leader, "a")
    counted = cluster.ask(leader, prepared.counters(Q))
    await asyncio.sleep(1)
    assert not counted.answers

    cluster.network.drops = None
    await cluster.until(lambda: bool(counted.answers))
    assert counted.answers == [QueueCounters(2, 0, 0)]


@staged
async def test_what_the_leader_cannot_sync_is_not_answered(cluster: ShardCluster) -> None:
    leader = await answering_early(cluster)
    leader.disk.failing_syncs = 1

    reply = cluster.ask(leader, prepared.send(Q, "a"))
    await cluster.until(lambda: bool(reply.answers))

    assert type(reply.answers[0]) is ServiceUnavailable
    assert len(reply.answers) == 1


@staged
async def test_only_what_no_majority_has_is_lost_with_the_leader(cluster: ShardCluster) -> None:
    old = await answering_early(cluster)
    await sent(cluster, old, "a", "b")
    await cluster.alike()
    cut_off(cluster, old)
    await sent(cluster, old, "lost", "lost, too")

    old.crash(is_power_loss=True)
    new = await cluster.leader()
    await sent(cluster, new, "c")
    cluster.heal()
    old.start()
    await cluster.alike()

    assert bodies(await received(cluster, new)) == ["first", "a", "b", "c"]
    await cluster.alike()
    assert all(host.rows == new.rows for host in cluster.hosts.values())


@staged
async def test_what_was_deleted_may_come_back(cluster: ShardCluster) -> None:
    old = await answering_early(cluster)
    receipt = receipt_of(await received(cluster, old))
    await cluster.alike()
    cut_off(cluster, old)
    assert await cluster.answer(old, prepared.delete(Q, receipt)) is None

    old.crash(is_power_loss=True)
    new = await cluster.leader()
    await asyncio.sleep(30)

    again = await received(cluster, new)
    assert [lease.receive_count for lease in again.leases] == [2]
    assert await cluster.answer(new, prepared.delete(Q, receipt_of(again))) is None
    assert await cluster.answer(new, prepared.counters(Q)) == QueueCounters(0, 0, 0)


@staged
async def test_a_retry_of_what_was_lost_is_carried_out(cluster: ShardCluster) -> None:
    """A follower asks again if the connection failed before the answer came."""
    old = await answering_early(cluster)
    kept, lost = (
        msgspec.structs.replace(prepared.send(Q, body), request_id=body)
        for body in ("kept", "lost")
    )
    first = await cluster.answer(old, kept)
    await cluster.alike()
    cut_off(cluster, old)
    assert isinstance(await cluster.answer(old, lost), SendMessageResult)
    old.crash(is_power_loss=True)
    new = await cluster.leader()

    assert await asked_again(new, kept) == first
    assert isinstance(await asked_again(new, lost), SendMessageResult)
    assert bodies(await received(cluster, new)) == ["first", "kept", "lost"]


async def asked_again(host: ShardHost, request: Request) -> object:
    reply = Reply()
    host.shard.submit(request, reply.take, age_ms=5_000)
    await asyncio.wait_for(reply.answered.wait(), 60)
    return reply.answers[0]


@staged
async def test_answers_wait_beyond_the_bound(cluster: ShardCluster) -> None:
    leader = await answering_early(cluster, under_way_bytes=4_000)
    cut_off(cluster, leader)

    replies = await one_by_one(cluster, leader, 8, " " * 1_000)

    answered = [reply for reply in replies if reply.answers]
    assert 1 <= len(answered) <= 3
    assert answered == replies[: len(answered)]
    cluster.heal()
    await cluster.until(lambda: all(reply.answers for reply in replies))
    assert all(isinstance(reply.answers[0], SendMessageResult) for reply in replies)


@staged
async def test_answers_wait_beyond_the_number_of_entries(cluster: ShardCluster) -> None:
    leader = await answering_early(cluster, under_way_max=4)
    cut_off(cluster, leader)

    replies = await one_by_one(cluster, leader, 8, "a")

    assert [bool(reply.answers) for reply in replies] == [True] * 4 + [False] * 4
    cluster.heal()
    await cluster.until(lambda: all(reply.answers for reply in replies))


async def one_by_one(
    cluster: ShardCluster, leader: ShardHost, count: int, body: str
) -> list[Reply]:
    """Send in as many Turns."""
    replies = []
    for _ in range(count):
        replies.append(cluster.ask(leader, prepared.send(Q, body)))
        await asyncio.sleep(0.02)
    return replies


@staged
async def test_a_leader_without_peers_gives_up_although_all_answers_left(
    cluster: ShardCluster,
) -> None:
    """Rule 27: also one that is only asked for what changes nothing."""
    leader = await answering_early(cluster)
    cut_off(cluster, leader)
    answers: list[object] = []
    for _ in range(40):
        answers += cluster.ask(leader, prepared.delete(Q, GONE)).answers
        await asyncio.sleep(0.1)

    assert not leader.leads
    assert isinstance(await cluster.answer(leader, prepared.delete(Q, GONE)), NotDecided)


@staged
async def test_a_leader_that_stops_in_order_loses_nothing(cluster: ShardCluster) -> None:
    old = await answering_early(cluster)
    for host in cluster.hosts.values():
        if host is not old:
            host.disk.sync_s = (0.2, 0.2)
    await sent(cluster, old, "a", "b", "c")
    assert old.store.applied != old.store.replica.log.last

    await old.stop()

    new = await cluster.leader()
    assert bodies(await received(cluster, new)) == ["first", "a", "b", "c"]


@staged
async def test_hosts_may_differ(cluster: ShardCluster) -> None:
    """Each shard follows the way of its leader."""
    await answering_early(cluster)
    cluster.options = cluster.options._replace(replication=Replication.SYNC)
    old = await cluster.leader()
    old.crash(is_power_loss=True)
    old.start()
    await cluster.until(lambda: cluster.leading() is not None)
    reports = [host.store.report().replication for host in cluster.hosts.values()]

    assert sorted(reports) == ["async", "async", "sync"]
    for name in cluster.names:
        host = cluster.hosts[name]
        await cluster.until(lambda: cluster.leading() is not None)
        leader = await cluster.leader()
        await sent(cluster, leader, name)
        if host is leader:
            leader.store.give_up("a test")
    await cluster.alike()
