"""Recorder: writes the minutes of this process's queues to the data folder, in the background.

Nobody waits for a write, and none is tried again: while the disk is short or refuses, minutes are
missing from the file, and charts have the last hours from memory.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import structlog

from cluster.catalog.catalog_records import QueueName
from sqs_api.cloudwatch.minute_store import UNREADABLE, MinuteStore
from sqs_api.cloudwatch.stored_hours import Minutes, Values
from storage.files.refusing_disk import is_no_damage

_T = TypeVar("_T")
_PAUSE_S = 0.02
"""Between two steps of tidying, each of which takes a thread for some milliseconds."""


class Recorder:
    """Writes for one process."""

    def __init__(self, store: MinuteStore, has_space: Callable[[], bool]) -> None:
        """Nothing is written without `has_space`."""
        self._store = store
        self._has_space = has_space
        self._lock = asyncio.Lock()
        self._waiting: tuple[int, Mapping[QueueName, Values]] | None = None
        self._task: asyncio.Task[None] | None = None
        self._stops = False
        self._fails = False
        self._log = structlog.get_logger("history")

    def write(self, minute: int, values: Mapping[QueueName, Values]) -> None:
        """Write a minute in the background, before what else is to be tidied; it replaces one that
        still waits for a slow disk."""
        if self._stops or not self._has_space():
            return
        self._waiting = minute, values
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write())

    async def written(self) -> None:
        """Wait until the last minute is written, or left out, and all is tidied."""
        if self._task is not None:
            await self._task

    async def _write(self) -> None:
        while self._waiting is not None:
            minute, values = self._waiting
            self._waiting = None
            await self._ask(partial(self._store.write, minute, values), None)
            while not self._stops and self._waiting is None:
                if not await self._ask(partial(self._store.tidy, minute), default=False):
                    break
                await asyncio.sleep(_PAUSE_S)

    async def read(
        self, names: Sequence[QueueName], begin: int, end: int
    ) -> dict[QueueName, Minutes]:
        """By queue, the stored minutes from one to before another; none if they are unreadable."""
        nothing: dict[QueueName, Minutes] = {name: {} for name in names}
        return await self._ask(lambda: self._store.read(names, begin, end), nothing)

    async def latest(self, since_hour: int, queues_max: int) -> list[QueueName]:
        """Queues with points since an hour; none if they are unreadable."""
        return await self._ask(lambda: self._store.latest(since_hour, queues_max), [])

    async def _ask(self, work: Callable[[], _T], default: _T) -> _T:
        """Do this in a thread, one at a time; a failure is logged once and gives the default."""
        async with self._lock:
            try:
                found = await asyncio.to_thread(self._opened, work)
            except (sqlite3.Error, OSError) as error:
                if not self._fails:
                    self._log.error("history_not_kept", error=str(error))
                self._fails = True
                return default
            self._fails = False
            return found

    def _opened(self, work: Callable[[], _T]) -> _T:
        if not self._store.is_open:
            self._store.open()
        try:
            return work()
        except UNREADABLE as error:
            if is_no_damage(error):
                raise
            self._store.begin_anew(error)
            return work()

    async def stop(self) -> None:
        """Finish what is being written, and close the file."""
        self._stops = True
        await self.written()
        async with self._lock:
            await asyncio.to_thread(self._store.close)
