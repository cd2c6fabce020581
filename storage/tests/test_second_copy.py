"""A database with a second copy: nothing is lost or changed by one flipped bit, nor by a crash
between the two."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from storage.copies.checked_database import check_copy, check_database
from storage.copies.second_copy import copy_of, copy_sound, is_there, open_with_copy, renew_copy
from storage.tests.on_disk import tables

SCHEMA = """
CREATE TABLE IF NOT EXISTS named (name TEXT PRIMARY KEY, value BLOB, number INTEGER);
CREATE TABLE IF NOT EXISTS numbered (number INTEGER PRIMARY KEY AUTOINCREMENT, text TEXT NOT NULL UNIQUE);
"""  # noqa: E501
Content = list[list[tuple[Any, ...]]]


def opened(file: Path) -> sqlite3.Connection:
    return open_with_copy(file, tables(SCHEMA))


def content(database: sqlite3.Connection) -> Content:
    return [
        database.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()
        for table in ("named", "numbered")
    ]


def read(file: Path) -> tuple[Content, list[str]]:
    """The content after opening the file, and the events it logs."""
    with captured() as events, closing(opened(file)) as database:
        return content(database), events


@contextmanager
def captured() -> Iterator[list[str]]:
    """The events that are logged in here."""
    events: list[str] = []
    capturing = logging.Handler()
    capturing.emit = lambda record: events.append(str(record.args[0]))  # type: ignore[method-assign,index]
    log = logging.getLogger("holdfast.files")
    log.addHandler(capturing)
    try:
        yield events
    finally:
        log.removeHandler(capturing)


def fill(file: Path, rows: int = 30) -> Content:
    with closing(opened(file)) as database:
        for number in range(rows):
            values = (f"name {number}", bytes([number]) * 40, number)
            database.execute("INSERT INTO named VALUES (?,?,?)", values)
            database.execute("INSERT INTO numbered (text) VALUES (?)", (f"text {number}",))
        database.execute("UPDATE named SET number = number + 1 WHERE number > 9")
        database.execute("DELETE FROM named WHERE number = 7")
        return content(database)


def check_equal(file: Path) -> None:
    """Both copies are sound and say the same."""
    with (
        closing(sqlite3.connect(file)) as database,
        closing(sqlite3.connect(copy_of(file))) as copy,
    ):
        assert check_database(database) == check_copy(copy)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "x.sqlite"


def places(size: int) -> Iterator[int]:
    """Every byte of the header that SQLite acts on, and some of each page."""
    yield from (*range(0, 28, 3), 18, 19, *range(40, 60, 5), *range(92, 120, 3))
    yield from range(120, size, 499)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["database", "copy"])
def test_a_flipped_bit_anywhere_changes_nothing(file: Path, which: str) -> None:
    before = fill(file)
    damaged = file if which == "database" else copy_of(file)
    sound = damaged.read_bytes()
    used = 0
    for at in places(len(sound)):
        flipped = bytearray(sound)
        flipped[at] ^= 1 << at % 8
        damaged.write_bytes(flipped)

        found, events = read(file)

        assert found == before, at
        assert set(events) <= {"second_copy_used" if which == "database" else "second_copy_damaged"}
        check_equal(file)
        used += len(events)
        damaged.write_bytes(sound)
    assert used > 5


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE named SET value = X'01' WHERE number = 3",
        "UPDATE named SET number = 12345 WHERE number = 3",
        "DELETE FROM numbered WHERE number = 5",
        "INSERT INTO numbered (text) VALUES ('nobody wrote this')",
        "UPDATE checksum SET state = X'00'",
        "DROP TABLE checksum",
        "ALTER TABLE named RENAME COLUMN value TO valve",
    ],
)
def test_content_that_no_transaction_wrote_is_not_believed(file: Path, change: str) -> None:
    before = fill(file)
    with closing(sqlite3.connect(file)) as database, database:
        database.execute(change)

    found, events = read(file)

    assert (found, events) == (before, ["second_copy_used"])
    check_equal(file)


def test_a_flipped_bit_in_the_log_of_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    file = tmp_path / "x.sqlite"
    fill(file)
    with closing(opened(file)) as database:
        for number in range(5):
            database.execute("INSERT INTO numbered (text) VALUES (?)", (f"later {number}",))
        before = content(database)
        shutil.copytree(tmp_path, tmp_path / "killed")
    log = tmp_path / "killed" / "x.sqlite-wal"
    sound = log.read_bytes()
    for at in range(32, len(sound), 4127):
        shutil.copytree(tmp_path / "killed", tmp_path / "round")
        flipped = bytearray(sound)
        flipped[at] ^= 4
        (tmp_path / "round" / log.name).write_bytes(flipped)

        assert read(tmp_path / "round" / "x.sqlite")[0] == before, at

        shutil.rmtree(tmp_path / "round")


def test_the_log_beside_a_damaged_header_is_not_taken_for_the_new_databases(tmp_path: Path) -> None:
    """A killed process left it. Nobody reads it: the header says not to open the file."""
    file = tmp_path / "x.sqlite"
    fill(file, 250)
    with closing(opened(file)) as database:  # its root names pages that lie elsewhere in a new one
        for number in range(80):
            database.execute("INSERT INTO named VALUES (?, ?, 1)", (f"later {number}", bytes(40)))
        before = content(database)
        shutil.copytree(tmp_path, tmp_path / "killed")
    killed = tmp_path / "killed" / "x.sqlite"
    flipped = bytearray(killed.read_bytes())
    flipped[18] ^= 4
    killed.write_bytes(flipped)

    assert read(killed) == (before, ["second_copy_used"])

    check_equal(killed)


def test_a_repaired_databases_name_is_on_disk(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(file)
    file.write_bytes(b"no database" * 1000)
    damaged, synced = file.stat().st_ino, []
    fsync = os.fsync

    def noting_fsync(descriptor: int) -> None:
        if os.fstat(descriptor).st_ino == file.parent.stat().st_ino:
            synced.append(file.stat().st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting_fsync)
    read(file)

    assert synced
    assert synced[0] == file.stat().st_ino != damaged


@pytest.mark.parametrize("lost", ["x.sqlite", "x.sqlite.copy"])
def test_a_missing_file_is_made_from_the_other(file: Path, lost: str) -> None:
    before = fill(file)
    (file.parent / lost).unlink()
    assert is_there(file)

    assert read(file)[0] == before

    check_equal(file)


def test_both_damaged_refuses_with_a_way_out(file: Path) -> None:
    fill(file)
    for each in (file, copy_of(file)):
        each.write_bytes(b"no database" * 1000)

    with pytest.raises(
        sqlite3.DatabaseError, match=r"x\.sqlite\.copy is damaged too.*Restore a backup"
    ):
        opened(file)

    assert file.read_bytes().startswith(b"no database"), "nothing is overwritten"


# -- crashes ---------------------------------------------------------------------------------------


def snapshot(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()}


def put(folder: Path, files: dict[str, bytes]) -> None:
    for each in folder.iterdir():
        each.unlink()
    for name, text in files.items():
        (folder / name).write_bytes(text)


@pytest.mark.parametrize("ahead", ["database", "copy"])
def test_a_crash_between_the_two_commits_leaves_the_later_state(file: Path, ahead: str) -> None:
    folder = file.parent
    fill(file)
    before = snapshot(folder)
    with closing(opened(file)) as database:
        database.execute("UPDATE named SET number = 99 WHERE number = 3")
        after_content = content(database)
    after = snapshot(folder)
    written, not_written = (file.name, copy_of(file).name)
    if ahead == "copy":
        written, not_written = not_written, written
    put(folder, {written: after[written], not_written: before[not_written]})

    assert read(file)[0] == after_content
    check_equal(file)


@pytest.mark.parametrize("stopped_at", ["unlink", "replace", "chmod"])
def test_a_repair_that_is_cut_off_is_begun_anew(
    file: Path, stopped_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = fill(file)
    file.write_bytes(b"no database" * 1000)

    class Crash(Exception):
        pass

    def crash(*arguments: object, **named: object) -> None:
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(Path, stopped_at, crash)
        with pytest.raises(Crash):
            opened(file)

    assert read(file)[0] == before
    check_equal(file)


@pytest.mark.parametrize("stopped_at", ["unlink", "replace", "chmod"])
def test_a_first_copy_that_is_cut_off_is_made_by_the_next_start(
    file: Path, stopped_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = fill(file)
    copy_of(file).unlink()
    with closing(sqlite3.connect(file)) as database, database:  # as version 0.1 left it
        database.execute("DROP TABLE checksum")

    def crash(*arguments: object, **named: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, stopped_at, crash)
        with pytest.raises(KeyboardInterrupt):
            opened(file)

    assert read(file) == (before, [])
    check_equal(file)


def test_a_copy_that_fell_behind_while_it_was_open_is_written_anew(file: Path) -> None:
    """As after a commit of which only the database's half succeeded."""
    fill(file)
    with closing(opened(file)) as database:
        database.execute("DELETE FROM numbered WHERE number = 3")
        database.execute("INSERT INTO copied_rows VALUES ('numbered', 3, X'00')")
        database.execute("INSERT INTO numbered VALUES (3, 'again')")
        before = content(database)

    assert read(file)[0] == before
    check_equal(file)


