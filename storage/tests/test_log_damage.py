"""Damage in the log: a loss is distinguished from the end, named, and never becomes a wrong
Entry."""

from __future__ import annotations

import pytest

from storage.log import Log, Position
from storage.log.answered import ANSWERED_FILE, AnsweredNote, NoteDamaged, read_answered
from storage.log.header import HEADER_BYTES
from storage.log.slots import SLOT_BYTES
from storage.tests.log_place import FOLDER, LogPlace, appended, synced, virtual

BODIES = [b"body one", b"body two", b"body three", b"body four"]


async def _closed_log(place: LogPlace) -> Log:
    """Four Entries for the queues 0 to 3, each synced before the next; then the process ends."""
    log = place.open()
    await appended(log, *BODIES)
    place.disk.kill()
    return log


@virtual
async def test_an_entry_that_a_later_one_knows_as_synced_is_lost_not_the_end() -> None:
    place = LogPlace()
    await _closed_log(place)
    place.flip(b"body two")

    reading = place.read()

    (lost,) = reading.lost
    assert (lost.first, lost.last, lost.queue_ids) == (2, 2, frozenset({1}))
    assert "checksum does not match" in lost.reason
    assert [entry.body for entry in reading.entries()] == [BODIES[0], *BODIES[2:]]


@virtual
async def test_the_last_entry_is_the_end_unless_an_answer_told_of_it() -> None:
    place = LogPlace()
    log = await _closed_log(place)
    place.flip(b"body four")

    assert place.read().lost == []
    assert place.bodies() == BODIES[:3]
    place.note_answered(log)
    reading = place.read()

    assert [lost[:3] for lost in reading.lost] == [(4, 4, frozenset({3}))]
    assert reading.end.index == 4


@virtual
async def test_an_accepted_loss_is_over_and_leaves_its_indexes_unused() -> None:
    place = LogPlace()
    await _closed_log(place)
    place.flip(b"body two")
    with pytest.raises(AssertionError):
        place.open()

    log = place.accept_loss()

    assert log.append(b"next") == 5
    assert await synced(log) is None
    place.disk.crash()
    assert place.read().lost == []
    assert place.bodies() == [b"next"]


@virtual
async def test_a_torn_tail_is_no_loss() -> None:
    place = LogPlace()
    log = place.open()
    await appended(log, *BODIES)
    for body in (b"torn" * 200, b"behind", b"it"):
        log.append(body)
    place.disk.kill()
    place.flip(b"torn" * 200)

    reading = place.read()

    assert (reading.lost, reading.end.index) == ([], 4)
    assert place.open().append(b"next") == 5
    assert place.bodies() == [*BODIES, b"next"]


@virtual
async def test_a_damaged_head_hides_its_queues_only() -> None:
    place = LogPlace()
    await _closed_log(place)
    place.flip(b"body two", within=-20)

    reading = place.read()

    assert [lost[:3] for lost in reading.lost] == [(2, 2, frozenset())]
    assert len(list(reading.entries())) == 3


@virtual
async def test_a_short_segment_is_damage_wherever_it_ends() -> None:
    place = LogPlace()
    await _closed_log(place)
    place.disk.truncate(place.segment_of(1), HEADER_BYTES + 1000)

    (lost,) = place.read().lost

    assert (lost.first, lost.last) == (5, 5)
    assert place.bodies() == BODIES
    assert place.accept_loss().append(b"next") == 6


async def _three_segments(place: LogPlace) -> None:
    await appended(place.open(), *(bytes([number]) * 3000 for number in range(6)))
    place.disk.kill()


@virtual
async def test_a_missing_segment_is_lost_as_a_whole() -> None:
    place = LogPlace()
    await _three_segments(place)
    place.disk.unlink(place.segment_of(3))

    reading = place.read()

    assert [lost[:2] for lost in reading.lost] == [(3, 4)]
    assert [entry.index for entry in reading.entries()] == [1, 2, 5, 6]


@virtual
async def test_the_next_header_knows_what_was_synced() -> None:
    """The Entries behind it are torn, so that none of them tells."""
    place = LogPlace()
    log = place.open()
    await appended(log, b"1" * 3000, b"2" * 3000)
    log.append(b"3" * 3000)
    place.disk.kill()
    place.flip(b"2" * 3000)
    place.flip(b"3" * 3000)

    assert [lost[:2] for lost in place.read().lost] == [(2, 2)]


@virtual
async def test_a_missing_first_segment_is_lost_as_a_whole() -> None:
    place = LogPlace()
    await _three_segments(place)
    place.disk.unlink(place.segment_of(1))

    assert [lost[:2] for lost in place.read().lost] == [(1, 2)]


