"""Records of a coordination for synchronous callers: all in memory, kept up to date by the watch.

The coordination lives on a background loop. Reads take the present view, from any thread. A change
is decided on that loop from the view, committed under the condition that nothing it was decided on
has changed, and decided again if something has; its caller waits until the view shows it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import NamedTuple, TypeVar

import structlog

from cluster.coordination.background_loop import BackgroundLoop
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

COUNTERS = "ids/"
"""Prefix of the records that are numbers issued last."""
_TRIES = 30
"""Attempts at a change while others change the same records; each time one of them succeeds."""
T = TypeVar("T")
OpenCoordination = Callable[[], Awaitable[Coordination]]
OnView = Callable[["View"], None]


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


class SharedRecords:
    """Any thread may use it."""

    def __init__(
        self,
        loop: BackgroundLoop,
        open_coordination: OpenCoordination,
        away: type[Exception],
        on_close: Callable[[], None] = lambda: None,
        shown_s: float = 3.0,
    ) -> None:
        """Read all records and watch them. `open_coordination` is called on the loop, `on_close`
        after the coordination was closed. If the watch does not report a change within `shown_s`,
        the records are read.

        Raises `away`, with a line of text, as do changes that cannot be made now.
        """
        self.view = View(0, {})
        self.quiet = ""
        """Prefix of records whose changes are no news; empty if all are."""
        self._loop = loop
        self._open_coordination = open_coordination
        self._away = away
        self._on_close = on_close
        self._shown_s = shown_s
        self._coordination: Coordination
        self._watched = self._adopted = 0
        """Revisions up to which the watch has reported, and records were read beside it."""
        self._news: set[int] = set()
        """Revisions at which others changed records since the last call of `changed`."""
        self._news_lock = threading.Lock()
        self._on_view: OnView | None = None
        self._awaited: list[tuple[int, asyncio.Future[None]]] = []
        self._log = structlog.get_logger("records")
        try:
            loop.run(self._begin())
        except BaseException:
            on_close()
            raise

    async def _begin(self) -> None:
        self._writing = asyncio.Lock()
        self._coordination = await self._open_coordination()
        try:
            found = await self._read()
            self._watched = found.revision
            self._show(_view_of(found))
            await self._coordination.watch(found, self._on_change)
        except BaseException:
            await self._coordination.close()
            raise

    def close(self) -> None:
        """Stop watching, close the coordination."""
        self._loop.run(self._coordination.close())
        self._on_close()

    # -- read --------------------------------------------------------------------------------------

    def attach(self, on_view: OnView) -> None:
        """Call it on the loop with the present view, and with each later one before anyone else
        can see that. It handles its own errors."""
        self._loop.run(self._attach(on_view))

    async def _attach(self, on_view: OnView) -> None:
        on_view(self.view)
        self._on_view = on_view

    def changed(self) -> bool:
        """True if others changed records since the last call."""
        with self._news_lock:
            changed = bool(self._news)
            self._news.clear()
            return changed

    def look_again(self) -> None:
        """Make the next call of `changed` return True."""
        self._note_news(-1)

    def _note_news(self, revision: int) -> None:
        """To be called when the view shows it: who sees the news reads the view."""
        with self._news_lock:
            self._news.add(revision)

    def catch_up(self) -> None:
        """Wait until the view shows all that was committed before this call. Raises `away`."""
        self._loop.run(self._catch_up())

    def refresh(self) -> None:
        """Read all records that were committed before this call, ahead of the watch."""
        self._loop.run(self._refresh())

    def refresh_soon(self, then: Callable[[bool], None]) -> None:
        """The same without waiting; `then` is called on the loop, with False if that failed."""

        async def refresh() -> None:
            try:
                await self._refresh()
            except self._away as error:
                self._log.warning("records_not_read", error=str(error))
                then(False)
            else:
                then(True)

        self._loop.start(refresh())

    # -- on the loop -------------------------------------------------------------------------------

    async def _read(self) -> Snapshot:
        found = await self._coordination.read_all()
        if isinstance(found, Unavailable):
            raise self._away(f"cannot read the cluster's records: {found.reason}")
        return found

    async def _catch_up(self) -> None:
        """Commit nothing, and wait for the report of that: it comes behind all before it."""
        try:
            async with asyncio.timeout(self._shown_s):
                outcome = await self._coordination.commit(Transaction({}, {}))
        except TimeoutError:
            raise self._away("cannot read the cluster's records: no answer in time") from None
        if not isinstance(outcome, Done):
            raise self._away("cannot read the cluster's records now")
        await self._shown(outcome.revision)

    async def _refresh(self) -> None:
        found = await self._read()
        if found.revision > self.view.revision:
            self._adopted = found.revision
            self._show(_view_of(found))
            self._note_news(found.revision)

    def _on_change(self, change: Change) -> None:
        """Apply a change that the watch reports."""
        was, self._watched = self._watched, change.revision
        # A difference, or a step back after etcd was restored, counts for more than what was read.
        if change.revision <= self._adopted and change.revision > was and not change.revisions:
            return
        if change.records:
            records = dict(self.view.records)
            for key, value in change.records.items():
                if value is None:
                    records.pop(key, None)
                else:
                    records[key] = Record(key, value, change.revision_of(key))
            self._show(View(change.revision, records))
            if not self.quiet or any(not key.startswith(self.quiet) for key in change.records):
                self._note_news(change.revision)
        else:
            self._show(self.view._replace(revision=change.revision))

    def _show(self, view: View) -> None:
        if self._on_view is not None and view.records is not self.view.records:
            self._on_view(view)
        self.view = view
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
            await self._refresh()
        finally:
            self._awaited.remove(awaited)

    # -- write -------------------------------------------------------------------------------------

    def change(self, decide: Callable[[Draft], T]) -> T:
        """Commit what `decide` makes of the present records, and return its result.

        `decide` runs on the loop, more than once if others change the same records; its errors
        are raised here. Not for the loop's own thread. Raises `away`.
        """
        try:
            return self._loop.run(self._change(decide))
        except CancelledError:
            raise self._away("cannot change the cluster's records: this host stops") from None

    async def _change(self, decide: Callable[[Draft], T]) -> T:
        async with self._writing:
            for _ in range(_TRIES):
                draft = Draft(self.view)
                result = decide(draft)
                if not draft.changes or await self._commit(draft):
                    return result
        raise self._away("cannot change the cluster's records: others change them all the time")

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
            with self._news_lock:
                self._news.discard(outcome.revision)
            return True
        if isinstance(outcome, Unknown):
            await self._refresh()
            if self._shows(draft):
                return True
        raise self._away(f"cannot change the cluster's records: {outcome.reason}")

    def _shows(self, draft: Draft) -> bool:
        """True if the view shows what was to be written. Counters, which may have gone on, say
        nothing."""
        told = [key for key in draft.changes if not key.startswith(COUNTERS)]
        return bool(told) and all(self.view.value(key) == draft.changes[key] for key in told)


def _view_of(found: Snapshot) -> View:
    return View(found.revision, {record.key: record for record in found.records})
