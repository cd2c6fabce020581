"""DurableStore: a shard's log and its rows.

    append → pwrite into a segment       sync → fdatasync in a thread       apply → RocksDB without a log of its own

A start brings what the log holds above the applied Entry into the rows. A flush makes rows durable, and the log
forgets what they hold; it begins at 64 MiB or 500,000 row changes of live log.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
import structlog

from storage.engines.rocks import RocksRows
from storage.engines.store import Done, StoreFailed
from storage.histogram import SYNC_BOUNDS_S, Histogram
from storage.log import (
    SEGMENT_BYTES,
    Answered,
    AnsweredNote,
    Disk,
    Log,
    LogFailed,
    LogFull,
    LogMismatch,
    NoteDamaged,
    Position,
    Reading,
    SystemDisk,
    open_log,
    read_answered,
    read_log,
)
from storage.rows.changes import Changes, Ops
from storage.rows.entry_body import decode_body
from storage.rows.overlay import RowReader
from visibility.state.rows import DamagedRecord

FLUSH_BYTES = 64 << 20
"""Live log at which a flush begins; at twice as much the shard waits for it."""
FLUSH_ROWS = 500_000
"""Row changes, likewise: a restart replays them at 0.8 us each."""
_NOTE_S = 0.1
"""Interval at which the note of answers is written."""
_WAYS_OUT = (
    "Restore a backup, copy what can be read with holdfast salvage, "
    "or start with --accept-loss on to go on without the rest"
)


class Durability(StrEnum):
    """What an acknowledgement survives."""

    FSYNC = "fsync"
    """An acknowledged request survives a power failure."""
    OS = "os"
    """An acknowledged request survives a crash of the process, not of the machine."""
    MEMORY = "memory"
    """An acknowledged request survives a clean stop only; for tests."""


class RowStore(RowReader, Protocol):
    """A shard's rows: what `RocksRows` does, and its model in the simulator."""

    folder: Path

    def applied(self) -> Position:
        """The last Entry whose changes the rows have."""

    def write(self, ops: Ops, applied: Position | None = None) -> None:
        """Bring an Entry's changes into the rows, with its position. Raises StoreFailed."""

    def flush(self) -> None:
        """Make all rows durable; for any thread. Raises StoreFailed."""

    def checkpoint(self, folder: Path) -> None:
        """Make `folder` a database of all rows; for any thread. Raises StoreFailed."""

    def close(self) -> None:
        """Let go of the folder. Raises StoreFailed while another thread uses it."""


async def _in_thread(work: Callable[[], object]) -> None:
    await asyncio.to_thread(work)


class StoreOptions(NamedTuple):
    """How a shard's files are used."""

    durability: Durability = Durability.FSYNC
    accepts_loss: bool = False
    """Open a folder of which answers told more than it holds."""
    segment_bytes: int = SEGMENT_BYTES
    flush_bytes: int = FLUSH_BYTES
    flush_rows: int = FLUSH_ROWS
    monotonic_s: Callable[[], float] = float
    """Times syncs, for `sync_s`."""
    sync_s: Histogram | None = None
    in_thread: Callable[[Callable[[], object]], Awaitable[None]] = _in_thread
    """Does work that may take seconds."""
    new_log_id: Callable[[], bytes] = partial(os.urandom, 16)
    """Gives 16 random bytes."""


def log_folder(shard_folder: Path) -> Path:
    """The folder of a shard's log: beside that of its rows."""
    return shard_folder.with_name(shard_folder.name + ".log")


def open_store(folder: Path, options: StoreOptions | None = None) -> DurableStore:
    """Open a shard's rows and bring them up to the end of its log; blocks, for any thread but the loop's.

    Raises StoreFailed if another process has it, it is damaged, or it came back shorter than answers told.
    """
    rows = RocksRows(folder)
    knew_damage = rows.met_damage
    try:
        return assemble(rows, SystemDisk(), options or StoreOptions())
    except StoreFailed:
        if knew_damage or not rows.met_damage:
            raise
    return assemble(RocksRows(folder), SystemDisk(), options or StoreOptions())


def assemble(rows: RowStore, disk: Disk, options: StoreOptions) -> DurableStore:
    """The same over any rows and any disk, which it closes if it fails."""
    try:
        if options.durability is Durability.MEMORY:
            _replay(read_shard_log(rows, disk), rows)
            return DurableStore(rows, None, disk, None, options)
        return _opened(rows, disk, options)
    except (LogMismatch, OSError, DamagedRecord, msgspec.MsgspecError) as error:
        rows.close()
        disk.stop()
        raise StoreFailed(f"cannot open {rows.folder}: {error}. {_WAYS_OUT}") from error
    except BaseException:
        rows.close()
        disk.stop()
        raise


