"""Rule 20: a host with damaged rows neither leads nor counts until it has others; damage becomes an
event only if no host has a sound copy."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from cluster.peers.peer_settings import CheckpointSettings
from cluster.replication.replacement import RowSource
from cluster.shards.shard_report import Phase
from cluster.tests.replication.shard_hosts import ShardCluster, ShardHost, fetching, restart
from cluster.tests.replication.shard_process import Checkpointing
from cluster.tests.replication.test_shards import Q, bodies, received, sent, staged
from cluster.tests.shard_pair import in_shard
from cluster.tests.simulation.flips import acknowledged_records
from storage.copies.replaced_rows import Replaced
from storage.copies.scrub import ScrubTimes
from storage.engines.store_options import log_folder
from storage.log.entry import BEGINNING
from visibility.rows.row_keys import DEPARTURE, message_key, queue_key, row_key
from visibility.rows.row_values import THE_SHARD
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
    assert not store.quarantines, "others may have a good copy of what is damaged next"
    assert damaged.shard.queues([1])[0].quarantined == 1
    cluster.heal()
    await cluster.alike()
    assert len({tuple(sorted(host.rows.items())) for host in cluster.hosts.values()}) == 1


@staged
async def test_a_value_that_is_wrong_on_all_hosts_is_quarantined(cluster: ShardCluster) -> None:
    """Each of them has sound blocks: a checkpoint of another host must not pass for a good copy."""
    await _with_scrubs(cluster)
    await _wrong_everywhere(cluster, message_key(1, 2))

    await _quarantined(cluster, 1)

    await asyncio.sleep(_LONG_S)  # scrubs meet its row on all hosts
    leader = await cluster.leader()
    term = leader.store.replica.journal.promise.term
    await asyncio.sleep(_LONG_S)
    assert leader.leads
    assert leader.store.replica.journal.promise.term == term
    assert bodies(await received(cluster, leader)) == ["a", "c", "d", "e", "f"]
    _crash_all(cluster)


@pytest.mark.slow
@staged
async def test_damage_after_a_quarantine_is_healed_by_the_rows_of_others_again(
    cluster: ShardCluster,
) -> None:
    await _with_scrubs(cluster)
    await _wrong_everywhere(cluster, message_key(1, 2))
    leader = await _quarantined(cluster, 1)
    await cluster.alike()
    assert [host.store.quarantines for host in cluster.hosts.values()] == [False] * 3

    await asyncio.sleep(_LONG_S)
    leader = await cluster.leader()
    leader.rows[message_key(1, 5)] = leader.files.rows[message_key(1, 5)] = RUBBISH
    await asyncio.sleep(_LONG_S)

    leader = await cluster.leader()
    assert bodies(await received(cluster, leader)) == ["a", "c", "d", "e", "f"]
    assert leader.shard.queues([1])[0].quarantined == 1
    _crash_all(cluster)


@pytest.mark.slow
@staged
async def test_of_rows_that_are_damaged_on_one_host_each_only_the_first_met_is_lost(
    cluster: ShardCluster,
) -> None:
    """Whole copies are asked for, and none is good; once that row is quarantined, its copy is."""
    await _with_scrubs(cluster)
    _crash_all(cluster)
    for number, host in enumerate(cluster.hosts.values(), 1):
        host.files.rows[message_key(1, number)] = RUBBISH
        host.start()
    old = await _quarantined(cluster, 1)
    await cluster.alike()

    old.crash(is_power_loss=False)
    asyncio.get_running_loop().call_later(20, old.start)
    for _ in range(int(_LONG_S)):  # the next leader's own damage was not quarantined
        if (leading := cluster.leading()) is not None:
            cluster.ask(leading, prepared.receive(Q, 10))
        await asyncio.sleep(1)
    await asyncio.sleep(_LONG_S)

    leader = await cluster.leader()
    assert len(bodies(await received(cluster, leader))) == 5
    assert leader.shard.queues([1])[0].quarantined == 1
    _crash_all(cluster)


async def _with_scrubs(cluster: ShardCluster) -> None:
    """Hosts that scrub their rows often, and have flushed six messages."""
    cluster.checkpoints = Checkpointing(CheckpointSettings(), ScrubTimes(10, 20))
    restart(cluster, flush_rows=1)
    await sent(cluster, await cluster.leader(), *"abcdef")
    await cluster.alike()
    await asyncio.sleep(1)


def _crash_all(cluster: ShardCluster) -> None:
    for host in cluster.hosts.values():
        host.crash(is_power_loss=False)


async def _wrong_everywhere(cluster: ShardCluster, *keys: bytes) -> None:
    _crash_all(cluster)
    for host in cluster.hosts.values():
        for key in keys:
            assert key in host.files.rows, "it was flushed"
            host.files.rows[key] = RUBBISH
        host.start()
    await cluster.leader()


async def _quarantined(cluster: ShardCluster, count: int) -> ShardHost:
    """The leader, once this many messages of the queue are quarantined."""
    async with asyncio.timeout(_LONG_S):
        while True:
            leader = await cluster.leader()
            await cluster.answer(leader, prepared.receive(Q, 10))
            if leader.leads and leader.shard.queues([1])[0].quarantined == count:
                return leader
            await asyncio.sleep(1)


@staged
async def test_a_host_with_damaged_rows_does_not_lead_and_fetches_others(
    cluster: ShardCluster,
) -> None:
    """Rule 20."""
    leader = await cluster.leader()
    await sent(cluster, leader, "a")
    await cluster.alike()
    await _fetches_others(cluster, leader, queue_key(1), RUBBISH)

    assert bodies(await received(cluster, await cluster.leader())) == ["a"]


@staged
async def test_a_host_that_lacks_a_message_of_the_outbox_fetches_the_rows_of_another(
    cluster: ShardCluster,
) -> None:
    letters = in_shard(1, prepared.queue_named("letters", 3))
    source = prepared.queue_named("s", 2, dead_letters_to=letters, VisibilityTimeout="0")
    for queue in (letters, source):
        cluster.queues.define(queue)
    leader = await cluster.leader()
    await cluster.answer(leader, prepared.send(source, "a"))
    for target in (None, letters):
        await cluster.answer(leader, prepared.receive(source, dead_letter_queue=target))
    await cluster.alike()
    await _fetches_others(cluster, leader, row_key(THE_SHARD, DEPARTURE, 1), None)

    assert (await cluster.leader()).shard.report().outbox == 1


@staged
async def test_a_damaged_entry_that_the_rows_have_costs_a_host_neither_rows_nor_vote(
    cluster: ShardCluster,
) -> None:
    """A scrub finds it. The host took older rows instead of its own, and lost the Entries behind
    them (seed 1101677)."""
    cluster.options = cluster.options._replace(flush_rows=4)
    cluster.checkpoints = Checkpointing(CheckpointSettings(), ScrubTimes(5.0, 1.0))
    restart(cluster)
    leader = await cluster.leader()
    await sent(cluster, leader, *"abcdef")
    await cluster.alike()
    record = acknowledged_records(leader.disk, log_folder(leader.folder), BEGINNING)[1]
    await cluster.until(lambda: leader.store.flushed.index >= record.number)
    replica_id = leader.store.replica.replica_id
    others = [host for host in cluster.hosts.values() if host is not leader]
    for host in others:
        host.crash(is_power_loss=False)
    leader.disk.flip(log_folder(leader.folder) / record.segment, record.offset + 8, 0)

    await asyncio.sleep(_LONG_S)

    assert leader.store.report().damage == ""
    assert leader.store.replica.replica_id == replica_id
    assert leader.store.log_start >= record.number, "found, and not shipped any more"
    for host in others:
        host.start()
    await cluster.alike()
    assert bodies(await received(cluster, await cluster.leader())) == list("abcdef")


async def _fetches_others(
    cluster: ShardCluster, leader: ShardHost, key: bytes, damage: bytes | None
) -> None:
    """Damage a row of a follower, or lose it; only this host can lead, and it heals."""
    damaged, _ = (host for host in cluster.hosts.values() if host is not leader)
    sound, damaged.rows[key] = damaged.rows[key], damage or b""
    if damage is None:
        assert damaged.process is not None
        assert damaged.process.rows is not None
        damaged.process.rows.lose(key)
    fetching = asyncio.Event()

    async def fetch() -> Replaced:
        fetching.set()
        never: asyncio.Future[Replaced] = asyncio.get_running_loop().create_future()
        return await never

    async def leave() -> None:
        """Returns at once: its rows are not in use."""

    damaged.store.replacement.source = RowSource(fetch, lambda replaced: None, leave, leave)
    cluster.coordination.unreachable.update(set(cluster.names) - {damaged.name})
    leader.crash(is_power_loss=True)
    await asyncio.wait_for(fetching.wait(), 60)

    assert damaged.shard.phase is Phase.FOLLOWING
    cluster.heal()
    await asyncio.sleep(30)
    assert cluster.leading() is None, "no majority counts"
    damaged.rows[key] = sound  # as if it had fetched them
    damaged.crash(is_power_loss=False)
    damaged.start()
