"""Ids of deduplication and of receive attempts: remembered for five minutes, then forgotten."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from msgspec.structs import replace
from typing_extensions import override

from visibility.content.id_digests import DIGEST_BYTES
from visibility.contract.limits import DEDUPLICATION_WINDOW_SECONDS
from visibility.contract.model import QueueDefinition
from visibility.contract.queue_parts import Part
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import decode_row, encode_row
from visibility.rows.row_keys import REMEMBERED, number_of, remembered_key, row_key, table_range
from visibility.rows.row_values import REMEMBER_BUCKET_MS, QueueRow, Remembered
from visibility.rules.events import Event
from visibility.rules.tables import GROUP_LINE_KEY, Table, Tables
from visibility.state.queue_state import QueueState
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp

REMEMBERED_MS = DEDUPLICATION_WINDOW_SECONDS * 1000
DRAINED_MS = REMEMBERED_MS + 30_000
"""Time after the start of draining from which on a part that has heard of it knows no ids. Half a
minute: clocks of two hosts differ by 20 s at most, and the change of the record takes a moment."""
_RESTORED_IDS = 400
"""Ids of one step of a restoration."""
_SENT_BEFORE_MS = REMEMBERED_MS + DRAINED_MS


def over_at(now_ms: int) -> Callable[[Part], bool]:
    """Says of a part between two others if it knows no id that counts for a transaction's send,
    whether or not it has heard that it drains: what it still knows it took five minutes after the
    transaction, which was accepted before that part began to drain."""
    return lambda part: not part.is_open and part.drained_for(_SENT_BEFORE_MS, now_ms)


class DeduplicationRecorded(Event, frozen=True):
    """Deduplication or attempt ids, by digest, have this meaning from now on; the latest is the
    first."""

    ids: list[tuple[bytes, Remembered]]

    @override
    def apply(self, shard: ShardState) -> None:
        queue = shard.queue(self.queue_id)
        at_ms = self.ids[0][1].at_ms
        if not queue.remembered_ms:
            shard.plan_pulse(queue, at_ms + 2 * DEDUPLICATION_WINDOW_SECONDS * 1000)
        if queue.remembered_ms < at_ms:
            queue.remembered_ms = at_ms

    @override
    def record(self, changes: Changes) -> None:
        for digest, remembered in self.ids:
            bucket_ms = remembered.at_ms // REMEMBER_BUCKET_MS * REMEMBER_BUCKET_MS
            key = remembered_key(self.queue_id, REMEMBERED, bucket_ms, digest)
            changes.put(key, encode_row(remembered))


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


class IdsTaken(Event, frozen=True, gc=False):
    """The queue's ids below this key went to the queue that continues it."""

    end: bytes

    @override
    def apply(self, shard: ShardState) -> None:
        pass

    @override
    def record(self, changes: Changes) -> None:
        begin, _ = table_range(self.queue_id, REMEMBERED)
        changes.delete_range(begin, self.end)


class RestoredIds(NamedTuple):
    """Ids that return to a queue in one step."""

    events: tuple[Event, ...] = ()
    are_more: bool = False
    """True if there may be others."""


def restored_ids(shard: ShardState, queue: QueueState, to: QueueState, now_ms: int) -> RestoredIds:
    """Have `to` remember the next deduplication ids of a purged queue.

    An id that was used again since the purge keeps its later meaning. Raises DamagedRecord.
    """
    if not queue.remembered_ms:
        return RestoredIds()
    begin, end = table_range(queue.queue_id, REMEMBERED)
    rows = list(islice(shard.rows.store.scan(begin, end), _RESTORED_IDS))
    if not rows:
        return RestoredIds()
    ids = [(key[-DIGEST_BYTES:], decode_row(Remembered, key, value)) for key, value in rows]
    known = shard.rows.remembered(to.queue_id, [digest for digest, _ in ids], now_ms)
    taken = [
        (digest, remembered)
        for digest, remembered in ids
        if remembered.message_id
        and remembered.at_ms > now_ms - REMEMBERED_MS
        and digest not in known
    ]
    events: list[Event] = [IdsTaken(queue.queue_id, rows[-1][0] + b"\0")]
    if taken:
        taken.sort(key=lambda each: each[1].at_ms, reverse=True)
        events.append(DeduplicationRecorded(to.queue_id, taken))
    return RestoredIds(tuple(events), len(rows) == _RESTORED_IDS)


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
