"""Parts of a queue: a part that drains closes, says what it still has, and when it has nothing.

A closed part decides no send: it answers Moved, and the gateway goes on to an open part. What the
part has is received, changed and deleted as before. Closing and the end of draining are events of
the part's shard: whoever leads it later knows them.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from typing_extensions import override

from visibility.contract.errors import Moved, ServiceUnavailable
from visibility.contract.limits import IN_FLIGHT_MAX
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.operations import Operation
from visibility.contract.outcomes import MessagesFound, PartReading
from visibility.contract.priority import is_strict
from visibility.rows.overlay import RowReader
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import PART, number_of, row_key
from visibility.rows.row_values import THE_SHARD, PartRow
from visibility.rules.decided import NoAnswer, Outcome
from visibility.rules.events import Event
from visibility.rules.levelling import hold_back, lets_some_go, without_messages
from visibility.rules.noted_parts import PartsNoted, noted_parts
from visibility.rules.operation_kinds import OperationKind, Operations
from visibility.rules.orders import order_of
from visibility.rules.remembered_ids import REMEMBERED_MS
from visibility.rules.tables import NUMBER_KEY, ShardTables, Table, keep_all
from visibility.state.queue_state import QueueState
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp

GIVES_OUT_MS = 600_000
"""Time after its closing for which a part gives messages to receives."""
RETRIES_OVER_MS = 600_000
"""A part of a shard that remembers answers is not gone before the last send that it decided can be
asked for no more."""


class CheckPart(Operation, frozen=True):
    """Say what the request's part has; one that drains closes. Answers `outcomes.PartReading`."""


class PartsAdded(Operation, frozen=True):
    """Look at the long polls of a queue that was one until now, so that they end here, and go on
    at all parts; answers None."""


class FindMessages(Operation, frozen=True):
    """Say that a part has messages to receive; answers `outcomes.MessagesFound`, or
    `Deliveries` without any after the wait. It takes none."""

    wait_time_seconds: int = 0


def check_open(shard: ShardState, definition: QueueDefinition) -> None:
    """Raises Moved if this part takes no messages any more (rule 41)."""
    if shard.is_closed(definition.queue_id):
        raise Moved(f"A part of queue {definition.name} is closed.")


def closing(shard: ShardState, definition: QueueDefinition, now_ms: int) -> tuple[Event, ...]:
    """Close a part that drains, behind which a question is answered; no events if it is closed.

    Raises ServiceUnavailable if this host has not heard that it drains.
    """
    if _row(shard, definition).closed_version:
        return ()
    if not definition.parts or definition.part.is_open:
        raise ServiceUnavailable()
    return (_closed(definition, now_ms),)


def shares_out(queue: QueueDefinition) -> bool:
    """True for a queue with parts of which each has its own groups."""
    return bool(queue.parts) and order_of(queue.settings).parts_have_groups


def open_part(
    shard: ShardState, queue: QueueDefinition, stamp: Stamp, group: bytes, refused_by: int = 0
) -> QueueDefinition | None:
    """A part that takes a message which is not from a client: that of its group if parts have
    groups, else one drawn by chance, but not that with the id `refused_by`; of an unsplit queue
    itself. None if this shard knows of no such part."""
    if order_of(queue.settings).parts_have_groups:
        return queue.part_for(group)
    if not queue.parts:
        return None if queue.queue_id == refused_by else queue
    known = [
        part
        for part in queue.parts
        if part.is_open and part.queue_id != refused_by and not shard.is_closed(part.queue_id)
    ]
    return queue.of_part(known[stamp.bits128() % len(known)]) if known else None


def in_flight_max(definition: QueueDefinition) -> int:
    """Limit of the messages in flight of one part. Each has an equal share, so that together they
    stay below the queue's limit."""
    return IN_FLIGHT_MAX // (len(definition.parts) or 1)


def blocked_by(queue: QueueState) -> str:
    """The reason for which a closed part may transfer nothing now; empty for none."""
    if queue.active_task is not None:
        return "a message move task"
    if queue.continues:
        return "purged messages that can be restored"
    return ""


def gives_nothing(shard: ShardState, queue: QueueState, now_ms: int) -> bool:
    """True for a part that closed long ago: what it has is to leave, not to be received here again
    and again. Where nothing can leave, it is received."""
    row = shard.parts.get(queue.queue_id)
    if row is None or not row.closed_version or now_ms - row.closed_at_ms < GIVES_OUT_MS:
        return False
    return not blocked_by(queue)


def unfinished_changes(
    shard: ShardState, now_ms: int, number: int
) -> Iterator[PartsNoted | PartChanged]:
    """Events for parts of the shard with this number that are not noted, or that drain in the
    catalog and are not closed here: a crash came between, the queue was split by an older version,
    or the rows that said so are lost, perhaps with all others."""
    for definition in shard.definitions.all_queues():
        if definition.shard != number:
            continue
        yield from noted_parts(shard, definition)
        drains = definition.parts and not definition.part.is_open
        if drains and not _row(shard, definition).closed_version:
            yield _closed(definition, now_ms)


