"""Journal: makes durable what a replica appends, promises and acknowledges.

How its files are opened, and what is found out then, is in `journal_files.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from cluster.replication.journal_files import JournalFiles
from storage.log import LogFailed, Promise


class Journal(JournalFiles):
    """The files of one replica."""

    def sync(self) -> None:
        """Make durable what was written; one sync at a time."""
        if self._is_syncing:
            self._wants_sync = True
            return
        self._is_syncing = True
        self.log.sync(partial(self._synced, self._openings))

    def _synced(self, opening: int, failure: LogFailed | None) -> None:
        if opening != self._openings or not self.is_open:
            return
        self._is_syncing = False
        if failure is not None:
            self._on_failed(str(failure))
            return
        if self._wants_sync:
            self._wants_sync = False
            self.sync()
        self._on_synced()

    def give(self, promise: Promise, given: Callable[[], None]) -> bool:
        """Make a promise durable, then call `given`; False if another one stands."""
        assert self._promises is not None
        if promise.term <= self.standing.term:
            return False
        self._promises.write(promise, partial(self._given, self._openings, promise, given))
        self._pending = promise
        return True

    def keep(self, index: int) -> None:
        """Make durable that the log is kept as it is up to `index`, or from 0 on no longer."""
        assert self._promises is not None
        promise = msgspec.structs.replace(self.standing, kept=index)
        self._promises.write(promise, partial(self._kept, self._openings, index))

    def _kept(self, opening: int, index: int, error: Exception | None) -> None:
        if opening == self._openings and self.is_open:
            if error is None:
                self._promise = msgspec.structs.replace(self._promise, kept=index)
            else:
                self._on_failed(f"cannot write the promise: {error}")

    def _given(
        self, opening: int, promise: Promise, given: Callable[[], None], error: Exception | None
    ) -> None:
        if opening != self._openings or not self.is_open:
            return
        if error is not None:
            self._on_failed(f"cannot write the promise: {error}")
            return
        self._promise = promise
        if self._pending is promise:
            self._pending = None
        given()

    def note(self) -> None:
        """Note how much is durable, unless that is noted or on its way."""
        if self._is_noting or self._note is None or self.log.synced_index == self._noted:
            return
        self._is_noting = True
        position = self.synced
        self._note.write(position, partial(self._note_written, self._openings, position.index))

    def _note_written(self, opening: int, index: int, error: Exception | None) -> None:
        if opening == self._openings and self.is_open:
            self._is_noting = False
            if error is None:
                self._noted = index
