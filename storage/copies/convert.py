"""Conversion of data folders from format 3, with rows in RocksDB's own log, to format 4.

    DATA/shard-0            is not changed: the backup
    DATA/shard-0-format-4   a copy on hard links, with RocksDB's log replayed and flushed
    DATA/*.sqlite.format-3  copies of the databases, whose records the next start takes over
    DATA/format.json        is switched last, and kept as format-3.json

Killed at any step, it starts again from the beginning, or the old version still opens the folder.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from zlib import crc32

import msgspec
from rocksdict import AccessType, DBRecoveryMode, Rdict

from storage.engines.in_use import refuse_if_in_use
from storage.engines.rocks import RocksRows, rocks_options
from storage.engines.store import StoreFailed
from storage.files.copying import FOLDER_MODE, copy_database, copy_file, sync_file
from storage.files.folder import FORMAT_FILE, FolderRefused, read_format, sync_folder, write_format
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import DamagedRecord
from visibility.rows.row_keys import FORMAT_VERSION
from visibility.rows.state_rows import load_archive, write_archive

OLD_FORMAT = 3
KEPT_FORMAT_FILE = "format-3.json"
_DATABASES = ("catalog.sqlite", "keyring.sqlite", "identities.sqlite")
_KEPT_ENDING = ".format-3"
_ENDING = "-format-4"
_NEVER_CHANGES = ".sst"
_LOCK = "LOCK"
"""File of each shard that RocksDB keeps locked."""
_NOT_COPIED = (_LOCK, "LOG")
_CORRUPTION = "Corruption: "
_NOTE = re.compile(rb"([0-9]{20}) ([0-9a-f]{8})\n")
_BESIDE = (".log", ".log.begun", ".fresh", ".damaged")
"""Endings of the files and folders beside a shard's folder (storage/files/folder.py)."""
_UNKNOWN = sys.maxsize
"""The number in an unreadable note: it may have covered any change."""


def convert(data: Path, *, accepts_loss: bool = False) -> list[Path]:
    """Convert a data folder that no service uses; returns the paths left as a backup. Blocks.

    `accepts_loss`: continue if RocksDB's log has a hole, or holds less than clients were answered.
    Raises FolderRefused, StoreFailed and OSError, with the folder unchanged.
    """
    folders = _old_shards(data)
    _refuse_other_owner(data)
    refuse_if_in_use(data, folders.values())
    with ExitStack() as locked:
        for folder in folders.values():
            locked.enter_context(_locked(data, folder))
        old = _old_shards(data)  # another conversion may just have ended
        new = {number: folder.name + _ENDING for number, folder in old.items()}
        for number, folder in old.items():
            try:
                _convert_shard(folder, data / new[number], accepts_loss=accepts_loss)
            except BaseException:
                with suppress(OSError):
                    _remove(data / new[number])
                raise
        copies = [_keep(data / name) for name in _DATABASES]
        kept = data / KEPT_FORMAT_FILE
        kept.unlink(missing_ok=True)
        copy_file(data / FORMAT_FILE, kept)
        sync_folder(data)
        write_format(data, new)
    beside = [file for folder in old.values() for file in (folder, _note_of(folder))]
    return [file for file in (*beside, kept, *copies) if file.exists()]


def _old_shards(data: Path) -> dict[str, Path]:
    """The shards of a folder of the old format. Raises FolderRefused."""
    content = read_format(data)
    version = content["format"]
    if version == FORMAT_VERSION:
        raise FolderRefused(f"data folder {data} has format {version} already")
    if version != OLD_FORMAT:
        raise FolderRefused(f"data folder {data} has format {version}, not {OLD_FORMAT}")
    shards = content["shards"]
    assert isinstance(shards, dict)
    return {number: data / str(name) for number, name in shards.items()}


def _refuse_other_owner(data: Path) -> None:
    """Refuse a folder of another owner: root could convert it, but the service could not read the
    result."""
    owner = (data / FORMAT_FILE).stat().st_uid
    if owner != os.geteuid():
        raise FolderRefused(
            f"{data / FORMAT_FILE} belongs to the user with the id {owner}: convert {data} as that "
            "user"
        )


@contextmanager
def _locked(data: Path, shard: Path) -> Iterator[None]:
    """Hold RocksDB's lock on the old folder, which excludes the old version and other
    conversions."""
    try:
        descriptor = os.open(shard / _LOCK, os.O_RDWR)
    except FileNotFoundError:  # it was never opened
        yield
        return
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            raise FolderRefused(f"data folder {data} is in use by another process") from error
        yield
    finally:
        os.close(descriptor)


def _remove(shard: Path) -> None:
    """Remove the leftovers of an attempt, or of a service if the old version has used the folder
    since."""
    for ending in ("", *_BESIDE):
        leftover = shard.with_name(shard.name + ending)
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink(missing_ok=True)


