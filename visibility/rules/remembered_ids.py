"""Ids of deduplication and of receive attempts: remembered for five minutes, then forgotten."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace
from typing_extensions import override

from visibility.contract.limits import DEDUPLICATION_WINDOW_SECONDS
from visibility.contract.model import QueueDefinition
from visibility.contract.queue_parts import Part
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import REMEMBERED, number_of, remembered_key, row_key, table_range
from visibility.rows.row_values import REMEMBER_BUCKET_MS, QueueRow, Remembered
from visibility.rules.events import Effects, Event
from visibility.rules.tables import GROUP_LINE_KEY, Table, Tables
from visibility.state.queue_state import QueueState
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp

REMEMBERED_MS = DEDUPLICATION_WINDOW_SECONDS * 1000
DRAINED_MS = REMEMBERED_MS + 30_000
"""Time after the start of draining from which on a part that has heard of it knows no ids. Half a
minute: clocks of two hosts differ by 20 s at most, and the change of the record takes a moment."""
_SENT_BEFORE_MS = REMEMBERED_MS + DRAINED_MS


def over_at(now_ms: int) -> Callable[[Part], bool]:
    """Says of a part between two others if it knows no id that counts for a transaction's send,
    whether or not it has heard that it drains: what it still knows it took five minutes after the
    transaction, which was accepted before that part began to drain."""
    return lambda part: not part.is_open and part.drained_for(_SENT_BEFORE_MS, now_ms)


class DeduplicationRecorded(Event, frozen=True):
    """Deduplication or attempt ids, by digest, have this meaning from now on."""

    ids: list[tuple[bytes, Remembered]]

    @override
    def apply(self, shard: ShardState) -> None:
        queue = shard.queue(self.queue_id)
        at_ms = self.ids[0][1].at_ms
        if not queue.remembered_ms:
            shard.plan_pulse(queue, at_ms + 2 * REMEMBERED_MS)
        queue.remembered_ms = at_ms

    @override
    def record(self, changes: Changes) -> None:
        for digest, remembered in self.ids:
            bucket_ms = remembered.at_ms // REMEMBER_BUCKET_MS * REMEMBER_BUCKET_MS
            key = remembered_key(self.queue_id, REMEMBERED, bucket_ms, digest)
            changes.put(key, encode_row(remembered))


class PurgeUndone(Event, frozen=True, gc=False):
    """The ids of a purged queue count again, in the heir: the queue that gets its messages."""

    heir_id: int

    @override
    def apply(self, shard: ShardState) -> None:
        purged, heir = shard.queue(self.queue_id), shard.queue(self.heir_id)
        purged.heir_id = self.heir_id
        heir.heir_of.append(self.queue_id)
        if heir.remembered_ms < purged.remembered_ms:
            shard.plan_pulse(heir, purged.remembered_ms + 2 * REMEMBERED_MS)
            heir.remembered_ms = purged.remembered_ms

    @override
    def record(self, changes: Changes) -> None:
        """Only the own rows of both queues change."""

    @override
    def tell(self, turn: Effects) -> None:
        turn.changed[self.heir_id] = None


def undone(queue: QueueState, heir_id: int) -> tuple[Event, ...]:
    """The event of the first step that restores messages of a purged queue to this one."""
    is_new = queue.remembered_ms and queue.heir_id != heir_id
    return (PurgeUndone(queue.queue_id, heir_id),) if is_new else ()


def ids_count_for_ms(queue: QueueState, now_ms: int) -> int:
    """Time for which the ids of a purged queue still count in its heir."""
    return max(0, queue.remembered_ms + REMEMBERED_MS - now_ms) if queue.heir_id else 0


def known_ids(
    shard: ShardState, queue: QueueState, digests: list[bytes], now_ms: int
) -> dict[bytes, Remembered]:
    """The meanings of deduplication ids in the queue, and in those whose heir it is, the later one
    if there are several."""
    known = shard.rows.remembered(queue.queue_id, digests, now_ms)
    if queue.heir_of:
        for purged in _undone(shard, queue):
            if purged.remembered_ms > now_ms - REMEMBERED_MS:
                known = shard.rows.remembered(purged.queue_id, digests, now_ms) | known
    return known


def _undone(shard: ShardState, queue: QueueState) -> list[QueueState]:
    """The purged queues whose messages came to this one, the latest first."""
    found: dict[int, QueueState] = {}
    heirs = [queue]
    while heirs:
        heir = heirs.pop()
        for purged in map(shard.queues.get, heir.heir_of):
            if purged is not None and purged.heir_id == heir.queue_id:
                found[purged.queue_id] = purged
                heirs.append(purged)
    return [found[queue_id] for queue_id in sorted(found, reverse=True)]


class DeduplicationForgotten(Event, frozen=True, gc=False):
    """Ids remembered before this instant expired; it is a multiple of REMEMBER_BUCKET_MS."""

    before_ms: int

    @override
    def apply(self, shard: ShardState) -> None:
        queue = shard.queue(self.queue_id)
        queue.forgotten_ms = self.before_ms
        if queue.remembered_ms < self.before_ms:
            queue.remembered_ms = 0

    @override
    def record(self, changes: Changes) -> None:
        begin, _ = table_range(self.queue_id, REMEMBERED)
        changes.delete_range(begin, row_key(self.queue_id, REMEMBERED, self.before_ms))


def forget_ids(
    shard: ShardState, queue: QueueState, definition: QueueDefinition, stamp: Stamp
) -> tuple[tuple[Event, ...], int | None]:
    """Forget ids five minutes after their use, by buckets; see `pulse.Step`."""
    if not queue.remembered_ms:
        return (), None
    now_ms = stamp.now_ms
    before_ms = (now_ms - REMEMBERED_MS) // REMEMBER_BUCKET_MS * REMEMBER_BUCKET_MS
    over = queue.remembered_ms < before_ms
    again = None if over else before_ms + REMEMBERED_MS + 2 * REMEMBER_BUCKET_MS
    if before_ms <= queue.forgotten_ms and not over:
        return (), again
    return (DeduplicationForgotten(queue.queue_id, before_ms),), again


def _is_own(key: bytes, remembered: Remembered) -> bool:
    return remembered.at_ms // REMEMBER_BUCKET_MS * REMEMBER_BUCKET_MS == number_of(key)


def _salvage(own: QueueRow, remembered: Remembered) -> QueueRow:
    if remembered.at_ms <= own.remembered_ms:
        return own
    return replace(own, remembered_ms=remembered.at_ms)


TABLES: Tables = (
    Table(
        REMEMBERED,
        "remembered",
        GROUP_LINE_KEY,
        Remembered,
        names_itself=_is_own,
        salvage=_salvage,
    ),
)
