"""Pages that the disk cannot read, and files that it cannot write: a log goes on without them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from storage.log import AnsweredNote, Log, LogFull, PromiseFile, ReplicaLog, open_replica_log
from storage.log.answered import ANSWERED_FILE
from storage.log.disk import Disk
from storage.log.promise import PROMISE_FILE
from storage.tests.log_place import FOLDER, LogPlace, appended, closed, synced, virtual
from storage.tests.test_replica_log import LOG_ID, ReplicaPlace, got, records, taken

_RETRY_S = 1.1
_SENT = records(1, [b"1" * 3000, b"2" * 3000, b"3" * 3000], term=1, previous=0)
"""The first two fill a segment."""


async def _three_entries(place: ReplicaPlace) -> None:
    """They were synced in a log whose process has ended."""
    log = place.open_replica()
    for record in _SENT:
        await taken(log, [record])
    place.note_answered(log)
    place.disk.kill()


def _is_whole(log: ReplicaLog, sent: list[bytes]) -> bool:
    numbers = range(1, 1 + len(sent))
    return [log.entries.read_now(number).size for number in numbers] == [*map(len, sent)]


@virtual
async def test_a_replica_whose_entry_lies_on_an_unreadable_page_has_those_before_it() -> None:
    place = ReplicaPlace()
    await _three_entries(place)
    place.disk.file(place.segment_of(2)).unreadable_pages.add(2)

    lost = place.read().lost
    log = place.open_replica(lost[0].first - 1)

    assert [each[:2] for each in lost] == [(2, 2)]
    assert log.last_index == 1
    assert await got(log, 1) == _SENT[:1]
    await taken(log, _SENT[1:])
    assert _is_whole(log, _SENT)


@virtual
async def test_an_unreadable_page_behind_the_last_entry_does_not_matter() -> None:
    place = ReplicaPlace(segment_bytes=20 << 10)
    await _three_entries(place)
    place.disk.file(place.segment_of(3)).unreadable_pages.add(4)

    reading = place.read()
    log = place.open_replica()

    assert not reading.lost
    assert _is_whole(log, _SENT)


@virtual
async def test_an_opening_that_fails_at_the_entries_leaves_no_file_open() -> None:
    place = ReplicaPlace()
    await _three_entries(place)
    reading = place.read()
    place.flip(b"2" * 3000)  # after it was read

    with pytest.raises(OSError, match="lacks Entry 2"):
        open_replica_log(reading, place.applied, log_id=LOG_ID, segment_bytes=place.segment_bytes)

    assert place.disk.open_handles == 0


@virtual
async def test_an_opening_that_fails_at_a_file_leaves_none_open() -> None:
    place = ReplicaPlace()
    await _three_entries(place)
    reading = place.read()
    place.disk.unlink(FOLDER / reading.segments[-1].name)

    with pytest.raises(FileNotFoundError):
        open_replica_log(reading, place.applied, log_id=LOG_ID, segment_bytes=place.segment_bytes)

    assert place.disk.open_handles == 0


def _open_note(disk: Disk) -> object:
    return AnsweredNote(disk, FOLDER, LOG_ID)


def _open_promise(disk: Disk) -> object:
    return PromiseFile(disk, FOLDER)


@pytest.mark.parametrize(
    ("name", "open_file"), [(PROMISE_FILE, _open_promise), (ANSWERED_FILE, _open_note)]
)
def test_a_note_that_cannot_be_read_is_not_left_open(
    name: str, open_file: Callable[[Disk], object]
) -> None:
    place = LogPlace()
    open_file(place.disk)
    place.disk.kill()
    place.disk.file(FOLDER / name).unreadable_pages.add(0)

    with pytest.raises(OSError, match="Input/output error"):
        open_file(place.disk)

    assert place.disk.open_handles == 0


# -- spares ----------------------------------------------------------------------------------------


async def _refused(log: Log, entries: int) -> int:
    """The number of Entries, of as many, for which there was no room."""
    refused = 0
    for _ in range(entries):
        try:
            log.append(b"x" * 3000)
        except LogFull:
            refused += 1
        else:
            assert await synced(log) is None
        await asyncio.sleep(_RETRY_S)
    return refused


async def _with_a_bad_spare(*, refuses_writes: bool = False) -> tuple[LogPlace, Log, str]:
    """Of three segments the first is free and has an unreadable page; a spare is ready."""
    place = LogPlace()
    log = place.open()
    place.applied = await appended(log, *[b"x" * 3000] * 2)
    await appended(log, *[b"x" * 3000] * 3)
    segment = place.segment_of(1)
    file = place.disk.file(segment)
    file.unreadable_pages.add(1)
    file.refuses_writes = refuses_writes
    await asyncio.sleep(_RETRY_S)  # a spare is ready
    log.release(2)
    return place, log, segment.name


@virtual
async def test_a_released_segment_with_an_unreadable_page_is_written_anew() -> None:
    place, log, name = await _with_a_bad_spare()
    files = place.disk.list(FOLDER)

    assert await _refused(log, 5) == 0

    assert log.spares.can_grow
    assert place.segment_of(9).name == name
    assert len(place.disk.list(FOLDER)) == len(files) + 1


@virtual
async def test_a_segment_that_can_be_neither_read_nor_written_is_set_aside() -> None:
    place, log, name = await _with_a_bad_spare(refuses_writes=True)

    assert await _refused(log, 20) == 0

    assert log.spares.can_grow
    assert name not in place.disk.list(FOLDER)  # its blocks are free when it is closed
    await closed(log)
    assert place.disk.open_handles == 0
    assert len(place.bodies()) == 23


@virtual
async def test_a_log_opens_beside_a_segment_that_can_be_neither_read_nor_written() -> None:
    place, log, name = await _with_a_bad_spare(refuses_writes=True)
    place.note_answered(log)
    await closed(log)
    place.disk.kill()

    log = place.open()

    assert await _refused(log, 5) == 0
    assert name not in place.disk.list(FOLDER)
    assert len(place.bodies()) == 8


async def _with_a_refused_spare() -> tuple[ReplicaPlace, ReplicaLog, str]:
    """The first segment of a replica is free, and cannot be written for now."""
    place = ReplicaPlace()
    await _three_entries(place)
    segment = place.segment_of(1)
    log = place.open_replica()
    place.applied = log.last
    place.disk.file(segment).refuses_writes = True
    log.release(3)
    return place, log, segment.name


@virtual
async def test_a_replica_sets_aside_a_segment_that_cannot_be_written() -> None:
    """It writes what may hold Entries that never counted, and does not read it."""
    place, log, name = await _with_a_refused_spare()

    assert await _refused(log, 10) <= 1

    assert log.spares.can_grow
    assert name not in place.disk.list(FOLDER)
    await closed(log)
    assert place.disk.open_handles == 0


@virtual
async def test_a_segment_that_is_not_written_for_lack_of_room_is_tried_again() -> None:
    place = LogPlace()
    log = place.open()
    place.disk.is_full = True
    await appended(log, *[b"x" * 3000] * 4)
    assert await _refused(log, 5) > 0
    files = place.disk.list(FOLDER)

    place.disk.is_full = False
    await asyncio.sleep(2 * _RETRY_S)

    assert log.spares.can_grow
    assert await _refused(log, 2) == 0
    assert len(place.disk.list(FOLDER)) <= len(files) + 3


@virtual
async def test_a_segment_that_cannot_be_written_once_is_kept() -> None:
    place, log, name = await _with_a_refused_spare()
    while log.spares.can_grow:
        log.append(b"x" * 3000)
        await synced(log)
    place.disk.file(FOLDER / name).refuses_writes = False

    assert await _refused(log, 10) == 0

    used = [place.segment_of(index).name for index in range(4, log.last_index)]
    assert name in used
