"""MemoryStore: the store contract without a disk, for tests and simulation. It can lose power.

`sync_all` makes appended Entries durable and commits them; `crash` drops the rest. With `auto_sync`
every Entry is synced at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence

from typing_extensions import override

from storage.engines.store import Done
from storage.healing.rebuild import Healed, rebuild
from storage.rows.entry_body import decode_body
from storage.rows.stored_rows import CHANGED_BYTES_MAX
from visibility.rows.overlay import RowReader
from visibility.rows.row_changes import Changes, Ops


class MemoryStore(RowReader):
    """Rows in a dict, with a durable copy behind it."""

    shared = None

    def __init__(self, *, auto_sync: bool = True) -> None:
        self.auto_sync = auto_sync
        self.turn_bytes_max = CHANGED_BYTES_MAX
        self.came_back_shorter = False
        self._damaged: list[int] = []
        """Queues to rebuild."""
        self.has_room = True
        self.rows: dict[bytes, bytes] = {}
        self.durable: dict[bytes, bytes] = {}
        """Rows that a start finds after a loss of power: those of all synced Entries."""
        self._sorted: list[bytes] | None = None
        """The keys in order, None until computed."""
        self._unsynced: list[bytes] = []
        self._waiting: list[Done] = []

    def on_room(self, call: Callable[[], object]) -> None:
        """See `Store.on_room`. Tests let the shard go on themselves."""

    def append(self, body: bytes, queue_ids: Sequence[int]) -> None:
        """See `Store.append`."""
        self._unsynced.append(body)

    def sync(self, done: Done) -> None:
        """See `Store.sync`."""
        self._waiting.append(done)
        if self.auto_sync:
            self.sync_all()

    def sync_all(self) -> None:
        """Make all appended Entries durable, and report it."""
        for body in self._unsynced:
            change_rows(self.durable, decode_body(body).ops)
        self._unsynced = []
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done(None)

    def apply(self, changes: Changes) -> None:
        """See `Store.apply`."""
        self._sorted = None
        change_rows(self.rows, changes.ops)

    def crash(self) -> None:
        """Lose power: unsynced data is gone, and no callback is called."""
        self._unsynced = []
        self._waiting = []
        self.rows = dict(self.durable)
        self._sorted = None

    @override
    def get(self, key: bytes) -> bytes | None:
        return self.rows.get(key)

    @override
    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        return [self.rows.get(key) for key in keys]

    @override
    def scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key in self.names(begin, end):
            yield key, self.rows[key]

    @override
    def names(self, begin: bytes, end: bytes) -> Iterator[bytes]:
        if self._sorted is None:
            self._sorted = sorted(self.rows)
        keys = self._sorted
        yield from keys[bisect_left(keys, begin) : bisect_left(keys, end)]

    def write(self, ops: Ops) -> None:
        """Change rows outside of an Entry, durably."""
        for rows in (self.rows, self.durable):
            change_rows(rows, ops)
        self._sorted = None

    @property
    def needs_healing(self) -> bool:
        """See `Store.needs_healing`."""
        return bool(self._damaged)

    def note_damage(self, queue_id: int, reason: str) -> None:
        """See `Store.note_damage`."""
        self._damaged.append(queue_id)

    async def heal(self, known: Mapping[int, bool]) -> list[Healed]:
        """See `Store.heal`."""
        fresh: dict[bytes, bytes] = {}
        healed = rebuild(
            self, lambda changes: change_rows(fresh, changes.ops), known, noted=self._damaged
        )
        self.rows, self.durable, self._sorted = fresh, dict(fresh), None
        self._damaged = []
        return healed

    async def close(self) -> None:
        """See `Store.close`."""
        self.sync_all()

    async def abandon(self) -> None:
        """See `Store.abandon`."""
        self.crash()


def change_rows(rows: dict[bytes, bytes], ops: Ops) -> None:
    """Apply changes to rows."""
    for place in range(0, len(ops), 2):
        key, change = ops[place], ops[place + 1]
        assert isinstance(key, bytes)
        if change is None:
            rows.pop(key, None)
        elif isinstance(change, bytes):
            rows[key] = change
        else:
            for doomed in [row for row in rows if key <= row < change[0]]:
                del rows[doomed]


class CountingStore(MemoryStore):
    """Counts the rows that are read."""

    reads = 0

    def get(self, key: bytes) -> bytes | None:
        self.reads += 1
        return super().get(key)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        self.reads += len(keys)
        return super().get_many(keys)

    def scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for row in super().scan(begin, end):
            self.reads += 1
            yield row
