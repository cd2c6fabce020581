"""FlushedRows: rows that are made durable from time to time; only then the log may forget their
Entries (rule 14).

A flush begins at a size of the live log or a number of row changes; while the log is twice as long,
the shard waits for the flush.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from storage.engines.store import RowStore, StoreFailed
from storage.engines.store_options import StoreOptions
from storage.healing.rebuild import Healed
from storage.log import Position
from storage.rows.stored_rows import CHANGED_BYTES_MAX

_TURNS_IN_SEGMENT = 4
"""A Turn takes requests up to this part of a segment: the last of them may double its Entry."""
_FILES_CHECK_S = 5.0
"""Interval of checking for live files changed by a compaction."""


class FlushedRows:
    """The common part of stores over `RowStore`. `flush` and `checkpoint` are for any thread."""

    def __init__(
        self,
        rows: RowStore,
        options: StoreOptions,
        *,
        came_back_shorter: bool = False,
        unflushed_rows: int = 0,
    ) -> None:
        self.folder = rows.folder
        self.turn_bytes_max = min(CHANGED_BYTES_MAX, options.segment_bytes // _TURNS_IN_SEGMENT)
        self.came_back_shorter = came_back_shorter
        self.unflushed_rows = unflushed_rows
        """Row changes since the last flush began, including those replayed by a start."""
        self.get, self.get_many = rows.get, rows.get_many
        self.scan, self.names = rows.scan, rows.names
        self._on_room: Callable[[], object] = _nothing
        self.rows = rows
        self._options = options
        self._flushing: asyncio.Task[None] | None = None
        self._files_timer: asyncio.TimerHandle | None = None
        self._noting_files: asyncio.Task[None] | None = None
        self._logger = structlog.get_logger("store").bind(folder=str(self.folder))

    @property
    def needs_healing(self) -> bool:
        """True if there is damage that `heal` is to remove."""
        return self.rows.needs_healing

    def note_damage(self, queue_id: int, reason: str) -> None:
        """Let the next opening rebuild a queue with unreadable rows. Raises StoreFailed."""
        self.rows.note_damage(queue_id, reason)

    async def heal(self, known: Mapping[int, bool]) -> list[Healed]:
        """Write all readable rows anew, with damaged queues rebuilt. Raises StoreFailed."""
        healed: list[Healed] = []
        await self._options.in_thread(lambda: healed.extend(self.rows.heal(known)))
        return healed

    def on_room(self, call: Callable[[], object]) -> None:
        """From now on `call` this when `has_room` may be true again."""
        self._on_room = call

    def _release(self, reached: Position | None) -> None:
        """The rows hold all Entries up to this one durably."""
        raise NotImplementedError

    # -- flush -------------------------------------------------------------------------------------

    def _begin_flush(self, reached: Position | None) -> None:
        """Make the rows durable, which hold all Entries up to `reached`."""
        self._flushing = asyncio.create_task(self._flush(reached, self.unflushed_rows))
        self._flushing.add_done_callback(self._end_flush)
        self.unflushed_rows = 0

    async def _flush(self, reached: Position | None, changed_rows: int) -> None:
        """Make the rows durable, then let the log forget their Entries. A failure is retried at the
        next Entry."""
        try:
            await self._options.in_thread(self.flush)
            self._release(reached)
        except StoreFailed as error:
            self.unflushed_rows += changed_rows
            self._logger.error("rows_not_flushed", error=str(error))

    def _end_flush(self, _flush: asyncio.Task[None]) -> None:
        """Not a part of `_flush`: one that its loop left behind must call nobody."""
        self._flushing = None
        self._on_room()

    def _check_files_later(self) -> None:
        if self._files_timer is None:
            loop = asyncio.get_running_loop()
            self._files_timer = loop.call_later(_FILES_CHECK_S, self._check_files)

    def _check_files(self) -> None:
        """Note the files again if a compaction changed them."""
        self._files_timer = None
        if self._noting_files is None:
            self._noting_files = asyncio.create_task(self._note_files())

    async def _note_files(self) -> None:
        try:
            await self._options.in_thread(self.rows.note_files)
        except StoreFailed as error:
            self._logger.error("live_files_not_noted", error=str(error))
        finally:
            self._noting_files = None

    # -- copy --------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make all rows durable. Raises StoreFailed."""
        self.rows.flush()

    def checkpoint(self, folder: Path) -> None:
        """Make `folder` a database of all rows. Raises StoreFailed."""
        self.rows.checkpoint(folder)

    # -- the end -----------------------------------------------------------------------------------

    async def _end_flushes(self) -> None:
        """Begin nothing more, and wait for what is under way."""
        if self._files_timer is not None:
            self._files_timer.cancel()
            self._files_timer = None
        for task in (self._flushing, self._noting_files):
            if task is not None:
                await asyncio.wait([task])


def _nothing() -> None:
    """The default: nothing waits for room."""
