"""RocksRows: a shard's rows in RocksDB, without RocksDB's own log.

Rows change by committed Entries only, each batch together with the applied row, so after any crash
they are as of one Entry: the log replays those after it. Only a flush makes them durable; it
releases the interpreter lock, while `write`, `get` and iterators hold it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import structlog
from rocksdict import (
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)

from storage.engines.fresh_rows import (
    damaged_queues,
    drop_fresh,
    finish_switch,
    has_damage,
    make_fresh,
    make_room,
    note_damage,
    switch,
)
from storage.engines.kept_files import KeptFiles
from storage.engines.readable import is_damage, open_readable, put_in_place, ways_out
from storage.engines.rocks_reader import RocksReader
from storage.engines.store import StoreFailed
from storage.files.folder import sync_folder
from storage.healing.rebuild import Healed, rebuild
from storage.log.entry import BEGINNING, Position
from visibility.rows.overlay import RowReader
from visibility.rows.row_changes import Changes, Ops
from visibility.rows.row_codec import DamagedRecord, decode_row, encode_row
from visibility.rows.row_keys import APPLIED_KEY
from visibility.rows.row_values import AppliedRow

_KEY = itemgetter(0)
_SST_DELETIONS = (1000, 500, 0.5)
_LOCKED = "While lock file"
_LOG_FILES_KEPT = 5
_FILTER_BITS = 10
_CACHE_BYTES = 96 << 20
_BUFFER_BYTES = 192 << 20
"""RocksDB's write buffer: larger than the log before a flush, so that only we flush."""
_BUFFERS = 3
_MANIFEST_BYTES = 1 << 20
"""It is copied after each flush."""
_REPORT_BYTES = 64 << 20
"""A rebuild flushes and reports each time that it has written this much."""