def _keep(database: Path) -> Path:
    """Copy a database; there is none if a first start was interrupted. Returns the copy's place."""
    kept = database.with_name(database.name + _KEPT_ENDING)
    if not database.exists():
        return kept
    for leftover in (kept, kept.with_name(f"{kept.name}-journal")):
        leftover.unlink(missing_ok=True)
    try:
        copy_database(database, kept)
    except sqlite3.Error as error:
        raise StoreFailed(f"cannot copy {database}: {error}") from error
    sync_file(kept)
    return kept


def _convert_shard(old: Path, new: Path, *, accepts_loss: bool) -> None:
    """Make the shard's folder, replacing the leftovers of earlier attempts."""
    answered = _answered(old, accepts_loss=accepts_loss)
    _remove(new)
    new.mkdir(mode=FOLDER_MODE)
    if old.exists():  # else a first start was interrupted
        _copy(old, new)
    held = _replay(new, answered, accepts_loss=accepts_loss)
    if held < answered and not accepts_loss:
        raise StoreFailed(
            f"{old} came back shorter: it holds {held} changes, but answers told of {answered}. "
            "Restore a "
            "backup, or convert with --accept-loss to go on without the rest"
        )
    if held < answered:
        _forget_source(new)
    sync_folder(new)


def _copy(old: Path, new: Path) -> None:
    for file in sorted(old.iterdir()):
        if file.suffix == _NEVER_CHANGES:
            try:
                os.link(file, new / file.name)
            except OSError:  # another disk, or one without hard links
                copy_file(file, new / file.name)
        elif file.is_file() and not file.name.startswith(_NOT_COPIED):
            copy_file(file, new / file.name)


def _replay(folder: Path, answered: int, *, accepts_loss: bool) -> int:
    """Replay RocksDB's log into its files; returns the number of the folder's last change."""
    rows = _opened(folder, answered, accepts_loss=accepts_loss)
    with _foreign_errors(folder):
        try:
            rows.flush(True)
            return int(rows.latest_sequence_number())
        finally:
            rows.close()


def _forget_source(folder: Path) -> None:
    """Give the archive a new source: an older store would repeat batch numbers that the archive
    has."""
    rows, changes = RocksRows(folder), Changes()
    try:
        archive, _ = load_archive(rows)
        if archive is not None:
            write_archive(changes, msgspec.structs.replace(archive, source=""))
            rows.write(changes.ops)
            rows.flush()
    except DamagedRecord as error:
        raise StoreFailed(f"cannot read {folder}: {error}") from error
    finally:
        rows.close()


def _opened(folder: Path, answered: int, *, accepts_loss: bool) -> Rdict:
    """The database; without the end of its log if that has a hole and was not acknowledged, or may
    be lost."""
    try:
        return Rdict(str(folder), rocks_options())
    except Exception as error:  # a bare exception with a text
        text = " ".join(str(error).split())
        held = _held_before_a_hole(folder) if _CORRUPTION in text else None
        if held is None:
            raise StoreFailed(f"cannot open {folder}: {text}") from error
        if held < answered and not accepts_loss:
            raise StoreFailed(
                f"cannot open {folder}: {text}. Its log can be read up to change {held}, but "
                "answers told of "
                f"{answered}. Restore a backup, or convert with --accept-loss to go on without the "
                "rest"
            ) from error
    options = rocks_options()
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    with _foreign_errors(folder):
        return Rdict(str(folder), options)


def _held_before_a_hole(folder: Path) -> int | None:
    """Changes before the first hole in the database's log; None if more than the log is damaged."""
    options = rocks_options()
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    try:
        rows = Rdict(str(folder), options, access_type=AccessType.read_only(False))
    except Exception:  # a bare exception with a text
        return None
    try:
        return int(rows.latest_sequence_number())
    finally:
        rows.close()


def _answered(shard: Path, *, accepts_loss: bool) -> int:
    """RocksDB's number of the last acknowledged change, as version 0.1 noted it beside a shard."""
    file = _note_of(shard)
    line = file.read_bytes() if file.exists() else b""
    if not line:
        return 0
    found = _NOTE.fullmatch(line)
    if found is not None and int(found[2], 16) == crc32(found[1]):
        return int(found[1])
    if not accepts_loss:
        raise StoreFailed(f"{file} is damaged; convert with --accept-loss to go on without it")
    return _UNKNOWN


def _note_of(shard: Path) -> Path:
    return shard.with_name(shard.name + ".answered")


@contextmanager
def _foreign_errors(folder: Path) -> Iterator[None]:
    """Rename RocksDB's errors, which are bare exceptions with a text."""
    try:
        yield
    except Exception as error:
        text = " ".join(str(error).split())
        raise StoreFailed(f"cannot use {folder}: {text}") from error