@virtual
async def test_a_header_has_a_second_copy() -> None:
    place = LogPlace()
    await _three_segments(place)
    for index in (1, 3, 5):
        place.disk.flip(place.segment_of(index), 30)

    assert place.read().lost == []
    assert len(place.bodies()) == 6


@virtual
async def test_a_segment_without_a_header_is_lost_and_named() -> None:
    place = LogPlace()
    await _three_segments(place)
    segment = place.segment_of(3)
    place.disk.flip(segment, 30)
    place.disk.flip(segment, 2048 + 30)

    reading = place.read()

    assert [lost[:2] for lost in reading.lost] == [(3, 4)]
    assert reading.warnings == [f"the header of {segment.name} is damaged"]


@virtual
async def test_pages_that_cannot_be_read_cost_their_entries_only() -> None:
    place = LogPlace()
    await _three_segments(place)
    place.disk.file(place.segment_of(3)).unreadable_pages.add(1)

    reading = place.read()

    assert [lost[:2] for lost in reading.lost] == [(3, 4)]
    assert [entry.index for entry in reading.entries()] == [1, 2, 5, 6]


@virtual
async def test_damage_in_entries_that_the_rows_have_does_not_matter() -> None:
    place = LogPlace()
    log = place.open()
    place.applied = await appended(log, *BODIES[:3])
    await appended(log, BODIES[3])
    place.disk.kill()
    for body in BODIES[:3]:
        place.flip(body)

    assert place.read().lost == []
    assert place.bodies() == BODIES[3:]


@virtual
async def test_no_flipped_bit_of_a_segment_passes_for_an_entry() -> None:
    """Every byte of header and records in turn: each Entry read is right, the rest is reported."""
    place = LogPlace()
    log = await _closed_log(place)
    place.note_answered(log)
    segment = place.segment_of(1)
    used = HEADER_BYTES + log.live_bytes
    noticed = 0
    for offset in [*range(80), *range(2048, 2128), *range(HEADER_BYTES, used)]:
        place.disk.flip(segment, offset, offset % 8)
        reading = place.read()
        found = {entry.index: entry.body for entry in reading.entries()}
        lost = {index for each in reading.lost for index in range(each.first, each.last + 1)}
        assert found.items() <= dict(enumerate(BODIES, 1)).items()
        assert found.keys() | lost == {1, 2, 3, 4}
        assert not found.keys() & lost
        noticed += bool(lost)
        place.disk.flip(segment, offset, offset % 8)
    assert noticed > 0.9 * log.live_bytes  # all but the zeros behind records


@virtual
async def test_the_note_of_answers_has_the_newest_position() -> None:
    place = LogPlace()
    log = place.open()
    note = AnsweredNote(place.disk, FOLDER, log.log_id)
    assert read_answered(place.disk, FOLDER) is None

    for index in range(1, 4):
        note.write_now(Position(1, index, 77))
    file = place.disk.file(FOLDER / ANSWERED_FILE)
    assert file.durable == file.content
    place.disk.crash()

    found = read_answered(place.disk, FOLDER)
    assert found is not None
    assert (found.log_id, found.position) == (log.log_id, Position(1, 3, 77))
    again = AnsweredNote(place.disk, FOLDER, log.log_id)
    again.write_now(Position(2, 4, 78))
    found = read_answered(place.disk, FOLDER)
    assert found is not None
    assert found.position == Position(2, 4, 78)


@virtual
async def test_a_note_with_two_damaged_slots_is_reported() -> None:
    place = LogPlace()
    log = place.open()
    note = AnsweredNote(place.disk, FOLDER, log.log_id)
    note.write_now(Position(1, 1, 77))
    note.write_now(Position(1, 2, 77))

    place.disk.flip(FOLDER / ANSWERED_FILE, 30)
    found = read_answered(place.disk, FOLDER)
    assert found is not None
    assert found.position.index == 1
    place.disk.flip(FOLDER / ANSWERED_FILE, SLOT_BYTES + 30)
    with pytest.raises(NoteDamaged):
        read_answered(place.disk, FOLDER)


@virtual
async def test_the_note_of_another_log_is_no_measure() -> None:
    place = LogPlace()
    log = await _closed_log(place)
    place.note_answered(log)
    assert place.answered is not None
    place.answered = place.answered._replace(log_id=b"x" * 16, position=Position(9, 99, 1))

    reading = place.read()

    assert reading.lost == []
    assert reading.warnings == ["the note of answers belongs to another log"]


@virtual
async def test_an_entry_other_than_the_answered_one_is_reported() -> None:
    place = LogPlace()
    log = await _closed_log(place)
    place.note_answered(log)
    assert place.answered is not None
    place.answered = place.answered._replace(position=Position(1, 3, 12345))

    assert [lost[:2] for lost in place.read().lost] == [(3, 3)]