def test_a_change_that_the_copy_cannot_take_is_not_made(file: Path) -> None:
    before = fill(file)
    with closing(opened(file)) as database:
        (pages,) = database.execute("PRAGMA second.page_count").fetchone()
        database.execute(f"PRAGMA second.max_page_count = {pages}")
        with pytest.raises(sqlite3.OperationalError, match="full"):
            database.execute("INSERT INTO named VALUES ('large', ?, 1)", (bytes(100_000),))

    assert read(file) == (before, [])
    check_equal(file)


_WRITER = """
import sys
from pathlib import Path
from storage.tests.on_disk import tables
from storage.tests.test_second_copy import opened
database = opened(Path(sys.argv[1]))
number = 0
while True:
    number += 1
    database.execute("INSERT INTO numbered (text) VALUES (?)", (f"n{number}",))
    print(number, flush=True)
"""


@pytest.mark.slow
def test_what_was_acknowledged_before_a_kill_is_in_both(file: Path) -> None:
    for seed in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(file)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        count = Random(seed).randrange(5, 40)
        told = [int(writer.stdout.readline()) for _ in range(count)]
        writer.kill()
        writer.wait()
        writer.stdout.close()

        with closing(opened(file)) as database:
            found = content(database)[1]
            database.execute("DELETE FROM numbered")
        assert len(found) >= told[-1]
        check_equal(file)


