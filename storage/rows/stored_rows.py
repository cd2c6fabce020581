"""StoredRows: typed reads of one shard's rows over any store, for decisions and for a start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import NamedTuple

import structlog

from storage.checks.damage import Rows, walk_rows
from storage.engines.store import Store
from storage.rows.codec import ArchiveRow, DamagedRecord, QueueRow, decode_row
from storage.rows.keys import (
    ALIAS,
    ARCHIVE,
    BATCH,
    CLOCK,
    DELAYED,
    GROUP,
    GROUP_LINE,
    HEAD,
    LEASE,
    MESSAGE,
    MOVE_TASK,
    QUEUE,
    REMEMBERED,
    SPAN,
    group_key,
    group_line_key,
    last_number_of,
    message_key,
    number_of,
    pair_key,
    pair_of,
    queue_of,
    queue_range,
    remembered_key,
    row_key,
    table_range,
)
from visibility.contract.limits import DEDUPLICATION_WINDOW_SECONDS
from visibility.state.events import (
    REMEMBER_BUCKET_MS,
    THE_SHARD,
    GroupRow,
    Lease,
    MoveTask,
    Remembered,
    SealedBatch,
    StoredMessage,
)
from visibility.state.rows import Page

_DELAYED_PAGE_BYTES = 4 << 20
_REMEMBERED_MS = DEDUPLICATION_WINDOW_SECONDS * 1000
_NO_END = (1 << 64) - 1


class StoredQueue(NamedTuple):
    """What a restart needs to know of a queue: all of its leases, none of its waiting messages."""

    queue_id: int
    row: QueueRow
    leases: list[Lease]
    tasks: list[MoveTask]
    spans: dict[int, int]


_log = structlog.get_logger("rows")


class StoredRows:
    """See `visibility.state.rows.Rows`."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.before_read: Callable[[], None] = _nothing
        """Called before a read: writes what the running turn has in its batch."""
        self.damaged: set[bytes] = set()
        """Rows of messages that pages pass by, since they are not what was written."""
        self.unreadable: set[bytes] = set()
        """Where stretches begin that pages pass by, since their blocks cannot be read."""
        self.fresh: dict[tuple[int, bytes], Remembered] = {}
        """Ids that the running turn remembers: looking up an id, which every FIFO send does, need not write first."""

    def messages(self, queue_id: int, sequences: list[int]) -> list[StoredMessage | None]:
        """See `Rows.messages`."""
        self.before_read()
        keys = [row_key(queue_id, MESSAGE, sequence) for sequence in sequences]
        return self._messages(keys)

    def readable_messages(
        self, queue_id: int, sequences: list[int]
    ) -> list[tuple[int, StoredMessage]]:
        """See `Rows.readable_messages`."""
        self.before_read()
        keys = [row_key(queue_id, MESSAGE, sequence) for sequence in sequences]
        keys = [key for key in keys if key not in self.damaged]
        found = zip(keys, self._messages(keys), strict=True)
        return [(number_of(key), message) for key, message in found if message is not None]

    def _messages(self, keys: list[bytes]) -> list[StoredMessage | None]:
        return [
            None if value is None else decode_row(StoredMessage, key, value)
            for key, value in zip(keys, self.store.get_many(keys), strict=True)
        ]

    def delayed_message(self, queue_id: int, due_ms: int, sequence: int) -> StoredMessage:
        """A delayed message. Raises DamagedRecord, also if it does not exist."""
        self.before_read()
        key = pair_key(queue_id, DELAYED, due_ms, sequence)
        value = self.store.get(key)
        if value is None:
            raise DamagedRecord(key, "it is missing")
        return decode_row(StoredMessage, key, value)

    def line(
        self, queue_id: int, from_sequence: int, until_sequence: int, *, messages: int, size: int
    ) -> Page:
        """See `Rows.line`."""
        self.before_read()
        begin, end = message_key(queue_id, from_sequence), message_key(queue_id, until_sequence)
        found: list[tuple[int, StoredMessage]] = []
        for key, value in self._readable(begin, end):
            if len(found) == messages or size <= 0:
                return Page(found, number_of(key), self._misses_some(queue_id))
            if key in self.damaged:
                continue
            message = decode_row(StoredMessage, key, value)
            found.append((number_of(key), message))
            size -= len(message.data)
        return Page(found, None, self._misses_some(queue_id))

    def _misses_some(self, queue_id: int) -> bool:
        keys = chain(self.unreadable, self.damaged)
        return any(queue_of(key) == queue_id for key in keys)

    def _readable(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The rows that can be read; those of a damaged block are passed by, and reported once."""
        for found in walk_rows(self.store, begin, end):
            if not isinstance(found, DamagedRecord):
                yield found
            elif found.key not in self.unreadable:
                self.unreadable.add(found.key)
                _log.error("rows_unreadable", queue_id=queue_of(found.key), error=str(found))

    def delayed(
        self, queue_id: int, limit: int, *, after: tuple[int, int] = (0, 0)
    ) -> list[tuple[int, int, StoredMessage]]:
        """See `Rows.delayed`."""
        self.before_read()
        begin = pair_key(queue_id, DELAYED, after[0], after[1] + 1)
        end = table_range(queue_id, DELAYED)[1]
        found: list[tuple[int, int, StoredMessage]] = []
        size = _DELAYED_PAGE_BYTES
        for key, value in self._readable(begin, end):
            if key in self.damaged:
                continue
            message = decode_row(StoredMessage, key, value)
            found.append((*pair_of(key), message))
            size -= len(message.data)
            if len(found) == limit or size <= 0:
                break
        return found

    def clocks(
        self, queue_id: int, limit: int, *, after: tuple[int, int] = (0, 0)
    ) -> list[tuple[int, int]]:
        """See `Rows.clocks`."""
        self.before_read()
        begin = pair_key(queue_id, CLOCK, after[0], after[1] + 1)
        rows = self.store.scan(begin, table_range(queue_id, CLOCK)[1])
        pairs = (pair_of(key) for key, _ in rows)
        sound = (pair for pair in pairs if message_key(queue_id, pair[1]) not in self.damaged)
        return list(islice(sound, limit))

    def group(self, queue_id: int, group: bytes) -> GroupRow | None:
        """See `Rows.group`."""
        self.before_read()
        key = group_key(queue_id, GROUP, group)
        value = self.store.get(key)
        return None if value is None else decode_row(GroupRow, key, value)

    def group_line(
        self, queue_id: int, group: bytes, from_sequence: int, limit: int
    ) -> list[tuple[int, Lease | None]]:
        """See `Rows.group_line`."""
        self.before_read()
        begin = group_line_key(queue_id, GROUP_LINE, group, from_sequence)
        end = group_line_key(queue_id, GROUP_LINE, group, _NO_END)
        return [
            (last_number_of(key), decode_row(Lease, key, value) if value else None)
            for key, value in islice(self.store.scan(begin, end), limit)
        ]

    def heads(self, queue_id: int, from_order: int, limit: int) -> list[tuple[int, bytes]]:
        """See `Rows.heads`."""
        self.before_read()
        begin, end = row_key(queue_id, HEAD, from_order), table_range(queue_id, HEAD)[1]
        return [
            (number_of(key), group) for key, group in islice(self.store.scan(begin, end), limit)
        ]

    def alias(self, queue_id: int, handle_sequence: int) -> int | None:
        """See `Rows.alias`."""
        self.before_read()
        key = row_key(queue_id, ALIAS, handle_sequence)
        value = self.store.get(key)
        return None if value is None else decode_row(int, key, value)

    def remembered(
        self, queue_id: int, digests: list[bytes], now_ms: int
    ) -> dict[bytes, Remembered]:
        """See `Rows.remembered`."""
        begin_ms = now_ms - _REMEMBERED_MS + 1
        last_ms = now_ms // REMEMBER_BUCKET_MS * REMEMBER_BUCKET_MS
        first_ms = begin_ms // REMEMBER_BUCKET_MS * REMEMBER_BUCKET_MS
        names = [
            (remembered_key(queue_id, REMEMBERED, bucket_ms, digest), digest)
            for bucket_ms in range(first_ms, last_ms + 1, REMEMBER_BUCKET_MS)
            for digest in digests
        ]
        found: dict[bytes, Remembered] = {}
        values = self.store.get_many([key for key, _ in names])
        for (key, digest), value in zip(names, values, strict=True):
            if value is not None:
                remembered = decode_row(Remembered, key, value)
                if remembered.at_ms >= begin_ms:
                    found[digest] = remembered
        if self.fresh:
            for digest in digests:
                fresh = self.fresh.get((queue_id, digest))
                if fresh is not None:
                    found[digest] = fresh
        return found

    # -- a start ----------------------------------------------------------------------------------------------------------

    def load(self) -> Iterator[StoredQueue]:
        """All queues. O(queues + messages in flight + spans), whatever waits. Raises DamagedRecord."""
        queue_id = THE_SHARD + 1
        while True:
            first = next(self.store.scan(queue_range(queue_id)[0], b"\xff" * 8), None)
            if first is None:
                return
            key, value = first
            queue_id = queue_of(key)
            own = queue_range(queue_id)[0] + QUEUE
            if key != own:
                raise DamagedRecord(own, "the queue has messages but no row of its own")
            row = decode_row(QueueRow, key, value)
            yield StoredQueue(
                queue_id,
                row,
                [decode_row(Lease, k, v) for k, v in self._table(queue_id, LEASE)],
                [decode_row(MoveTask, k, v) for k, v in self._table(queue_id, MOVE_TASK)],
                {number_of(k): decode_row(int, k, v) for k, v in self._table(queue_id, SPAN)},
            )
            queue_id += 1

    def _table(self, queue_id: int, table: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self.store.scan(*table_range(queue_id, table))


def load_archive(rows: Rows) -> tuple[ArchiveRow | None, list[SealedBatch]]:
    """What a shard knows of its archive, None if it never had one, and the batches that wait. Raises DamagedRecord."""
    key = row_key(THE_SHARD, ARCHIVE, 0)
    value = rows.get(key)
    if value is None:
        return None, []
    batches = rows.scan(*table_range(THE_SHARD, BATCH))
    return decode_row(ArchiveRow, key, value), [decode_row(SealedBatch, k, v) for k, v in batches]


def _nothing() -> None:
    """No turn is running."""
