"""Records of one kind, in memory: read at once from a view, changed by decide and commit.

The watch keeps the view up to date. A change is decided from the view, committed under the
condition that nothing it was decided on has changed, and decided again if something has; its caller
waits until the view shows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import NamedTuple, TypeVar

import structlog

from cluster.coordination.coordination import (
    Change,
    Conflict,
    Coordination,
    Done,
    LeaseLost,
    Record,
    Snapshot,
    Transaction,
    Unavailable,
    Unknown,
)
from cluster.tasks import start_task

COUNTERS = "ids/"
"""Prefix of the records that are numbers issued last."""
_TRIES = 30
"""Attempts at a change while others change the same records; each time one of them succeeds."""
T = TypeVar("T")


class View(NamedTuple):
    """The records at one moment. Never changes."""

    revision: int
    records: Mapping[str, Record]

    def value(self, key: str) -> bytes | None:
        """The value of a record, None if there is none."""
        record = self.records.get(key)
        return None if record is None else record.value

    def below(self, prefix: str) -> dict[str, bytes]:
        """The records whose keys begin so, by the rest of the key."""
        return {
            key.removeprefix(prefix): record.value
            for key, record in self.records.items()
            if key.startswith(prefix)
        }


OnView = Callable[[View, Collection[str]], None]
"""Takes the present view and the keys of the records that were changed."""


class Draft:
    """A transaction that is being decided. What it reads by key must not change until it
    commits."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.conditions: dict[str, int] = {}
        self.changes: dict[str, bytes | None] = {}

    def value(self, key: str) -> bytes | None:
        """The value of a record, None if there is none."""
        record = self.view.records.get(key)
        self.conditions[key] = 0 if record is None else record.revision
        return self.changes[key] if key in self.changes else self.view.value(key)

    def put(self, key: str, value: bytes | None) -> None:
        """Write a record, or remove it."""
        self.value(key)
        self.changes[key] = value

    def next_number(self, counter: str) -> int:
        """A number that this counter never issued before, from 1."""
        number = int(self.value(COUNTERS + counter) or 0) + 1
        self.put(COUNTERS + counter, b"%d" % number)
        return number


