"""A leader makes few and large Entries: its Turn waits for requests that are just coming."""

from __future__ import annotations

import asyncio

from cluster.shards.turn_timing import PASSES_MAX, TURN_REQUESTS_MAX
from cluster.tests.replication.shard_hosts import ShardCluster
from cluster.tests.replication.test_shards import Q, bodies, received, staged
from visibility.tests import prepared


@staged
async def test_a_turn_waits_while_requests_come(cluster: ShardCluster) -> None:
    """Those of later passes of the loop are in the same Entry."""
    leader = await cluster.leader()
    before = leader.last_index
    replies = []
    for number in range(PASSES_MAX):
        replies.append(cluster.ask(leader, prepared.send(Q, f"m{number}")))
        await asyncio.sleep(0)
    assert leader.last_index == before

    await cluster.until(lambda: all(reply.answers for reply in replies))

    assert leader.last_index == before + 1
    assert bodies(await received(cluster, leader)) == ["m0", "m1", "m2", "m3"]


@staged
async def test_a_turn_waits_for_a_few_passes_only(cluster: ShardCluster) -> None:
    leader = await cluster.leader()
    before = leader.last_index
    passes = 0
    while leader.last_index == before and passes < 100:
        cluster.ask(leader, prepared.send(Q, "m"))
        await asyncio.sleep(0)
        passes += 1

    assert passes == PASSES_MAX + 1


@staged
async def test_a_full_turn_waits_for_nothing(cluster: ShardCluster) -> None:
    leader = await cluster.leader()
    before = leader.last_index
    for _ in range(TURN_REQUESTS_MAX):
        cluster.ask(leader, prepared.send(Q, "m"))

    await asyncio.sleep(0)

    assert leader.last_index == before + 1


@staged
async def test_the_next_entry_waits_for_the_commit(cluster: ShardCluster) -> None:
    leader = await cluster.leader()
    before = leader.last_index
    first = cluster.ask(leader, prepared.send(Q, "a"))
    await leader.appended(before + 1)
    later = []
    for body in "bcd":
        later.append(cluster.ask(leader, prepared.send(Q, body)))
        for _ in range(2 * PASSES_MAX):
            await asyncio.sleep(0)
    assert leader.last_index == before + 1
    assert not first.answers

    await cluster.until(lambda: all(reply.answers for reply in later))

    assert first.answers
    assert leader.last_index == before + 2
