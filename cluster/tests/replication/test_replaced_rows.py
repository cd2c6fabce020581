"""Rows that a checkpoint replaces, and the log beside them, through crashes: RocksDB and real
files."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import pytest

from cluster.replication import Journal
from storage.copies.checkpoint_files import SystemFiles, make_checkpoint
from storage.copies.replaced_rows import (
    MARK_FILE,
    Replaced,
    drop_incoming,
    finish_replacing,
    forget_replacing,
    incoming_of,
    make_incoming,
    replace_rows,
)
from storage.engines.fresh_rows import has_damage, note_damage
from storage.engines.kept_files import note_of
from storage.engines.rocks import RocksRows
from storage.log import BEGINNING, LogMismatch, Position, SystemDisk
from storage.log.entry import encode_entry
from visibility.rows.row_changes import Ops

LOG_ID = b"l" * 16
SEGMENT_BYTES = 64 << 10
BODY_BYTES = 20_000
STEPS = 8
"""Changes of files that `replace_rows` makes."""
FIRST_OF_SWITCH = 3
"""From here on the mark has its name."""


class Chain(NamedTuple):
    """Entries 1, 2, ... of these terms."""

    terms: tuple[int, ...]

    def records(self) -> list[bytes]:
        return [record for record, _ in self._made()]

    def position(self, index: int) -> Position:
        return self._made()[index - 1][1] if index else BEGINNING

    def _made(self) -> list[tuple[bytes, Position]]:
        made, previous = [], 0
        for index, term in enumerate(self.terms, 1):
            body = b"%d of %d" % (index, term)
            record, previous = encode_entry(
                body.ljust(BODY_BYTES),
                (),
                crc32(LOG_ID),
                term=term,
                index=index,
                previous=previous,
                synced=0,
            )
            made.append((record, Position(term, index, previous)))
        return made


COMMITTED = Chain((1, 1, 1, 1, 2, 2, 2, 2))
OTHER = Chain((1,) * 8)
"""Parts from it behind Entry 4."""


class Crash(Exception):
    """The process ends."""


class CrashingFiles(SystemFiles):
    """Ends the process instead of the change with this number."""

    def __init__(self, at: int) -> None:
        self.changes = 0
        self._at = at

    def _change(self) -> None:
        if self.changes == self._at:
            raise Crash
        self.changes += 1

    def write(self, file: Path, data: bytes, offset: int) -> None:
        if self.changes == self._at:
            super().write(file, data[: len(data) // 2], offset)
        self._change()
        super().write(file, data, offset)

    def sync(self, file: Path) -> None:
        self._change()
        super().sync(file)

    def sync_folder(self, folder: Path) -> None:
        self._change()
        super().sync_folder(folder)

    def rename(self, old: Path, new: Path) -> None:
        self._change()
        super().rename(old, new)

    def remove(self, path: Path) -> None:
        if self.changes == self._at and path.is_dir():
            next(path.iterdir()).unlink()
        self._change()
        super().remove(path)


def write_rows(folder: Path, chain: Chain, first: int, last: int) -> None:
    """Rows as of the chain's Entry `last`, durably."""
    with closing(RocksRows(folder)) as rows:
        for index in range(first, last + 1):
            ops: Ops = [b"%08d" % index, b"%d" % chain.terms[index - 1]]
            rows.write(ops, chain.position(index))
            rows.flush()


def rows_in(folder: Path) -> tuple[Position, list[bytes]]:
    """The Entry up to which the rows are, and their values."""
    with closing(RocksRows(folder)) as rows:
        values = [value for key, value in rows.scan(b"0", b"9")]
        return rows.applied(), values


class Shard:
    """A shard's folders: rows as of an Entry, and the log of a replica that is a voter."""

    def __init__(self, top: Path) -> None:
        self.folder = top / "shard-0"
        self.journal: Journal

    def open(self, applied: Position, *, replaced: bool = False) -> Journal:
        self.journal = Journal(
            SystemDisk(),
            self.folder.with_name("shard-0.log"),
            log_id=LOG_ID,
            new_replica_id=lambda: "new",
            segment_bytes=SEGMENT_BYTES,
        )
        self.journal.open(applied, rows_replaced=replaced)
        return self.journal

    async def close(self) -> None:
        closed = asyncio.Event()
        self.journal.close(closed.set)
        await asyncio.wait_for(closed.wait(), 60)

    async def prepare(self, log: Chain, applied: int, *, released: bool = False) -> None:
        """All of the log was acknowledged; the rows have a part of it."""
        write_rows(self.folder, log, 1, applied)
        journal = self.open(BEGINNING)
        journal.log.place(BEGINNING, log.records())
        synced = asyncio.Event()
        journal.report_to(on_synced=synced.set, on_failed=pytest.fail)
        journal.sync()
        await asyncio.wait_for(synced.wait(), 60)
        assert journal._note is not None
        journal._note.write_now(journal.synced)
        if released:
            journal.log.release(applied)
        await self.close()
        self.open(log.position(applied))
        assert self.journal.promise.replica_id == "new"
        await self.close()

    def fetch(self, chain: Chain, index: int) -> Replaced:
        """A complete checkpoint of another host's rows."""
        source = self.folder.with_name("source")
        write_rows(source, chain, 1, index)
        make_incoming(SystemFiles(), self.folder)
        incoming_of(self.folder).rmdir()
        with closing(RocksRows(source)) as rows:
            position = make_checkpoint(rows, incoming_of(self.folder))
        shutil.rmtree(source)
        return Replaced(LOG_ID, position)

    async def start(self) -> tuple[Position, list[bytes]]:
        """Do as a start does; returns the rows."""
        files = SystemFiles()
        replaced = finish_replacing(files, self.folder)
        assert not incoming_of(self.folder).exists()
        applied, values = rows_in(self.folder)
        self.open(applied, replaced=replaced is not None and replaced.position == applied)
        forget_replacing(files, self.folder)
        assert not (self.folder / MARK_FILE).exists()
        return applied, values


