"""Conversion of a data folder of format 3, whose shards kept unflushed rows in RocksDB's own log, to format 4.

    DATA/shard-0            stays as it is: the backup
    DATA/shard-0-format-4   a copy on hard links, with RocksDB's log replayed and flushed
    DATA/catalog.sqlite.format-3    a copy of the catalog, which the next start turns into records
    DATA/format.json        is switched last, and kept as format-3.json

Killed at any step, it starts again from the beginning, or the old version still opens the folder.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from pathlib import Path
from zlib import crc32

from rocksdict import AccessType, DBRecoveryMode, Rdict

from storage.copies.files import copy_database, copy_file, sync_file, sync_folders
from storage.engines.folder import (
    FORMAT_FILE,
    FolderRefused,
    read_format,
    sync_folder,
    write_format,
)
from storage.engines.in_use import refuse_if_in_use
from storage.engines.rocks import rocks_options
from storage.engines.store import StoreFailed

OLD_FORMAT = 3
KEPT_FORMAT_FILE = "format-3.json"
KEPT_CATALOG = "catalog.sqlite.format-3"
_ENDING = "-format-4"
_NEVER_CHANGES = ".sst"
_NOT_COPIED = ("LOCK", "LOG")
_CORRUPTION = "Corruption: "
_NOTE = re.compile(rb"([0-9]{20}) ([0-9a-f]{8})\n")


def convert(data: Path, *, accepts_loss: bool = False) -> list[Path]:
    """Convert a data folder that no service uses; returns the folders that stay as a backup. Blocks.

    `accepts_loss`: go on where RocksDB's log has a hole, or holds less than answers told of. Raises FolderRefused,
    StoreFailed and OSError, with the folder as it was.
    """
    content = read_format(data)
    if content["format"] != OLD_FORMAT:
        raise FolderRefused(f"data folder {data} has format {content['format']}, not {OLD_FORMAT}")
    shards = content["shards"]
    assert isinstance(shards, dict)
    old = {str(number): data / str(name) for number, name in shards.items()}
    refuse_if_in_use(data, old.values())
    new = {number: folder.name + _ENDING for number, folder in old.items()}
    for number, folder in old.items():
        _convert_shard(folder, data / new[number], accepts_loss=accepts_loss)
    _keep_catalog(data)
    shutil.copyfile(data / FORMAT_FILE, data / KEPT_FORMAT_FILE)
    sync_folders(data)
    write_format(data, new)
    return list(old.values())


def _keep_catalog(data: Path) -> None:
    catalog, kept = data / "catalog.sqlite", data / KEPT_CATALOG
    if not catalog.exists():
        return  # a first start was cut off
    kept.unlink(missing_ok=True)
    try:
        copy_database(catalog, kept)
    except sqlite3.Error as error:
        raise StoreFailed(f"cannot copy {catalog}: {error}") from error
    sync_file(kept)


def _convert_shard(old: Path, new: Path, *, accepts_loss: bool) -> None:
    """Make the shard's folder anew, whatever an attempt before left there."""
    for leftover in (new, new.with_name(new.name + ".log")):
        shutil.rmtree(leftover, ignore_errors=True)
    new.mkdir(mode=0o700)
    if not old.exists():
        return  # a first start was cut off
    for file in sorted(old.iterdir()):
        if file.suffix == _NEVER_CHANGES:
            os.link(file, new / file.name)
        elif not file.name.startswith(_NOT_COPIED):
            copy_file(file, new / file.name)
    answered = _answered(old, accepts_loss=accepts_loss)
    rows = _opened(new, answered, accepts_loss=accepts_loss)
    held = rows.latest_sequence_number()
    try:
        if held < answered and not accepts_loss:
            raise StoreFailed(
                f"{old} came back shorter: it holds {held} changes, but answers told of {answered}. Restore a "
                "backup, or convert with --accept-loss to go on without the rest"
            )
        rows.flush(True)
    finally:
        rows.close()
    sync_folder(new)


def _opened(folder: Path, answered: int, *, accepts_loss: bool) -> Rdict:
    """The database; without the end of its log if that has a hole which no answer told of, or if it may be lost."""
    try:
        return Rdict(str(folder), rocks_options())
    except Exception as error:  # bare, with a text
        text = " ".join(str(error).split())
        held = _held_before_a_hole(folder) if _CORRUPTION in text else None
        if held is None:
            raise StoreFailed(f"cannot open {folder}: {text}") from error
        if held < answered and not accepts_loss:
            raise StoreFailed(
                f"cannot open {folder}: {text}. Its log can be read up to change {held}, but answers told of "
                f"{answered}. Restore a backup, or convert with --accept-loss to go on without the rest"
            ) from error
    options = rocks_options()
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    return Rdict(str(folder), options)


def _held_before_a_hole(folder: Path) -> int | None:
    """The changes that the database holds before the first hole in its log; None if more than the log is damaged."""
    options = rocks_options()
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    try:
        rows = Rdict(str(folder), options, access_type=AccessType.read_only(False))
    except Exception:  # bare, with a text
        return None
    try:
        return int(rows.latest_sequence_number())
    finally:
        rows.close()


def _answered(shard: Path, *, accepts_loss: bool) -> int:
    """RocksDB's number of the last change that an answer told of, as version 0.1 noted it beside a shard."""
    file = shard.with_name(shard.name + ".answered")
    line = file.read_bytes() if file.exists() else b""
    if not line or accepts_loss:
        return 0
    found = _NOTE.fullmatch(line)
    if found is None or int(found[2], 16) != crc32(found[1]):
        raise StoreFailed(f"{file} is damaged; convert with --accept-loss to go on without it")
    return int(found[1])
