"""A shard that holds less than clients were answered is not opened, wherever it was cut or
damaged."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from structlog.testing import capture_logs

from storage.engines.durable import DurableStore
from storage.engines.opening import open_store, read_above
from storage.engines.rocks import RocksRows
from storage.engines.store import StoreFailed
from storage.engines.store_options import Durability, StoreOptions, log_folder
from storage.log import SystemDisk, read_answered
from storage.tests.store_places import append, commit, crash_copy, everything, synced
from visibility.rows.row_changes import Changes

ROWS = 60
QUEUES = 9
SEGMENT_BYTES = 32 << 10
Opened = Callable[..., DurableStore]


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Opened]:
    """Opens a store that is closed at the end."""
    stores: list[DurableStore] = []

    def opened_store(
        folder: Path,
        durability: Durability = Durability.FSYNC,
        *,
        accepts_loss: bool = False,
        flush_bytes: int = 1 << 20,
    ) -> DurableStore:
        options = StoreOptions(
            durability, accepts_loss, segment_bytes=SEGMENT_BYTES, flush_bytes=flush_bytes
        )
        stores.append(open_store(folder, options))
        return stores[-1]

    yield opened_store
    for store in stores:
        await store.abandon()


async def fill(store: DurableStore, first: int, count: int) -> None:
    """Rows of one queue after the other, each in a separate Entry."""
    for number in range(first, first + count):
        changes = Changes()
        changes.put(b"%08d" % number, b"v" * 100)
        await commit(store, changes, queue_ids=[1 + number % QUEUES])


async def noted(store: DurableStore) -> None:
    """Wait until the note covers the last applied Entry."""
    store._write_note()
    if store._noted is not None:
        await store._noted


async def crashed(
    opened: Opened, tmp_path: Path, durability: Durability = Durability.FSYNC
) -> Path:
    """A shard with ROWS rows in its log, and a note that all of them were answered."""
    store = opened(tmp_path / "s", durability)
    await fill(store, 0, ROWS)
    await noted(store)
    return crash_copy(store.folder, tmp_path / "crashed")


def held(store: DurableStore) -> int:
    return len(everything(store))


class Written(NamedTuple):
    """The part of a segment that has Entries."""

    file: Path
    begin: int
    end: int


def written(folder: Path, tmp_path: Path) -> Written:
    """The positions of the Entries."""
    rows = RocksRows(crash_copy(folder, tmp_path / "looked-at"))
    (run,) = read_above(rows.applied(), SystemDisk(), log_folder(rows.folder), None).runs
    rows.close()
    return Written(log_folder(folder) / run.segment.name, run.begin, run.end)


# -- nothing is missing ----------------------------------------------------------------------------


async def test_a_crash_loses_nothing_that_was_answered(opened: Opened, tmp_path: Path) -> None:
    store = opened(await crashed(opened, tmp_path))

    assert held(store) == ROWS
    assert not store.came_back_shorter


async def test_the_note_follows_what_was_applied_and_is_never_ahead(
    opened: Opened, tmp_path: Path
) -> None:
    store = opened(tmp_path / "s")
    disk = SystemDisk()
    assert read_answered(disk, log_folder(store.folder)) is None
    await fill(store, 0, 3)
    applied = store.applied
    append(store, Changes([b"x", b"y"]))
    assert await synced(store) is None

    await noted(store)

    found = read_answered(disk, log_folder(store.folder))
    assert found is not None
    assert (found.position, found.position.index) == (applied, 3)


async def test_the_note_is_written_by_itself(opened: Opened, tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    await fill(store, 0, 3)
    async with asyncio.timeout(60):
        while read_answered(SystemDisk(), log_folder(store.folder)) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("content", [None, b"", b"x", b"\x01" * 1024])
async def test_a_folder_without_a_note_and_one_with_a_damaged_note_open(
    opened: Opened, tmp_path: Path, content: bytes | None
) -> None:
    folder = await crashed(opened, tmp_path)
    note = log_folder(folder) / "answered"
    if content is None:
        note.unlink()
    else:
        note.write_bytes(content)

    store = opened(folder)

    assert held(store) == ROWS
    await fill(store, ROWS, 1)
    await noted(store)
    await store.close()
    assert held(opened(folder)) == ROWS + 1


# -- something is missing --------------------------------------------------------------------------


async def with_older_rows(opened: Opened, folder: Path) -> Path:
    """A closed store whose rows are those of before its log was used again."""
    store = opened(folder, flush_bytes=40 << 10)
    await fill(store, 0, 10)
    await asyncio.to_thread(store.flush)
    older = shutil.copytree(folder, folder.with_name("older"))
    has_room = asyncio.Event()
    store.on_room(has_room.set)
    for number in range(10, 910):
        await fill(store, number, 1)
        # as a shard does: else a slow flush ends after the last Entry, and nothing is used again
        while not store.has_room:
            has_room.clear()
            await has_room.wait()
    await store.close()
    shutil.rmtree(folder)
    shutil.move(older, folder)
    return folder


async def test_older_rows_beside_a_log_that_was_used_again_are_refused(
    opened: Opened, tmp_path: Path
) -> None:
    folder = await with_older_rows(opened, tmp_path / "s")

    with pytest.raises(StoreFailed, match=r"came back shorter: \d+ entries .*--accept-loss on"):
        opened(folder)
    again = opened(folder, accepts_loss=True)
    assert again.came_back_shorter
    assert 10 <= held(again) < 910
    await again.close()
    assert not opened(folder).came_back_shorter


async def test_older_rows_beside_a_log_that_has_the_rest_are_brought_up_to_date(
    opened: Opened, tmp_path: Path
) -> None:
    store = opened(tmp_path / "s")
    await fill(store, 0, 10)
    await asyncio.to_thread(store.flush)
    shutil.copytree(store.folder, tmp_path / "older")
    await fill(store, 10, 10)
    await store.close()
    shutil.rmtree(store.folder)
    (tmp_path / "older").rename(store.folder)

    again = opened(store.folder)

    assert held(again) == 20
    assert not again.came_back_shorter


async def without_its_log(opened: Opened, tmp_path: Path, other: str) -> Path:
    """A closed store with the log of another one in the place of its own, or with none."""
    for name in ("s", "t"):
        store = opened(tmp_path / name)
        await fill(store, 0, 10)
        await store.close()
    shutil.rmtree(log_folder(tmp_path / "s"))
    if other:
        log_folder(tmp_path / other).rename(log_folder(tmp_path / "s"))
    return tmp_path / "s"


async def test_rows_beside_the_log_of_another_shard_are_refused(
    opened: Opened, tmp_path: Path
) -> None:
    folder = await without_its_log(opened, tmp_path, "t")

    with pytest.raises(StoreFailed, match="the rows have another Entry 10 than the log"):
        opened(folder)


@pytest.mark.parametrize("has_rows_folder", [True, False])
async def test_a_log_that_is_lost_before_the_rows_have_anything_is_missed(
    opened: Opened, tmp_path: Path, *, has_rows_folder: bool
) -> None:
    """Such rows look like those of a new shard: all that was answered would be lost silently."""
    store = opened(tmp_path / "s")
    await fill(store, 0, 10)
    await store.abandon()
    shutil.rmtree(log_folder(store.folder))
    if not has_rows_folder:
        shutil.rmtree(store.folder)

    with pytest.raises(StoreFailed, match=r"the log of .* is missing"):
        opened(store.folder)

    again = opened(store.folder, accepts_loss=True)
    assert again.came_back_shorter
    await again.close()
    assert not opened(store.folder).came_back_shorter


@pytest.mark.parametrize("other", ["t", ""], ids=["another log", "no log"])
async def test_rows_without_their_log_are_opened_as_older_ones_if_a_loss_is_accepted(
    opened: Opened, tmp_path: Path, other: str
) -> None:
    """The log may have had more than the rows: numbers above theirs were given already."""
    folder = await without_its_log(opened, tmp_path, other)

    again = opened(folder, accepts_loss=True)

    assert again.came_back_shorter
    await again.close()
    assert not opened(folder).came_back_shorter


def _cut(place: Written) -> None:
    content = place.file.read_bytes()
    place.file.write_bytes(content[: (place.begin + place.end) // 2])


def _flip(place: Written) -> None:
    content = bytearray(place.file.read_bytes())
    content[(place.begin + place.end) // 2] ^= 1
    place.file.write_bytes(content)


def _zero_the_rest(place: Written) -> None:
    content = place.file.read_bytes()
    half = (place.begin + place.end) // 2
    place.file.write_bytes(content[:half] + bytes(len(content) - half))


def _lose(place: Written) -> None:
    place.file.unlink()


DAMAGES = [_cut, _flip, _zero_the_rest, _lose]


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_log_is_refused_and_left_as_it_was(
    opened: Opened, tmp_path: Path, damage: Callable[[Written], None]
) -> None:
    folder = await crashed(opened, tmp_path)
    damage(written(folder, tmp_path))
    files = {file: file.read_bytes() for file in log_folder(folder).iterdir()}

    for _ in range(2):
        with pytest.raises(StoreFailed, match=r"came back shorter: .* --accept-loss on"):
            opened(folder)

    assert {file: file.read_bytes() for file in log_folder(folder).iterdir()} == files


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_log_opens_if_the_loss_is_accepted_and_that_is_said_once(
    opened: Opened, tmp_path: Path, damage: Callable[[Written], None]
) -> None:
    folder = await crashed(opened, tmp_path)
    damage(written(folder, tmp_path))

    store = opened(folder, accepts_loss=True)

    assert store.came_back_shorter
    found = held(store)
    assert found < ROWS
    await fill(store, ROWS, 5)
    later = crash_copy(folder, tmp_path / "later")
    await store.close()
    for again in (opened(folder), opened(later)):
        assert held(again) == found + 5
        assert not again.came_back_shorter


async def test_a_flipped_bit_costs_one_entry_and_its_queue_is_named(
    opened: Opened, tmp_path: Path
) -> None:
    folder = await crashed(opened, tmp_path)
    file = written(folder, tmp_path).file
    content = bytearray(file.read_bytes())
    value_at = content.index(b"v" * 100, len(content) // 4)
    key = content[value_at - 10 : value_at - 2]
    content[value_at] ^= 1
    file.write_bytes(content)

    with pytest.raises(StoreFailed, match=f"1 entries .* changed: queue {1 + int(key) % QUEUES}"):
        opened(folder)

    assert held(opened(folder, accepts_loss=True)) == ROWS - 1


async def test_a_flipped_bit_is_damage_where_the_note_is_damaged_too(
    opened: Opened, tmp_path: Path
) -> None:
    folder = await crashed(opened, tmp_path)
    _flip(written(folder, tmp_path))
    (log_folder(folder) / "answered").write_bytes(b"x")

    with pytest.raises(StoreFailed, match="came back shorter"):
        opened(folder)


# -- unacknowledged Entries ------------------------------------------------------------------------


async def test_a_torn_tail_that_nobody_was_told_of_opens(opened: Opened, tmp_path: Path) -> None:
    folder = await crashed(opened, tmp_path)
    place = written(folder, tmp_path)
    content = place.file.read_bytes()
    torn = content[place.begin : place.begin + 50]
    assert not any(content[place.end : place.end + 50])
    place.file.write_bytes(content[: place.end] + torn + content[place.end + 50 :])

    store = opened(folder)

    assert held(store) == ROWS
    assert not store.came_back_shorter


@pytest.mark.parametrize("at", [0, 4096, 9_000])
async def test_a_hole_in_what_nobody_was_told_of_opens(
    opened: Opened, tmp_path: Path, at: int
) -> None:
    """Power was lost during the sync of several Entries: some pages were written, and not the ones
    before them."""
    store = opened(tmp_path / "s")
    await fill(store, 0, ROWS)
    await noted(store)
    answered = written(store.folder, tmp_path)
    for number in range(3):
        append(store, Changes([b"unanswered %d" % number, b"u" * 4_000]))
    folder = crash_copy(store.folder, tmp_path / "torn")
    place = Written(log_folder(folder) / answered.file.name, answered.begin, answered.end)
    content = place.file.read_bytes()
    hole = place.end + at
    place.file.write_bytes(content[:hole] + bytes(2048) + content[hole + 2048 :])

    again = opened(folder)

    before = held(again)
    assert before == ROWS + at // 4_000
    assert not again.came_back_shorter
    await fill(again, ROWS, 10)
    assert held(opened(crash_copy(folder, tmp_path / "later"))) == before + 10


@pytest.mark.parametrize("damage", DAMAGES)
async def test_what_a_power_failure_may_take_without_syncs_is_only_reported(
    opened: Opened, tmp_path: Path, damage: Callable[[Written], None]
) -> None:
    folder = await crashed(opened, tmp_path, Durability.OS)
    damage(written(folder, tmp_path))

    with capture_logs() as logs:
        store = opened(folder, Durability.OS)

    found = held(store)
    assert found < ROWS
    lost = [log for log in logs if log["event"] == "log_entries_lost"]
    assert bool(lost) is store.came_back_shorter
    await fill(store, ROWS, 5)
    await store.close()
    assert held(opened(folder)) == found + 5
