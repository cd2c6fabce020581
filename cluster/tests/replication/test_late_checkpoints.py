"""Checkpoints that take long, while the hosts go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cluster.peers.log_retention import RetentionLimits
from cluster.peers.peer_settings import CheckpointSettings
from cluster.replication import checkpointing
from cluster.replication.replica import Replica
from cluster.tests.replication.shard_hosts import ShardCluster, ShardHost
from cluster.tests.replication.shard_process import Checkpointing
from cluster.tests.replication.test_shards import Q, Story, staged
from storage.copies.checkpoint_files import check_rows_of
from storage.copies.scrub import ScrubTimes
from storage.log import Position, Promise
from visibility.tests import prepared

CHECK_S = 40.0
"""Reading all rows of a large checkpoint."""
NEVER_S = 1e6


async def _check_slowly(folder: Path, *others: Any) -> Position:
    await asyncio.sleep(CHECK_S)
    return await check_rows_of(folder, *others)


@pytest.fixture(autouse=True)
def slow_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointing, "check_rows_of", _check_slowly)


def _shorten_logs(cluster: ShardCluster) -> None:
    settings = CheckpointSettings(keep_s=2.0, retry_max_s=2.0)
    cluster.checkpoints = Checkpointing(settings, ScrubTimes(NEVER_S, NEVER_S))
    cluster.timing = cluster.timing._replace(retained_bytes=20_000)
    cluster.options = cluster.options._replace(
        segment_bytes=20 << 10, flush_bytes=5_000, flush_rows=20
    )


def with_short_logs(story: Story) -> Callable[[], None]:
    """Run a story with three hosts whose logs are short."""

    @wraps(story)
    async def to_its_end(cluster: ShardCluster) -> None:
        await story(cluster)
        for host in cluster.hosts.values():
            host.crash(is_power_loss=False)
        assert not cluster.violations

    return staged(to_its_end, _shorten_logs)


async def fill(cluster: ShardCluster, host: ShardHost, count: int) -> None:
    for _ in range(count):
        await cluster.answer(host, prepared.send(Q, "m" * 600))


def promise_of(host: ShardHost) -> Promise:
    return replica_of(host).journal.promise


def replica_of(host: ShardHost) -> Replica:
    assert host.replica is not None
    return host.replica


@with_short_logs
async def test_a_checkpoint_does_not_replace_rows_that_caught_up_by_a_log(
    cluster: ShardCluster,
) -> None:
    """It was behind; then a host led whose log reached back to it."""
    old = await cluster.leader()
    await fill(cluster, old, 5)
    await cluster.alike()
    behind, new = (host for host in cluster.hosts.values() if host is not old)
    replica_id = replica_of(behind).replica_id
    new.files.failing_flushes = 10**6  # so that its log reaches back further
    cluster.isolate(behind)
    await fill(cluster, old, 120)
    cluster.heal()
    new.files.failing_flushes = 10**6
    await cluster.until(lambda: replica_of(behind).needs_checkpoint)
    await asyncio.sleep(1)
    old.crash(is_power_loss=False)
    assert await cluster.leader() is new
    await fill(cluster, new, 5)
    assert not replica_of(behind).needs_checkpoint, "it counts again"
    new.files.failing_flushes = 0
    await fill(cluster, new, 150)
    opened = behind.store

    await asyncio.sleep(2 * CHECK_S)

    assert behind.store is opened
    assert replica_of(behind).replica_id == replica_id
    await cluster.until(lambda: behind.store.applied == new.store.applied)


@with_short_logs
async def test_a_host_that_heals_under_load_stays_a_voter(cluster: ShardCluster) -> None:
    """Its log is kept from where it was when the fetch began."""
    leader = await cluster.leader()
    await fill(cluster, leader, 20)
    await cluster.alike()
    damaged = next(host for host in cluster.hosts.values() if host is not leader)
    replica_id = replica_of(damaged).replica_id
    opened = damaged.store
    opened.replace_rows("a flipped bit")
    await asyncio.sleep(1)
    await fill(cluster, leader, 150)

    await cluster.until(lambda: damaged.store is not opened)

    await cluster.alike()
    assert replica_of(damaged).replica_id == replica_id
    assert not replica_of(damaged).damage


@pytest.mark.slow
@with_short_logs
async def test_a_new_disk_is_brought_up_under_a_load_that_never_ends(cluster: ShardCluster) -> None:
    """The first fetches last longer than the log behind them is held."""
    leader = await cluster.leader()
    await fill(cluster, leader, 100)
    host = next(each for each in cluster.hosts.values() if each is not leader)
    host.crash(is_power_loss=True)
    host.replace_disk(Random(7))
    for each in cluster.hosts.values():
        if each is not host:
            each.store.holds._limits = RetentionLimits(bytes_max=80_000)
    host.start()

    def counts() -> bool:
        store = host.process.store if host.process is not None else None
        return store is not None and store.replica.replica_id in promise_of(leader).voters

    for _ in range(3_000):
        await fill(cluster, await cluster.leader(), 1)
        if counts():
            break
        await asyncio.sleep(0.2)

    assert counts()