def decide_check_part(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Read the part. One that drains closes, and it is noted once it is empty."""
    definition = request.queue
    row, queue = _row(shard, definition), shard.queue(definition.queue_id)
    is_open = not definition.parts or definition.part.is_open
    events: tuple[Event, ...] = ()
    if not is_open and not row.closed_version:
        closed = _closed(definition, stamp.now_ms)
        row, events = closed.row, (closed,)
    waits = "" if is_open else _waits_for(shard, queue, row, stamp.now_ms)
    if row.closed_version and not row.drained_version and not waits:
        drained = PartChanged(
            definition.queue_id, msgspec.structs.replace(row, drained_version=definition.version)
        )
        row, events = drained.row, (*events, drained)
    if row.closed_version and not row.drained_version:
        shard.plan_pulse(queue, stamp.now_ms)  # transfers go on
    shown = queue.counters()
    return PartReading(
        row.closed_version,
        row.drained_version,
        queue.next_sequence,
        shown.visible,
        shown.in_flight,
        shown.delayed,
        queue.stored + queue.quarantined.lost + queue.departed,
        waits,
        queue.size + queue.departed_size,
    ), events


def decide_parts_added(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Have the polls decided anew: with parts none may wait here."""
    shard.to_wake[request.queue.queue_id] = None
    return None, ()


def decide_find_messages(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Say how many messages could be received, or wait for some."""
    operation = request.operation
    assert isinstance(operation, FindMessages)
    definition = request.queue
    queue = shard.queue(definition.queue_id)
    is_over = gives_nothing(shard, queue, stamp.now_ms)
    ready = order_of(definition.settings).ready(queue)
    if ready > 0 and not is_over and queue.in_flight < in_flight_max(definition):
        if not definition.settings.own_tags or lets_some_go(queue, definition, stamp.now_ms):
            first = queue.first_place if is_strict(definition.settings.own_tags) else 0
            return MessagesFound(ready, first), ()
        hold_back(shard, queue, definition, stamp.now_ms)
    return (NoAnswer.PARK if operation.wait_time_seconds else without_messages(queue)), ()


def _row(shard: ShardState, definition: QueueDefinition) -> PartRow:
    return shard.parts.get(definition.queue_id) or PartRow(definition.part_number)


def _closed(definition: QueueDefinition, now_ms: int) -> PartChanged:
    row = PartRow(definition.part.number, definition.version, now_ms)
    return PartChanged(definition.queue_id, row)


def _waits_for(shard: ShardState, queue: QueueState, row: PartRow, now_ms: int) -> str:
    """The reason for which a closed part is not drained; empty for none."""
    blocked = blocked_by(queue)
    if queue.stored and blocked:
        return blocked
    if queue.in_flight:
        return f"{queue.in_flight} messages in flight"
    if queue.stored:
        return f"{queue.stored} messages to transfer"
    if queue.quarantined.lost:
        return f"{queue.quarantined.lost} damaged messages"
    if queue.departed:
        return f"{queue.departed} messages on their way to other shards"
    if blocked:
        return blocked
    if queue.remembered_ms and now_ms - queue.remembered_ms < REMEMBERED_MS:
        return "ids of sends and of receive attempts"
    if shard.memory is not None and now_ms - row.closed_at_ms < RETRIES_OVER_MS:
        return "retries of the last sends"
    return ""


# -- events ----------------------------------------------------------------------------------------


class PartChanged(Event, frozen=True, gc=False):
    """The part takes no messages from now on, or has nothing any more. Its row stays when those of
    its messages are dropped."""

    row: PartRow

    @override
    def apply(self, shard: ShardState) -> None:
        shard.parts[self.queue_id] = self.row

    @override
    def record(self, changes: Changes) -> None:
        changes.put(row_key(THE_SHARD, PART, self.queue_id), encode_row(self.row))


# -- rows ------------------------------------------------------------------------------------------


def _load(shard: ShardState, rows: RowReader) -> None:
    shard.parts = {number_of(key): row for key, row in _CLOSED.read(rows, THE_SHARD)}


_CLOSED = Table(PART, "closed part", NUMBER_KEY, PartRow)
CLOSED_PARTS = ShardTables((_CLOSED,), _load, keep_all(_CLOSED))
"""The catalog closes those again that could not be salvaged."""
OPERATIONS: Operations = {
    CheckPart: OperationKind(decide_check_part, PartReading),
    PartsAdded: OperationKind(decide_parts_added, None),
    FindMessages: OperationKind(decide_find_messages, MessagesFound),
}
