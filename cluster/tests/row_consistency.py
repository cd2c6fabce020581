"""Checks after every turn that a shard's rows agree with its memory, and the tables with each
other."""

from __future__ import annotations

from functools import lru_cache

from storage.checks.consistency import check_queue, check_shard
from storage.tests.memory_store import MemoryStore
from visibility.contract.move_task import MoveTask
from visibility.contract.stored_message import Hold, Lease, StoredMessage
from visibility.rows.row_codec import decode_row
from visibility.rows.row_keys import (
    BLOCKED,
    GROUP,
    HOLD,
    LEASE,
    LOCKED,
    MESSAGE,
    MOVE_TASK,
    QUARANTINED,
    QUEUE,
    SPAN,
    number_of,
    queue_of,
)
from visibility.rows.row_values import THE_SHARD, GroupRow, Quarantined, QueueRow
from visibility.rows.state_rows import departures
from visibility.rules.features import TABLES
from visibility.state.queue_state import QueueState
from visibility.state.shard_state import ShardState

_KEPT_WHEN_EMPTY = {QUEUE, BLOCKED, LOCKED} | {
    table.prefix for table in TABLES.values() if table.salvage is not None
}


@lru_cache(maxsize=20_000)
def _decoded(kind: type[object], key: bytes, value: bytes) -> object:
    return decode_row(kind, key, value)


class QueueRows:
    """All rows of one queue, by table."""

    def __init__(self) -> None:
        self.raw: dict[bytes, dict[bytes, bytes]] = {}

    def table(self, table: bytes) -> dict[bytes, bytes]:
        return self.raw.get(table, {})

    def of_kind(self, table: bytes, kind: type) -> dict[int, object]:
        return {number_of(k): _decoded(kind, k, v) for k, v in self.table(table).items()}


def rows_by_queue(store: MemoryStore) -> dict[int, QueueRows]:
    """The rows of each queue."""
    found: dict[int, QueueRows] = {}
    for key, value in store.rows.items():
        rows = found.setdefault(queue_of(key), QueueRows())
        rows.raw.setdefault(key[8:9], {})[key] = value
    return found


def check_rows(store: MemoryStore, shard: ShardState) -> None:
    """Assert that every queue's rows agree with each other and with memory. O(rows)."""
    by_queue = rows_by_queue(store)
    if by_queue.pop(THE_SHARD, None) is not None:
        assert list(check_shard(store)) == []
        assert dict(departures(store)) == shard.outbox.departures
    for queue_id, rows in by_queue.items():
        queue = shard.queues.get(queue_id)
        assert queue is not None, f"queue {queue_id} has rows and is not in memory"
        assert list(check_queue(store, queue_id)) == []
        _check_queue(queue, rows)


def _check_queue(queue: QueueState, rows: QueueRows) -> None:
    """Check memory against the rows, which are known to agree with each other."""
    leases = rows.of_kind(LEASE, Lease)
    messages = {
        number_of(key): _decoded(StoredMessage, key, value)
        for key, value in rows.table(MESSAGE).items()
        if number_of(key) in leases or number_of(key) not in queue.quarantined
    }
    assert leases == {sequence: entry.lease for sequence, entry in queue.entries.items()}
    assert rows.of_kind(SPAN, int) == queue.spans
    assert rows.of_kind(MOVE_TASK, MoveTask) == queue.tasks
    marks = rows.of_kind(HOLD, Hold)  # after a start, also of messages that are gone
    assert queue.holds.items() <= marks.items()
    held = {number for number, entry in queue.entries.items() if entry.lease.is_held}
    assert held <= queue.holds.keys()
    assert len(messages) == queue.waiting + len(queue.entries)
    assert rows.of_kind(QUARANTINED, Quarantined) == queue.quarantined.spans
    assert {key[9:25] for key in rows.table(BLOCKED)} == queue.quarantined.groups.keys()
    assert {key[9:25] for key in rows.table(LOCKED)} == queue.locked.keys()
    ((key, value),) = rows.table(QUEUE).items()
    row = _decoded(QueueRow, key, value)
    assert isinstance(row, QueueRow)
    assert (row.waiting, row.delayed, row.aliases, row.listed) == (
        queue.waiting,
        queue.delayed,
        queue.aliases,
        queue.ready_groups.total,
    )
    assert (row.next_sequence, row.fifo) == (queue.next_sequence, queue.fifo)
    if not queue.fifo:
        waiting = [sequence for sequence in messages if sequence not in leases]
        assert min(waiting, default=queue.low_water) >= queue.low_water
    stored = {k[9:25]: _decoded(GroupRow, k, v) for k, v in rows.table(GROUP).items()}
    for group, known in queue.groups.items():
        assert stored.get(group, GroupRow()) == known or not (known.count or known.delayed)
    if not messages and not queue.delayed and not queue.quarantined.spans:
        left = [t.hex() for t in rows.raw if t not in _KEPT_WHEN_EMPTY and rows.table(t)]
        assert not left, f"an empty queue has rows in {left}"
        assert not queue.spans