def open_replayed(folder: Path) -> RocksRows:
    """Open the rows of a folder that no service uses, with all that its log holds, durable. Raises StoreFailed."""
    rows = RocksRows(folder)
    disk, options = SystemDisk(), StoreOptions()
    log = structlog.get_logger("store").bind(folder=str(folder))
    try:
        reading = read_shard_log(rows, disk, _noted(disk, log_folder(folder), options, log))
        _refuse_loss(reading, folder, options, log)
        _replay(reading, rows)
        rows.flush()
    except (LogMismatch, OSError, DamagedRecord, msgspec.MsgspecError) as error:
        rows.close()
        raise StoreFailed(f"cannot open {folder}: {error}. {_WAYS_OUT}") from error
    except BaseException:
        rows.close()
        raise
    return rows


def read_shard_log(rows: RowStore, disk: Disk, answered: Answered | None = None) -> Reading:
    """The log's Entries that the rows do not have. Raises OSError, LogMismatch, DamagedRecord."""
    return read_log(disk, log_folder(rows.folder), rows.applied(), answered)


def _replay(reading: Reading, rows: RowStore) -> int:
    """Bring the log's Entries into the rows; returns the number of row changes."""
    changed = 0
    for entry in reading.entries():
        ops = decode_body(entry.body).ops
        rows.write(ops, entry.position)
        changed += len(ops) // 2
    return changed


def _opened(rows: RowStore, disk: Disk, options: StoreOptions) -> DurableStore:
    log = structlog.get_logger("store").bind(folder=str(rows.folder))
    folder = log_folder(rows.folder)
    durable = rows.applied()
    reading = read_shard_log(rows, disk, _noted(disk, folder, options, log))
    for warning in reading.warnings:
        log.warning("log_damaged", text=warning)
    if durable.index and not reading.log_id and not options.accepts_loss:
        raise StoreFailed(f"the log of {rows.folder} is missing: {folder}. {_WAYS_OUT}")
    _refuse_loss(reading, rows.folder, options, log)
    unflushed_rows = _replay(reading, rows)
    if reading.lost:
        rows.write([], reading.end)
        rows.flush()
        durable = reading.end
    opened = open_log(
        reading,
        durable,
        new_log_id=options.new_log_id,
        segment_bytes=options.segment_bytes,
    )
    note = None
    if options.durability is Durability.FSYNC:
        note = AnsweredNote(disk, folder, opened.log_id)
    store = DurableStore(rows, opened, disk, note, options)
    store.came_back_shorter = bool(reading.lost)
    store.unflushed_rows = unflushed_rows
    return store


def _noted(
    disk: Disk, folder: Path, options: StoreOptions, log: structlog.stdlib.BoundLogger
) -> Answered | None:
    if options.durability is not Durability.FSYNC:
        return None
    try:
        return read_answered(disk, folder)
    except NoteDamaged as error:
        log.error("answered_note_damaged", error=str(error))
        return None


def _refuse_loss(
    reading: Reading, folder: Path, options: StoreOptions, log: structlog.stdlib.BoundLogger
) -> None:
    """Raise StoreFailed if Entries are missing that were synced, unless that is accepted."""
    if not reading.lost:
        return
    queue_ids = sorted(set().union(*[lost.queue_ids for lost in reading.lost]))
    entries = sum(lost.last - lost.first + 1 for lost in reading.lost)
    reason = reading.lost[0].reason
    log.error("log_entries_lost", entries=entries, queue_ids=queue_ids, reason=reason)
    if not options.accepts_loss and options.durability is not Durability.OS:
        queues = f"queues {', '.join(map(str, queue_ids))}" if queue_ids else "unknown queues"
        raise StoreFailed(
            f"{folder} came back shorter: {entries} entries of its log that answers told of cannot be read "
            f"({reason}); they changed {queues}. It is damaged, an older copy, or a part of it was cut off. {_WAYS_OUT}"
        )


