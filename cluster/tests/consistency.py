"""What must be true of a shard's rows and of its memory after every turn: the tables say the same as each other."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

from storage.codec import QueueRow, decode_row
from storage.consistency import check_queue
from storage.keys import (
    ALIAS,
    CLOCK,
    DELAYED,
    GROUP,
    GROUP_LINE,
    HEAD,
    LEASE,
    MESSAGE,
    MOVE_TASK,
    OF_MESSAGES,
    QUEUE,
    REMEMBERED,
    SPAN,
    last_number_of,
    number_of,
    pair_of,
    queue_of,
)
from storage.memory import MemoryStore
from visibility.events import GroupRow, Lease, MoveTask, StoredMessage
from visibility.state import SPAN_BITS, QueueState, ShardState


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
    for queue_id, rows in rows_by_queue(store).items():
        queue = shard.queues.get(queue_id)
        assert queue is not None, f"queue {queue_id} has rows and is not in memory"
        _check_queue(queue, rows)
        assert not list(check_queue(store, queue_id)), "what `holdfast verify` looks at agrees too"


def _check_queue(queue: QueueState, rows: QueueRows) -> None:
    messages: dict[int, StoredMessage] = rows.of_kind(MESSAGE, StoredMessage)  # type: ignore[assignment]
    leases: dict[int, Lease] = rows.of_kind(LEASE, Lease)  # type: ignore[assignment]
    delayed: list[StoredMessage] = [
        _decoded(StoredMessage, k, v)  # type: ignore[misc]
        for k, v in rows.table(DELAYED).items()
    ]
    _check_counts(queue, rows, messages, leases)
    assert len(delayed) == queue.delayed, f"{len(delayed)} delayed rows, {queue.delayed} counted"
    _check_names(queue, rows, messages)
    _check_groups(queue, rows, messages, leases, delayed)
    if not messages and not delayed:
        left = [t.hex() for t in OF_MESSAGES if t != REMEMBERED and rows.table(t)]
        assert not left, f"an empty queue has rows in {left}"
        assert not queue.spans


def _check_counts(
    queue: QueueState,
    rows: QueueRows,
    messages: dict[int, StoredMessage],
    leases: dict[int, Lease],
) -> None:
    spans = dict(Counter(sequence >> SPAN_BITS for sequence in messages))
    assert rows.of_kind(SPAN, int) == spans, "every message is counted in its span"
    assert queue.spans == spans
    assert len(messages) == queue.waiting + len(queue.entries)
    assert leases == {sequence: entry.lease for sequence, entry in queue.entries.items()}
    assert leases.keys() <= messages.keys(), "a lease without a message"
    assert max(messages, default=0) < queue.next_sequence
    for sequence, lease in leases.items():
        message = messages[sequence]
        names = (message.group, message.clock_ms, message.handle_sequence)
        assert (lease.group, lease.clock_ms, lease.handle_sequence) == names
    (value,) = rows.table(QUEUE).items()
    row = _decoded(QueueRow, *value)
    assert isinstance(row, QueueRow)
    assert (row.waiting, row.delayed, row.aliases, row.listed) == (
        queue.waiting,
        queue.delayed,
        queue.aliases,
        queue.heads.total,
    )
    assert (row.next_sequence, row.fifo) == (queue.next_sequence, queue.fifo)
    assert rows.of_kind(MOVE_TASK, MoveTask) == queue.tasks
    if not queue.fifo:
        waiting = [sequence for sequence in messages if sequence not in leases]
        assert min(waiting, default=queue.low_water) >= queue.low_water


def _check_names(queue: QueueState, rows: QueueRows, messages: dict[int, StoredMessage]) -> None:
    clocks = {pair_of(key) for key in rows.table(CLOCK)}
    assert clocks == {(m.clock_ms, s) for s, m in messages.items() if m.clock_ms}, "clocks"
    aliases = rows.of_kind(ALIAS, int)
    assert aliases == {m.handle_sequence: s for s, m in messages.items() if m.handle_sequence}
    assert len(aliases) == queue.aliases


def _check_groups(
    queue: QueueState,
    rows: QueueRows,
    messages: dict[int, StoredMessage],
    leases: dict[int, Lease],
    delayed: list[StoredMessage],
) -> None:
    lines: dict[bytes, list[int]] = {}
    for key in rows.table(GROUP_LINE):
        lines.setdefault(key[9:25], []).append(last_number_of(key))
    wanted: dict[bytes, list[int]] = {}
    for sequence, message in messages.items():
        if message.group and sequence not in leases:
            wanted.setdefault(message.group, []).append(sequence)
    assert {g: sorted(line) for g, line in lines.items()} == {
        g: sorted(line) for g, line in wanted.items()
    }, "the lines of the groups"
    stored = {k[9:25]: _decoded(GroupRow, k, v) for k, v in rows.table(GROUP).items()}
    delays = Counter(message.group for message in delayed if message.group)
    assert stored.keys() == lines.keys() | delays.keys(), "groups"
    heads = {number_of(key): group for key, group in rows.table(HEAD).items()}
    assert len(heads) == queue.heads.total
    listed = {}
    for group, row in stored.items():
        assert isinstance(row, GroupRow)
        line = lines.get(group, [])
        assert (row.count, row.delayed) == (len(line), delays[group])
        assert not line or row.first <= min(line)
        may_go = bool(line) and (
            not queue.fifo or min(line) < min(queue.held.get(group, ()), default=min(line) + 1)
        )
        assert bool(row.order) == may_go, f"listed: {bool(row.order)}, may go: {may_go}"
        if row.order:
            listed[row.order] = group
        known = queue.groups.get(group)
        assert known is None or known == row
    assert heads == listed, "heads"
