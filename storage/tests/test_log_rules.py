"""The log's rules, each as the story that breaks a log without it."""

from __future__ import annotations

from contextlib import suppress
from zlib import crc32

import pytest

from storage.log import EntryTooLarge, Log, LogFailed, LogFull, LogMismatch, Position
from storage.log.entry import ALIGNMENT, encode_entry
from storage.log.header import HEADER_BYTES
from storage.log.identity import IDENTITY_FILE, TERM_JUMP, write_identity
from storage.log.slots import SLOT_BYTES, read_slots
from storage.tests.log_place import (
    FOLDER,
    LogPlace,
    appended,
    closed,
    run_virtually,
    synced,
    virtual,
)
from storage.tests.simulated_disk import SECTOR, PowerCut


@virtual
async def test_a_new_log_is_empty_and_numbers_entries_from_one() -> None:
    place = LogPlace()
    log = place.open()

    assert [log.append(b"one", [7]), log.append(b"two", [8, 9])] == [1, 2]
    assert await synced(log) is None

    assert log.synced_index == 2
    entries = list(place.read().entries())
    assert [(entry.index, entry.body, entry.queue_ids) for entry in entries] == [
        (1, b"one", (7,)),
        (2, b"two", (8, 9)),
    ]
    assert place.read().end == log.last == entries[-1].position


@virtual
async def test_reading_changes_nothing() -> None:
    place = LogPlace()
    await appended(place.open(), b"a" * 3000, b"b" * 3000, b"c" * 3000)
    place.disk.kill()
    place.flip(b"b" * 3000)

    place.disk.calls_until_cut = 0  # the first call that changes something would raise
    reading = place.read()

    assert [entry.index for entry in reading.entries()] == [1, 3]
    assert place.disk.open_handles == 0


@virtual
async def test_an_opening_without_appends_ends_where_the_log_did() -> None:
    place = LogPlace()
    end = await appended(place.open(), b"a", b"b")
    place.disk.kill()

    log = place.open()

    assert (log.last, log.term, log.synced_index) == (end, 2, 2)


@virtual
async def test_old_entries_are_not_replayed_behind_a_new_one_of_the_same_length() -> None:
    """Rule 2: 3 is lost, 4 and 5 are on the disk; then a new 3 is written in the same place."""
    place = LogPlace()
    place.applied = await appended(place.open(), b"1" * 472, b"2" * 472)
    place.disk.kill()
    log = place.open()
    old = place.segment_of(3)
    for body in (b"3", b"4", b"5"):
        log.append(body * 472)
    place.disk.file(old).content[HEADER_BYTES : HEADER_BYTES + SECTOR] = bytes(SECTOR)
    place.disk.kill()
    assert place.read().end == place.applied

    for _ in range(9):  # until a start takes the segment with 4 and 5
        log = place.open()
        if place.segment_of(3) == old:
            break
        place.disk.kill()
    log.append(b"n" * 472)
    assert await synced(log) is None
    place.disk.kill()

    assert place.segment_of(3) == old
    assert b"4" * 472 in place.disk.file(old).content
    assert place.bodies() == [b"n" * 472]


@pytest.mark.parametrize(
    "wrong", [{}, {"previous": 7}, {"index": 3}, {"term": 3}, {"term": 1}], ids=str
)
@virtual
async def test_a_whole_record_that_does_not_follow_ends_the_log(
    wrong: dict[str, int],
) -> None:
    """Rule 2: it lies right behind the last Entry, which an opening has copied in term 2."""
    place = LogPlace()
    last = await appended(place.open(), b"1" * 472)
    place.disk.kill()
    log = place.open()
    fields = {"term": 2, "index": 2, "previous": last.checksum} | wrong
    record, _ = encode_entry(b"2", (), crc32(log.log_id), **fields, synced=0)
    content = place.disk.file(place.segment_of(1)).content
    at = content.find(b"1" * 472) + 472 + 4  # behind the checksum
    at += -at % ALIGNMENT
    content[at : at + len(record)] = record

    assert place.bodies() == [b"1" * 472] + [b"2"] * (not wrong)
    assert not place.read().lost


@pytest.mark.parametrize("seed", range(20))
@virtual
async def test_a_sync_that_fails_once_and_then_succeeds_loses_nothing(seed: int) -> None:
    """Rule 9: Linux counts the pages as clean, though they were never written."""
    place = LogPlace(seed)
    log = place.open()
    await appended(log, b"kept")
    log.append(b"unknown" * 300)
    place.disk.failing_syncs = 1

    first, second = await synced(log), await synced(log)
    with pytest.raises(LogFailed):
        log.append(b"refused")
    await closed(log)
    found = place.bodies()
    again = place.open()
    await appended(again, b"later")
    place.disk.crash()

    assert isinstance(first, LogFailed)
    assert second is first
    assert log.synced_index == 1
    assert place.bodies() == [*found, b"later"]


