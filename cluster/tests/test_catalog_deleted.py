"""Deleted queues can be restored within a window; in all other respects they are gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import msgspec
import pytest

from auth.auth_errors import AccessDenied
from cluster.catalog import deleted_queues
from cluster.catalog.catalog_records import KeptQueue, KeptState
from cluster.catalog.deleted_queues import KeptQueues
from cluster.catalog.queue_rules import ALL_SHARDS
from cluster.tests.catalog_file import FIFO, MINUTE_MS, CatalogFile, owner, policy_for
from visibility.contract.errors import (
    PurgeQueueInProgress,
    QueueDeletedRecently,
    QueueDoesNotExist,
    QueueNameExists,
)
from visibility.contract.model import QueueDefinition
from visibility.tests import prepared

HOUR_MS = 3_600_000


def named(kept: Iterable[KeptQueue]) -> list[tuple[QueueDefinition, int]]:
    return [(each.queue, each.deleted_at_ms) for each in kept]


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[CatalogFile]:
    """A catalog that keeps deleted queues for an hour."""
    opened = CatalogFile(tmp_path / "catalog.sqlite", restore_window_ms=HOUR_MS)
    await opened.open()
    yield opened
    await opened.catalog.close()


async def test_a_deleted_queue_is_gone_for_everybody(file: CatalogFile) -> None:
    queue = await file.catalog.create_queue(owner("q"), {}, {})

    await file.catalog.delete_queue(queue)

    for catalog in (file.catalog, await file.reopen()):
        assert list(catalog) == []
        assert catalog.queue_of_id(queue.queue_id) is None
        assert catalog.queue_of_arn(queue.arn) is None
        assert catalog.keeps(queue.arn)
        assert catalog.renewed(prepared.receive(queue)) is None
        with pytest.raises(QueueDoesNotExist):
            catalog.queue(*owner("q"))
        with pytest.raises(QueueDoesNotExist):
            await catalog.delete_queue(queue)
        with pytest.raises(QueueDoesNotExist):
            await catalog.set_attributes(queue, {})
        with pytest.raises(QueueDeletedRecently):
            await catalog.create_queue(owner("q"), {}, {})


async def test_a_restored_queue_is_as_it_was_with_the_next_version(file: CatalogFile) -> None:
    given = {**FIFO, "DeduplicationScope": "messageGroup", "DelaySeconds": "7"}
    queue = await file.catalog.create_queue(owner("q.fifo"), given, {"team": "blue"})
    await file.catalog.set_attributes(queue, {"DeduplicationScope": "queue"})
    before = file.catalog.queue(*owner("q.fifo"))
    await file.catalog.delete_queue(before)
    file.clock.at_ms += HOUR_MS - 1
    await (await file.reopen()).end_windows(file.clock.at_ms)

    restored = await file.catalog.restore_queue(before.queue_id)

    assert restored == next_version(before)
    assert restored.deduplication_scope == "messageGroup"
    for catalog in (file.catalog, await file.reopen()):
        assert list(catalog) == [restored]
        assert catalog.queue_of_id(before.queue_id) == restored
        assert catalog.restorable_queues() == []
        assert await catalog.create_queue(owner("q.fifo"), FIFO, {}) == restored


def next_version(queue: QueueDefinition) -> QueueDefinition:
    return msgspec.structs.replace(queue, version=queue.version + 1)


async def test_deleted_queues_are_listed_with_the_latest_first(file: CatalogFile) -> None:
    queues: list[tuple[QueueDefinition, int]] = []
    for _ in range(3):
        queue = await file.catalog.create_queue(owner("q"), {}, {})
        queues.insert(0, (queue, file.clock.at_ms))
        await file.catalog.delete_queue(queue)
        file.clock.at_ms += MINUTE_MS

    for catalog in (file.catalog, await file.reopen()):
        assert named(catalog.restorable_queues()) == queues

    file.clock.at_ms = queues[1][1] + HOUR_MS
    assert named(file.catalog.restorable_queues()) == queues[:1]


async def test_a_queue_cannot_be_restored_once_its_window_is_over(file: CatalogFile) -> None:
    queue = await file.catalog.create_queue(owner("q"), {}, {})
    deleted_at_ms = file.clock.at_ms
    await file.catalog.delete_queue(queue)
    file.clock.at_ms += HOUR_MS

    with pytest.raises(QueueDoesNotExist):
        await file.catalog.restore_queue(queue.queue_id)
    await file.catalog.end_windows(file.clock.at_ms)

    for catalog in (file.catalog, await file.reopen()):
        assert named(catalog.kept.in_state(KeptState.DROPPING)) == [(queue, deleted_at_ms)]
        assert not catalog.keeps(queue.arn)
        file.clock.at_ms -= HOUR_MS
        with pytest.raises(QueueDoesNotExist):
            await catalog.restore_queue(queue.queue_id)


async def test_a_name_is_kept_while_any_of_its_queues_is(
    file: CatalogFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests ask for it, so nobody looks at all deleted queues."""
    for pause_ms in (2 * MINUTE_MS, 0):
        queue = await file.catalog.create_queue(owner("q"), {}, {})
        await file.catalog.delete_queue(queue)
        file.clock.at_ms += pause_ms
    other = await file.catalog.create_queue(owner("other"), {}, {})
    await file.catalog.purge_queue(other)
    await file.catalog.delete_queue(file.catalog.queue(*owner("other")))

    def keeps() -> list[bool]:
        with monkeypatch.context() as patch:
            patch.delattr(KeptQueues, "__iter__")
            return [file.catalog.keeps(each.arn) for each in (queue, other)]

    assert keeps() == [True, True]
    await file.catalog.end_windows(file.clock.at_ms + HOUR_MS - MINUTE_MS)
    assert [each.state for each in file.catalog.kept].count(KeptState.DROPPING) == 1
    assert keeps() == [True, True]
    restored = await file.catalog.restore_queue(queue.queue_id)
    await file.catalog.delete_queue(restored)
    await file.catalog.end_windows(file.clock.at_ms + 2 * HOUR_MS)
    assert keeps() == [False, False]


