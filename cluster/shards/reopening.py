"""Reopening: opens the store of a failed shard anew, until that works or the shard is to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

from storage.engines.store import Store

_REOPEN_S = 1.0


class Reopening:
    """Belongs to the event loop's thread."""

    def __init__(
        self,
        start: Callable[[], Awaitable[None]],
        is_ready: Callable[[], bool],
        log: structlog.stdlib.BoundLogger,
    ) -> None:
        """`start` opens the store; `is_ready` is False if another reopening has begun since."""
        self._start = start
        self._is_ready = is_ready
        self._log = log
        self._broken: Store | None = None
        """The store that failed, until it is abandoned."""
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_stopping(self) -> bool:
        """True once the shard is to stop."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Open nothing more."""
        self._stopping.set()

    def begin(self, broken: Store | None) -> None:
        """Abandon a store, then open it anew."""
        self._broken = broken
        self._task = asyncio.create_task(self._reopen())

    async def ended(self) -> None:
        """Wait until the shard is open again; once it is to stop, until it has given up trying."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def abandon(self, broken: Store | None = None) -> None:
        """Abandon a store, or the one that is still to be."""
        self._broken = broken or self._broken
        if self._broken is not None:
            await self._broken.abandon()
            self._broken = None

    async def _reopen(self) -> None:
        said = ""
        while not await self._is_stopping_within(_REOPEN_S):
            try:
                await self.abandon()
                await self._start()
                if self._is_ready():
                    self._log.warning("store_reopened")
                return
            except Exception as error:  # any error: the only remedy is to retry
                if str(error) != said:  # a full disk gives the same each second
                    said = str(error)
                    self._log.error("store_reopen_failed", error=said)

    async def _is_stopping_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
        return self._stopping.is_set()
