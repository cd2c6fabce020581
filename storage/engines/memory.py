"""MemoryStore: the store contract without a disk, for tests and simulation. It can lose power.

`sync` makes what was committed so far durable and releases it; `crash` forgets the rest. With `auto_sync` every commit is
synced at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator

_Change = tuple[str, bytes, bytes]


class MemoryBatch:
    """Changes in order."""

    def __init__(self) -> None:
        self.changes: list[_Change] = []

    def put(self, key: bytes, value: bytes) -> None:
        """See `Batch.put`."""
        self.changes.append(("put", key, value))

    def delete(self, key: bytes) -> None:
        """See `Batch.delete`."""
        self.changes.append(("delete", key, b""))

    def delete_range(self, begin: bytes, end: bytes) -> None:
        """See `Batch.delete_range`."""
        self.changes.append(("delete_range", begin, end))


class MemoryStore:
    """Rows in a dict, with a durable copy behind it."""

    def __init__(self, *, auto_sync: bool = True) -> None:
        self.batch = MemoryBatch()
        self.auto_sync = auto_sync
        self.came_back_shorter = False
        self.rows: dict[bytes, bytes] = {}
        self.durable: dict[bytes, bytes] = {}
        self._sorted: list[bytes] | None = None
        """The keys in order, None while they are not known."""
        self._unsynced: list[_Change] = []
        self._releases: list[Callable[[], None]] = []

    def commit(self, release: Callable[[], None]) -> None:
        """See `Store.commit`."""
        self.write()
        self._releases.append(release)
        if self.auto_sync:
            self.sync()

    def sync(self) -> None:
        """Make everything that was committed durable and release it."""
        _change(self.durable, self._unsynced)
        self._unsynced = []
        releases, self._releases = self._releases, []
        for release in releases:
            release()

    def crash(self) -> None:
        """Lose power: what was not synced is gone, and nobody is told."""
        self.batch = MemoryBatch()
        self._unsynced = []
        self._releases = []
        self.rows = dict(self.durable)
        self._sorted = None

    def write(self) -> None:
        """See `Store.write`."""
        if not self.batch.changes:
            return
        self._sorted = None
        _change(self.rows, self.batch.changes)
        self._unsynced += self.batch.changes
        self.batch = MemoryBatch()

    def get(self, key: bytes) -> bytes | None:
        """See `Store.get`."""
        return self.rows.get(key)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """See `Store.get_many`."""
        return [self.rows.get(key) for key in keys]

    def scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See `Store.scan`."""
        if self._sorted is None:
            self._sorted = sorted(self.rows)
        keys = self._sorted
        for key in keys[bisect_left(keys, begin) : bisect_left(keys, end)]:
            yield key, self.rows[key]

    def close(self) -> None:
        """See `Store.close`."""
        self.write()
        self.sync()

    def abandon(self) -> None:
        """See `Store.abandon`."""
        self.batch = MemoryBatch()


def _change(rows: dict[bytes, bytes], changes: list[_Change]) -> None:
    for kind, key, value in changes:
        if kind == "put":
            rows[key] = value
        elif kind == "delete":
            rows.pop(key, None)
        else:
            for doomed in [row for row in rows if key <= row < value]:
                del rows[doomed]
