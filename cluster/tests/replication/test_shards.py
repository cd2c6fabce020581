"""Three hosts with real shards: what one acknowledged, the next leader serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from random import Random
from typing import Any

from cluster.shards.answers import NotDecided
from cluster.shards.shard_report import Phase
from cluster.tests.replication.shard_hosts import ShardCluster, ShardHost, fetching, restart
from cluster.tests.virtual_time import VirtualLoop, failures_of
from cluster.tests.world import state_of
from visibility.contract.errors import ServiceUnavailable
from visibility.contract.model import QueueCounters, Receipt
from visibility.contract.outcomes import Deliveries
from visibility.contract.results import SendMessageResult
from visibility.rows.row_keys import message_key
from visibility.tests import prepared

Q = prepared.queue_named("q", 1, VisibilityTimeout="30")
Story = Callable[[ShardCluster], Coroutine[Any, Any, None]]


def staged(
    story: Story, prepare: Callable[[ShardCluster], object] = lambda cluster: None
) -> Callable[[], None]:
    """Run a story on virtual time; no callback may fail. `prepare` sets the cluster up before its
    hosts start."""

    @wraps(story)
    def run() -> None:
        loop = VirtualLoop()
        failures = failures_of(loop)

        async def tell() -> None:
            cluster = ShardCluster(Random(1))
            cluster.coordination.ttl_s = 3.0
            cluster.queues.define(Q)
            prepare(cluster)
            cluster.start()
            await story(cluster)

        try:
            loop.run_until_complete(tell())
        finally:
            loop.close()
        assert not failures

    del run.__wrapped__
    return run


async def sent(cluster: ShardCluster, host: ShardHost, *bodies: str) -> None:
    for body in bodies:
        assert isinstance(await cluster.answer(host, prepared.send(Q, body)), SendMessageResult)


async def received(cluster: ShardCluster, host: ShardHost, most: int = 10) -> Deliveries:
    answer = await cluster.answer(host, prepared.receive(Q, most))
    assert isinstance(answer, Deliveries)
    return answer


def bodies(deliveries: Deliveries) -> list[str]:
    return [message.data.decode() for message in deliveries.messages]


@staged
async def test_the_next_leader_has_what_the_killed_one_acknowledged(cluster: ShardCluster) -> None:
    old = await cluster.leader()
    await sent(cluster, old, "a", "b")

    old.crash(is_power_loss=True)
    new = await cluster.leader()

    assert new is not old
    assert bodies(await received(cluster, new)) == ["a", "b"]
    old.start()
    await cluster.alike()


@staged
async def test_all_hosts_have_the_same_rows(cluster: ShardCluster) -> None:
    leader = await cluster.leader()
    await sent(cluster, leader, *[f"m{number}" for number in range(30)])
    deliveries = await received(cluster, leader, 5)
    receipts = [Receipt(lease.sequence, lease.receive_count) for lease in deliveries.leases]
    for receipt in receipts[:3]:
        await cluster.answer(leader, prepared.delete(Q, receipt))

    await cluster.alike()

    first, *others = [host.rows for host in cluster.hosts.values()]
    assert first
    for rows in others:
        assert rows == first


@staged
async def test_a_follower_decides_nothing(cluster: ShardCluster) -> None:
    leader = await cluster.leader()
    follower = next(host for host in cluster.hosts.values() if host is not leader)

    assert follower.shard.phase is Phase.FOLLOWING
    assert isinstance(await cluster.answer(follower, prepared.send(Q, "a")), NotDecided)


@staged
async def test_a_deposed_leader_answers_nothing(cluster: ShardCluster) -> None:
    """Rule 8: it does not know yet that another leads."""
    old = await cluster.leader()
    await sent(cluster, old, "a")
    cluster.isolate(old)
    poll = cluster.ask(old, prepared.receive(prepared.queue_named("other", 2), wait_s=20))
    await asyncio.sleep(0)
    asked = [
        cluster.ask(old, request) for request in (prepared.counters(Q), prepared.send(Q, "lost"))
    ]
    new = await cluster.leader(but=old)
    await sent(cluster, new, "b")
    await cluster.until(lambda: not old.leads)

    for reply in (poll, *asked):
        (answer,) = reply.answers
        assert type(answer) is ServiceUnavailable
    assert isinstance(await cluster.answer(old, prepared.counters(Q)), NotDecided)
    cluster.heal()
    await cluster.alike()
    assert bodies(await received(cluster, await cluster.leader())) == ["a", "b"]


@staged
async def test_a_leader_that_was_stopped_tells_nothing_old(cluster: ShardCluster) -> None:
    """Rule 8: SIGSTOP, longer than the lease."""
    old = await cluster.leader()
    await sent(cluster, old, "a")
    shard = old.shard
    old.pause()
    new = await cluster.leader(but=old)
    await sent(cluster, new, "b")
    cluster.isolate(old)  # so that no message tells it

    told: list[object] = []

    def ask() -> None:
        shard.submit(prepared.counters(Q), told.append)

    old.enter(ask)
    old.resume()
    await cluster.until(lambda: bool(told))

    assert type(told[0]) is ServiceUnavailable
    cluster.heal()
    await cluster.alike()


@staged
async def test_an_answer_without_changes_waits_for_a_majority(cluster: ShardCluster) -> None:
    leader = await cluster.leader()
    await sent(cluster, leader, "a")
    cluster.isolate(leader)

    counted = cluster.ask(leader, prepared.counters(Q))
    await asyncio.sleep(0.5)
    assert not counted.answers

    cluster.heal()
    await cluster.until(lambda: bool(counted.answers))
    assert counted.answers == [QueueCounters(1, 0, 0)]


@staged
async def test_what_waits_in_the_inbox_was_not_decided(cluster: ShardCluster) -> None:
    leader = await cluster.leader()
    reply = cluster.ask(leader, prepared.send(Q, "a"))
    leader.store.give_up("a test")

    (answer,) = reply.answers
    assert isinstance(answer, NotDecided)
    assert leader.shard.phase is Phase.FOLLOWING
    await cluster.leader()


@staged
async def test_a_receive_that_is_answered_late_is_empty(cluster: ShardCluster) -> None:
    """Rule 12: its messages are given back."""
    leader = await cluster.leader()
    short = cluster.queues.define(prepared.queue_named("short", 3, VisibilityTimeout="2"))
    await cluster.answer(leader, prepared.send(short, "a"))
    for host in cluster.hosts.values():
        host.disk.sync_s = (0.6, 0.6)

    answer = await cluster.answer(leader, prepared.receive(short))
    for host in cluster.hosts.values():
        host.disk.sync_s = (0.0001, 0.002)

    assert answer == Deliveries([], [])
    await asyncio.sleep(3)
    again = await cluster.answer(leader, prepared.receive(short))
    assert isinstance(again, Deliveries)
    assert [lease.receive_count for lease in again.leases] == [1]


@staged
async def test_a_host_that_stops_hands_over_at_once(cluster: ShardCluster) -> None:
    old = await cluster.leader()
    await sent(cluster, old, "a")
    cluster.coordination.ttl_s = 1000.0
    begun = asyncio.get_running_loop().time()

    await old.stop()
    new = await cluster.leader()

    assert asyncio.get_running_loop().time() - begun < 5
    assert bodies(await received(cluster, new)) == ["a"]
    old.start()
    await cluster.alike()


@staged
async def test_a_host_stops_although_requests_keep_coming(cluster: ShardCluster) -> None:
    old = await cluster.leader()
    shard = old.shard
    refused: list[object] = []

    def again(answer: object) -> None:
        if isinstance(answer, NotDecided):
            refused.append(answer)
        else:
            shard.submit(prepared.send(Q, "a"), again)

    for _ in range(3):
        shard.submit(prepared.send(Q, "a"), again)
    await asyncio.sleep(0.1)

    await asyncio.wait_for(old.stop(), 10)

    assert len(refused) == 3
    assert await cluster.leader() is not old
    old.start()
    await cluster.alike()


@staged
async def test_a_host_whose_clock_was_ahead_leads_with_the_right_time(
    cluster: ShardCluster,
) -> None:
    """Rule 29: it started a day ahead, and was set right."""
    leader = await cluster.leader()
    await sent(cluster, leader, "a")
    host = next(host for host in cluster.hosts.values() if host is not leader)
    host.crash(is_power_loss=False)
    host.ahead_s = 86_400.0
    host.start()
    await asyncio.sleep(5)
    host.ahead_s = 0.0
    cluster.coordination.unreachable.update(set(cluster.names) - {host.name})
    leader.crash(is_power_loss=True)

    assert await cluster.leader() is host
    assert host.process is not None
    assert abs(host.process.clock.now_ms() / 1000 - host.wall_s()) < 1


@staged
async def test_a_failed_sync_moves_the_lead_and_costs_nothing(cluster: ShardCluster) -> None:
    """Rule 9."""
    leader = await cluster.leader()
    await sent(cluster, leader, "a")
    leader.disk.failing_syncs = 1
    reply = cluster.ask(leader, prepared.send(Q, "b"))
    await cluster.until(lambda: bool(reply.answers))

    assert type(reply.answers[0]) is ServiceUnavailable
    assert leader.shard.report().failures == 0, "the store is not opened anew"
    new = await cluster.leader()
    await sent(cluster, new, "c")
    await cluster.alike()


@staged
async def test_a_follower_that_flushed_brings_up_a_host_that_was_away(
    cluster: ShardCluster,
) -> None:
    restart(cluster, flush_rows=20, segment_bytes=16 << 10)
    old = await cluster.leader()
    await sent(cluster, old, "a")
    new, away = (host for host in cluster.hosts.values() if host is not old)
    away.crash(is_power_loss=True)
    await sent(cluster, old, *[str(number) * 100 for number in range(200)])
    await cluster.until(lambda: new.store.flushed.index > 150)

    old.crash(is_power_loss=True)
    away.start()

    await sent(cluster, await cluster.leader(but=old), "b")
    await cluster.until(lambda: away.store.applied == new.store.applied)
    assert away.rows == new.rows


@staged
async def test_a_failover_does_not_cut_off_a_host_that_lags(cluster: ShardCluster) -> None:
    """The followers keep as much of the log as the leader."""
    cluster.timing = cluster.timing._replace(retained_bytes=256 << 10)
    restart(cluster, flush_rows=20, segment_bytes=16 << 10)
    old = await cluster.leader()
    await sent(cluster, old, "a")
    new, away = (host for host in cluster.hosts.values() if host is not old)
    away.crash(is_power_loss=True)
    await sent(cluster, old, *[str(number).ljust(600) for number in range(200)])
    await cluster.until(lambda: new.store.flushed.index > 190)

    old.crash(is_power_loss=True)
    away.start()

    await sent(cluster, await cluster.leader(but=old), "b")
    await cluster.until(lambda: away.store.applied == new.store.applied)
    assert away.rows == new.rows


@staged
async def test_a_follower_waits_for_its_flush(cluster: ShardCluster) -> None:
    restart(cluster, flush_rows=20)
    leader = await cluster.leader()
    away = next(host for host in cluster.hosts.values() if host is not leader)
    away.crash(is_power_loss=True)
    await sent(cluster, leader, *[f"m{number}" for number in range(200)])
    cluster.thread_s_max = 0.5
    away.start()
    peak = 0

    def has_caught_up() -> bool:
        nonlocal peak
        store = None if away.process is None else away.process.store
        if store is None:
            return False
        peak = max(peak, store.unflushed_rows)
        return store.applied == leader.store.applied

    await cluster.until(has_caught_up)
    assert 0 < peak < 2 * 20


@staged
async def test_rows_that_cannot_be_flushed_keep_the_log(cluster: ShardCluster) -> None:
    for host in cluster.hosts.values():
        host.files.failing_flushes = 2
    restart(cluster, flush_rows=20)
    leader = await cluster.leader()
    await sent(cluster, leader, *[f"m{number}" for number in range(60)])
    for host in cluster.hosts.values():
        host.crash(is_power_loss=True)
        host.start()

    assert len(bodies(await received(cluster, await cluster.leader()))) == 10
    await cluster.alike()
    answer = await cluster.answer(await cluster.leader(), prepared.counters(Q))
    assert answer == QueueCounters(50, 10, 0)


@staged
async def test_a_new_leader_waits_for_the_definitions_of_the_one_before(
    cluster: ShardCluster,
) -> None:
    old = await cluster.leader()
    await sent(cluster, old, "purged")

    async def catch_up() -> bool:
        assert cluster.coordination.state().holder is not None
        await asyncio.sleep(1)
        cluster.queues.purge(Q)
        return True

    cluster.catch_up = catch_up
    old.crash(is_power_loss=True)
    new = await cluster.leader()

    successor = cluster.queues.queues[Q.queue_id + 1_000]
    assert state_of(new.shard).queue(successor.queue_id).continues == Q.queue_id
    await cluster.answer(new, prepared.send(successor, "new"))
    answer = await cluster.answer(new, prepared.receive(successor, 10))
    assert isinstance(answer, Deliveries)
    assert bodies(answer) == ["new"]


@staged
async def test_a_damaged_row_of_the_leader_costs_no_other_host_its_own(
    cluster: ShardCluster,
) -> None:
    """Rule 20: damage makes no Entry."""
    leader = await cluster.leader()
    await sent(cluster, leader, "a", "b", "c")
    await cluster.alike()
    cluster.timing = cluster.timing._replace(waiting_max=2)
    restart(cluster)  # the messages are in no memory
    leader = await cluster.leader()
    await cluster.alike()
    found = fetching(cluster)
    leader.rows[message_key(1, 2)] = b"\x01rubbish"
    under_way = cluster.ask(leader, prepared.send(Q, "d"))
    await leader.appended(leader.last_index + 1)

    first = cluster.ask(leader, prepared.receive(Q, 10))
    behind = cluster.ask(leader, prepared.send(Q, "e"))
    await cluster.until(lambda: bool(first.answers and behind.answers and under_way.answers))

    assert [type(answer) for answer in first.answers] == [NotDecided]
    assert [type(answer) for answer in behind.answers] == [NotDecided]
    assert [type(answer) for answer in under_way.answers] == [ServiceUnavailable]
    assert found == [leader.name]
    assert leader.shard.phase is Phase.FOLLOWING
    assert leader.shard.report().failures == 0
    new = await cluster.leader(but=leader)
    assert bodies(await received(cluster, new))[:3] == ["a", "b", "c"]
    for host in cluster.hosts.values():
        if host is not leader:
            assert host.rows[message_key(1, 2)] != b"\x01rubbish"
