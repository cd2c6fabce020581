"""DurableStore: a shard's log and its rows.

    append → pwrite into a segment    sync → fdatasync in a thread    apply → RocksDB without a log

Only Entries that are committed change rows (rule 13). A start replays the log's Entries above the
applied one into the rows: all that can be read (rule 15). A flush makes rows durable,
and the log then forgets their Entries; it begins at 64 MiB or 500,000 row changes of live log.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial

from typing_extensions import override

from storage.engines.flushed_rows import FlushedRows
from storage.engines.store import Done, RowStore, StoreFailed
from storage.engines.store_options import Durability, StoreOptions
from storage.histogram import SYNC_BOUNDS_S, Histogram
from storage.log import AnsweredNote, Disk, Log, LogFailed, LogFull, Position
from visibility.rows.row_changes import Changes

NOTE_S = 0.1
"""Interval of writing the note of answers."""


class DurableStore(FlushedRows):
    """The `Store` of a single host. `flush` and `checkpoint` are for any thread."""

    shared = None

    def __init__(
        self,
        rows: RowStore,
        log: Log | None,
        disk: Disk,
        note: AnsweredNote | None,
        options: StoreOptions,
        *,
        came_back_shorter: bool = False,
        unflushed_rows: int = 0,
    ) -> None:
        """Called by `open_store`. Without a `log`, only a clean stop preserves the data."""
        super().__init__(
            rows, options, came_back_shorter=came_back_shorter, unflushed_rows=unflushed_rows
        )
        self._log = log
        self._disk = disk
        self._note = note
        self._is_synced = options.durability is Durability.FSYNC
        self._sync_s = options.sync_s or Histogram(SYNC_BOUNDS_S)
        self._under_way: deque[Position] = deque()
        """Entries appended and not yet applied."""
        self.applied: Position | None = None
        """Position of the last Entry applied since the opening."""
        self._note_timer: asyncio.TimerHandle | None = None
        self._noted: asyncio.Future[None] | None = None
        """Done when the note under way is written."""
        self._is_abandoned = False
        self._is_ending = False

    # -- commit ------------------------------------------------------------------------------------

    def append(self, body: bytes, queue_ids: Sequence[int]) -> None:
        """Append an Entry to the log. Raises StoreFailed."""
        log = self._log
        if log is None:
            return
        try:
            log.append(body, queue_ids)
        except (LogFailed, LogFull) as error:
            raise StoreFailed(str(error)) from error
        self._under_way.append(log.last)

    def sync(self, done: Done) -> None:
        """Call `done` once all appended Entries are as durable as configured."""
        if self._log is None or not self._is_synced:
            done(None)
        else:
            self._log.sync(partial(self._synced, done, self._options.monotonic_s()))

    def _synced(self, done: Done, begun_s: float, failure: LogFailed | None) -> None:
        self._sync_s.observe(self._options.monotonic_s() - begun_s)
        if not self._is_abandoned:
            done(None if failure is None else StoreFailed(str(failure)))

    def apply(self, changes: Changes) -> None:
        """Apply the oldest committed Entry's changes to the rows. Raises StoreFailed."""
        position = self._under_way.popleft() if self._log is not None else None
        self.rows.write(changes.ops, position)
        self.applied = position
        self.unflushed_rows += len(changes)
        self._want_note()
        self._check_files_later()
        if self._wants_flush() and self._flushing is None:
            self._begin_flush(position)

    @property
    def has_room(self) -> bool:
        """False while the unflushed log is too large for another append."""
        if self._log is None or self._flushing is None:
            return True
        options = self._options
        is_short = self._log.live_bytes < 2 * options.flush_bytes
        return is_short and self.unflushed_rows < options.flush_rows

    @property
    def can_grow(self) -> bool:
        """False while the disk has no space for another segment of the log: then sends are
        refused."""
        return self._log is None or self._log.spares.can_grow

    def give_back_space(self) -> None:
        """The disk is short: have the rows flushed, so that the log needs less and RocksDB can
        remove what was deleted, and remove unused files of the log."""
        if self._log is None or self._is_ending:
            return
        self._log.spares.give_back()
        if self.unflushed_rows and self._flushing is None:
            self._begin_flush(self.applied if self._under_way else self._log.last)
        self._check_files_later()  # a compaction may have left files

    def _wants_flush(self) -> bool:
        options = self._options
        is_long = self._log is not None and self._log.live_bytes >= options.flush_bytes
        return is_long or self.unflushed_rows >= options.flush_rows

    @override
    def _release(self, reached: Position | None) -> None:
        if self._log is not None and reached is not None:
            self._log.release(reached.index)

    # -- the note of answers -----------------------------------------------------------------------

    def _want_note(self) -> None:
        if self._note is not None and self._note_timer is None and self._noted is None:
            loop = asyncio.get_running_loop()
            self._note_timer = loop.call_later(NOTE_S, self._write_note)

    def _write_note(self) -> None:
        self._note_timer = None
        if self._note is None or self.applied is None or self._noted is not None:
            return
        self._noted = asyncio.get_running_loop().create_future()
        self._note.write(self.applied, partial(self._note_written, self.applied))

    def _note_written(self, position: Position, error: Exception | None) -> None:
        if error is not None:
            self._logger.error("answered_note_not_written", error=str(error))
        noted, self._noted = self._noted, None
        _set(noted)
        if self.applied is not position and not self._is_ending:
            self._want_note()

    # -- the end -----------------------------------------------------------------------------------

    async def close(self) -> None:
        """Flush the rows, so that a closed folder has no live log. Raises StoreFailed."""
        await self._end_work()
        try:
            await self._options.in_thread(self.flush)
            if self._note is not None and self.applied is not None:
                await self._options.in_thread(partial(self._note.write_now, self.applied))
        except OSError as error:
            raise StoreFailed(f"cannot note what was answered: {error.strerror}") from error
        finally:
            await self._let_go()

    async def abandon(self) -> None:
        """Release the disk after a failure, without writing anything."""
        self._is_abandoned = True
        await self._end_work()
        await self._let_go()

    async def _end_work(self) -> None:
        self._is_ending = True
        if self._note_timer is not None:
            self._note_timer.cancel()
            self._note_timer = None
        await self._end_flushes()
        if self._noted is not None:
            await self._noted

    async def _let_go(self) -> None:
        await self._options.in_thread(self.rows.close)
        if self._log is not None:
            closed = asyncio.get_running_loop().create_future()
            self._log.close(partial(_set, closed))
            await closed
            self._log = None
        if self._note is not None:
            self._note.close()
            self._note = None
        self._disk.stop()


def _set(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