@virtual
async def test_a_short_write_ends_the_log_before_it() -> None:
    place = LogPlace()
    log = place.open()
    await appended(log, b"kept")
    place.disk.short_writes = 1

    with pytest.raises(LogFailed, match="a part of the data"):
        log.append(b"cut" * 500)
    assert isinstance(await synced(log), LogFailed)
    await closed(log)
    again = place.open()

    assert again.append(b"next") == 2
    assert place.bodies() == [b"kept", b"next"]
    assert again.term > log.term


@pytest.mark.parametrize("seed", range(4))
def test_power_lost_at_any_call_of_an_opening_loses_nothing(seed: int) -> None:
    async def is_cut_at(call: int) -> bool:
        place = LogPlace(100 * seed + call)
        log = place.open()
        bodies = [bytes([number]) * 3000 for number in range(7)]  # four segments
        for body in bodies:
            log.append(body)
        assert await synced(log) is None
        place.disk.kill()  # no Entry shows that they are synced, so all are appended again
        assert place.read().proven < 7

        place.disk.calls_until_cut = call
        with suppress(PowerCut):
            place.open()
        is_cut = place.disk.is_off
        place.disk.crash()

        assert place.bodies() == bodies
        place.open()
        place.disk.crash()
        assert place.bodies() == bodies
        return is_cut

    calls = 0
    while run_virtually(is_cut_at(calls)):
        calls += 1
    assert calls > 30


@virtual
async def test_rows_ahead_of_the_log_leave_their_indexes_unused() -> None:
    """Rule 10: without syncs, a flush may survive a power failure that the log does not."""
    place = LogPlace()
    log = place.open()
    await appended(log, b"kept")
    log.append(b"lost")
    place.applied = log.last
    log.append(b"lost, too")
    place.disk.file(place.segment_of(1)).content[HEADER_BYTES + 64 :] = b""
    place.disk.kill()

    again = place.open()

    assert (again.append(b"new"), place.bodies()) == (3, [b"new"])
    place.disk.kill()
    assert place.open().last_index == 3


@virtual
async def test_rows_of_another_log_are_noticed() -> None:
    place = LogPlace()
    at = await appended(place.open(), b"a", b"b", b"c")
    place.disk.kill()

    place.applied = Position(at.term, 2, 12345)
    with pytest.raises(LogMismatch, match="another Entry 2"):
        place.read()


@virtual
async def test_a_term_is_never_used_twice() -> None:
    place = LogPlace()
    terms = []
    for _ in range(4):
        terms.append(place.open().term)
        place.disk.crash()

    assert terms == sorted(set(terms))


@virtual
async def test_a_term_is_told_by_the_identity_or_by_the_rows() -> None:
    """Rule 3: the segments are gone; the rows are another log's."""
    place = LogPlace()
    place.open()
    place.disk.kill()
    place.open()
    place.disk.kill()
    for name in place.disk.list(FOLDER):
        if name.startswith("segment-"):
            place.disk.unlink(FOLDER / name)

    assert place.open().term == 3
    place.disk.kill()
    place.applied = Position(7, 9, 0)
    assert place.open().term == 8


@pytest.mark.parametrize("slots", [(0,), (1,), (0, 1)])
@virtual
async def test_damaged_slots_make_the_term_jump_and_keep_the_log(slots: tuple[int, ...]) -> None:
    place = LogPlace()
    place.open()
    place.disk.kill()
    log = place.open()
    await appended(log, b"kept", b"kept, too")
    place.disk.kill()
    for slot in slots:
        place.disk.flip(FOLDER / IDENTITY_FILE, slot * SLOT_BYTES + 20)

    reading = place.read()
    again = place.open()

    assert reading.warnings == [f"{len(slots)} of 2 slots of the log's identity are damaged"]
    assert again.term == log.term + 1 + TERM_JUMP
    assert again.log_id == log.log_id
    assert place.bodies() == [b"kept", b"kept, too"]


@virtual
async def test_a_segment_is_reused_only_when_its_entries_are_in_flushed_rows() -> None:
    place = LogPlace()
    log = place.open()
    names = []
    positions = {}
    for number in range(12):
        positions[log.append(bytes([number]) * 3000)] = log.last
        assert await synced(log) is None
        names.append(place.segment_of(number + 1))
    assert len(set(names)) == 6
    assert log.live_bytes > 12 * 3000

    log.release(3)  # 3 and 4 share a segment
    assert log.live_bytes > 10 * 3000
    log.release(4)
    assert log.live_bytes < 9 * 3100
    place.applied = positions[4]
    for number in range(12, 16):
        log.append(bytes([number]) * 3000)
        assert await synced(log) is None
        names.append(place.segment_of(number + 1))

    assert place.bodies() == [bytes([number]) * 3000 for number in range(4, 16)]
    assert set(names[12:]) & set(names[:4])
    assert not set(names[12:]) & set(names[4:12])


