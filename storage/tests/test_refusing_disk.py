"""Errors of a disk that takes no writes, and those that mean damage."""

from __future__ import annotations

import errno
import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from storage.engines.store import StoreFailed
from storage.files.refusing_disk import disk_refusal, is_no_damage, naming_disk


def os_error(number: int, file: Path | None = None) -> OSError:
    return OSError(number, os.strerror(number), None if file is None else str(file))


def chain(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def sqlite_error(name: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorname = name
    return error


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_no_space_is_told_with_its_place(number: int, tmp_path: Path) -> None:
    assert disk_refusal(os_error(number, tmp_path)) == f"no space on {tmp_path}"
    assert disk_refusal(os_error(number)) == "no space on the disk"


def test_read_only_disk_is_told_with_its_place(tmp_path: Path) -> None:
    assert disk_refusal(os_error(errno.EROFS, tmp_path)) == f"{tmp_path} is read-only"


def test_missing_inodes_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = os.statvfs(tmp_path)
    fields = list(there)
    fields[5:8] = [1000, 0, 0]  # files, free, free for users
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(fields))

    told = disk_refusal(os_error(errno.ENOSPC, tmp_path))

    assert told == f"no space on {tmp_path} (no free inodes)"


def test_cause_and_text_tell_it() -> None:
    refused = chain(ValueError("it cannot be done"), os_error(errno.ENOSPC))
    of_rocksdb = StoreFailed("cannot open shard-0: IO error: No space left on device")
    of_service = ValueError("503 The service has no space for more messages.")

    assert disk_refusal(chain(RuntimeError("x"), refused)) == "no space on the disk"
    assert disk_refusal(of_rocksdb) == disk_refusal(of_service) == "no space on the disk"


@pytest.mark.parametrize("error", [os_error(errno.EIO), ValueError("damaged"), KeyError("space")])
def test_other_errors_are_none(error: Exception) -> None:
    assert disk_refusal(error) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("SQLITE_IOERR_SHMSIZE", True),
        ("SQLITE_IOERR_WRITE", True),
        ("SQLITE_FULL", True),
        ("SQLITE_CANTOPEN", True),
        ("SQLITE_READONLY_DIRECTORY", True),
        ("SQLITE_IOERR_READ", False),
        ("SQLITE_IOERR_SHORT_READ", False),
        ("SQLITE_CORRUPT", False),
        ("SQLITE_NOTADB", False),
    ],
)
def test_what_is_no_damage(name: str, expected: bool) -> None:
    assert is_no_damage(sqlite_error(name)) is expected


def test_full_database_is_told() -> None:
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("PRAGMA max_page_count = 2")
        database.execute("CREATE TABLE numbers (number)")
        with pytest.raises(sqlite3.OperationalError) as failed, naming_disk(Path()):
            database.execute("INSERT INTO numbers VALUES (zeroblob(100000))")

    assert disk_refusal(failed.value) == "no space on the disk"


def test_error_of_a_refusing_disk_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise os_error(errno.EROFS, tmp_path)

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)

    with pytest.raises(sqlite3.OperationalError) as failed, naming_disk(tmp_path):
        raise sqlite_error("SQLITE_CANTOPEN")

    assert str(failed.value) == f"{tmp_path} is read-only"


def test_error_on_a_disk_that_takes_writes_stays(tmp_path: Path) -> None:
    given = sqlite_error("SQLITE_CANTOPEN")

    with pytest.raises(sqlite3.OperationalError) as failed, naming_disk(tmp_path):
        raise given

    assert failed.value is given
    assert list(tmp_path.iterdir()) == []
