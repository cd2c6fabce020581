"""RocksStore: a shard's rows in RocksDB, with group commit that never syncs on the event loop.

`Rdict.write` holds the interpreter lock and takes 1-3 us without a sync; `flush_wal` releases it. So the loop writes a
turn's batch unsynced and an own thread syncs it, while the next turn fills (PERF §2, §5). A failed sync is fatal for the
store: RocksDB refuses every later write, and what was being written is unknown.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

import structlog
from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from storage.engines.answered import AnsweredMark, answered_of
from storage.engines.folder import sync_folder
from storage.engines.store import StoreFailed
from storage.histogram import SYNC_BOUNDS_S, Histogram
from storage.rows.codec import DamagedRecord

_SST_DELETIONS = (1000, 500, 0.5)
_CORRUPTION = "Corruption: "  # how RocksDB's text begins when it is not the disk or a lock
_LOCKED = "While lock file"
_WAYS_OUT = "Restore a backup, or start with --accept-loss on to go on without the rest"
_LOG_FILES_KEPT = 5
_FILTER_BITS = 10
_CACHE_BYTES = 96 << 20
_MARK_S = 0.1
_MANY = 4
"""From so many keys on, one call for all costs less than one for each."""


class Durability(StrEnum):
    """What an acknowledgement survives."""

    FSYNC = "fsync"
    """An acknowledged request survives a power failure."""
    OS = "os"
    """An acknowledged request survives a crash of the process, not of the machine."""
    MEMORY = "memory"
    """An acknowledged request survives a clean stop only; for tests."""


class RocksStore:
    """One RocksDB folder. All methods belong to the event loop's thread."""

    def __init__(
        self,
        folder: Path,
        durability: Durability,
        on_failure: Callable[[StoreFailed], None],
        *,
        accepts_loss: bool = False,
        monotonic_s: Callable[[], float] = float,
        sync_s: Histogram | None = None,
    ) -> None:
        """Open or create the folder.

        `accepts_loss`: open it even if answers told of more than it holds. `monotonic_s` times syncs, for `sync_s`.
        Raises StoreFailed if another process has it, it is damaged, or it came back shorter.
        """
        self.batch = WriteBatch(raw_mode=True)
        self.folder = folder
        self.came_back_shorter = False
        self._durability = durability
        self._monotonic_s = monotonic_s
        self._on_failure = on_failure
        self._failed = False
        self._write_options = WriteOptions()
        # A property, though the stub declares a method.
        self._write_options.disable_wal = durability is Durability.MEMORY  # type: ignore[method-assign, assignment]
        self._log = structlog.get_logger("store").bind(folder=str(folder))
        self._copying = threading.Lock()
        """Held while another thread flushes or makes a checkpoint: the database cannot be closed then."""
        self._may_lose = accepts_loss or durability is Durability.OS
        self._rows = self._opened(folder)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._answered = 0
        """The last change an answer may have told of; noted soon."""
        self._mark_timer: asyncio.TimerHandle | None = None
        self._sync_s = sync_s or Histogram(SYNC_BOUNDS_S)
        self._mark: AnsweredMark | None = None
        if durability is not Durability.MEMORY:
            try:
                self._mark = self._checked_mark(folder)
            except BaseException:
                self._rows.close()
                raise
        self._to_sync: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._sync_forever, name="sync", daemon=True)
        self._thread.start()

    def _opened(self, folder: Path) -> Rdict:
        """The database, without the end of its log if that has a hole which no answer told of, or if that may be lost.

        A power failure leaves such holes: of what is not synced yet, the disk may have written a later part only.
        """
        try:
            with _foreign_errors(f"cannot open {folder}"):
                rows = Rdict(str(folder), rocks_options())
                sync_folder(
                    folder.parent
                )  # RocksDB syncs what is in its folder, not that it exists
                return rows
        except StoreFailed as error:
            if _LOCKED in str(error):
                raise StoreFailed(f"{folder} is in use by another process") from error
            if _CORRUPTION not in str(error):
                raise
            answered = self._answered_before(folder, error)
            held = _held_before_a_hole(folder)
            if held is None:
                raise
            if held < answered and not self._may_lose:
                raise StoreFailed(
                    f"{error}. Its log can be read up to change {held}, but answers told of {answered}. {_WAYS_OUT}"
                ) from error
            with _foreign_errors(f"cannot open {folder}"):
                opened = Rdict(str(folder), rocks_options(DBRecoveryMode.point_in_time()))
            self._log.error("log_tail_dropped", error=str(error), holds=held, answered=answered)
            return opened

    def _answered_before(self, folder: Path, error: StoreFailed) -> int:
        """What is noted beside a log with a hole. Raises StoreFailed if nobody knows how much of it may be dropped."""
        try:
            return answered_of(folder)
        except ValueError as damaged:
            if not self._may_lose:
                raise StoreFailed(f"{error}, and {damaged}. {_WAYS_OUT}") from error
            return 0

    def _checked_mark(self, folder: Path) -> AnsweredMark:
        """The note of how far answers went, which the database must have reached. Raises StoreFailed."""
        with _foreign_errors(f"cannot open the note beside {folder}"):
            mark = AnsweredMark(folder)
        try:
            noted = mark.read() or 0
        except ValueError as error:
            self._log.error("answered_mark_damaged", error=str(error))
            noted = 0
        held = self._rows.latest_sequence_number()
        if noted <= held:
            return mark
        text = f"{folder} came back shorter: it holds {held} changes, but answers told of {noted}"
        if self._may_lose:
            self._log.error("store_came_back_shorter", holds=held, answered=noted)
            self.came_back_shorter = True
            mark.write(held)
            return mark
        mark.close()
        raise StoreFailed(f"{text}. It is an older copy, or a part of it was cut off. {_WAYS_OUT}")

    # -- commit -----------------------------------------------------------------------------------------------------------

    def commit(self, release: Callable[[], None]) -> None:
        """See `Store.commit`."""
        if self._failed:
            return
        try:
            self.write()
        except StoreFailed as error:
            self._fail(error)
            return
        if self._durability is Durability.FSYNC:
            self._loop = asyncio.get_running_loop()
            self._to_sync.put(release)
        else:
            self._answer(release, self._rows.latest_sequence_number())

    def write(self) -> None:
        """See `Store.write`. Without a sync: the next commit's makes it durable."""
        if self.batch.is_empty():
            return
        batch, self.batch = self.batch, WriteBatch(raw_mode=True)
        with _foreign_errors("cannot write"):
            self._rows.write(batch, self._write_options)

    def _sync_forever(self) -> None:
        """The sync thread."""
        while (release := self._to_sync.get()) is not None:
            failure: StoreFailed | None = None
            reached = self._rows.latest_sequence_number()
            begun_s = self._monotonic_s()
            try:
                with _foreign_errors("cannot sync"):
                    self._rows.flush_wal(True)
            except StoreFailed as error:
                failure = error
            self._sync_s.observe(self._monotonic_s() - begun_s)
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._synced, release, reached, failure)

    def _synced(
        self, release: Callable[[], None], reached: int, failure: StoreFailed | None
    ) -> None:
        if failure is not None:
            self._fail(failure)
        elif not self._failed:
            self._answer(release, reached)

    def _answer(self, release: Callable[[], None], reached: int) -> None:
        """Everything up to the change `reached` is durable: let the answers go out, and note it soon."""
        self._answered = reached
        if self._mark_timer is None and self._mark is not None:
            loop = asyncio.get_running_loop()
            self._mark_timer = loop.call_later(_MARK_S, self._write_mark)
        release()

    def _write_mark(self) -> None:
        self._mark_timer = None
        if self._mark is None:
            return
        try:
            self._mark.write(self._answered)
        except OSError as error:
            self._log.error("answered_mark_not_written", error=str(error))
            self._close_mark()

    def _close_mark(self) -> None:
        if self._mark_timer is not None:
            self._mark_timer.cancel()
            self._mark_timer = None
        if self._mark is not None:
            self._mark.close()
            self._mark = None

    def _fail(self, error: StoreFailed) -> None:
        if not self._failed:
            self._failed = True
            self._on_failure(error)

    # -- read -------------------------------------------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        """See `Store.get`."""
        try:
            return cast("bytes | None", self._rows.get(key))
        except Exception as error:  # bare, with a text
            raise DamagedRecord(key, f"it cannot be read: {error}") from error

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """See `Store.get_many`."""
        if len(keys) < _MANY:
            return [self.get(key) for key in keys]
        try:
            return cast("list[bytes | None]", self._rows.get(cast("list[Any]", keys)))
        except Exception as error:  # bare, with a text that names no key
            raise self._damage_among(keys, error) from error

    def _damage_among(self, keys: list[bytes], error: Exception) -> DamagedRecord:
        for key in keys:
            try:
                self.get(key)
            except DamagedRecord as damage:
                return damage
        return DamagedRecord(keys[0], f"it or a neighbour cannot be read: {error}")

    def scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See `Store.scan`."""
        options = ReadOptions()
        options.set_iterate_upper_bound(end)
        rows = self._rows.iter(options)
        rows.seek(begin)
        while rows.valid():
            yield cast("bytes", rows.key()), cast("bytes", rows.value())
            rows.next()
        _check_status(rows, begin)

    # -- copy -------------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write what RocksDB holds in memory into files, so that a checkpoint finds little left to do.

        Takes up to seconds, for any thread but the loop's: it releases the interpreter lock. Raises StoreFailed.
        """
        with self._copying, _foreign_errors("cannot flush"):
            self._check_alive()
            self._rows.flush(True)

    def checkpoint(self, folder: Path) -> None:
        """Make `folder`, which must not exist and lie on the same file system, a database of all that was written so far.

        For any thread, but no `close` may begin meanwhile. Holds the interpreter lock: 1-6 ms after a `flush`. Its files are
        hard links where they never change; the folder is not synced. Raises StoreFailed.
        """
        with self._copying, _foreign_errors(f"cannot make {folder}"):
            self._check_alive()
            Checkpoint(self._rows).create_checkpoint(str(folder))

    def _check_alive(self) -> None:
        if self._failed:
            raise StoreFailed("the store failed meanwhile")

    def close(self) -> None:
        """See `Store.close`."""
        if not self._failed:
            self.write()
        self._stop_thread()
        with _foreign_errors("cannot close"):
            if self._durability is Durability.MEMORY:
                self._rows.flush(True)
            else:
                self._rows.flush_wal(True)
            self._answered = self._rows.latest_sequence_number()
            self._rows.close()
        if not self._failed:
            self._write_mark()
        self._close_mark()

    def abandon(self) -> None:
        """See `Store.abandon`."""
        self._failed = True
        self.batch = WriteBatch(raw_mode=True)
        self._close_mark()
        self._stop_thread()
        if not self._copying.acquire(blocking=False):
            raise StoreFailed("cannot close it yet: a backup is just copying from it")
        # Closing writes what lies in memory, which fails again; the folder is let go all the same.
        with suppress(StoreFailed), _foreign_errors("cannot close"):
            self._rows.close()
        self._copying.release()

    def _stop_thread(self) -> None:
        self._to_sync.put(None)
        self._thread.join()


