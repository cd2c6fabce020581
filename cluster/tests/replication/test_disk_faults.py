"""The simulator of disk faults damages a second host once the first one has all it acknowledged
again, and no sooner."""

from __future__ import annotations

from random import Random

import pytest

from cluster.tests.replication.shard_hosts import ShardCluster, ShardHost
from cluster.tests.replication.test_shards import sent, staged
from cluster.tests.simulation.simulated_cluster_faults import ShardFaults
from cluster.tests.simulation.simulated_disk_faults import DiskFaults, DiskShape
from storage.copies.replaced_rows import Replaced, incoming_of, replace_rows
from storage.tests.simulated_disk import PowerCut

_UNTIL_THE_MARK = 5
"""Changes of files after which a replacement counts, and has changed no rows."""


async def _flipped(cluster: ShardCluster) -> tuple[DiskFaults, ShardHost, ShardHost]:
    """A follower with a flipped bit in its log, and the leader; its rows lack that Entry."""
    leader = await cluster.leader()
    await sent(cluster, leader, "a", "b", "c")
    await cluster.alike()
    flipped = next(host for host in cluster.hosts.values() if host is not leader)
    damage = DiskFaults(ShardFaults(cluster, Random(1), ()), DiskShape(), Random(1))
    damage.flip_a_bit(flipped)
    assert "flipped" in cluster.lines[-1]
    assert not damage.may_lose(leader)
    return damage, flipped, leader


@staged
async def test_a_second_disk_fails_once_rows_have_what_the_log_lost(cluster: ShardCluster) -> None:
    damage, flipped, leader = await _flipped(cluster)
    assert flipped.process is not None
    assert flipped.process.rows is not None

    flipped.process.rows.flush()

    assert damage.may_lose(leader)
    flipped.crash(is_power_loss=True)
    assert damage.may_lose(leader)


@pytest.mark.parametrize("have_it", [False, True])
def test_rows_count_that_an_unfinished_replacement_brings(have_it: bool) -> None:
    @staged
    async def story(cluster: ShardCluster) -> None:
        damage, flipped, leader = await _flipped(cluster)
        assert flipped.process is not None
        assert flipped.process.rows is not None
        flipped.process.rows.flush()
        flipped.crash(is_power_loss=False)
        rows = dict(leader.rows) if have_it else {}
        flipped.folders.write_rows(incoming_of(flipped.folder), rows, set())
        assert damage.may_lose(leader), "without a mark they do not count"

        flipped.folders.calls_until_cut = _UNTIL_THE_MARK
        with pytest.raises(PowerCut):
            replace_rows(
                flipped.folders, flipped.folder, Replaced(cluster.log_id, leader.store.applied)
            )

        assert damage.may_lose(leader) is have_it

    story()
