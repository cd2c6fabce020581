"""Noted parts: each shard with a part of a queue notes all parts of that queue (rule 52).

etcd may be restored from before a split, a shrink or a move of parts. Then its record of the queue
names other parts than those that have the messages. The notes name them: they are rows of the
shard, as durable as its messages. A new leader compares them with the records and has the later
list written back (`cluster/shards/issued_ids.py`).

A queue that never had several parts has no note. The note goes with the queue. Where the shard's
own part went before, it stays for as long as receipt handles may name that part: until then it says
which numbers are taken. Such notes are looked at when others are written, a few at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

import msgspec
from typing_extensions import override

from visibility.contract.model import QueueDefinition, Request
from visibility.contract.operations import Operation
from visibility.contract.queue_parts import GONE_MS
from visibility.rows.overlay import RowReader
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import NOTED_PARTS, group_key
from visibility.rows.row_values import THE_SHARD, NotedParts
from visibility.rules.decided import Outcome
from visibility.rules.events import Event
from visibility.rules.operation_kinds import OperationKind, Operations
from visibility.rules.tables import GROUP_KEY, ShardTables, Table, keep_all
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp

_NAME_BYTES = 16
_LOOKED_AT = 4
"""Old notes that are looked at with each that is written."""


class NoteParts(Operation, frozen=True):
    """Note the parts of the request's queue; answers None."""


def name_of_note(queue: QueueDefinition) -> bytes:
    """The name of a queue's note. A queue that is made again under the same name has another."""
    arn, key = queue.arn.encode(), queue.receipt_key
    return blake2b(arn, digest_size=_NAME_BYTES, key=key, person=b"parts").digest()


def note_of(queue: QueueDefinition) -> NotedParts | None:
    """The note of a queue as it is now; None for one that never had several parts."""
    has_had = queue.parts or queue.gone or queue.number
    return parts_of(queue) if has_had else None


def parts_of(queue: QueueDefinition) -> NotedParts:
    """The same of any queue, to compare it with a note."""
    home = queue.parts[0] if queue.parts else queue
    return NotedParts(
        queue.account,
        queue.region,
        queue.name,
        queue.version,
        home.queue_id,
        home.shard,
        queue.parts,
        queue.last_part,
        queue.number,
        queue.gone,
    )


def decide_note_parts(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Note them, unless they are noted, or later ones."""
    noted = tuple(noted_parts(shard, request.queue))
    old = old_notes(shard, request.queue, stamp.now_ms) if noted else ()
    return None, (*old, *noted)


def noted_parts(shard: ShardState, queue: QueueDefinition) -> Iterator[PartsNoted]:
    """The event for a queue with a part here whose parts are not noted; none if they are, or later
    ones."""
    note = note_of(queue)
    if note is None:
        return
    name = name_of_note(queue)
    before = shard.noted_parts.get(name)
    if before is None or note.is_later(before):
        yield PartsNoted(queue.queue_id, name, note)


def dropped_part(
    shard: ShardState, queue: QueueDefinition, now_ms: int
) -> Iterator[PartsNoted | PartsForgotten]:
    """Events for the note of a queue whose part here is dropped: it is forgotten if the queue is
    gone, and cannot be restored."""
    name = name_of_note(queue)
    if name not in shard.noted_parts:
        return
    present = shard.definitions.queue_of_arn(queue.arn)
    is_same = present is not None and present.receipt_key == queue.receipt_key
    if not is_same and (present is not None or not shard.definitions.keeps(queue.arn)):
        yield PartsForgotten(queue.queue_id, name)
    else:
        yield from _looked_at(shard, queue, name, now_ms)


def old_notes(
    shard: ShardState, queue: QueueDefinition, now_ms: int
) -> Iterator[PartsNoted | PartsForgotten]:
    """Events for some notes of the shard with this queue, in turn: they are forgotten when nobody
    can have a receipt handle of a part that was here."""
    if not shard.notes_to_look_at:
        shard.notes_to_look_at = list(shard.noted_parts)
    for _ in range(_LOOKED_AT):
        if shard.notes_to_look_at:
            yield from _looked_at(shard, queue, shard.notes_to_look_at.pop(), now_ms)


def _looked_at(
    shard: ShardState, of_shard: QueueDefinition, name: bytes, now_ms: int
) -> Iterator[PartsNoted | PartsForgotten]:
    note = shard.noted_parts.get(name)
    if note is None:
        return
    left_at_ms = _left_at_ms(shard, of_shard.shard, name, note, now_ms)
    if left_at_ms and now_ms - left_at_ms >= GONE_MS:
        yield PartsForgotten(of_shard.queue_id, name)
    elif left_at_ms != note.left_at_ms:
        left = msgspec.structs.replace(note, left_at_ms=left_at_ms)
        yield PartsNoted(of_shard.queue_id, name, left)


def _left_at_ms(shard: ShardState, number: int, name: bytes, note: NotedParts, now_ms: int) -> int:
    """When it was first seen that the shard with this number has no part of a note's queue; 0 if
    it has one."""
    present = shard.definitions.queue_of_arn(note.arn)
    if present is not None and name_of_note(present) == name:
        if any(part.shard == number for part in present.all_parts()):
            return 0
    elif present is None and shard.definitions.keeps(note.arn):
        return note.left_at_ms  # it can be restored
    return note.left_at_ms or now_ms


# -- events ----------------------------------------------------------------------------------------


class PartsNoted(Event, frozen=True, gc=False):
    """A queue has these parts now."""

    name: bytes
    note: NotedParts

    @override
    def apply(self, shard: ShardState) -> None:
        shard.noted_parts[self.name] = self.note

    @override
    def record(self, changes: Changes) -> None:
        changes.put(group_key(THE_SHARD, NOTED_PARTS, self.name), encode_row(self.note))


class PartsForgotten(Event, frozen=True, gc=False):
    """The queue of a note is gone."""

    name: bytes

    @override
    def apply(self, shard: ShardState) -> None:
        shard.noted_parts.pop(self.name, None)

    @override
    def record(self, changes: Changes) -> None:
        changes.delete(group_key(THE_SHARD, NOTED_PARTS, self.name))


# -- rows ------------------------------------------------------------------------------------------


def _load(shard: ShardState, rows: RowReader) -> None:
    shard.noted_parts = {key[9:]: row for key, row in _TABLE.read(rows, THE_SHARD)}


_TABLE = Table(NOTED_PARTS, "noted parts", GROUP_KEY, NotedParts)
NOTED = ShardTables((_TABLE,), _load, keep_all(_TABLE))
OPERATIONS: Operations = {NoteParts: OperationKind(decide_note_parts, None)}