# -- several processes, statements of all kinds ----------------------------------------------------


def test_two_who_have_it_open_keep_both_copies_equal(file: Path) -> None:
    fill(file)
    with closing(opened(file)) as one, closing(opened(file)) as other:
        for number in range(5):
            one.execute("INSERT INTO numbered (text) VALUES (?)", (f"one {number}",))
            other.execute("UPDATE named SET number = ? WHERE name = 'name 1'", (number,))
            with closing(opened(file)) as third:
                assert content(third) == content(one) == content(other)
    assert read(file)[1] == []
    check_equal(file)


@pytest.mark.parametrize("seed", range(5))
def test_every_kind_of_statement_is_copied(file: Path, seed: int) -> None:
    chance = Random(seed)
    fill(file, 5)
    statements = (
        "INSERT OR REPLACE INTO named VALUES (:text, :number, :number)",
        "INSERT OR IGNORE INTO named VALUES (:text, :number, NULL)",
        "INSERT INTO named VALUES (:text, 1.5, :number) ON CONFLICT (name) DO UPDATE SET value = "
        ":number",
        "INSERT OR REPLACE INTO numbered (text) VALUES (:text)",
        "UPDATE OR REPLACE numbered SET text = :text WHERE number = :number",
        "UPDATE OR REPLACE numbered SET number = :number WHERE text = :text",
        "DELETE FROM named WHERE number = :number",
    )
    with closing(opened(file)) as database:
        for _ in range(60):
            values = {"text": f"name {chance.randrange(6)}", "number": chance.randrange(9)}
            database.execute("BEGIN IMMEDIATE")
            statement = chance.choice(statements)
            database.execute(statement, values)
            database.execute(chance.choice(("COMMIT", "COMMIT", "ROLLBACK")))
        before = content(database)

    check_equal(file)
    file.unlink()
    assert read(file)[0] == before


def test_a_database_of_0_1_gets_a_checksum_and_a_copy(file: Path) -> None:
    with closing(sqlite3.connect(file)) as database, database:
        tables(SCHEMA)(database)
        database.execute("INSERT INTO named VALUES ('old', X'01', 1)")

    assert read(file) == ([[("old", b"\x01", 1)], []], [])

    check_equal(file)


def test_a_copy_for_a_backup_is_sound_though_the_database_is_not(
    file: Path, tmp_path: Path
) -> None:
    before = fill(file)
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("UPDATE named SET number = 5")

    with captured() as events:
        copy_sound(file, tmp_path / "copied.sqlite")

    assert events == ["second_copy_used"]
    with closing(sqlite3.connect(tmp_path / "copied.sqlite")) as database:
        assert check_database(database) is not None
        assert content(database) == before
    renew_copy(tmp_path / "copied.sqlite")
    check_equal(tmp_path / "copied.sqlite")