async def test_a_clock_turned_back_keeps_what_was_deleted(file: CatalogFile) -> None:
    queue = await file.catalog.create_queue(owner("q"), {}, {})
    await file.catalog.delete_queue(queue)
    file.clock.at_ms -= 100 * HOUR_MS

    await file.catalog.end_windows(file.clock.at_ms)

    assert (await file.catalog.restore_queue(queue.queue_id)).queue_id == queue.queue_id


@pytest.mark.parametrize("unknown", [0, 2, 10**17])
async def test_an_unknown_queue_cannot_be_restored(file: CatalogFile, unknown: int) -> None:
    await file.catalog.create_queue(owner("q"), {}, {})

    for queue_id in (1, unknown):
        with pytest.raises(QueueDoesNotExist):
            await file.catalog.restore_queue(queue_id)


async def test_a_queue_whose_name_was_taken_waits_until_it_is_free(file: CatalogFile) -> None:
    old = await file.catalog.create_queue(owner("q"), {}, {})
    await file.catalog.delete_queue(old)
    file.clock.at_ms += MINUTE_MS
    new = await file.catalog.create_queue(owner("q"), {}, {})

    with pytest.raises(QueueNameExists, match="new queue with the name q"):
        await file.catalog.restore_queue(old.queue_id)
    assert list(file.catalog) == [new]
    await file.catalog.delete_queue(new)
    await file.catalog.restore_queue(old.queue_id)

    assert [queue.queue_id for queue in await file.reopen()] == [old.queue_id]
    assert [kept.queue for kept in file.catalog.restorable_queues()] == [new]


async def test_a_queue_is_restored_once(file: CatalogFile) -> None:
    queue = await file.catalog.create_queue(owner("q"), {}, {})
    await file.catalog.delete_queue(queue)

    answers = await asyncio.gather(
        *[file.catalog.restore_queue(queue.queue_id) for _ in range(4)], return_exceptions=True
    )

    assert [isinstance(answer, QueueDoesNotExist) for answer in answers] == [False, *[True] * 3]


