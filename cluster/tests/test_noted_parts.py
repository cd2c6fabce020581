"""Each shard with a part of a queue notes all parts of that queue."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cluster.catalog.part_rules import NewParts
from cluster.catalog.queue_view import Kind, QueueChange
from cluster.shards.queue_watch import QueueWatch
from cluster.shards.router import Router
from cluster.tests.catalog_file import CatalogFile, owner
from cluster.tests.driver import Driver
from cluster.tests.virtual_time import virtual
from cluster.tests.world import World, settled, state_of
from storage.tests.memory_store import MemoryStore
from visibility.contract.model import QueueDefinition
from visibility.contract.queue_parts import GONE_MS, GonePart, Part, PartState
from visibility.rows.row_keys import NOTED_PARTS, table_range
from visibility.rows.row_values import THE_SHARD, NotedParts
from visibility.rules.noted_parts import NoteParts, name_of_note, note_of
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues

WHOLE = prepared.queue_named("q", 1)
SPLIT = msgspec.structs.replace(
    WHOLE, version=2, parts=(Part(0, 1, 0), Part(16, 2, 0)), last_part=16
)
DRAINS = msgspec.structs.replace(
    SPLIT, version=3, parts=(Part(0, 1, 0), Part(16, 2, 0, PartState.DRAINING))
)
WHOLE_AGAIN = msgspec.structs.replace(
    DRAINS, version=4, parts=(), gone=(GonePart(16, 0, 1_700_000_000_000, 0),)
)
HISTORY = (WHOLE, SPLIT, DRAINS, WHOLE_AGAIN)


def noted(driver: Driver) -> list[NotedParts]:
    return list(driver.state.noted_parts.values())


def note(driver: Driver, queue: QueueDefinition) -> None:
    for part in queue.all_parts():
        assert driver.submit(prepared.prepared(part, NoteParts())).refusal is None


def test_the_parts_of_a_queue_are_noted_also_after_a_restart() -> None:
    store, known = MemoryStore(), KnownQueues(*SPLIT.all_parts())
    driver = Driver(known, store=store)
    note(driver, SPLIT)

    expected = NotedParts(SPLIT.account, SPLIT.region, "q", 2, 1, 0, SPLIT.parts, 16)
    for each in (driver, Driver(known, store=store, now_ms=driver.now_ms)):
        assert noted(each) == [expected]


def test_a_queue_that_never_had_parts_has_no_note() -> None:
    store = MemoryStore()
    driver = Driver(KnownQueues(WHOLE), store=store)
    note(driver, WHOLE)
    driver.submit(prepared.send(WHOLE, "m"))

    assert noted(driver) == []
    assert not list(store.scan(*table_range(THE_SHARD, NOTED_PARTS)))


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1), (3, 3, 3)])
def test_the_latest_parts_stay_noted(order: tuple[int, ...]) -> None:
    driver = Driver(KnownQueues(WHOLE))
    for place in order:
        note(driver, HISTORY[place])

    assert noted(driver) == [note_of(WHOLE_AGAIN)]


def test_what_is_noted_is_written_once() -> None:
    store = MemoryStore()
    driver = Driver(KnownQueues(SPLIT), store=store)
    note(driver, SPLIT)
    other_tags = msgspec.structs.replace(SPLIT, version=7, tags={"team": "a"})
    note(driver, other_tags)

    assert [each.version for each in noted(driver)] == [2]


def test_a_higher_number_is_later_whatever_the_version() -> None:
    """In an older etcd a queue may be changed before its shards are heard."""
    split, changed = note_of(SPLIT), msgspec.structs.replace(WHOLE, version=9, number=8)
    other = note_of(changed)
    assert split is not None
    assert other is not None
    assert split.is_later(other)
    assert not other.is_later(split)
    assert not split.is_later(split)


def test_a_note_goes_with_its_queue() -> None:
    known = KnownQueues(*SPLIT.all_parts())
    driver = Driver(known)
    note(driver, SPLIT)

    driver.drop(SPLIT.all_parts()[1])
    assert len(noted(driver)) == 1, "the queue is still there"
    known.hidden.add(SPLIT.arn)
    driver.drop(SPLIT.all_parts()[1])
    assert len(noted(driver)) == 1, "it can be restored"
    known.hidden.clear()
    known.queues.clear()
    driver.drop(SPLIT)
    assert noted(driver) == []


AWAY = msgspec.structs.replace(WHOLE_AGAIN, version=5, queue_id=3, shard=1, number=32, last_part=32)
"""The queue without a part in this shard."""


def others(count: int, begin: int = 10) -> list[QueueDefinition]:
    """Other queues that were split."""
    ids = range(begin, begin + 2 * count, 2)
    return [
        msgspec.structs.replace(
            prepared.queue_named(f"other-{at}", at),
            version=2,
            parts=(Part(0, at, 0), Part(16, at + 1, 0)),
            last_part=16,
        )
        for at in ids
    ]


def left(known: KnownQueues, store: MemoryStore | None = None) -> Driver:
    """A shard whose part of a queue left before the queue is deleted."""
    driver = Driver(known, store=store)
    note(driver, SPLIT)
    known.queues.clear()
    known.define(AWAY)
    for part in SPLIT.all_parts():
        driver.drop(part)
    assert len(noted(driver)) == 1, "its numbers are taken"
    return driver


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_note_of_a_part_that_left_is_forgotten_when_no_handle_can_name_it(
    is_deleted: bool,
) -> None:
    known, store = KnownQueues(*SPLIT.all_parts()), MemoryStore()
    driver = left(known, store)
    if is_deleted:
        known.queues.clear()

    def pass_ms(ms: int, begin: int) -> None:
        driver.pass_time(ms)
        for other in others(3, begin):
            for part in other.all_parts():
                known.define(part)
            note(driver, other)

    pass_ms(GONE_MS - 1_000, 10)
    assert {each.name for each in noted(driver)} > {"q"}
    pass_ms(1_000, 100)
    names = {each.name for each in noted(driver)}
    assert "q" not in names
    assert len(names) == 6, "those with parts here stay"
    again = Driver(known, store=store, now_ms=driver.now_ms)
    assert {each.name for each in noted(again)} == names


def test_a_note_stays_while_its_queue_can_be_restored_or_has_a_part_here_again() -> None:
    known = KnownQueues(*SPLIT.all_parts())
    driver = left(known)
    known.queues.clear()
    for part in SPLIT.all_parts():
        known.define(part)
    note(driver, others(1)[0])
    assert [each.left_at_ms for each in noted(driver) if each.name == "q"] == [0]
    known.hidden.add(SPLIT.arn)
    for begin in (100, 200, 300):
        driver.pass_time(GONE_MS)
        note(driver, others(1, begin)[0])
    assert "q" in {each.name for each in noted(driver)}


def test_notes_are_looked_at_a_few_at_a_time() -> None:
    """The leak of a version that kept them for ever goes, without a slow start or a long Turn."""
    known = KnownQueues()
    driver = Driver(known)
    for other in others(40):
        note(driver, other)
    for number in range(32, 96, 16):
        driver.pass_time(GONE_MS)
        for other in others(14, 1_000):
            parts = (other.parts[0], Part(number, other.parts[1].queue_id, 0))
            later = msgspec.structs.replace(other, version=number, parts=parts, last_part=number)
            known.define(later)
            before = len(noted(driver))
            note(driver, later)
            assert len(noted(driver)) >= before - 4
    assert {each.name for each in noted(driver)} == {each.name for each in others(14, 1_000)}


def test_a_later_note_is_not_written_over_by_a_look_at_the_one_before() -> None:
    """The queue has a part here again."""
    known = KnownQueues(*SPLIT.all_parts())
    driver = left(known)
    assert noted(driver)[0].left_at_ms
    back = msgspec.structs.replace(
        AWAY, version=6, parts=(Part(32, 3, 1), Part(48, 4, 0)), last_part=48
    )
    known.queues.clear()
    for part in back.all_parts():
        known.define(part)
    driver.submit(prepared.prepared(back.all_parts()[1], NoteParts()))

    assert noted(driver) == [note_of(back)]


def test_a_queue_of_the_same_name_has_a_note_of_its_own() -> None:
    again = msgspec.structs.replace(SPLIT, receipt_key=b"k" * 32)
    assert name_of_note(again) != name_of_note(SPLIT)
    driver = Driver(KnownQueues(again))
    note(driver, SPLIT)
    note(driver, again)

    assert len(noted(driver)) == 2
    driver.drop(SPLIT)
    assert list(driver.state.noted_parts) == [name_of_note(again)]


@virtual
async def test_a_new_lead_notes_what_its_shard_has_and_nothing_of_others() -> None:
    elsewhere = msgspec.structs.replace(
        prepared.queue_named("other", 5), shard=1, parts=(Part(0, 5, 1), Part(16, 6, 2))
    )
    known = KnownQueues(*SPLIT.all_parts(), *elsewhere.all_parts())
    world = await World(definitions=known).start()

    assert list(state_of(world.shard).noted_parts.values()) == [note_of(SPLIT)]
    assert len(list(world.store.scan(*table_range(THE_SHARD, NOTED_PARTS)))) == 1
    await world.shard.stop()


async def test_a_change_of_parts_is_noted_before_a_request_can_name_it(tmp_path: Path) -> None:
    file = CatalogFile(tmp_path / "catalog.sqlite")
    catalog = await file.open()
    world = await World(definitions=catalog).start()
    watch = QueueWatch(catalog, Router([world.shard]))
    queue = await catalog.create_queue(owner("q"), {}, {})
    await watch.confirmed(queue.queue_id)
    assert not state_of(world.shard).noted_parts

    split = await catalog.add_parts(queue, NewParts([0], {queue.queue_id: 1}))
    world.ask(prepared.send(split.all_parts()[1], "m"))
    await settled()

    assert list(state_of(world.shard).noted_parts.values()) == [note_of(split)]
    await world.shard.stop()
    await catalog.close()


async def test_a_purge_of_a_queue_that_had_parts_is_noted(tmp_path: Path) -> None:
    file = CatalogFile(tmp_path / "catalog.sqlite", restore_window_ms=60_000)
    catalog = await file.open()
    queue = await catalog.create_queue(owner("q"), {}, {})
    heard: list[QueueChange] = []
    catalog.subscribe(heard.append)
    moved = await catalog.move_part(queue, 0, NewParts([0], {queue.queue_id: 1}))
    await catalog.remove_part(queue.queue_id, moved.version)
    heard.clear()

    file.clock.at_ms += 120_000
    purged = await catalog.purge_queue(catalog.queue(*owner("q")))

    assert purged.parts == ()
    assert [(each.kind, each.queue.queue_id) for each in heard] == [
        (Kind.PURGED, moved.queue_id),
        (Kind.PARTS, purged.queue_id),
    ]
    await catalog.close()
