"""Notes of failures after a failover: the next leader has those that are true, and no others."""

from __future__ import annotations

from cluster.tests.replication.shard_hosts import ShardCluster, ShardHost
from cluster.tests.replication.test_shards import Q, sent, staged
from visibility.contract.outcomes import FailureNote, FailureNotesPage, SpansNoted
from visibility.rules.failure_notes import NoteFailures, ReadFailureNotes
from visibility.rules.selected import DeleteSelected
from visibility.tests import prepared

NOTE = FailureNote(0, 1, b"\x06" + bytes(511), 7, b"sealed")
"""Of sequences 1 and 2."""


async def keep(cluster: ShardCluster, host: ShardHost, opens: list[int], *notes: object) -> object:
    return await cluster.answer(host, prepared.prepared(Q, NoteFailures([*notes], opens)))  # type: ignore[list-item]


async def noted(cluster: ShardCluster, host: ShardHost) -> list[FailureNote]:
    page = await cluster.answer(host, prepared.prepared(Q, ReadFailureNotes()))
    assert isinstance(page, FailureNotesPage)
    return page.notes


@staged
async def test_the_next_leader_has_the_notes(cluster: ShardCluster) -> None:
    old = await cluster.leader()
    await sent(cluster, old, "a", "b")
    await keep(cluster, old, [0])
    assert await keep(cluster, old, [], NOTE) == SpansNoted([0])

    old.crash(is_power_loss=True)
    new = await cluster.leader()

    assert await noted(cluster, new) == [NOTE]
    old.start()
    await cluster.alike()


@staged
async def test_a_change_before_or_after_the_failover_leaves_no_note(cluster: ShardCluster) -> None:
    first = await cluster.leader()
    await sent(cluster, first, "a", "b")
    await keep(cluster, first, [0])
    await keep(cluster, first, [], NOTE)
    await cluster.answer(first, prepared.prepared(Q, DeleteSelected(sequences=[1])))
    first.crash(is_power_loss=True)
    second = await cluster.leader()
    assert await noted(cluster, second) == []

    only = FailureNote(0, 1, b"\x04" + bytes(511), 7, b"sealed")
    await keep(cluster, second, [0])
    assert await keep(cluster, second, [], only) == SpansNoted([0])
    first.start()
    await cluster.alike()
    second.crash(is_power_loss=True)
    third = await cluster.leader()
    assert await noted(cluster, third) == [only]
    await sent(cluster, third, "c")

    assert await noted(cluster, third) == []


@staged
async def test_a_span_that_another_leader_opened_gets_no_note(cluster: ShardCluster) -> None:
    """It may have changed since without this leader's notice."""
    old = await cluster.leader()
    await sent(cluster, old, "a", "b")
    await keep(cluster, old, [0])
    old.crash(is_power_loss=True)
    new = await cluster.leader()

    assert await keep(cluster, new, [], NOTE) == SpansNoted([])