def _held_before_a_hole(folder: Path) -> int | None:
    """How many changes the database holds before the first hole in its log; None if more than the log is damaged.

    Opening for writing would throw away what lies behind the hole, so this only reads.
    """
    options = rocks_options(DBRecoveryMode.point_in_time())
    try:
        with _foreign_errors(f"cannot read {folder}"):
            rows = Rdict(str(folder), options, access_type=AccessType.read_only(False))
    except StoreFailed:
        return None
    try:
        return rows.latest_sequence_number()
    finally:
        rows.close()


def rocks_options(recovery: DBRecoveryMode | None = None) -> Options:
    """How a shard's database is opened, whoever opens it; a hole in its log refuses unless `recovery` says otherwise."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(_LOG_FILES_KEPT)
    tables = BlockBasedOptions()
    # Most lookups of ids and groups find nothing: filters answer those without reading a block.
    tables.set_bloom_filter(_FILTER_BITS, False)
    # Beside the block cache: a filter of a large file is larger than a part of the cache, and would be read each time.
    tables.set_block_cache(Cache(_CACHE_BYTES))
    options.set_block_based_table_factory(tables)
    # A torn tail is what a crash leaves; a hole before the end is damage and refuses to open.
    options.set_wal_recovery_mode(recovery or DBRecoveryMode.tolerate_corrupted_tail_records())
    # Consumed ranges are compacted soon, so that no scan walks over a million deleted rows (PERF §2).
    options.add_compact_on_deletion_collector_factory(*_SST_DELETIONS)
    # A stall of RocksDB would stop the whole process, since writes hold the interpreter lock: keep the limits far away.
    options.set_level_zero_slowdown_writes_trigger(60)
    options.set_level_zero_stop_writes_trigger(120)
    options.set_soft_pending_compaction_bytes_limit(256 << 30)
    options.set_hard_pending_compaction_bytes_limit(512 << 30)
    return options


def _check_status(rows: RdictIter, start: bytes) -> None:
    """An iterator that meets an unreadable block just ends: only its status tells that from the end of the rows."""
    try:
        rows.status()
    except Exception as error:  # bare, with a text
        raise DamagedRecord(start, f"rows from here on cannot be read: {error}") from error


@contextmanager
def _foreign_errors(what: str) -> Iterator[None]:
    """Rename RocksDB's errors, which are bare exceptions with a text."""
    try:
        yield
    except Exception as error:
        text = " ".join(str(error).split())  # RocksDB's may have several lines
        raise StoreFailed(f"{what}: {text}") from error
