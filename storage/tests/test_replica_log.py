"""A replica's log: Entries of leaders, byte for byte; forgetting its end; what an opening finds."""

from __future__ import annotations

import asyncio
from zlib import crc32

import pytest

from storage.log import (
    Answered,
    NotNext,
    Position,
    Reading,
    ReplicaLog,
    open_replica_log,
    read_log,
    without_entries,
)
from storage.log.entry import Entry, encode_entry
from storage.tests.log_place import FOLDER, SEGMENT_BYTES, LogPlace, closed, synced, virtual

LOG_ID = b"i" * 16


class ReplicaPlace(LogPlace):
    """A folder with a replica's log."""

    def open_replica(self, keep: int | None = None) -> ReplicaLog:
        return open_replica_log(
            self.read(), self.applied, log_id=LOG_ID, keep=keep, segment_bytes=self.segment_bytes
        )


def records(
    first: int, bodies: list[bytes], *, term: int, previous: int, commit: int = 0
) -> list[bytes]:
    """Records as a leader of this term sends them."""
    made = []
    for index, body in enumerate(bodies, first):
        record, previous = encode_entry(
            body, (), crc32(LOG_ID), term=term, index=index, previous=previous, synced=commit
        )
        made.append(record)
    return made


async def taken(log: ReplicaLog, sent: list[bytes]) -> list[Entry]:
    """Append and sync what was sent."""
    entries = [log.append_record(record) for record in sent]
    assert await synced(log) is None
    return entries


async def got(log: ReplicaLog, first: int, bytes_max: int = 1 << 20) -> list[bytes]:
    """Read from the disk."""
    future: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
    log.read(first, bytes_max, future.set_result)
    return await future


@virtual
async def test_entries_of_several_terms_are_kept_byte_for_byte() -> None:
    place = ReplicaPlace()
    log = place.open_replica()
    sent = records(1, [b"a" * 3000, b"b" * 3000], term=3, previous=0)
    sent += records(3, [b"c" * 3000], term=7, previous=log.decode(sent[1]).checksum)
    entries = await taken(log, sent)
    sent.append(log.append_own(b"own", [4], term=9, committed=2, written_as=1))

    assert await synced(log) is None
    assert await got(log, 1) == sent
    assert log.entries.recent(2, 1) == sent[1:2]
    assert log.position_at(2) == entries[1].position
    assert log.position_at(5) is None
    assert log.last.term == 9

    place.disk.kill()
    again = place.open_replica()
    assert [entry.term for entry in place.read().entries()] == [3, 3, 7, 9]
    assert place.read().committed == 2
    assert again.last == log.last
    assert await got(again, 3, 1) == sent[2:3]
    assert again.entries.read_now(4).queue_ids == (4,)


@virtual
async def test_what_does_not_follow_is_not_taken() -> None:
    place = ReplicaPlace()
    log = place.open_replica()
    await taken(log, records(1, [b"a"], term=3, previous=0))
    at = log.last.checksum

    for wrong in (
        records(3, [b"later"], term=3, previous=at),
        records(2, [b"of another log"], term=3, previous=at + 1),
        records(2, [b"of an older term"], term=2, previous=at),
        [bytes(100)],
    ):
        with pytest.raises(NotNext):
            log.append_record(wrong[0])
    assert log.last_index == 1


@virtual
async def test_an_older_term_behind_a_newer_one_ends_the_log() -> None:
    """Rule 2: the record of a leader before, in the right place by its index and predecessor."""
    place = ReplicaPlace()
    log = place.open_replica()
    sent = records(1, [b"a"], term=3, previous=0)
    await taken(log, sent)
    behind = records(2, [b"b"], term=2, previous=log.last.checksum)[0]
    content = place.disk.file(place.segment_of(1)).content
    at = content.find(sent[0]) + len(sent[0])
    content[at : at + len(behind)] = behind
    place.disk.kill()

    assert place.bodies() == [b"a"]


@virtual
async def test_a_commit_index_of_the_leader_proves_nothing_of_this_disk() -> None:
    """A torn end is an end, though a later Entry says that it was committed elsewhere."""
    place = ReplicaPlace()
    log = place.open_replica()
    await taken(log, records(1, [b"1" * 600], term=1, previous=0))
    for record in records(
        2, [b"2" * 600, b"3" * 600], term=1, previous=log.last_checksum, commit=2
    ):
        log.append_record(record)
    file = place.disk.file(place.segment_of(2))
    at = file.content.find(b"2" * 600)
    file.content[at : at + 10] = bytes(10)
    place.disk.kill()

    reading = place.read()

    assert not reading.lost
    assert (reading.end.index, reading.committed) == (1, 1)


@pytest.mark.parametrize("keep", range(1, 8))
@virtual
async def test_forgotten_entries_stay_forgotten(keep: int) -> None:
    """The next ones have the same index and length, and another crash comes."""
    place = ReplicaPlace()
    log = place.open_replica()
    old = records(1, [bytes([number]) * 3000 for number in range(8)], term=1, previous=0)
    await taken(log, old)
    await closed(log)

    log = place.open_replica(keep)
    assert log.last_index == keep
    assert log.position_at(keep) == log.last
    place.disk.crash()
    assert place.read().end == log.last

    log = place.open_replica()
    new = records(keep + 1, [b"n" * 3000] * 2, term=2, previous=log.last_checksum)
    await taken(log, new)
    place.disk.crash()

    assert not place.read().lost
    bodies = place.bodies()
    assert bodies[:keep] == [bytes([number]) * 3000 for number in range(keep)]
    assert bodies[keep:] == [b"n" * 3000] * 2


