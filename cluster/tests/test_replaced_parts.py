"""Parts of FIFO queues in the catalog: new ones replace all others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest

from cluster.catalog.part_rules import NewParts, shards_for
from cluster.catalog.queue_view import Kind
from cluster.tests.catalog_file import CatalogFile, owner
from visibility.contract.errors import InvalidParameterValue, UnsupportedOperation
from visibility.contract.model import QueueDefinition
from visibility.contract.queue_parts import PARTS_MAX, PartState, first_sequence
from visibility.tests.prepared import START_MS

HOUR_MS = 3_600_000
IN_PARTS = {
    "FifoQueue": "true",
    "DeduplicationScope": "messageGroup",
    "FifoThroughputLimit": "perMessageGroupId",
}


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[CatalogFile]:
    opened = CatalogFile(tmp_path / "catalog.sqlite", restore_window_ms=HOUR_MS)
    await opened.open((0, 1, 2))
    yield opened
    await opened.catalog.close()


async def created(file: CatalogFile) -> QueueDefinition:
    return await file.catalog.create_queue(owner("q.fifo"), IN_PARTS, {})


async def replaced(
    file: CatalogFile, queue: QueueDefinition, count: int, sequence: int = 1
) -> QueueDefinition:
    shards = shards_for(queue, file.catalog.shards, count)
    sequences = {part.queue_id: sequence for part in queue.all_parts()}
    return await file.catalog.replace_parts(queue, NewParts(shards, sequences))


async def without_closed(file: CatalogFile, queue: QueueDefinition) -> QueueDefinition:
    for part in queue.parts:
        if not part.is_open:
            version = file.catalog.queue(*owner("q.fifo")).version
            await file.catalog.remove_part(part.queue_id, version)
    return file.catalog.queue(*owner("q.fifo"))


async def test_new_parts_share_out_all_groups_and_the_others_close(file: CatalogFile) -> None:
    whole = await created(file)
    queue = await replaced(file, whole, 3)

    for catalog in (file.catalog, await file.reopen()):
        found = catalog.queue(*owner("q.fifo"))
        assert found == queue
        *new, old = found.parts
        assert [part.number for part in found.parts] == [16, 32, 48, 0]
        assert (old.queue_id, old.state) == (whole.queue_id, PartState.DRAINING)
        assert {part.shard for part in new} == {0, 1, 2}
        assert (new[0].first_hash, new[-1].last_hash) == (0, (1 << 64) - 1)
        for before, after in pairwise(new):
            assert after.first_hash == before.last_hash + 1
        assert catalog.queue_of_id(whole.queue_id) == found.of_part(old)
        groups = [str(number).encode() for number in range(50)]
        assert {found.part_for(group).part.number for group in groups} == {16, 32, 48}
        for group in groups:
            assert [each.part.number for each in found.part_for(group).earlier_parts(group)] == [0]


async def test_a_queue_that_is_one_again_has_another_id_and_number(file: CatalogFile) -> None:
    whole = await created(file)
    split = await replaced(file, whole, 2)
    shrunk = await replaced(file, split, 1)
    assert [(part.number, part.is_open) for part in shrunk.parts] == [
        (48, True),
        (16, False),
        (32, False),
        (0, False),
    ]
    left = await without_closed(file, shrunk)

    for catalog in (file.catalog, await file.reopen()):
        assert catalog.queue(*owner("q.fifo")) == left
        assert (left.parts, left.number, left.queue_id) == ((), 48, shrunk.queue_id)
        assert left.first_sequence == first_sequence(48)
        assert catalog.queue_of_id(whole.queue_id) is None
    again = await replaced(file, left, 1, sequence=first_sequence(48) + 5)
    assert [part.number for part in again.parts] == [64, 48]
    assert again.way_of(first_sequence(48) + 4)[0].part == again.parts[1]


async def test_the_former_home_is_told_that_there_are_parts_now(file: CatalogFile) -> None:
    whole = await created(file)
    heard: list[tuple[Kind, int]] = []
    file.catalog.subscribe(lambda change: heard.append((change.kind, change.queue.queue_id)))
    split = await replaced(file, whole, 1)

    assert heard == [
        (Kind.SPLIT, whole.queue_id),
        (Kind.PARTS, whole.queue_id),
        (Kind.DRAINING, whole.queue_id),
        (Kind.PARTS, split.queue_id),
    ]
    await file.catalog.set_attributes(whole, {"VisibilityTimeout": "9"})  # from a late host
    changed = file.catalog.queue(*owner("q.fifo"))
    assert (changed.queue_id, changed.parts) == (split.queue_id, split.parts)
    assert changed.attributes["VisibilityTimeout"] == "9"


async def test_only_a_queue_that_deduplicates_by_group_gets_parts(file: CatalogFile) -> None:
    other = await file.catalog.create_queue(owner("other.fifo"), {"FifoQueue": "true"}, {})
    standard = await file.catalog.create_queue(owner("q"), {}, {})
    for queue in (other, standard):
        with pytest.raises(UnsupportedOperation):
            await replaced(file, queue, 2)


async def test_parts_that_drain_count(file: CatalogFile) -> None:
    queue = await replaced(file, await created(file), PARTS_MAX - 2)
    queue = await replaced(file, queue, 1)

    with pytest.raises(InvalidParameterValue):
        await replaced(file, queue, 1)


async def moved(
    file: CatalogFile, queue: QueueDefinition, number: int, *with_messages: int
) -> QueueDefinition:
    sequences = {part.queue_id: 1 for part in queue.all_parts()}
    own = {part.part_number: part.queue_id for part in queue.all_parts()}
    new = NewParts([1], sequences, [own[each] for each in with_messages])
    return await file.catalog.move_part(queue, number, new)


async def test_a_part_moves_with_its_groups(file: CatalogFile) -> None:
    split = await replaced(file, await created(file), 2)
    first, second, _ = split.parts

    queue = await moved(file, split, 32)
    queue = await moved(file, queue, 16)
    by_number = {part.number: part for part in queue.parts}
    assert [part.number for part in queue.parts if part.is_open] == [64, 48]
    assert queue.parts[0].queue_id == queue.queue_id, "the part that the home moved to is it"
    for new, old in ((64, first), (48, second)):
        assert by_number[new].first_hash == old.first_hash
        assert by_number[new].last_hash == old.last_hash
        assert by_number[old.number].heir == new
    group = next(
        each for each in (b"a", b"b", b"c", b"d") if queue.part_for(each).part.number == 48
    )
    assert [each.part.number for each in queue.part_for(group).earlier_parts(group)] == [32, 0]


async def test_a_part_says_since_when_it_drains(file: CatalogFile) -> None:
    split = await replaced(file, await created(file), 2)
    file.clock.at_ms += 60_000
    await moved(file, split, 32)

    queue = (await file.reopen()).queue(*owner("q.fifo"))
    assert {part.number: part.drains_since_ms for part in queue.parts} == {
        0: START_MS,
        16: 0,
        32: START_MS + 60_000,
        48: 0,
    }


async def test_a_whole_queue_moves_whatever_it_deduplicates_over(file: CatalogFile) -> None:
    whole = await file.catalog.create_queue(owner("q.fifo"), {"FifoQueue": "true"}, {})
    queue = await moved(file, whole, 0)
    left = await without_closed(file, queue)
    assert (left.parts, left.shard, left.number) == ((), 1, 16)


async def test_no_part_closes_while_it_is_given_messages(file: CatalogFile) -> None:
    split = await replaced(file, await created(file), 2)
    queue = await moved(file, split, 16, 16, 32)

    with pytest.raises(UnsupportedOperation, match="is still given the messages of part 16:"):
        await moved(file, queue, 48, 16)
    with pytest.raises(UnsupportedOperation, match="part 0:"):
        await moved(file, queue, 32, 0)
    ids = {part.part_number: part.queue_id for part in queue.all_parts()}
    sequences = dict.fromkeys(ids.values(), 1)
    with pytest.raises(UnsupportedOperation, match="part 16:"):
        await file.catalog.replace_parts(queue, NewParts([0], sequences, [ids[16]]))

    queue = await moved(file, queue, 32, 16, 32, 48)
    assert len([part for part in queue.parts if part.is_open]) == 2, "others give it nothing"


async def test_purged_messages_never_come_back_to_a_closed_part(file: CatalogFile) -> None:
    whole = await created(file)
    purged = await file.catalog.purge_queue(whole)
    with pytest.raises(UnsupportedOperation):
        await replaced(file, purged, 2)

    await file.catalog.end_windows(file.clock.now_ms() + HOUR_MS)
    split = await replaced(file, purged, 2)
    await file.catalog.purge_queue(split)
    with pytest.raises(UnsupportedOperation):
        await file.catalog.restore_queue(split.queue_id)
    queue = file.catalog.queue(*owner("q.fifo"))
    assert (await replaced(file, queue, 1)).parts[0].is_open
