"""ReadAhead: the Entries of a replica's log in the order in which a store applies them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from storage.log.entry import Entry
from storage.log.log import ReplicaLog

_AHEAD_BYTES = 1 << 20
"""Records of one read, unless a single one is longer."""


class ReadAhead:
    """The Entries that a store applies, from memory or, some at a time, from the disk.

    A host that replays a long log reads it in the lane for preparing segments: the event loop goes
    on.
    """

    def __init__(self, on_read: Callable[[], None]) -> None:
        """`on_read` is called when an Entry that was missing is there, or cannot be read."""
        self._on_read = on_read
        self._log: ReplicaLog | None = None
        """The log that was read; another one after a reopening."""
        self._first = 0
        """The index of the first record, or of the one that could not be read."""
        self._records: deque[bytes] = deque()
        self._is_reading = self._is_missing = False

    def entry(self, log: ReplicaLog, index: int) -> Entry | None:
        """An Entry; None while it is read from the disk. Raises OSError if that failed."""
        if records := log.entries.recent(index, 0):
            return log.decode(records[0])
        if self._is_reading:
            return None
        if self._log is log and self._first == index:
            if self._records:
                self._first += 1
                return log.decode(self._records.popleft())
            if self._is_missing:
                self._is_missing = False
                raise OSError("the log does not hold it")
        self._is_reading = True
        log.read(index, _AHEAD_BYTES, partial(self._got, log, index))
        return None

    def _got(self, log: ReplicaLog, first: int, records: list[bytes]) -> None:
        self._is_reading, self._is_missing = False, not records
        self._log, self._first, self._records = log, first, deque(records)
        self._on_read()