class DurableStore:
    """See `Store`. All methods but `flush` and `checkpoint` belong to the event loop's thread."""

    def __init__(
        self,
        rows: RowStore,
        log: Log | None,
        disk: Disk,
        note: AnsweredNote | None,
        options: StoreOptions,
    ) -> None:
        """`open_store` makes it. Without a `log` nothing survives but a clean stop."""
        self.folder = rows.folder
        self.came_back_shorter = False
        self.unflushed_rows = 0
        """Row changes since the last flush began, those that a start replayed among them."""
        self.get, self.get_many, self.scan = rows.get, rows.get_many, rows.scan
        self.on_room: Callable[[], object] = _nothing
        """Called when `has_room` is true again."""
        self._rows = rows
        self._log = log
        self._disk = disk
        self._note = note
        self._options = options
        self._sync_s = options.sync_s or Histogram(SYNC_BOUNDS_S)
        self._under_way: deque[Position] = deque()
        """Entries that were appended and not applied."""
        self._applied: Position | None = None
        """Of the last Entry that was applied since the opening."""
        self._flushing: asyncio.Task[None] | None = None
        self._note_timer: asyncio.TimerHandle | None = None
        self._noted: asyncio.Future[None] | None = None
        """Done when the note that is being written is."""
        self._is_abandoned = False
        self._is_ending = False
        self._logger = structlog.get_logger("store").bind(folder=str(self.folder))

    # -- commit -----------------------------------------------------------------------------------------------------------

    def append(self, body: bytes, queue_ids: Sequence[int]) -> None:
        """See `Store.append`."""
        log = self._log
        if log is None:
            return
        try:
            log.append(body, queue_ids)
        except (LogFailed, LogFull) as error:
            raise StoreFailed(str(error)) from error
        self._under_way.append(log.last)

    def sync(self, done: Done) -> None:
        """See `Store.sync`."""
        if self._log is None or self._options.durability is not Durability.FSYNC:
            done(None)
        else:
            self._log.sync(partial(self._synced, done, self._options.monotonic_s()))

    def _synced(self, done: Done, begun_s: float, failure: LogFailed | None) -> None:
        self._sync_s.observe(self._options.monotonic_s() - begun_s)
        if not self._is_abandoned:
            done(None if failure is None else StoreFailed(str(failure)))

    def apply(self, changes: Changes) -> None:
        """See `Store.apply`."""
        position = self._under_way.popleft() if self._log is not None else None
        self._rows.write(changes.ops, position)
        self._applied = position
        self.unflushed_rows += len(changes)
        self._want_note()
        if self._wants_flush() and self._flushing is None:
            self._flushing = asyncio.create_task(self._flush(position, self.unflushed_rows))
            self.unflushed_rows = 0

    @property
    def has_room(self) -> bool:
        """False while so much waits for a flush that no more may be appended."""
        if self._log is None or self._flushing is None:
            return True
        options = self._options
        is_short = self._log.live_bytes < 2 * options.flush_bytes
        return is_short and self.unflushed_rows < options.flush_rows

    @property
    def can_grow(self) -> bool:
        """False while the disk has no space for another segment of the log: sends are refused."""
        return self._log is None or self._log.can_grow

    def _wants_flush(self) -> bool:
        options = self._options
        is_long = self._log is not None and self._log.live_bytes >= options.flush_bytes
        return is_long or self.unflushed_rows >= options.flush_rows

    async def _flush(self, reached: Position | None, changed_rows: int) -> None:
        """Make the rows durable, then let the log forget what they hold. A failure is tried again at the next Entry."""
        try:
            await self._options.in_thread(self.flush)
            if self._log is not None and reached is not None:
                self._log.release(reached.index)
        except StoreFailed as error:
            self.unflushed_rows += changed_rows
            self._logger.error("rows_not_flushed", error=str(error))
        finally:
            self._flushing = None
            self.on_room()

    # -- the note of answers ----------------------------------------------------------------------------------------------

    def _want_note(self) -> None:
        if self._note is not None and self._note_timer is None and self._noted is None:
            loop = asyncio.get_running_loop()
            self._note_timer = loop.call_later(_NOTE_S, self._write_note)

    def _write_note(self) -> None:
        self._note_timer = None
        if self._note is None or self._applied is None or self._noted is not None:
            return
        self._noted = asyncio.get_running_loop().create_future()
        self._note.write(self._applied, partial(self._note_written, self._applied))

    def _note_written(self, position: Position, error: Exception | None) -> None:
        if error is not None:
            self._logger.error("answered_note_not_written", error=str(error))
        noted, self._noted = self._noted, None
        _set(noted)
        if self._applied is not position and not self._is_ending:
            self._want_note()

    # -- copy -------------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """See `RocksRows.flush`."""
        self._rows.flush()

    def checkpoint(self, folder: Path) -> None:
        """See `RocksRows.checkpoint`."""
        self._rows.checkpoint(folder)

    # -- the end ----------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """See `Store.close`: rows are flushed, so that a closed folder has no live log."""
        await self._end_work()
        try:
            await self._options.in_thread(self.flush)
            if self._note is not None and self._applied is not None:
                await self._options.in_thread(partial(self._note.write_now, self._applied))
        except OSError as error:
            raise StoreFailed(f"cannot note what was answered: {error.strerror}") from error
        finally:
            await self._let_go()

    async def abandon(self) -> None:
        """See `Store.abandon`."""
        self._is_abandoned = True
        await self._end_work()
        await self._let_go()

    async def _end_work(self) -> None:
        self._is_ending = True
        if self._note_timer is not None:
            self._note_timer.cancel()
            self._note_timer = None
        if self._flushing is not None:
            await asyncio.wait([self._flushing])
        if self._noted is not None:
            await self._noted

    async def _let_go(self) -> None:
        await self._options.in_thread(self._rows.close)
        if self._log is not None:
            closed = asyncio.get_running_loop().create_future()
            self._log.close(partial(_set, closed))
            await closed
            self._log = None
        if self._note is not None:
            self._note.close()
            self._note = None
        self._disk.stop()


def _nothing() -> None:
    """Nobody waits for room."""


def _set(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
