"""MemoryStore: the store contract without a disk, for tests and simulation. It can lose power.

`sync` makes what was committed so far durable and releases it; `crash` forgets the rest. With `auto_sync` every commit is
synced at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator

from storage.codec import DamagedRecord, decode_lease, decode_message, decode_queue
from storage.keys import LEASE, message_key, queue_key, queue_of, table_range
from storage.store import MessageName, Page, StoredQueue, page_of
from visibility.events import StoredMessage

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
        self.rows: dict[bytes, bytes] = {}
        self.durable: dict[bytes, bytes] = {}
        self._unsynced: list[_Change] = []
        self._releases: list[Callable[[], None]] = []

    def commit(self, release: Callable[[], None]) -> None:
        """See `Store.commit`."""
        self._write_out()
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

    def _write_out(self) -> None:
        _change(self.rows, self.batch.changes)
        self._unsynced += self.batch.changes
        self.batch = MemoryBatch()

    def _range(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        keys = sorted(self.rows)
        for key in keys[bisect_left(keys, begin) : bisect_left(keys, end)]:
            yield key, self.rows[key]

    def read_page(
        self, queue_id: int, from_sequence: int, until_sequence: int, *, messages: int, size: int
    ) -> Page:
        """See `Store.read_page`."""
        begin, end = message_key(queue_id, from_sequence), message_key(queue_id, until_sequence)
        return page_of(self._range(begin, end), messages=messages, size=size)

    def read_messages(self, names: list[MessageName]) -> list[StoredMessage | None]:
        """See `Store.read_messages`."""
        keys = [message_key(queue_id, sequence) for queue_id, sequence in names]
        return [decode_message(key, self.rows[key]) if key in self.rows else None for key in keys]

    def load(self) -> Iterator[StoredQueue]:
        """See `Store.load`."""
        for queue_id in sorted({queue_of(key) for key in self.rows}):
            key = queue_key(queue_id)
            if key not in self.rows:
                raise DamagedRecord(key, "the queue has messages but no row of its own")
            leases = [
                decode_lease(lease, value)
                for lease, value in self._range(*table_range(queue_id, LEASE))
            ]
            yield StoredQueue(queue_id, decode_queue(key, self.rows[key]), leases)

    def close(self) -> None:
        """See `Store.close`."""
        self._write_out()
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
