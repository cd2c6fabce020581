"""The parts of a queue that shards noted are written back over those of an older snapshot."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from itertools import permutations
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from cluster.catalog import later_parts
from cluster.catalog.catalog import Catalog
from cluster.catalog.catalog_records import LAST_ID, Entries, name_of, queue_key
from cluster.catalog.part_rules import NewParts, add_parts
from cluster.catalog.queue_rules import Decision
from cluster.catalog.queue_view import QueueView
from cluster.shards.issued_ids import known_ids, noted_ids
from cluster.tests.catalog_file import CatalogFile, owner
from visibility.contract.errors import ServiceUnavailable
from visibility.contract.model import QueueDefinition
from visibility.rows.row_values import NotedParts
from visibility.rules.noted_parts import name_of_note, note_of, parts_of
from visibility.state.shard_state import ShardState
from visibility.tests.prepared import queue_named


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[CatalogFile]:
    opened = CatalogFile(tmp_path / "catalog.sqlite")
    await opened.open((0, 1, 2))
    yield opened
    await opened.catalog.close()


def issued(queue: QueueDefinition) -> dict[int, int]:
    return {part.queue_id: part.first_sequence for part in queue.all_parts()}


async def history_of(file: CatalogFile) -> list[QueueDefinition]:
    """A queue that is made, split, moved, shrunk, and has its closed parts removed."""
    catalog = file.catalog
    history = [await catalog.create_queue(owner("q"), {}, {})]
    history.append(await catalog.add_parts(history[0], NewParts([1], issued(history[0]))))
    history.append(await catalog.move_part(history[1], 0, NewParts([2], issued(history[1]))))
    history.append(await catalog.drain_parts(history[2], [16]))
    for part in history[3].all_parts()[1:]:
        present = catalog.queue(*owner("q"))
        await catalog.remove_part(part.queue_id, present.version)
        history.append(catalog.queue(*owner("q")))
    assert history[-1].parts == ()
    return history


async def restore(file: CatalogFile, older: QueueDefinition) -> None:
    """Let etcd have the record as it was then."""
    entries: Entries = {queue_key(name_of(older)): older, LAST_ID: older.queue_id}
    await file.write(entries)
    await file.reopen()
    assert file.catalog.queue(*owner("q")) == older


def has_parts_of(file: CatalogFile, queue: QueueDefinition) -> bool:
    """True if the present queue has the parts of this one."""
    return parts_of(file.catalog.queue(*owner("q"))).has_same_parts(parts_of(queue))


def noted_by(queue: QueueDefinition) -> dict[bytes, NotedParts]:
    note = note_of(queue)
    assert note is not None
    return {name_of_note(queue): note}


async def test_the_latest_parts_are_there_again_in_whatever_order_shards_lead(
    file: CatalogFile,
) -> None:
    history = await history_of(file)
    latest = history[-1]
    assert all(file.catalog.queue_of_id(old.queue_id) is None for old in history[:1])
    for first, second in permutations(range(1, len(history)), 2):
        await restore(file, history[0])
        for place in (first, second):
            await file.catalog.write_back_parts(noted_by(history[place]))
        expected = history[max(first, second)]
        assert file.catalog.queue(*owner("q")) == expected, (first, second)
        assert file.catalog.highest_queue_id >= max(p.queue_id for p in expected.all_parts())
    assert latest.queue_id == history[2].queue_id


async def test_parts_are_written_back_over_each_older_state(file: CatalogFile) -> None:
    history = await history_of(file)
    for older in history[:-1]:
        await restore(file, older)
        (written,) = await file.catalog.write_back_parts(noted_by(history[-1]))
        assert written == file.catalog.queue(*owner("q")) == history[-1]


async def no_older_parts_over_later_ones(file: CatalogFile) -> None:
    history = await history_of(file)
    for older in history[1:]:
        assert await file.catalog.write_back_parts(noted_by(older)) == []
    assert file.catalog.queue(*owner("q")) == history[-1]


async def test_older_parts_are_not_written_over_later_ones(file: CatalogFile) -> None:
    await no_older_parts_over_later_ones(file)


async def test_older_parts_that_are_written_over_later_ones_are_found(
    file: CatalogFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NotedParts, "is_later", lambda note, other: note.parts != other.parts)

    with pytest.raises(AssertionError):
        await no_older_parts_over_later_ones(file)


async def test_a_change_of_the_older_queue_does_not_keep_the_later_parts_away(
    file: CatalogFile,
) -> None:
    """Attributes are changed before the shards of the queue have leaders."""
    history = await history_of(file)
    await restore(file, history[0])
    for seconds in ("7", "8", "9", "10", "11", "12", "13"):
        whole = file.catalog.queue(*owner("q"))
        await file.catalog.set_attributes(whole, {"VisibilityTimeout": seconds})
    assert file.catalog.queue(*owner("q")).version > history[-1].version

    (written,) = await file.catalog.write_back_parts(noted_by(history[2]))

    assert written.parts == history[2].parts
    assert written.attributes["VisibilityTimeout"] == "13"


async def test_parts_whose_ids_another_queue_has_are_not_written_back(file: CatalogFile) -> None:
    history = await history_of(file)
    await restore(file, history[0])
    other = await file.catalog.create_queue(owner("other"), {}, {})
    assert other.queue_id in {part.queue_id for part in history[2].parts}

    assert await file.catalog.write_back_parts(noted_by(history[2])) == []
    assert has_parts_of(file, history[0])
    assert file.catalog.queue_of_id(other.queue_id) == other


async def numbers_of_refused_parts_are_skipped(file: CatalogFile) -> None:
    """Receipt handles name them, and their shards have messages under them."""
    history = await history_of(file)
    await restore(file, history[0])
    await file.catalog.create_queue(owner("other"), {}, {})
    for place in (2, 1):
        await file.catalog.write_back_parts(noted_by(history[place]))
    await file.reopen()

    whole = file.catalog.queue(*owner("q"))
    split = await file.catalog.add_parts(whole, NewParts([0], issued(whole)))
    assert split.last_part > history[2].last_part
    new = split.all_parts()[-1]
    assert new.part_number > history[2].last_part


async def test_no_number_of_a_part_that_was_not_written_back_is_issued_again(
    file: CatalogFile,
) -> None:
    await numbers_of_refused_parts_are_skipped(file)


async def test_a_number_that_is_issued_again_is_found(
    file: CatalogFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(later_parts, "_skipping", lambda queue, number: Decision({}))

    with pytest.raises(AssertionError):
        await numbers_of_refused_parts_are_skipped(file)


async def test_parts_are_written_back_once_their_ids_are_free_again(file: CatalogFile) -> None:
    history = await history_of(file)
    await restore(file, history[0])
    other = await file.catalog.create_queue(owner("other"), {}, {})
    assert await file.catalog.write_back_parts(noted_by(history[2])) == []
    await file.catalog.delete_queue(other)
    await file.catalog.forget_queue(other.queue_id)

    (written,) = await file.catalog.write_back_parts(noted_by(history[2]))
    assert written.parts == history[2].parts
    assert written.last_part == history[2].last_part


async def test_another_queue_of_the_name_gets_no_parts(file: CatalogFile) -> None:
    history = await history_of(file)
    await file.catalog.delete_queue(history[-1])
    assert await file.catalog.write_back_parts(noted_by(history[2])) == []
    file.clock.at_ms += 120_000
    again = await file.catalog.create_queue(owner("q"), {}, {})

    assert await file.catalog.write_back_parts(noted_by(history[2])) == []
    assert file.catalog.queue(*owner("q")) == again


async def ids_of_parts_are_of_one_queue(file: CatalogFile) -> None:
    """Another cluster makes a queue before the shards of a split one have leaders."""
    history = await history_of(file)
    await restore(file, history[0])
    other = await file.catalog.create_queue(owner("other"), {}, {})
    assert other.queue_id in {part.queue_id for part in history[1].all_parts()}

    with capture_logs() as lines:
        assert await file.catalog.write_back_parts(noted_by(history[1])) == []
    (line,) = [line for line in lines if line["event"] == "parts_not_written_back"]
    assert (line["queue"], line["queue_ids"]) == (history[0].arn, [other.queue_id])
    assert has_parts_of(file, history[0])
    assert file.catalog.queue_of_id(other.queue_id) == other

    await file.catalog.delete_queue(other)
    assert await file.catalog.write_back_parts(noted_by(history[1])) == []
    await file.reopen()
    assert has_parts_of(file, history[0])


async def test_an_id_that_another_queue_has_comes_back_to_no_part(file: CatalogFile) -> None:
    file.restore_window_ms = 60_000
    await file.reopen()
    await ids_of_parts_are_of_one_queue(file)


async def test_an_id_that_is_given_to_two_queues_is_found(
    file: CatalogFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(later_parts, "taken_ids", lambda view, name, noted: [])

    with pytest.raises((AssertionError, ValueError)):
        await ids_of_parts_are_of_one_queue(file)


@pytest.mark.parametrize("other", ["a", "z"])
def test_an_id_that_another_queue_has_is_that_queues_on_a_host_that_goes_on(other: str) -> None:
    """One difference has both queues, by name."""
    older, anew = queue_named("q", 5), queue_named(other, 8)
    view = QueueView(0)
    later = msgspec.structs.replace(older, queue_id=8, version=2)
    view.load(10, {queue_key(name_of(later)): (10, later)})

    entries = {queue_key(name_of(each)): each for each in sorted((older, anew), key=name_of)}
    view.apply(12, entries, dict.fromkeys(entries, 12))

    assert [view.queue_of_id(8), view.queue_of_id(5)] == [anew, older]
    assert view.queues_of_shard == {0: 2}


async def test_a_leader_raises_the_ids_that_its_notes_name(file: CatalogFile) -> None:
    """Also those of other shards, and of queues that etcd has lost."""
    history = await history_of(file)
    state = ShardState()
    state.noted_parts = noted_by(history[2])

    assert known_ids(state) == set()
    assert noted_ids(state) == {part.queue_id for part in history[2].all_parts()}


class Unheard:
    """A shard that noted later parts than those of the record, and has no leader yet."""

    def __init__(self, file: CatalogFile, noted: dict[bytes, NotedParts]) -> None:
        self.leads = False
        self._file = file
        self._noted = noted
        file.others.heard = self.heard

    async def heard(self) -> None:
        if not self.leads:
            raise ServiceUnavailable()
        await self.lead()

    async def lead(self) -> None:
        await self._file.catalog.write_back_parts(self._noted)


async def parts_change_late(file: CatalogFile) -> None:
    """Somebody wants to change the parts of an older record before the other shard leads."""
    history = await history_of(file)
    await restore(file, history[0])
    catalog, whole = file.catalog, history[0]
    shard = Unheard(file, noted_by(history[2]))
    changes: tuple[Callable[[], Awaitable[QueueDefinition]], ...] = (
        lambda: catalog.add_parts(whole, NewParts([0], issued(whole))),
        lambda: catalog.move_part(whole, 0, NewParts([1], issued(whole))),
        lambda: catalog.drain_parts(catalog.queue(*owner("q")), [16]),
        lambda: catalog.change_parts(
            lambda: add_parts(catalog, whole, NewParts([0], issued(whole)))
        ),
    )
    for change in changes:
        with suppress(ServiceUnavailable):
            await change()
    await shard.lead()
    assert catalog.queue(*owner("q")) == history[2]

    shard.leads = True
    present = catalog.queue(*owner("q"))
    drained = await catalog.drain_parts(present, [16])
    assert drained.parts == history[3].parts


async def test_no_parts_are_changed_before_all_shards_led(file: CatalogFile) -> None:
    await parts_change_late(file)


async def test_parts_that_are_changed_before_all_shards_led_are_found(
    file: CatalogFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Catalog, "change_parts", Catalog._issue)

    with pytest.raises(AssertionError):
        await parts_change_late(file)


async def test_a_change_is_decided_anew_once_the_last_shard_was_heard(file: CatalogFile) -> None:
    history = await history_of(file)
    await restore(file, history[0])
    Unheard(file, noted_by(history[2])).leads = True

    with pytest.raises(ServiceUnavailable, match="have just changed"):
        await file.catalog.add_parts(history[0], NewParts([0], issued(history[0])))
    assert file.catalog.queue(*owner("q")) == history[2]
    assert await file.catalog.create_queue(owner("other"), {}, {})