def _can_grow(log: Log) -> bool:
    return log.spares.can_grow


@virtual
async def test_without_room_for_a_spare_the_log_goes_on_until_it_is_full() -> None:
    place = LogPlace()
    log = place.open()
    await appended(log, b"1" * 7000)
    assert _can_grow(log)
    place.disk.is_full = True

    await appended(log, b"2" * 7000)  # takes the spare; another cannot be made
    assert await synced(log) is None
    assert not _can_grow(log)
    with pytest.raises(LogFull, match="No space left"):
        log.append(b"3" * 7000)
    assert log.append(b"small") == 3
    assert await synced(log) is None

    place.disk.is_full = False
    while not _can_grow(log):
        await synced(log)
    assert log.append(b"3" * 7000) == 4


@virtual
async def test_a_segment_that_found_no_room_leaves_nothing_behind() -> None:
    place = LogPlace()
    log = place.open()
    await appended(log, b"1" * 7000)
    place.disk.is_full = True

    await appended(log, b"2" * 7000)  # takes the spare; another cannot be made
    while _can_grow(log):
        await synced(log)

    assert _segments(place) == 2


def _segments(place: LogPlace) -> int:
    return sum(name.startswith("segment-") for name in place.disk.list(FOLDER))


@virtual
async def test_unused_segments_are_given_back_apart_from_a_spare() -> None:
    place = LogPlace()
    log = place.open()
    await appended(log, *[bytes([number]) * 7000 for number in range(6)])
    before = _segments(place)
    log.release(5)
    await synced(log)

    log.spares.give_back()

    assert (before, _segments(place)) == (7, 2)
    assert (await appended(log, b"7" * 7000, b"8" * 7000)).index == 8


@virtual
async def test_a_log_without_a_spare_keeps_a_file_for_it() -> None:
    place = LogPlace()
    log = place.open()
    await appended(log, b"1" * 7000)
    place.disk.is_full = True
    await appended(log, b"2" * 7000)
    while _can_grow(log):
        await synced(log)
    log.release(1)

    log.spares.give_back()

    while not _can_grow(log):
        await synced(log)
    assert log.append(b"3" * 7000) == 3


@virtual
async def test_a_released_segment_is_a_spare_on_a_full_disk() -> None:
    place = LogPlace()
    log = place.open()
    await appended(log, b"1" * 7000)
    place.disk.is_full = True
    await appended(log, b"2" * 7000)
    assert log.spares.spare_bytes == 0

    log.release(1)
    assert log.spares.spare_bytes == place.segment_bytes
    assert log.append(b"3" * 7000) == 3


@virtual
async def test_an_entry_that_fits_into_no_segment_is_refused() -> None:
    place = LogPlace()
    log = place.open()

    with pytest.raises(EntryTooLarge):
        log.append(bytes(place.segment_bytes - HEADER_BYTES))

    assert log.append(b"next") == 1


@pytest.mark.parametrize("seed", range(20))
@virtual
async def test_a_sync_counts_when_older_segments_are_synced(seed: int) -> None:
    place = LogPlace(seed)
    log = place.open()
    bodies = [bytes([number]) * 5000 for number in range(4)]
    for body in bodies:
        log.append(body)
    assert await synced(log) is None
    place.disk.crash()

    assert place.bodies() == bodies


@virtual
async def test_closing_waits_for_what_the_lanes_do() -> None:
    place = LogPlace()
    log = place.open()
    log.append(b"1" * 7000)
    log.append(b"2" * 7000)  # a sync of the old segment and a new spare are under way
    failures: list[LogFailed | None] = []
    log.sync(failures.append)

    await closed(log)

    assert place.disk.open_handles == 0
    assert [str(failure) for failure in failures] == ["the log is closed"]
    assert place.bodies() == [b"1" * 7000, b"2" * 7000]


@virtual
async def test_another_log_in_the_folder_is_not_read() -> None:
    place = LogPlace()
    for _ in range(3):  # in a higher term than ours
        await appended(place.open(), b"of another log")
        place.disk.kill()
    write_identity(place.disk, FOLDER, read_slots(b"")._replace(number=3), b"n" * 16, 1)

    log = place.open()
    log.append(b"ours")

    assert log.log_id == b"n" * 16
    assert place.bodies() == [b"ours"]