class Records:
    """Call `open`, then `close`."""

    def __init__(self, coordination: Coordination, away: type[Exception], shown_s: float) -> None:
        """Call `open` instead."""
        self.view = View(0, {})
        self._coordination = coordination
        self._away = away
        self._shown_s = shown_s
        self._listeners: list[OnView] = []
        self._writing = asyncio.Lock()
        self._watched = self.view
        """The records as the watch reported them: the view may have been read ahead of it."""
        self._restored = 0
        """Counts the times that the watch went back, since etcd was restored."""
        self._awaited: list[tuple[int, asyncio.Future[None]]] = []
        """Revisions that changes wait for."""
        self._reading: set[asyncio.Task[None]] = set()
        self._log = structlog.get_logger("records")

    @classmethod
    async def open(
        cls, coordination: Coordination, away: type[Exception], shown_s: float = 3.0
    ) -> Records:
        """Read all records and watch them; the coordination is closed with this, also if this
        fails. If the watch does not report a change within `shown_s`, the records are read.

        Raises `away`, with a line of text, as do changes that cannot be made now.
        """
        records = cls(coordination, away, shown_s)
        try:
            found = await records._read()
            records.view = records._watched = _view_of(found)
            await coordination.watch(found, records._on_change)
        except BaseException:
            await coordination.close()
            raise
        return records

    async def close(self) -> None:
        """Stop watching, close the coordination."""
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)
        await self._coordination.close()

    # -- read --------------------------------------------------------------------------------------

    def subscribe(self, listener: OnView) -> None:
        """Call it with each later view that differs. It handles its own errors."""
        self._listeners.append(listener)

    async def catch_up(self) -> None:
        """Wait until the view shows all that was committed before this call. Raises `away`."""
        # Nothing is committed, and the report of that comes behind all before it.
        try:
            async with asyncio.timeout(self._shown_s):
                outcome = await self._coordination.commit(Transaction({}, {}))
        except TimeoutError:
            raise self._away("cannot read the records: no answer in time") from None
        if not isinstance(outcome, Done):
            raise self._away("cannot read the records now")
        await self._shown(outcome.revision)

    async def refresh(self) -> None:
        """Read all records that were committed before this call, ahead of the watch. Raises
        `away`."""
        while True:
            restored, found = self._restored, await self._read()
            if restored == self._restored:
                break  # else they may be from before etcd was restored
        if found.revision > self.view.revision:
            self._show_other(_view_of(found))

    def refresh_soon(self, then: Callable[[bool], None]) -> None:
        """The same without waiting; `then` is called with False if that failed."""

        async def refresh() -> None:
            try:
                await self.refresh()
            except self._away as error:
                self._log.warning("records_not_read", error=str(error))
                then(False)
            else:
                then(True)

        start_task(self._reading, refresh())

    async def _read(self) -> Snapshot:
        found = await self._coordination.read_all()
        if isinstance(found, Unavailable):
            raise self._away(f"cannot read the records: {found.reason}")
        return found

    def _on_change(self, change: Change) -> None:
        """Apply a change that the watch reports."""
        before, records = self._watched, self._watched.records
        if change.records:
            records = dict(records)
            for key, value in change.records.items():
                if value is None:
                    records.pop(key, None)
                else:
                    records[key] = Record(key, value, change.revision_of(key))
        self._watched = View(change.revision, records)
        self._restored += change.revision < before.revision
        # A difference, or a step back after etcd was restored, counts for more than what was read.
        if before.revision < change.revision <= self.view.revision and not change.revisions:
            return
        if self.view is before:
            self._show(self._watched, change.records.keys())
        else:
            self._show_other(self._watched)

    def _show_other(self, view: View) -> None:
        before = self.view.records
        keys = before.keys() | view.records.keys()
        self._show(view, {key for key in keys if before.get(key) != view.records.get(key)})

    def _show(self, view: View, changed: Collection[str]) -> None:
        self.view = view
        for listener in self._listeners if changed else ():
            listener(view, changed)
        for revision, future in self._awaited:
            if revision <= view.revision and not future.done():
                future.set_result(None)

    async def _shown(self, revision: int) -> None:
        """Wait until the view shows this revision; read, if the watch is late. Raises `away`."""
        if self.view.revision >= revision:
            return
        awaited = (revision, asyncio.get_running_loop().create_future())
        self._awaited.append(awaited)
        try:
            async with asyncio.timeout(self._shown_s):
                await awaited[1]
        except TimeoutError:
            await self.refresh()
        finally:
            self._awaited.remove(awaited)

    # -- write -------------------------------------------------------------------------------------

    async def change(self, decide: Callable[[Draft], T]) -> T:
        """Commit what `decide` makes of the present records, and return its result.

        `decide` may run more than once; its errors are raised here. Raises `away`.
        """
        async with self._writing:
            for _ in range(_TRIES):
                draft = Draft(self.view)
                result = decide(draft)
                if not draft.changes or await self._commit(draft):
                    return result
        raise self._away("cannot change the records: others change them all the time")

    async def _commit(self, draft: Draft) -> bool:
        """Commit; False if others changed the records meanwhile. Raises `away`."""
        outcome = await self._coordination.commit(Transaction(draft.conditions, draft.changes))
        assert not isinstance(outcome, LeaseLost), "no lease was named"
        if isinstance(outcome, Conflict):
            await self._shown(outcome.revision)
            return False
        if isinstance(outcome, Done):
            with suppress(self._away):  # it is durable all the same
                await self._shown(outcome.revision)
            return True
        if isinstance(outcome, Unknown):
            await self.refresh()
            if self._shows(draft):
                return True
        raise self._away(f"cannot change the records: {outcome.reason}")

    def _shows(self, draft: Draft) -> bool:
        """True if the view shows what was to be written. Counters, which may have gone on, say
        nothing."""
        told = [key for key in draft.changes if not key.startswith(COUNTERS)]
        return bool(told) and all(self.view.value(key) == draft.changes[key] for key in told)


def _view_of(found: Snapshot) -> View:
    return View(found.revision, {record.key: record for record in found.records})
