"""The file of promises: damage, interrupted writes, long names, and the form before."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from storage.log import Promise, PromiseFile
from storage.log.promise import FIRST_SLOT_AT, PROMISE_FILE, PROMISE_SLOT_BYTES, have_room
from storage.log.slots import SLOT_BYTES, encode_slot
from storage.tests.log_place import FOLDER
from storage.tests.simulated_disk import PowerCut, SimulatedDisk


def _promise(term: int, hosts: int, name_bytes: int) -> Promise:
    ids = [f"{number:032x}" for number in range(hosts)]
    voters = dict.fromkeys(ids, "n" * name_bytes)
    return Promise(ids[0], term, ids[0], voters, tuple(ids[1:]))


SMALL = _promise(5, 3, 10)
LARGE = _promise(5, 5, 253)
"""Of four sectors."""


def _disk(seed: int = 1) -> SimulatedDisk:
    disk = SimulatedDisk(Random(seed))
    disk.make_folder(FOLDER)
    return disk


def _read(disk: SimulatedDisk) -> Promise | None:
    file = PromiseFile(disk, FOLDER)
    file.close()
    return file.promise


@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize("promise", [SMALL, LARGE])
def test_a_promise_with_a_damaged_slot_is_not_believed(promise: Promise, slot: int) -> None:
    disk = _disk()
    file = PromiseFile(disk, FOLDER)
    file.write_now(promise)
    file.close()
    assert _read(disk) == promise

    disk.flip(FOLDER / PROMISE_FILE, FIRST_SLOT_AT + slot * PROMISE_SLOT_BYTES + 20)
    again = PromiseFile(disk, FOLDER)
    assert again.promise is None
    again.write_now(Promise("three"))

    assert _read(disk) == Promise("three")


@pytest.mark.parametrize("end", [-1, 0, SLOT_BYTES - 1])
@pytest.mark.parametrize(("promise", "calls"), [(SMALL, 2), (LARGE, 6)])
def test_a_promise_of_a_file_without_its_end_is_not_believed(
    promise: Promise, calls: int, end: int
) -> None:
    """The slot at the end held a later one."""
    disk = _disk()
    file = PromiseFile(disk, FOLDER)
    file.write_now(promise)
    later = msgspec.structs.replace(promise, term=promise.term + 1)
    disk.calls_until_cut = calls
    with pytest.raises(PowerCut):
        file.write_now(later)
    disk.crash()
    assert _read(disk) == later

    disk.truncate(FOLDER / PROMISE_FILE, FIRST_SLOT_AT + PROMISE_SLOT_BYTES + end)

    assert _read(disk) is None


def test_the_id_of_a_first_opening_that_was_interrupted_stays() -> None:
    """It has written one slot, and promised nothing yet."""
    disk = _disk()
    disk.calls_until_cut = 4
    with pytest.raises(PowerCut):
        PromiseFile(disk, FOLDER).write_now(Promise("one"))
    disk.crash()

    assert _read(disk) == Promise("one")


@pytest.mark.parametrize("before", [SMALL, LARGE])
@pytest.mark.parametrize("after", [SMALL, LARGE])
def test_an_interrupted_write_leaves_the_promise_before(before: Promise, after: Promise) -> None:
    """Else all hosts that lose their power during an election would be learners: none can lead."""
    after = msgspec.structs.replace(after, term=before.term + 1)
    seen = set()
    for calls in range(20):
        for seed in range(40):
            disk = _disk(seed)
            file = PromiseFile(disk, FOLDER)
            file.write_now(before)
            disk.calls_until_cut = calls
            try:
                file.write_now(after)
            except PowerCut:
                disk.crash()
                found = _read(disk)
                assert found in (before, after), (calls, seed)
                seen.add(found.term)
            else:
                disk.crash()
                assert _read(disk) == after

    assert seen == {before.term, after.term}


def test_a_small_promise_is_one_sector() -> None:
    """It costs one write and one sync."""
    disk = _disk()
    file = PromiseFile(disk, FOLDER)
    disk.calls_until_cut = 4
    file.write_now(SMALL)
    disk.crash()

    assert _read(disk) == SMALL


@pytest.mark.parametrize("promise", [SMALL, LARGE])
@pytest.mark.parametrize("number", [6, 7])
def test_a_file_with_slots_of_one_sector_is_read_until_it_is_written(
    number: int, promise: Promise
) -> None:
    first = msgspec.msgpack.encode(msgspec.structs.replace(SMALL, term=number))
    second = msgspec.msgpack.encode(msgspec.structs.replace(SMALL, term=number + 1))
    slots = [encode_slot(number, first), encode_slot(number + 1, second)]
    early = b"".join(slots if number % 2 == 0 else reversed(slots))
    for calls in range(20):
        for seed in range(10):
            disk = _disk(seed)
            handle = disk.open(FOLDER / PROMISE_FILE, create=True)
            disk.pwrite(handle, early, 0)
            disk.fdatasync(handle)
            file = PromiseFile(disk, FOLDER)
            assert file.promise is not None
            assert file.promise.term == number + 1
            latest = msgspec.structs.replace(promise, term=number + 2)
            disk.calls_until_cut = calls
            try:
                file.write_now(latest)
            except PowerCut:
                disk.crash()
                assert _read(disk) in (file.promise, latest)
            else:
                disk.crash()
                assert _read(disk) == latest


@pytest.mark.parametrize("slot", [0, 1])
def test_damage_of_a_file_with_slots_of_one_sector_is_seen(slot: int) -> None:
    disk = _disk()
    payload = msgspec.msgpack.encode(SMALL)
    handle = disk.open(FOLDER / PROMISE_FILE, create=True)
    disk.pwrite(handle, encode_slot(8, payload) + encode_slot(9, payload), 0)
    disk.flip(FOLDER / PROMISE_FILE, slot * SLOT_BYTES + 20)

    assert _read(disk) is None


@pytest.mark.parametrize("name_bytes", [10, 60, 253])
def test_as_many_hosts_as_have_room_can_promise(name_bytes: int) -> None:
    names: list[str] = []
    while have_room([*names, "n" * name_bytes]):
        names.append("n" * name_bytes)
    assert len(names) > 35
    promise = _promise(1 << 62, len(names), name_bytes)
    disk = _disk()
    PromiseFile(disk, FOLDER).write_now(promise)

    assert _read(disk) == promise


class _Earlier(msgspec.Struct, frozen=True, array_like=True):
    """A promise as builds write it that keep nothing from a leader."""

    replica_id: str
    term: int = 0
    leader: str = ""
    voters: dict[str, str] = {}
    old_voters: tuple[str, ...] = ()


def test_builds_that_keep_nothing_read_a_promise_and_theirs_is_read() -> None:
    kept = msgspec.structs.replace(SMALL, kept=7)
    written = msgspec.msgpack.encode(kept)

    earlier = msgspec.msgpack.decode(written, type=_Earlier)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(earlier), type=Promise)

    assert again == SMALL
    assert msgspec.msgpack.decode(written, type=Promise) == kept
