"""A replica's files on a real disk with real threads."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.replication import Journal, OtherLog
from storage.log import ANSWERED_FILE, BEGINNING, Promise, PromiseFile, SystemDisk
from storage.log.promise import FIRST_SLOT_AT, PROMISE_FILE, PROMISE_SLOT_BYTES

_SEGMENT_BYTES = 64 << 10


def _journal(folder: Path, log_id: bytes = b"l" * 16, disk: SystemDisk | None = None) -> Journal:
    return Journal(
        disk or SystemDisk(),
        folder / "shard-0.log",
        log_id=log_id,
        new_replica_id=lambda: "first",
        segment_bytes=_SEGMENT_BYTES,
    )


async def _called(work: Callable[[Callable[..., None]], object]) -> None:
    """Wait until the callback that `work` is given was called."""
    called = asyncio.Event()
    work(lambda *given: called.set())
    await asyncio.wait_for(called.wait(), 60)


async def _reopened(journal: Journal, keep: int | None = None) -> Exception | None:
    done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    journal.reopen(done.set_result, lambda: BEGINNING, keep)
    return await asyncio.wait_for(done, 60)


async def _synced(journal: Journal) -> None:
    def sync(done: Callable[..., None]) -> None:
        journal.report_to(on_synced=done, on_failed=done)
        journal.sync()

    await _called(sync)


async def test_files_are_written_opened_anew_and_closed(tmp_path: Path) -> None:
    journal = _journal(tmp_path)
    journal.open(BEGINNING)
    assert journal.damage
    for number in range(5):
        journal.log.append_own(b"%d" % number * 20_000, (), term=3, committed=number, written_as=1)
    await _synced(journal)
    await _called(lambda done: journal.give(Promise("first", 3, "first", {"first": "a"}), done))

    await _called(lambda done: journal.reopen(done, lambda: BEGINNING, 2))

    assert (journal.log.last_index, journal.log.last.term, journal.committed) == (2, 3, 2)
    journal.note()
    await _called(journal.close)
    again = _journal(tmp_path)
    again.open(BEGINNING)
    assert not again.damage
    assert again.promise == Promise("first", 3, "first", {"first": "a"})
    assert again.log.entries.read_now(2).body == b"1" * 20_000
    await _called(again.close)


@pytest.mark.parametrize("slot", [0, 1])
async def test_a_process_knows_its_promise_when_the_file_was_written_by_half(
    tmp_path: Path, slot: int
) -> None:
    """With another id it would not count: two such hosts of three would wait for the third."""
    journal = _journal(tmp_path)
    journal.open(BEGINNING)
    promise = Promise("first", 3, "first", {"first": "a"})
    await _called(lambda done: journal.give(promise, done))
    file = tmp_path / "shard-0.log" / PROMISE_FILE
    content = bytearray(file.read_bytes())
    content[FIRST_SLOT_AT + slot * PROMISE_SLOT_BYTES + 20] ^= 1
    file.write_bytes(content)

    await _called(lambda done: journal.reopen(done, lambda: BEGINNING))

    assert (journal.damage, journal.promise) == ("", promise)
    await _called(journal.close)
    again = _journal(tmp_path)
    again.open(BEGINNING)
    assert (again.damage, again.promise) == ("", promise)
    await _called(again.close)


@pytest.mark.parametrize("is_there", [False, True])
async def test_a_replica_without_its_note_may_have_forgotten_what_it_acknowledged(
    tmp_path: Path, is_there: bool
) -> None:
    """The note alone tells that Entries are missing at the end of the log."""
    journal = _journal(tmp_path)
    journal.open(BEGINNING)
    for number in range(5):
        journal.log.append_own(b"%d" % number, (), term=3, committed=0, written_as=1)
    await _synced(journal)
    await _called(lambda done: journal.give(Promise("before", 3, "before"), done))
    journal.note()
    await _called(journal.close)
    folder = tmp_path / "shard-0.log"
    for file in folder.glob("segment-*"):
        file.unlink()
    note = folder / ANSWERED_FILE
    if is_there:
        note.write_bytes(b"x" * note.stat().st_size)
    else:
        note.unlink()

    again = _journal(tmp_path)
    again.open(BEGINNING)

    damage = f"{note} is damaged" if is_there else "there is no note of what it acknowledged"
    assert again.damage == damage
    assert again.promise == Promise("first", 3, "before")
    await _called(again.close)
    if not is_there:
        once_more = _journal(tmp_path)
        once_more.open(BEGINNING)
        assert not once_more.damage
        await _called(once_more.close)


async def test_a_term_is_promised_once(tmp_path: Path) -> None:
    """Rule 25: also while the promise is on its way to the disk, and once it is there."""
    journal = _journal(tmp_path)
    journal.open(BEGINNING)

    async with asyncio.timeout(60):
        given = asyncio.Event()
        assert journal.give(Promise("first", 5, "one"), given.set)
        assert not journal.give(Promise("first", 5, "another"), given.set)
        await given.wait()
    assert not journal.give(Promise("first", 5, "another"), given.set)
    assert journal.promise.leader == "one"
    await _called(journal.close)


async def test_a_replica_that_has_promised_nothing_needs_no_note(tmp_path: Path) -> None:
    """A founding host has its id before its log."""
    (tmp_path / "shard-0.log").mkdir()
    promises = PromiseFile(SystemDisk(), tmp_path / "shard-0.log")
    promises.write_now(Promise("founder"))
    promises.close()

    journal = _journal(tmp_path)
    journal.open(BEGINNING)

    assert (journal.damage, journal.promise) == ("", Promise("founder"))
    await _called(journal.close)


async def test_files_are_closed_once_when_one_cannot_be_opened(tmp_path: Path) -> None:
    """A number that is closed twice may be another file's by then."""
    disk = FailingDisk()
    journal = _journal(tmp_path, disk=disk)
    journal.open(BEGINNING)
    disk.failing = "answered"

    assert isinstance(await _reopened(journal), OSError)
    disk.failing = ""
    assert await _reopened(journal) is None
    await _called(journal.close)


async def test_what_is_lost_while_an_opening_fails_is_found_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries 3 to 5 were forgotten on purpose, 2 was not."""
    journal = _journal(tmp_path)
    journal.open(BEGINNING)
    for number in range(5):
        journal.log.append_own(b"%d" % number * 4_000, (), term=3, committed=0, written_as=1)
    await _synced(journal)
    with monkeypatch.context() as patch:
        patch.setattr("cluster.replication.journal_files.open_replica_log", _refused)
        assert isinstance(await _reopened(journal, 2), OSError)
    for file in (tmp_path / "shard-0.log").glob("segment-*"):
        content = bytearray(file.read_bytes())
        at = content.find(b"1" * 4_000)
        if at >= 0:
            content[at : at + 30_000] = bytes(30_000)
            file.write_bytes(content)

    assert await _reopened(journal, 2) is None

    assert journal.damage.startswith("Entry 2 is lost")
    await _called(journal.close)


def _refused(*arguments: object, **options: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


class FailingDisk(SystemDisk):
    """One name cannot be opened."""

    failing = ""

    def open(self, file: Path, *, create: bool = False) -> int:
        if file.name == self.failing:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().open(file, create=create)


async def test_the_log_of_another_cluster_is_not_opened(tmp_path: Path) -> None:
    journal = _journal(tmp_path)
    journal.open(BEGINNING)
    await _called(journal.close)

    with pytest.raises(OtherLog):
        _journal(tmp_path, b"o" * 16).open(BEGINNING)
