"""Replacement: rows of another host that take the place of a store's own, and the damage for
which it needs them (rule 20)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple, Protocol

import structlog

from cluster.replication.following import Follower
from storage.copies.replaced_rows import Replaced
from visibility.rows.row_changes import Ops
from visibility.rows.row_keys import BLOCKED, QUARANTINED


class RowSource(NamedTuple):
    """The rows of other hosts."""

    fetch: Callable[[], Awaitable[Replaced]]
    """Gets them."""
    replace: Callable[[Replaced], object]
    """Puts them in the place of the store's own, which are closed; blocks. Raises OSError."""
    leave: Callable[[], Awaitable[None]]
    """Hands out the store's own rows no longer, before they are closed."""
    drop: Callable[[], Awaitable[None]]
    """Removes rows that were fetched and are of no use. Raises OSError."""


class NeedsRows(Protocol):
    """A store that may need rows of other hosts."""

    @property
    def needs_rows(self) -> bool:
        """False once its own rows will do."""

    @property
    def log_start(self) -> int:
        """Index of the Entry that rows must have at least, or its log does not reach them."""

    def rows_fetched(self) -> None:
        """Close the store."""


class Replacement:
    """Fetches rows for one store."""

    def __init__(
        self, store: NeedsRows, source: RowSource | None, log: structlog.stdlib.BoundLogger
    ) -> None:
        """`source` is None if no rows can be fetched."""
        self.source = source
        self._store = store
        self._log = log
        self._task: asyncio.Task[None] | None = None
        self._fetched: Replaced | None = None

    def begin(self) -> None:
        """Fetch rows, unless that is under way."""
        if self.source is not None and self._task is None:
            self._task = asyncio.create_task(self._fetch(self.source))
            self._task.add_done_callback(self._ended)

    async def _fetch(self, source: RowSource) -> None:
        """Fetch until the rows are of use: meanwhile the store may have caught up by a log, and
        released its own beyond them. Older rows under that log would lose what it acknowledged."""
        store = self._store
        while store.needs_rows:
            fetched = await source.fetch()
            if store.needs_rows and fetched.position.index >= store.log_start:
                self._fetched = fetched
                store.rows_fetched()
                return
            self._log.info(
                "rows_came_too_late", index=fetched.position.index, log_start=store.log_start
            )
            await source.drop()
        self._task = None

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
        """Wait until the rows are no longer used, and no others are being fetched."""
        if self._task is not None:
            await asyncio.wait([self._task])
        if self.source is not None:
            await self.source.leave()

    async def put_in_place(
        self, in_thread: Callable[[Callable[[], object]], Awaitable[object]]
    ) -> None:
        """The rows are closed: replace them, if others were fetched."""
        if self.source is None or self._fetched is None:
            return
        try:
            await in_thread(partial(self.source.replace, self._fetched))
        except OSError as error:  # the next opening finishes it
            self._log.error("rows_not_replaced", error=str(error))


class DamagedRows:
    """The way out of damage in the rows of a shard.

    damage is met      lead no longer, do not count, fetch the rows of another host
    fetched            the store is opened anew over sound rows
    no good copy       the rows of all hosts are damaged: lead over these; the first Turn that meets
                       damage quarantines it by an event, which changes all copies alike
    quarantined        on all hosts: others may have a good copy of what is met next

    Part of a store. `replica` is set once there is one.
    """

    def __init__(self, replacement: Replacement, log: structlog.stdlib.BoundLogger) -> None:
        self.has_no_good_copy = False
        """True once the rows of all hosts were found to be damaged."""
        self.quarantines = False
        """True from then on until damage is quarantined."""
        self._replacement = replacement
        self._log = log

    def met(self, replica: Follower, reason: str) -> None:
        """Fetch sound rows; until then the replica neither leads nor counts."""
        if not self.quarantines and not replica.damage:
            self._log.error(
                "rows_damaged", reason=reason, action="this host fetches them from another"
            )
            replica.damage = reason
        if not replica.conflict:  # else only this host has what others would replace
            self._replacement.begin()

    def no_good_copy(self, replica: Follower) -> None:
        """All other hosts were asked, and gave damaged rows."""
        if self.quarantines or not replica.damage:
            return
        self.has_no_good_copy = self.quarantines = True
        replica.damage = ""
        self._log.error(
            "no_good_copy",
            means="the rows of all hosts are damaged; what cannot be read is quarantined",
            action="look for `quarantined` and `queue_rebuilt` in this log, and restore a backup "
            "if those messages are needed",
        )

    def applied(self, ops: Ops) -> None:
        """The rows took these changes of an Entry."""
        if self.quarantines and any(
            key[8:9] in (QUARANTINED, BLOCKED) and isinstance(change, bytes)
            for key, change in zip(ops[::2], ops[1::2], strict=True)
            if isinstance(key, bytes)
        ):
            self.quarantines = False
