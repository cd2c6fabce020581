"""Entries that are applied are read off the event loop, unless they are in memory."""

from __future__ import annotations

import pytest

from cluster.tests.replication.shard_hosts import ShardCluster, restart
from cluster.tests.replication.test_shards import sent, staged
from storage.log import ReadAhead, ReplicaLog
from storage.log.log_entries import LogEntries


def test_a_host_that_replays_does_not_wait_for_its_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(entries: LogEntries, index: int) -> None:
        pytest.fail("the event loop waits for the disk")

    monkeypatch.setattr(LogEntries, "read_now", refused)
    read = ReplicaLog.read
    reads: list[int] = []

    def noted(log: ReplicaLog, first: int, bytes_max: int, got: object) -> None:
        reads.append(first)
        read(log, first, bytes_max, got)  # type: ignore[arg-type]

    monkeypatch.setattr(ReplicaLog, "read", noted)

    @staged
    async def story(cluster: ShardCluster) -> None:
        await sent(cluster, await cluster.leader(), *[str(number) for number in range(50)])
        await cluster.alike()
        reads.clear()
        restart(cluster)
        await cluster.leader()
        await cluster.alike()
        rows = [host.rows for host in cluster.hosts.values()]
        assert rows[0] == rows[1] == rows[2]

    story()
    assert reads, "the Entries were read from the disk"


class MissingLog:
    """A log whose disk has nothing."""

    def __init__(self) -> None:
        self.reads: list[int] = []

    @property
    def entries(self) -> MissingLog:
        return self

    def recent(self, first: int, bytes_max: int) -> list[bytes]:
        return []

    def read(self, first: int, bytes_max: int, got: object) -> None:
        self.reads.append(first)
        assert callable(got)
        got([])


def test_an_entry_that_cannot_be_read_is_said_once_and_read_again() -> None:
    log, told = MissingLog(), []
    ahead = ReadAhead(lambda: told.append(1))

    assert ahead.entry(log, 7) is None  # type: ignore[arg-type]
    assert told == [1]
    with pytest.raises(OSError, match="does not hold"):
        ahead.entry(log, 7)  # type: ignore[arg-type]
    assert ahead.entry(log, 7) is None  # type: ignore[arg-type]
    assert log.reads == [7, 7]