class RocksRows(RocksReader):
    """One RocksDB folder. Belongs to the event loop's thread, except for `flush` and
    `checkpoint`."""

    def __init__(self, folder: Path) -> None:
        """Open or create the folder. Raises StoreFailed if another process has it or it is
        damaged."""
        self.folder = folder
        self._copying = threading.Lock()
        """Held while another thread flushes or makes a checkpoint: then the database cannot be
        closed."""
        self._is_open = True
        self._write_options = WriteOptions()
        # A property, although the stub declares a method.
        self._write_options.disable_wal = True  # type: ignore[method-assign, assignment]
        self._is_compacting = False
        """False until a shard is loaded: a compaction that met damage would end all writes, and
        the replayed log would be lost with RocksDB's memory."""
        self._is_rebuilding = False
        try:
            finish_switch(folder)
            rows, damaged = open_readable(folder, _opened, partial(put_in_place, folder))
        except StoreFailed as error:
            if is_damage(error):
                raise StoreFailed(f"{error}. {ways_out(folder)}") from error
            raise
        except OSError as error:
            raise StoreFailed(f"cannot open {folder}: {error}") from error
        super().__init__(rows)
        self._log = structlog.get_logger("store").bind(folder=str(folder))
        if damaged:
            self._log.error("damaged_files_replaced", files=damaged)
        self._kept_files = KeptFiles(folder)
        self.flushed = self._reached() or self._kept_files.applied
        """An Entry up to which the flushed rows hold the log."""
        self._note()

    # -- write -------------------------------------------------------------------------------------

    def applied(self) -> Position:
        """The last Entry applied to the rows. Raises DamagedRecord."""
        return applied_of(self)

    def write(self, ops: Ops, applied: Position | None = None) -> None:
        """Apply an Entry's changes and its position to the rows. Raises StoreFailed."""
        if self._is_rebuilding:
            raise StoreFailed("cannot write: the rows are being rebuilt")
        batch = WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        for key, change in _in_order(ops):
            if type(change) is bytes:
                put(key, change)
            elif change is None:
                delete(key)
            else:
                batch.delete_range(key, change[0])
        if applied is not None:
            put(APPLIED_KEY, encode_row(AppliedRow(applied.term, applied.index, applied.checksum)))
        try:
            self._rows.write(batch, self._write_options)
        except Exception as error:
            failure = _renamed("cannot write", error)
            if is_damage(failure):  # a compaction met a block that cannot be read
                with suppress(OSError):
                    note_damage(self.folder)
            raise failure from error

    # -- damage ------------------------------------------------------------------------------------

    @property
    def needs_healing(self) -> bool:
        """True if there is damage that `heal` is to remove."""
        return has_damage(self.folder)

    def note_damage(self, queue_id: int, reason: str) -> None:
        """Let the next opening rebuild a queue with unreadable rows. Raises StoreFailed."""
        try:
            make_room(self.folder)
            note_damage(self.folder, queue_id)
        except OSError as error:
            raise StoreFailed(f"cannot note the damage: {error.strerror}") from error

    def heal(self, known: Mapping[int, bool], *, agree: bool = False) -> list[Healed]:
        """Write all readable rows anew, which needs as much space as the rows. Raises
        StoreFailed."""
        with self._copying, _foreign_errors(f"cannot rebuild {self.folder}"):
            self._check_open()
            self._is_rebuilding = True
            try:
                healed = self._filled(make_fresh(self.folder), known, agree=agree)
                with suppress(Exception):  # closing writes the memory, which may meet the damage
                    self._rows.close()
                switch(self.folder)
                self._rows = _opened(self.folder)
                self._kept_files = KeptFiles(self.folder)
                self.flushed = self.applied()
                self._note()
            finally:
                drop_fresh(self.folder)
                self._is_rebuilding = False
        return healed

    def _filled(self, fresh: Path, known: Mapping[int, bool], *, agree: bool) -> list[Healed]:
        """Fill a folder with all readable rows; returns the queues that were rebuilt."""
        target, size = RocksRows(fresh), 0
        of = sum(file.stat().st_size for file in self.folder.glob("*.sst"))
        target.note_files()  # compactions begin

        def write(changes: Changes) -> None:
            nonlocal size
            target.write(changes.ops)
            size += changes.size
            if size // _REPORT_BYTES != (size - changes.size) // _REPORT_BYTES:
                target.flush()
                self._log.warning("rebuilding_rows", mib=size >> 20, of_mib=of >> 20)

        try:
            noted = damaged_queues(self.folder)
            healed = rebuild(self, write, known, noted=noted, agree=agree)
            target.flush()
        finally:
            target.close()
        self._log.error("rows_rebuilt", mib=size >> 20, queues_rebuilt=len(healed))
        return healed

    # -- copy --------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make all rows durable, and note the live files.

        Takes up to seconds; for any thread but the loop's: it releases the interpreter lock. Raises
        StoreFailed.
        """
        with self._copying, _foreign_errors("cannot flush"):
            self._check_open()
            reached = self._reached()
            self._rows.flush(True)
            self.flushed = reached or self.flushed
            self._note()

    def _reached(self) -> Position | None:
        with suppress(DamagedRecord):
            return self.applied()
        return None

    def note_files(self) -> None:
        """Let compactions begin, and note the live files if one changed them; for any thread."""
        with self._copying:
            if self._is_open and not self._is_compacting and not self.needs_healing:
                self._is_compacting = True
                with _foreign_errors("cannot compact"):
                    self._rows.set_options({"disable_auto_compactions": "false"})
            if self._is_open and self._kept_files.is_outdated():
                self._note()

    def _note(self) -> None:
        """Without a note, as on a disk without hard links, damaged files have no copies; rows are
        as safe."""
        try:
            self._kept_files.note(self._rows, self.flushed)
        except (OSError, ValueError) as error:
            self._log.error("live_files_not_noted", error=str(error))

    def checkpoint(self, folder: Path) -> None:
        """Make `folder`, which must not exist and lie on the same file system, a database of all
        rows.

        For any thread, but no `close` may begin meanwhile. Holds the interpreter lock for 1-6 ms
        after a `flush`. Files that never change are hard links; the folder is not synced. Raises
        StoreFailed.
        """
        with self._copying, _foreign_errors(f"cannot make {folder}"):
            self._check_open()
            Checkpoint(self._rows).create_checkpoint(str(folder))

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreFailed("the store was closed meanwhile")

    def close(self) -> None:
        """Release the folder; unflushed changes may be lost, as in a crash.

        Raises StoreFailed while another thread flushes or copies; call it again then.
        """
        if not self._copying.acquire(blocking=False):
            raise StoreFailed("cannot close it yet: a flush or a backup is just using it")
        try:
            self._is_open = False
            # Closing writes the memory, which fails again after a failure; the folder is released
            # all the same.
            with suppress(StoreFailed), _foreign_errors("cannot close"):
                self._rows.close()
        finally:
            self._copying.release()


def _in_order(ops: Ops) -> Iterable[tuple[bytes, Any]]:
    """The changes sorted by key, which RocksDB inserts faster; those of one key keep their order,
    and so do all of them if ranges are deleted."""
    changes: Iterator[Any] = iter(ops)
    pairs = zip(changes, changes, strict=True)
    return pairs if list in map(type, ops) else sorted(pairs, key=_KEY)


def _opened(folder: Path) -> Rdict:
    options = rocks_options()
    options.set_disable_auto_compactions(True)
    with _foreign_errors(f"cannot open {folder}"):
        try:
            # Set again, since a folder keeps the options with which its rows were made.
            rows = Rdict(str(folder), options, {"default": options})
        except Exception as error:
            if _LOCKED in str(error):
                raise StoreFailed(f"{folder} is in use by another process") from error
            raise
        # RocksDB syncs the contents of its folder, not its existence.
        sync_folder(folder.parent)
    return rows


def applied_of(rows: RowReader) -> Position:
    """The last Entry applied to the rows. Raises DamagedRecord."""
    value = rows.get(APPLIED_KEY)
    if value is None:
        return BEGINNING
    row = decode_row(AppliedRow, APPLIED_KEY, value)
    return Position(row.term, row.index, row.checksum)


def rocks_options() -> Options:
    """Options of a shard's database, for every caller that opens it."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    # Sealed messages do not compress.
    options.set_compression_type(DBCompressionType.none())
    options.set_write_buffer_size(_BUFFER_BYTES)
    options.set_max_write_buffer_number(_BUFFERS)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(_LOG_FILES_KEPT)
    options.set_max_manifest_file_size(_MANIFEST_BYTES)
    tables = BlockBasedOptions()
    # Most lookups of ids and groups find nothing: filters answer those without reading a block.
    tables.set_bloom_filter(_FILTER_BITS, False)
    # Outside of the block cache: a large file's filter exceeds a part of the cache, and would be
    # read each time.
    tables.set_block_cache(Cache(_CACHE_BYTES))
    options.set_block_based_table_factory(tables)
    # Format 3 kept unflushed rows in RocksDB's own log: a torn tail is from a crash, a hole is
    # damage.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    # Consumed ranges are compacted soon, so that no scan walks over a million deleted rows.
    options.add_compact_on_deletion_collector_factory(*_SST_DELETIONS)
    # A stall of RocksDB would stop the whole process, as writes hold the interpreter lock: keep far
    # from its limits.
    options.set_level_zero_slowdown_writes_trigger(60)
    options.set_level_zero_stop_writes_trigger(120)
    options.set_soft_pending_compaction_bytes_limit(256 << 30)
    options.set_hard_pending_compaction_bytes_limit(512 << 30)
    return options


@contextmanager
def _foreign_errors(what: str) -> Iterator[None]:
    """Rename RocksDB's errors, which are bare exceptions with a text."""
    try:
        yield
    except (StoreFailed, DamagedRecord):
        raise
    except Exception as error:
        raise _renamed(what, error) from error


def _renamed(what: str, error: Exception) -> StoreFailed:
    text = " ".join(str(error).split())  # RocksDB's may have several lines
    return StoreFailed(f"{what}: {text}")
