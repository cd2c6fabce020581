"""Copies everything readable of a data folder into a new one, and reports the losses.

The source is not changed. Rows are checked one by one; counters, spans and queue rows are rebuilt
from the messages (`storage/healing/salvaged_queue.py`). Like a restored folder, the new one has a
new source for the archive.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from cluster.catalog.host_records import FILE_NAME, has_records
from cluster.catalog.record_codec import KnownQueue, shown, stored_queues
from cluster.copies.backup import discard_made
from cluster.keys.master_key import FILE_NAME as MASTER_KEY_FILE
from cluster.members.copied_records import catalog_in
from cluster.members.host_folder import is_without_records
from storage.checks.missing import Missing, count_missing
from storage.checks.readable_rows import Damage, ReadableRows, look_through
from storage.copies.salvage_source import SalvageSource
from storage.copies.second_copy import copy_of, repair
from storage.engines.in_use import refuse_if_in_use
from storage.engines.rocks import RocksRows
from storage.engines.store import StoreFailed
from storage.files.copying import FOLDER_MODE, copy_file, sync_file, sync_folders
from storage.files.folder import (
    FolderRefused,
    check_folder,
    is_history,
    is_unused,
    open_folder,
    write_format,
)
from storage.files.refusing_disk import disk_refusal, naming_disk
from storage.healing.salvaged_queue import QueueCopy, Target
from visibility.rows.row_keys import queue_of
from visibility.rows.row_values import THE_SHARD
from visibility.rules.features import SHARD_TABLES

_SCRATCH = "salvage-scratch"
_SHARD = re.compile(r"shard-([0-9]+)(-format-[0-9]+)?")


class SalvageRefused(Exception):
    """Nothing can be salvaged, or not there; the text gives the reason in one line."""


class Salvaged(msgspec.Struct):
    """The result of a salvage: the parts copied and the parts lost."""

    findings: list[str] = []
    """One line for each damaged or missing part; queues come last."""
    queues: int = 0
    messages: int = 0
    archived: int = 0
    """Messages that wait for the archive."""
    missing: int = 0
    """Messages known to be missing; more may be where a finding says "at least"."""


def salvage(source: Path, data: Path) -> Salvaged:
    """Make `data`, which must not exist or be empty, a data folder of everything readable, durably.

    Raises SalvageRefused, with nothing left in `data`.
    """
    if not is_unused(data):
        raise SalvageRefused(f"{data} is not empty")
    if data.resolve().is_relative_to(source.resolve()):
        raise SalvageRefused(f"{data} is in the folder that is salvaged")
    with _named_errors(source):
        done = Salvaged()
        shards = _shards_of(source, done)
        refuse_if_in_use(source, shards.values())
        data.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        data.chmod(FOLDER_MODE)
        try:
            for folder in shards.values():  # first: no service begins on a part of the rest
                (data / folder.name).mkdir(mode=FOLDER_MODE)
            _copy_files(source, data, done)
            known = known_queues(data)
            opened = [
                _ShardCopy(number, folder, data, known, done).run()
                for number, folder in shards.items()
            ]
            if not any(opened):
                raise SalvageRefused(f"cannot salvage {source}: {'; '.join(done.findings)}")
            sync_folders(data)
            write_format(data, {str(number): folder.name for number, folder in shards.items()})
        except BaseException:
            discard_made(data)
            raise
    return done


def _shards_of(source: Path, done: Salvaged) -> dict[int, Path]:
    """The shards' folders, even if the file that names them is damaged."""
    try:
        check_folder(source)
        return open_folder(source)
    except FolderRefused as error:
        shards = _found_shards(source)
        if not shards or "has format" in str(error):
            raise
        names = ", ".join(folder.name for folder in shards.values())
        taken = "are taken for its shards" if len(shards) > 1 else "is taken for its only shard"
        done.findings.append(f"{error}; {names} {taken}")
        return shards


def _found_shards(source: Path) -> dict[int, Path]:
    """The folders whose names are those of shards, by number: the converted one of two. Raises
    OSError."""
    folders = source.iterdir() if source.is_dir() else ()
    named = [(_SHARD.fullmatch(folder.name), folder) for folder in folders if folder.is_dir()]
    return dict(sorted((int(name[1]), folder) for name, folder in named if name is not None))


# -- files -----------------------------------------------------------------------------------------


def _copy_files(source: Path, data: Path, done: Salvaged) -> None:
    """Copy the databases, with their logs, and the master key.

    Raises SalvageRefused without sound records.
    """
    for file in sorted(source.glob("*.sqlite")):
        try:
            _copy_database(file, data / file.name)
        except sqlite3.Error as error:
            if disk_refusal(error):
                raise
            if not (is_history(file) or file.name.startswith("usage")):
                raise SalvageRefused(
                    f"{file} is damaged, and nothing can be used without it: {error}. Restore a "
                    "backup"
                ) from error
            (data / file.name).unlink()
            done.findings.append(f"{file.name}: it is damaged and left out: {error}")
    if not has_records(data):
        way_out = "Restore a backup"
        if is_without_records(source):
            way_out = (
                "It is of a host of a cluster, whose queues and keys are in etcd: restore a backup "
                f"with holdfast restore --single, and put its {FILE_NAME} and {FILE_NAME}.copy "
                "into a copy of this folder"
            )
        raise SalvageRefused(f"{source} has no {FILE_NAME}. {way_out}")
    if (source / MASTER_KEY_FILE).is_file():
        copy_file(source / MASTER_KEY_FILE, data / MASTER_KEY_FILE)