async def test_a_restored_queue_can_be_deleted_and_restored_again(file: CatalogFile) -> None:
    queue = await file.catalog.create_queue(owner("q"), {}, {})
    for _ in range(3):
        await file.catalog.delete_queue(file.catalog.queue(*owner("q")))
        await file.reopen()
        await file.catalog.restore_queue(queue.queue_id)

    assert file.catalog.queue(*owner("q")).version == 4
    await file.catalog.create_queue(owner("r"), {}, {})
    assert file.catalog.queue(*owner("r")).queue_id == 2, "ids go on"


async def test_a_restored_target_takes_dead_letters_again(file: CatalogFile) -> None:
    target = await file.catalog.create_queue(owner("dead"), {}, {})
    source = await file.catalog.create_queue(owner("q"), {"RedrivePolicy": policy_for("dead")}, {})
    await file.catalog.delete_queue(target)
    assert file.catalog.dead_letter_queue(source) is None

    restored = await file.catalog.restore_queue(target.queue_id)

    assert file.catalog.dead_letter_queue(source) == restored


async def test_without_a_window_a_deleted_queue_is_to_be_dropped_at_once(tmp_path: Path) -> None:
    file = CatalogFile(tmp_path / "catalog.sqlite")
    queue = await (await file.open()).create_queue(owner("q"), {}, {})
    await file.catalog.delete_queue(queue)

    assert file.catalog.restorable_queues() == []
    with pytest.raises(QueueDoesNotExist):
        await file.catalog.restore_queue(queue.queue_id)
    (kept,) = (await file.reopen()).kept.in_state(KeptState.DROPPING)
    assert kept.queue == queue
    await file.catalog.forget_queue(queue.queue_id)
    assert list((await file.reopen()).kept) == []
    await file.catalog.close()


async def test_what_was_kept_is_over_when_the_window_is_taken_away(file: CatalogFile) -> None:
    queue = await file.catalog.create_queue(owner("q"), {}, {})
    await file.catalog.delete_queue(queue)
    file.restore_window_ms = 0

    catalog = await file.reopen()

    assert catalog.restorable_queues() == []
    await catalog.end_windows(file.clock.at_ms)
    assert [kept.queue for kept in catalog.kept.in_state(KeptState.DROPPING)] == [queue]


# -- purged queues ---------------------------------------------------------------------------------


async def test_a_purged_queue_goes_on_under_a_new_id_with_everything_else_as_it_was(
    file: CatalogFile,
) -> None:
    queue = await file.catalog.create_queue(owner("q.fifo"), FIFO, {"team": "blue"})

    successor = await file.catalog.purge_queue(queue)

    assert [kept.queue for kept in file.catalog.kept] == [queue]
    assert successor == msgspec.structs.replace(queue, queue_id=2, version=2)
    for catalog in (file.catalog, await file.reopen()):
        assert list(catalog) == [successor]
        assert catalog.successor(queue.queue_id) == successor
        assert catalog.queue_of_id(queue.queue_id) is None
        assert catalog.continued() == [(1, 2)]
        renewed = catalog.renewed(prepared.receive(queue))
        assert renewed is not None
        assert renewed.queue == successor


async def test_what_changes_a_queue_that_was_just_purged_finds_it(file: CatalogFile) -> None:
    queue = await file.catalog.create_queue(owner("q"), {}, {})
    await file.catalog.purge_queue(queue)

    await file.catalog.set_attributes(queue, {"DelaySeconds": "9"})
    await file.catalog.delete_queue(queue)

    assert [kept.queue.queue_id for kept in file.catalog.restorable_queues()] == [2, 1]


async def test_a_queue_is_purged_once_in_60_seconds_and_not_a_moment_earlier(
    file: CatalogFile,
) -> None:
    queue = await file.catalog.create_queue(owner("q"), {}, {})
    other = await file.catalog.create_queue(owner("r"), {}, {})
    await file.catalog.purge_queue(queue)
    file.clock.at_ms += MINUTE_MS - 1

    for catalog in (file.catalog, await file.reopen()):
        with pytest.raises(PurgeQueueInProgress) as refused:
            await catalog.purge_queue(queue)
        assert refused.value.message == (
            "Only one PurgeQueue operation on q is allowed every 60 seconds."
        )
    await file.catalog.purge_queue(other)
    file.clock.at_ms += 1
    await file.catalog.purge_queue(queue)


