"""Replacement: rows of another host that take the place of a store's own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

import structlog

from storage.copies.replaced_rows import Replaced


class Ways(NamedTuple):
    """Ways to the rows of other hosts."""

    fetch: Callable[[], Awaitable[Replaced]]
    """Gets them."""
    replace: Callable[[Replaced], object]
    """Puts them in the place of the store's own, which are closed; blocks. Raises OSError."""
    leave: Callable[[], Awaitable[None]]
    """Gives the store's own rows to nobody any more, before they are closed."""


class Replacement:
    """Belongs to the event loop's thread."""

    def __init__(self, on_fetched: Callable[[], object], log: structlog.stdlib.BoundLogger) -> None:
        """`on_fetched` has the store closed."""
        self.ways: Ways | None = None
        """None if no rows can be fetched."""
        self._on_fetched = on_fetched
        self._log = log
        self._task: asyncio.Task[None] | None = None
        self._fetched: Replaced | None = None

    def begin(self) -> None:
        """Fetch rows, unless that is under way."""
        if self.ways is not None and self._task is None:
            self._task = asyncio.create_task(self._fetch(self.ways))
            self._task.add_done_callback(self._ended)

    async def _fetch(self, ways: Ways) -> None:
        self._fetched = await ways.fetch()
        self._on_fetched()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """After a failure the next `begin` tries again."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._task = None
            self._log.error("rows_not_fetched", error=repr(error))

    def cancel(self) -> None:
        """Fetch nothing any more: the store ends."""
        if self._task is not None:
            self._task.cancel()

    async def leave(self) -> None:
        """Wait until nobody uses the rows."""
        if self.ways is not None:
            await self.ways.leave()

    async def put_in_place(
        self, in_thread: Callable[[Callable[[], object]], Awaitable[None]]
    ) -> None:
        """The rows are closed: replace them, if others were fetched."""
        if self.ways is None or self._fetched is None:
            return
        try:
            await in_thread(partial(self.ways.replace, self._fetched))
        except OSError as error:  # the next opening finishes it
            self._log.error("rows_not_replaced", error=str(error))