def _copy_database(file: Path, target: Path) -> None:
    """Copy the bytes with SQLite's log and the second copy, then use the sound one.

    SQLite would otherwise write beside the source. Raises sqlite3.Error, OSError.
    """
    for ending in ("", "-wal", ".copy", ".copy-wal"):
        part = file.with_name(file.name + ending)
        if part.exists():
            copy_file(part, target.with_name(target.name + ending))
    with naming_disk(target.parent):
        if copy_of(target).exists():
            repair(target)
        with closing(sqlite3.connect(target)) as database:
            database.execute("PRAGMA journal_mode = DELETE")
            for (text,) in database.execute("PRAGMA integrity_check"):
                if text != "ok":
                    raise sqlite3.DatabaseError(text)
    sync_file(target)


def known_queues(data: Path) -> dict[int, KnownQueue]:
    """The queues in the catalog, including deleted ones, by id. Raises sqlite3.Error, OSError,
    CatalogUnreadable."""
    return {
        queue_id: KnownQueue(shard, queue.name, queue.is_fifo)
        for queue, queue_id, shard in stored_queues(catalog_in(data))
    }


# -- rows ------------------------------------------------------------------------------------------


class _ShardCopy:
    """Copies one shard."""

    def __init__(
        self,
        number: int,
        folder: Path,
        data: Path,
        known: dict[int, KnownQueue],
        done: Salvaged,
    ) -> None:
        self._number = number
        self._folder = folder
        self._data = data
        self._known = known
        self._done = done

    def run(self) -> bool:
        """Returns False if nothing of the shard can be read: its queues are empty then. Raises
        StoreFailed, OSError."""
        scratch = self._data / _SCRATCH
        source: SalvageSource | None = None
        try:
            source = SalvageSource(self._folder, scratch)
        except (StoreFailed, OSError) as error:
            if disk_refusal(error):
                raise
            self._say([f"nothing of it can be read: {error}; {self._its_queues()}"])
        try:
            rows = RocksRows(self._data / self._folder.name)
            try:
                rows.note_files()  # compactions begin
                target = Target(lambda changes: rows.write(changes.ops))
                if source is None:
                    self._begin_queues(rows, target)
                else:
                    self._copy(source, target)
                rows.flush()
            finally:
                rows.close()
        finally:
            if source is not None:
                source.close()
            shutil.rmtree(scratch, ignore_errors=True)
        return source is not None

    def _begin_queues(self, rows: RocksRows, target: Target) -> None:
        """Begin the queues of an unreadable shard far above the sequences that they had issued."""
        for queue_id, known in self._known.items():
            if known.shard == self._number:
                QueueCopy(ReadableRows(rows), target, queue_id, fifo=known.fifo).run()
        target.write()

    def _its_queues(self) -> str:
        """The known queues of the shard, whose messages are missing."""
        names = sorted({each.name for each in self._known.values() if each.shard == self._number})
        return f"all messages of its queues are missing: {', '.join(names) or 'none is known'}"

    def _copy(self, source: SalvageSource, target: Target) -> None:
        contents = look_through(source.rows)
        rows = ReadableRows(source.rows)
        self._say(source.warnings)
        self._say([self._line(damage) for damage in contents.damages])
        touched = [
            queue_id
            for queue_id in self._known
            if any(damage.touches(queue_id) for damage in contents.damages)
        ]
        for queue_id in sorted({*contents.queue_ids, *touched} - {THE_SHARD}):
            known = self._known.get(queue_id)
            copy = QueueCopy(rows, target, queue_id, fifo=known.fifo if known else None)
            copy.run()
            missing = count_missing(rows, queue_id, contents.damages)
            self._add(queue_id, missing, has_own_row=copy.has_own_row)
        for each in SHARD_TABLES:
            kept = each.salvage(rows, target.put)
            self._done.archived += kept.archived
            self._done.messages += kept.messages
        target.write()

    def _say(self, lines: list[str]) -> None:
        self._done.findings += [f"shard {self._number}: {line}" for line in lines]

    def _line(self, damage: Damage) -> str:
        first = queue_of(damage.key.ljust(8, b"\0"))
        last = queue_of(damage.until.ljust(8, b"\0"))
        if damage.is_one_row or first == last:
            return f"{self._queue(first)}, {damage.key.hex()}: {damage.reason}"
        until = self._queue(last) if damage.until < b"\xff" * 8 else "the end"
        return f"{self._queue(first)} to {until}: {damage.reason}"

    def _add(self, queue_id: int, missing: Missing, *, has_own_row: bool) -> None:
        self._done.queues += 1
        self._done.messages += missing.found
        self._done.missing += missing.missing
        lines = [str(missing)] if missing else []
        if not has_own_row:
            lines.append("its counters are made anew")
        self._say([f"{self._queue(queue_id)}: {'; '.join(lines)}"] if lines else [])

    def _queue(self, queue_id: int) -> str:
        return shown(self._known, queue_id)


@contextmanager
def _named_errors(source: Path) -> Iterator[None]:
    try:
        yield
    except FolderRefused as error:
        raise SalvageRefused(str(error)) from error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise SalvageRefused(f"cannot salvage {source}: {where}{error.strerror}") from error
    except (sqlite3.Error, StoreFailed) as error:
        raise SalvageRefused(f"cannot salvage {source}: {error}") from error