async def test_a_purge_is_undone_by_restoring_into_the_queue_that_continues(
    file: CatalogFile,
) -> None:
    queue = await file.catalog.create_queue(owner("q"), {}, {})
    successor = await file.catalog.purge_queue(queue)

    assert await file.catalog.restore_queue(queue.queue_id) == successor

    for catalog in (file.catalog, await file.reopen()):
        assert catalog.restorable_queues() == []
        assert [kept.queue for kept in catalog.kept.in_state(KeptState.RESTORING)] == [queue]
        file.clock.at_ms += 10 * HOUR_MS
        await catalog.end_windows(file.clock.at_ms)
        assert catalog.kept.in_state(KeptState.DROPPING) == []


async def test_a_purge_cannot_be_undone_while_its_queue_is_deleted(file: CatalogFile) -> None:
    queue = await file.catalog.create_queue(owner("q"), {}, {})
    successor = await file.catalog.purge_queue(queue)
    await file.catalog.delete_queue(successor)

    with pytest.raises(QueueDoesNotExist, match="was deleted after this purge; restore it first"):
        await file.catalog.restore_queue(queue.queue_id)
    await file.catalog.restore_queue(successor.queue_id)
    restored = await file.catalog.restore_queue(queue.queue_id)

    assert restored.queue_id == successor.queue_id


async def test_a_purge_before_one_that_was_forgotten_can_still_be_undone(
    file: CatalogFile,
) -> None:
    queue = await file.catalog.create_queue(owner("q"), {}, {})
    second = await file.catalog.purge_queue(queue)
    file.clock.at_ms += MINUTE_MS
    third = await file.catalog.purge_queue(second)

    await file.catalog.forget_queue(second.queue_id)

    for catalog in (file.catalog, await file.reopen()):
        assert catalog.successor(queue.queue_id) == third
        assert catalog.continued() == [(queue.queue_id, third.queue_id)]


async def test_a_queue_with_deletion_protection_may_be_purged(file: CatalogFile) -> None:
    tags = {"holdfast:deletion-protection": "on"}
    queue = await file.catalog.create_queue(owner("q"), {}, tags)
    with pytest.raises(AccessDenied, match=r"protection protects queue q from being deleted\.$"):
        await file.catalog.delete_queue(queue)

    successor = await file.catalog.purge_queue(queue)
    await file.catalog.delete_queue(successor, force=True)

    assert list(file.catalog) == []


async def test_a_protected_queue_is_deleted_and_purged_by_force_only(file: CatalogFile) -> None:
    queue = await file.catalog.create_queue(owner("q"), {}, {"holdfast:protect": "on"})
    for removal in (file.catalog.delete_queue, file.catalog.purge_queue):
        with pytest.raises(AccessDenied, match="holdfast:protect protects queue q"):
            await removal(queue)
    assert list(file.catalog) == [queue]

    successor = await file.catalog.purge_queue(queue, force=True)
    await file.catalog.delete_queue(successor, force=True)

    assert list(file.catalog) == []


async def test_a_full_disk_takes_the_queue_that_was_deleted_first(file: CatalogFile) -> None:
    for name in ("a", "b", "c"):
        queue = await file.catalog.create_queue(owner(name), {}, {})
        await file.catalog.delete_queue(queue)
        file.clock.at_ms += 1

    await file.catalog.give_up_oldest(shards=ALL_SHARDS)

    assert [kept.queue.name for kept in file.catalog.restorable_queues()] == ["c", "b"]
    assert [kept.queue.name for kept in file.catalog.kept.in_state(KeptState.DROPPING)] == ["a"]


async def test_no_more_queues_are_kept_than_memory_should_take(
    file: CatalogFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deleted_queues, "KEPT_MAX", 2)
    for name in ("a", "b", "c"):
        queue = await file.catalog.create_queue(owner(name), {}, {})
        await file.catalog.delete_queue(queue)
        file.clock.at_ms += 1

    await file.catalog.end_windows(file.clock.at_ms)

    assert [kept.queue.name for kept in file.catalog.restorable_queues()] == ["c", "b"]
