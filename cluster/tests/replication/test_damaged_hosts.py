"""Rule 20: a host with damaged rows neither leads nor counts until it has others; damage becomes an
event only if no host has a sound copy."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from cluster.replication.replacement import Ways
from cluster.shards.report import Phase
from cluster.tests.replication.shard_hosts import ShardCluster, ShardHost, fetching, restart
from cluster.tests.replication.test_shards import Q, bodies, received, sent, staged
from storage.copies.replaced_rows import Replaced
from storage.rows.keys import message_key, queue_key
from visibility.tests import prepared

_LONG_S = 120.0
"""Much longer than the rest of a host that gave up."""
RUBBISH = b"\x01rubbish"


async def _damaged_leader(cluster: ShardCluster) -> ShardHost:
    """A host that led until it met a damaged row; it finds no other rows."""
    leader = await cluster.leader()
    await sent(cluster, leader, "a", "b", "c")
    await cluster.alike()
    restart(cluster)  # the messages are in no memory
    leader = await cluster.leader()
    await cluster.alike()
    fetching(cluster)
    leader.rows[message_key(1, 2)] = RUBBISH
    await cluster.answer(leader, prepared.receive(Q, 10))
    return leader


@staged
async def test_it_does_not_lead_although_no_other_host_can(cluster: ShardCluster) -> None:
    damaged = await _damaged_leader(cluster)
    for host in cluster.hosts.values():
        if host is not damaged:
            cluster.coordination.unreachable.add(host.name)

    await asyncio.sleep(_LONG_S)

    assert cluster.leading() is None
    assert damaged.store.report().damage
    cluster.heal()
    await cluster.leader(but=damaged)
    damaged.crash(is_power_loss=False)  # ends the fetch


@staged
async def test_it_does_not_count_until_it_has_healed(cluster: ShardCluster) -> None:
    damaged = await _damaged_leader(cluster)
    leader = await cluster.leader(but=damaged)
    (third,) = (host for host in cluster.hosts.values() if host not in (damaged, leader))
    await sent(cluster, leader, "d")
    await cluster.until(lambda: damaged.store.replica.log.last_index == leader.store.applied.index)
    third.crash(is_power_loss=False)
    commit = leader.store.replica.commit

    send = cluster.ask(leader, prepared.send(Q, "e"))
    await cluster.until(lambda: bool(send.answers))  # refused: nothing was committed

    assert leader.store.replica.commit == commit
    damaged.rows[message_key(1, 2)] = leader.rows[message_key(1, 2)]  # as if it had fetched them
    damaged.crash(is_power_loss=False)
    damaged.start()
    healed = await cluster.leader()
    await sent(cluster, healed, "f")
    third.start()
    await cluster.alike()


@staged
async def test_without_a_sound_copy_an_event_quarantines_the_damage(cluster: ShardCluster) -> None:
    damaged = await _damaged_leader(cluster)
    for host in cluster.hosts.values():
        host.rows[message_key(1, 2)] = RUBBISH
        if host is not damaged:
            cluster.coordination.unreachable.add(host.name)
    store = damaged.store

    with capture_logs() as logs:
        store.replacement.cancel()
        for _ in range(2):
            store.damaged.no_good_copy(store.replica)
        await cluster.until(lambda: damaged.leads)
        found = await received(cluster, damaged)

    assert bodies(found) == ["a", "c"]
    events = [line["event"] for line in logs]
    assert events.count("no_good_copy") == 1
    assert store.report().damage == ""
    assert store.report().has_no_good_copy
    assert damaged.shard.queues([1])[0].quarantined == 1
    cluster.heal()
    await cluster.alike()
    assert len({tuple(sorted(host.rows.items())) for host in cluster.hosts.values()}) == 1


@staged
async def test_a_host_with_damaged_rows_does_not_lead_and_fetches_others(
    cluster: ShardCluster,
) -> None:
    """Rule 20."""
    leader = await cluster.leader()
    await sent(cluster, leader, "a")
    await cluster.alike()
    damaged, _ = (host for host in cluster.hosts.values() if host is not leader)
    sound, damaged.rows[queue_key(1)] = damaged.rows[queue_key(1)], b"\x01rubbish"
    fetching = asyncio.Event()

    async def fetch() -> Replaced:
        fetching.set()
        never: asyncio.Future[Replaced] = asyncio.get_running_loop().create_future()
        return await never

    async def leave() -> None:
        """Nobody uses its rows."""

    damaged.store.replacement.ways = Ways(fetch, lambda replaced: None, leave)
    cluster.coordination.unreachable.update(set(cluster.names) - {damaged.name})
    leader.crash(is_power_loss=True)
    await asyncio.wait_for(fetching.wait(), 60)

    assert damaged.shard.phase is Phase.FOLLOWING
    cluster.heal()
    await asyncio.sleep(30)
    assert cluster.leading() is None, "no majority counts"
    damaged.rows[queue_key(1)] = sound  # as if it had fetched them
    damaged.crash(is_power_loss=False)
    damaged.start()
    assert bodies(await received(cluster, await cluster.leader())) == ["a"]
