"""Deleted queues can be restored within a window; for everybody else they are gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from cluster.tests.catalog_file import FIFO, MINUTE_MS, CatalogFile, owner, policy_for
from visibility.errors import QueueDeletedRecently, QueueDoesNotExist, QueueNameExists
from visibility.model import QueueDefinition
from visibility.tests import prepared

HOUR_MS = 3_600_000


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
    assert await (await file.reopen()).take_expired_deletions(file.clock.at_ms) == []

    restored = await file.catalog.restore_queue(before.queue_id)

    assert restored == next_version(before)
    assert restored.deduplication_scope == "messageGroup"
    for catalog in (file.catalog, await file.reopen()):
        assert list(catalog) == [restored]
        assert catalog.queue_of_id(before.queue_id) == restored
        assert catalog.deleted_queues() == []
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
        assert catalog.deleted_queues() == queues

    file.clock.at_ms = queues[1][1] + HOUR_MS
    assert file.catalog.deleted_queues() == queues[:1]


async def test_a_queue_cannot_be_restored_once_its_window_is_over(file: CatalogFile) -> None:
    queue = await file.catalog.create_queue(owner("q"), {}, {})
    await file.catalog.delete_queue(queue)
    file.clock.at_ms += HOUR_MS

    with pytest.raises(QueueDoesNotExist):
        await file.catalog.restore_queue(queue.queue_id)
    assert await file.catalog.take_expired_deletions(file.clock.at_ms) == [queue]

    for catalog in (file.catalog, await file.reopen()):
        assert await catalog.take_expired_deletions(file.clock.at_ms) == []
        file.clock.at_ms -= HOUR_MS
        with pytest.raises(QueueDoesNotExist):
            await catalog.restore_queue(queue.queue_id)


async def test_a_clock_turned_back_keeps_what_was_deleted(file: CatalogFile) -> None:
    queue = await file.catalog.create_queue(owner("q"), {}, {})
    await file.catalog.delete_queue(queue)
    file.clock.at_ms -= 100 * HOUR_MS

    assert await file.catalog.take_expired_deletions(file.clock.at_ms) == []

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
    assert [deleted.queue for deleted in file.catalog.deleted_queues()] == [new]


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

    assert file.catalog.dead_letter_queue(source) is restored


async def test_without_a_window_nothing_is_kept(tmp_path: Path) -> None:
    file = CatalogFile(tmp_path / "catalog.sqlite")
    queue = await (await file.open()).create_queue(owner("q"), {}, {})
    await file.catalog.delete_queue(queue)

    assert file.catalog.deleted_queues() == []
    with pytest.raises(QueueDoesNotExist):
        await file.catalog.restore_queue(queue.queue_id)
    assert await file.catalog.take_expired_deletions(file.clock.at_ms) == []
    await file.catalog.close()


async def test_what_was_kept_is_over_when_the_window_is_taken_away(file: CatalogFile) -> None:
    queue = await file.catalog.create_queue(owner("q"), {}, {})
    await file.catalog.delete_queue(queue)
    file.restore_window_ms = 0

    catalog = await file.reopen()

    assert catalog.deleted_queues() == []
    assert await catalog.take_expired_deletions(file.clock.at_ms) == [queue]