@virtual
async def test_a_file_with_forgotten_entries_is_overwritten_before_it_is_reused() -> None:
    """Else an old Entry could follow a new one: index and predecessor may fit."""
    place = ReplicaPlace()
    log = place.open_replica()
    before = records(1, [b"a" * 3000, b"b" * 3000], term=1, previous=0)
    await taken(log, before)
    at = log.last_checksum
    await taken(log, records(3, [b"old" * 1000, b"old" * 1000], term=1, previous=at))
    old_file = place.segment_of(3)
    await closed(log)
    log = place.open_replica(2)
    new = records(3, [b"new" * 1600] * 12, term=2, previous=at)
    for record in new:
        await taken(log, [record])

    assert old_file in {place.segment_of(index) for index in range(3, 15)}
    assert b"old" not in place.disk.file(old_file).content
    assert b"old" not in place.disk.file(old_file).durable


@virtual
async def test_damage_that_the_rows_do_not_need_leaves_the_rest_to_be_shipped() -> None:
    place = ReplicaPlace()
    log = place.open_replica()
    sent = records(1, [b"%d" % number * 1000 for number in range(1, 7)], term=1, previous=0)
    entries = await taken(log, sent)
    place.disk.kill()
    place.applied = entries[3].position
    place.flip(b"2" * 1000)

    log = place.open_replica()

    assert log.start.index in (3, 4)
    assert log.position_at(2) is None
    assert await got(log, 5) == sent[4:]


async def _three_answered(place: ReplicaPlace) -> list[Entry]:
    """A log of three Entries that must be there at the next opening."""
    log = place.open_replica()
    sent = records(1, [b"1" * 900, b"2" * 900, b"3" * 900], term=1, previous=0)
    entries = await taken(log, sent)
    place.answered = Answered(LOG_ID, entries[2].position)
    place.disk.kill()
    return entries


@virtual
async def test_behind_damage_nothing_that_is_forgotten_is_found() -> None:
    place = ReplicaPlace()
    entries = await _three_answered(place)
    place.applied = entries[0].position
    place.flip(b"1" * 900)
    place.flip(b"2" * 900)

    log = place.open_replica(keep=1)

    assert (log.start, log.last_index) == (place.applied, 1)
    again = records(2, [b"4" * 900], term=2, previous=entries[0].checksum)
    await taken(log, again)
    assert await got(log, 2) == again


@virtual
async def test_a_released_entry_is_not_shipped() -> None:
    place = ReplicaPlace()
    log = place.open_replica()
    sent = records(1, [b"%d" % number * 3000 for number in range(1, 7)], term=1, previous=0)
    entries = await taken(log, sent)

    log.release(4)

    assert log.start == entries[3].position
    assert log.position_at(4) == log.start
    assert log.position_at(3) is None
    assert await got(log, 4) == []
    assert await got(log, 5) == sent[4:]
    assert log.entries.bytes_above(4) == len(sent[4]) + len(sent[5])


async def _opened_again(place: ReplicaPlace, flips: bytes = b"") -> tuple[ReplicaLog, list[bytes]]:
    """A log of twelve Entries, whose rows have ten at the next opening, and its records."""
    log = place.open_replica()
    sent = records(1, [b"%d" % (10 + number) * 2000 for number in range(12)], term=1, previous=0)
    entries = await taken(log, sent)
    place.disk.kill()
    place.applied = entries[9].position
    if flips:
        place.flip(flips * 1000)
    return place.open_replica(), sent


@virtual
async def test_entries_that_the_rows_have_are_still_shipped_after_an_opening() -> None:
    log, sent = await _opened_again(ReplicaPlace())

    assert log.start.index == 0
    assert await got(log, 1) == sent
    assert log.last_index == 12


@virtual
async def test_older_entries_are_kept_from_the_last_damage_on() -> None:
    log, sent = await _opened_again(ReplicaPlace(), flips=b"15")

    assert 6 <= log.start.index <= 9
    assert await got(log, log.start.index + 1) == sent[log.start.index :]


@virtual
async def test_an_entry_that_cannot_be_read_is_not_shipped() -> None:
    place = ReplicaPlace()
    log = place.open_replica()
    sent = records(1, [b"1" * 3000, b"2" * 3000], term=1, previous=0)
    await taken(log, sent)
    place.disk.kill()
    log = place.open_replica()
    place.flip(b"2" * 3000)

    assert await got(log, 1) == sent[:1]
    assert await got(log, 2) == []
    with pytest.raises(OSError, match="Entry 2 cannot be read"):
        log.entries.read_now(2)


@virtual
async def test_a_lost_entry_ends_the_log_before_it_when_that_is_wanted() -> None:
    place = ReplicaPlace()
    entries = await _three_answered(place)
    place.flip(b"2" * 900)

    reading = place.read()
    log = place.open_replica(reading.lost[0].first - 1)

    assert (reading.lost[0].first, log.last) == (2, entries[0].position)


@virtual
async def test_a_checkpoint_replaces_the_log() -> None:
    place = ReplicaPlace()
    log = place.open_replica()
    await taken(log, records(1, [b"a" * 3000] * 5, term=1, previous=0))
    await closed(log)
    place.applied = Position(4, 3, 77)  # another Entry 3 than the log's

    reading: Reading = without_entries(place.disk, FOLDER, place.applied)
    log = open_replica_log(reading, place.applied, log_id=LOG_ID, segment_bytes=SEGMENT_BYTES)
    await taken(log, records(4, [b"next"], term=4, previous=77))
    place.disk.crash()

    assert place.bodies() == [b"next"]
    assert read_log(place.disk, FOLDER, place.applied).end.index == 4