class Case(NamedTuple):
    """A log, and the index at which the log ends over the checkpoint of Entry 6."""

    log: Chain
    applied: int
    ends_at: int


CASES = {
    "a log that ends before": Case(Chain((1, 1, 1)), 2, 6),
    "a log that has the Entry": Case(COMMITTED, 4, 8),
    "a log with Entries that were never committed": Case(OTHER, 4, 6),
}


async def _made(top: Path, case: Case) -> Replaced:
    shard = Shard(top)
    await shard.prepare(case.log, case.applied)
    return shard.fetch(COMMITTED, 6)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Replaced]]:
    """Each case with a complete checkpoint of Entry 6."""
    tops = {name: tmp_path_factory.mktemp("case") for name in CASES}
    return {name: (top, asyncio.run(_made(top, CASES[name]))) for name, top in tops.items()}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("step", range(STEPS + 1))
async def test_a_crash_leaves_the_old_rows_or_the_new_ones_and_a_log_that_fits(
    made: dict[str, tuple[Path, Replaced]], tmp_path: Path, step: int, case: str
) -> None:
    log, applied, ends_at = CASES[case]
    top, replaced = made[case]
    shard = Shard(shutil.copytree(top, tmp_path / "top"))
    note_damage(shard.folder)
    files = CrashingFiles(step)

    try:
        replace_rows(files, shard.folder, replaced)
    except Crash:
        assert step < STEPS
    else:
        assert step == files.changes == STEPS
    found = await shard.start()

    if step < FIRST_OF_SWITCH:
        assert found == (log.position(applied), [b"%d" % term for term in log.terms[:applied]])
        assert shard.journal.log.last_index == len(log.terms)
    else:
        assert found == (COMMITTED.position(6), [b"%d" % term for term in COMMITTED.terms[:6]])
        assert shard.journal.log.last_index == ends_at
        assert not has_damage(shard.folder)
    assert not shard.journal.damage, "all that was acknowledged is there"
    await shard.close()
    finish_replacing(SystemFiles(), shard.folder)
    shard.open(found[0])
    assert not shard.journal.damage
    await shard.close()


@pytest.mark.parametrize("step", [5, 6, 7])
@pytest.mark.parametrize("second", [0, 1, 2])
async def test_a_start_that_crashes_as_well_is_finished_by_the_next(
    made: dict[str, tuple[Path, Replaced]], tmp_path: Path, step: int, second: int
) -> None:
    top, replaced = made["a log with Entries that were never committed"]
    shard = Shard(shutil.copytree(top, tmp_path / "top"))
    with pytest.raises(Crash):
        replace_rows(CrashingFiles(step), shard.folder, replaced)
    with suppress(Crash):
        finish_replacing(CrashingFiles(second), shard.folder)

    found = await shard.start()

    assert found[0] == COMMITTED.position(6)
    assert shard.journal.log.last == COMMITTED.position(6)
    await shard.close()


async def test_without_the_mark_a_log_of_other_rows_is_refused(tmp_path: Path) -> None:
    shard = Shard(tmp_path)
    await shard.prepare(OTHER, 4)
    replace_rows(SystemFiles(), shard.folder, shard.fetch(COMMITTED, 6))

    with pytest.raises(LogMismatch):
        shard.open(COMMITTED.position(6))


async def test_a_checkpoint_older_than_the_log_makes_another_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the segments that an opening keeps for peers had been overwritten.
    monkeypatch.setattr("storage.log.log_opening.with_older_entries", lambda reading: reading)
    shard = Shard(tmp_path)
    await shard.prepare(COMMITTED, 7, released=True)
    replace_rows(SystemFiles(), shard.folder, shard.fetch(COMMITTED, 2))

    await shard.start()

    # Entries 1 to 3 are still in a segment that was released, and not yet overwritten.
    assert "Entry 4 is lost" in shard.journal.damage
    assert shard.journal.log.last_index == 3
    await shard.close()


async def test_the_note_of_the_old_rows_goes_with_them(tmp_path: Path) -> None:
    shard = Shard(tmp_path)
    await shard.prepare(OTHER, 4)
    before = note_of(shard.folder).read_bytes()
    replace_rows(SystemFiles(), shard.folder, shard.fetch(COMMITTED, 6))

    assert not note_of(shard.folder).exists()
    await shard.start()
    assert note_of(shard.folder).read_bytes() != before
    await shard.close()


@pytest.mark.parametrize("at", range(3))
def test_a_checkpoint_that_is_dropped_by_halves_does_not_count(tmp_path: Path, at: int) -> None:
    shard = Shard(tmp_path)
    write_rows(shard.folder, COMMITTED, 1, 2)
    replaced = shard.fetch(COMMITTED, 6)
    with pytest.raises(Crash):
        replace_rows(CrashingFiles(FIRST_OF_SWITCH), shard.folder, replaced)

    with pytest.raises(Crash):
        drop_incoming(CrashingFiles(at), shard.folder)
    finished = finish_replacing(SystemFiles(), shard.folder)

    assert (finished is None) == (at > 0)
    assert rows_in(shard.folder)[0].index == (2 if finished is None else 6)
