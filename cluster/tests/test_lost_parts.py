"""Parts whose shards are lost for good are given up, and the queue goes on without them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from cluster.catalog.catalog_records import LAST_ID, KeptState
from cluster.catalog.lost_parts import give_up_parts
from cluster.catalog.part_rules import NewParts
from cluster.tests.catalog_file import FIFO, CatalogFile, owner
from visibility.contract.model import QueueDefinition
from visibility.contract.queue_parts import NUMBERS_SKIPPED

LOST = {3, 4, 5}
GROUPS = {**FIFO, "DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[CatalogFile]:
    file = CatalogFile(tmp_path / "catalog.sqlite")
    await file.open()
    yield file
    await file.catalog.close()


async def queue_on(
    file: CatalogFile, shards: list[int], attributes: Mapping[str, str] | None = None
) -> QueueDefinition:
    """A queue with a part on each of these shards."""
    name = owner("q.fifo" if attributes else "q")
    queue = await file.catalog.create_queue(name, attributes or {}, {})
    if attributes:
        return await file.catalog.replace_parts(queue, NewParts(shards, {queue.queue_id: 1}))
    moved = await file.catalog.move_part(
        queue, queue.part_number, NewParts(shards[:1], {queue.queue_id: 1})
    )
    await file.catalog.remove_part(queue.queue_id, moved.version)
    return await add(file, shards[1:])


async def add(file: CatalogFile, shards: list[int]) -> QueueDefinition:
    queue = file.catalog.queue(*owner("q"))
    if not shards:
        return queue
    issued = {part.queue_id: part.first_sequence for part in queue.all_parts()}
    return await file.catalog.add_parts(queue, NewParts(shards, issued))


async def given_up(file: CatalogFile, queue: QueueDefinition) -> QueueDefinition:
    """The queue as it is then, read from its records."""
    decision = give_up_parts(file.catalog, queue, LOST, [0, 1], 1_000)
    await file.write(decision.entries)
    await file.reopen()
    found = file.catalog.queue_of_id(decision.queue_id)
    assert found is not None
    assert not {part.shard for part in found.all_parts()} & LOST
    assert give_up_parts(file.catalog, found, LOST, [0], 2_000).entries == {}
    return found


async def test_a_whole_queue_that_is_lost_goes_on_empty_elsewhere(file: CatalogFile) -> None:
    queue = await queue_on(file, [3])
    found = await given_up(file, queue)
    assert found.queue_id == file.catalog.highest_queue_id > queue.queue_id
    assert (found.shard, found.parts, found.version) == (0, (), queue.version + 1)
    assert found.number >= queue.number + NUMBERS_SKIPPED
    assert found.receipt_key == queue.receipt_key
    assert found.way_of(queue.first_sequence) == (found,), "its handles are answered there"
    assert file.catalog.successor(queue.queue_id) == found, "so are requests under way"
    kept = file.catalog.kept.get(queue.queue_id)
    assert kept is not None
    assert (kept.state, kept.queue.shard) == (KeptState.DROPPING, 3)
    again = await add(file, [1])
    assert again.last_part > found.number


async def test_a_queue_goes_on_with_its_other_parts(file: CatalogFile) -> None:
    queue = await queue_on(file, [3, 1, 4, 2])
    lost = [part.number for part in queue.parts if part.shard in LOST]
    decision = give_up_parts(file.catalog, queue, LOST, [0], 1_000)
    assert LAST_ID not in decision.entries, "there is no new part"
    found = await given_up(file, queue)
    assert [part.shard for part in found.parts] == [1, 2], "the first one is the home"
    assert found.queue_id == queue.parts[1].queue_id
    home = found.parts[0].number
    assert [(each.number, each.heir) for each in found.gone][-2:] == [(each, home) for each in lost]
    assert [part.part_number for part in found.way_of(queue.parts[2].number << 44)] == [home]


async def test_a_part_that_drains_into_a_lost_one_gets_another_heir(file: CatalogFile) -> None:
    queue = await queue_on(file, [3, 1])
    drained = await file.catalog.drain_parts(queue, [queue.parts[1].number])
    assert drained.parts[1].heir == drained.parts[0].number
    found = await given_up(file, drained)
    new, drains = found.parts
    assert (new.shard, drains.shard, drains.is_open) == (0, 1, False)
    assert drains.heir == new.number
    assert drains.queue_id == drained.parts[1].queue_id


async def test_a_lost_part_that_drained_is_not_replaced(file: CatalogFile) -> None:
    queue = await queue_on(file, [1, 3])
    drained = await file.catalog.drain_parts(queue, [queue.parts[1].number])
    found = await given_up(file, drained)
    assert (found.queue_id, found.parts) == (queue.queue_id, ())


async def test_all_parts_of_a_standard_queue_become_one(file: CatalogFile) -> None:
    found = await given_up(file, await queue_on(file, [3, 4, 5]))
    assert (found.shard, found.parts) == (0, ())


async def test_groups_of_lost_parts_go_on_in_new_ones(file: CatalogFile) -> None:
    queue = await queue_on(file, [3, 0, 4], GROUPS)
    lost = {part.number: part for part in queue.parts if part.is_open and part.shard in LOST}
    found = await given_up(file, queue)
    new = [part for part in found.parts if part.is_open and part.number > queue.last_part]
    assert [(part.first_hash, part.last_hash) for part in new] == [
        (part.first_hash, part.last_hash) for part in lost.values()
    ]
    for number in range(20):
        group = f"g{number}".encode()
        before, after = queue.part_for(group), found.part_for(group)
        if before.shard in LOST:
            assert after.part_number >= before.part_number + NUMBERS_SKIPPED
        else:
            assert after.part == before.part
        assert all(each.shard not in LOST for each in after.earlier_parts(group))
    heirs = {each.number: each.heir for each in found.gone}
    assert [heirs[number] for number in lost] == [part.number for part in new]
