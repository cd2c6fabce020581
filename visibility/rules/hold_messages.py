"""Holds messages and releases them. An extension of SQS for operators.

A held message is in flight without a consumer: its lease ends at no time, so receives, move
tasks and deletes of selected messages pass by, and a restart finds it as it was. Its hold, a row of
its own, names the owner and the reference, or the instant at which it is deleted. To receipt
handles it is like a message whose visibility timeout is over.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from typing_extensions import override

from visibility.contract.errors import InvalidParameterValue
from visibility.contract.limits import (
    DELETE_UNDO_SECONDS_MAX,
    HELD_MAX,
    HELD_UNTIL_MS,
    HOLD_OWNER_LENGTH_MAX,
    HOLD_REFERENCE_LENGTH_MAX,
)
from visibility.contract.model import QueueDefinition, Request
from visibility.contract.operations import Operation
from visibility.contract.outcomes import SelectedChanged
from visibility.contract.stored_message import Hold, Lease, StoredMessage
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import HOLD, row_key
from visibility.rules.archive_batches import DELETED, hand_over, takes_deleted
from visibility.rules.decided import Outcome
from visibility.rules.events import Event
from visibility.rules.message_events import MessagesDeleted, record_leases
from visibility.rules.operation_kinds import OperationKind, Operations, Replay
from visibility.rules.orders import order_of
from visibility.rules.selected import selected, waiting
from visibility.rules.tables import NUMBER_KEY, Table, Tables, has_its_sequence, keep
from visibility.state.in_flight import hide, trim
from visibility.state.places import leave_line
from visibility.state.queue_state import QueueState
from visibility.state.rows import MessagesMissing, Rows
from visibility.state.shard_state import ShardState
from visibility.state.short_answers import ShortAnswer
from visibility.state.stamp import Stamp

LOOK_MS = 60_000
"""Interval at which holds on messages that are gone are removed."""
_STEP_MESSAGES = 100
"""Messages that one step deletes."""
_ARCHIVED_BYTES = 128 << 10
"""Content that one step hands over to the archive, which writes it again."""


class HoldMessages(Operation, frozen=True):
    """Hold the waiting messages with these sequences: nobody gets them until they are released or
    deleted; answers `outcomes.SelectedChanged`.

    `delete_after_ms` 0: they wait until they are released. `owner` and `reference` are texts of
    the operator.
    """

    sequences: list[int] = msgspec.field(default_factory=list)
    owner: str = ""
    reference: str = ""
    delete_after_ms: int = 0


class ReleaseMessages(Operation, frozen=True):
    """Make held messages visible again: those that wait for it, or (`deleting`) those that are to
    be deleted; answers `outcomes.SelectedChanged`."""

    sequences: list[int] = msgspec.field(default_factory=list)
    deleting: bool = False


def held_leases(queue: QueueState) -> Iterator[tuple[Hold, Lease]]:
    """The held messages by sequence, without holds on those that are gone."""
    for sequence in sorted(queue.holds):
        entry = queue.entries.get(sequence)
        if entry is not None and entry.lease.is_held:
            yield queue.holds[sequence], entry.lease


def needs_release(queue: QueueState, lease: Lease) -> bool:
    """True for a message in flight until an operator releases it: no time and no consumer ends
    that."""
    if not lease.is_held:
        return False
    mark = queue.holds.get(lease.sequence)
    return mark is None or not mark.deleted_at_ms


def decide_hold_messages(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Hold those that wait; a consumer may be at work on one in flight.

    Raises InvalidParameterValue for too many messages and too long texts.
    """
    operation = request.operation
    assert isinstance(operation, HoldMessages)
    _check(operation)
    queue = shard.queue(request.queue.queue_id)
    chosen = selected(operation.sequences)
    order = order_of(request.queue.settings)
    book = order.book(shard, queue)
    leases: list[Lease] = []
    for sequence, message in waiting(shard, queue, chosen):
        lease = order.lease_of(shard.rows, queue, sequence, message)
        leases.append(msgspec.structs.replace(lease, visible_at_ms=HELD_UNTIL_MS))
        if message.group and sequence not in queue.entries:
            book.depart(message.group, sequence)
    for group in dict.fromkeys(lease.group for lease in leases):
        book.settle(group, (), [])
    if len(leases) + sum(1 for _ in held_leases(queue)) > HELD_MAX:
        raise InvalidParameterValue(f"Up to {HELD_MAX} messages of a queue are held.")
    answer = SelectedChanged(len(leases), len(chosen) - len(leases))
    if not leases:
        return answer, ()
    now_ms, after_ms = stamp.now_ms, operation.delete_after_ms
    deleted_at_ms = now_ms + after_ms if after_ms else 0
    marks = [
        Hold(lease.sequence, now_ms, operation.owner, operation.reference, deleted_at_ms)
        for lease in leases
    ]
    return answer, (*book.events(), MessagesHeld(queue.queue_id, now_ms, marks, leases))


def _check(operation: HoldMessages) -> None:
    if len(operation.owner) > HOLD_OWNER_LENGTH_MAX:
        raise InvalidParameterValue(f"An owner has up to {HOLD_OWNER_LENGTH_MAX} characters.")
    if len(operation.reference) > HOLD_REFERENCE_LENGTH_MAX:
        raise InvalidParameterValue(
            f"A reference has up to {HOLD_REFERENCE_LENGTH_MAX} characters."
        )
    if not 0 <= operation.delete_after_ms <= DELETE_UNDO_SECONDS_MAX * 1000:
        raise InvalidParameterValue(f"A delete waits for up to {DELETE_UNDO_SECONDS_MAX} seconds.")


def decide_release_messages(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Make held messages visible again. Raises InvalidParameterValue for too many."""
    operation = request.operation
    assert isinstance(operation, ReleaseMessages)
    queue, now_ms = shard.queue(request.queue.queue_id), stamp.now_ms
    chosen = set(selected(operation.sequences))
    leases = [
        lease.ended_at(now_ms)
        for mark, lease in held_leases(queue)
        if mark.sequence in chosen and bool(mark.deleted_at_ms) is operation.deleting
    ]
    answer = SelectedChanged(len(leases), len(chosen) - len(leases))
    if not leases:
        return answer, ()
    ended = HoldsEnded(queue.queue_id, [lease.sequence for lease in leases])
    order = order_of(request.queue.settings)
    book = order.book(shard, queue)
    book.settle_all((), leases)
    return answer, (*book.events(), order.ended(queue, leases, now_ms), ended)


def end_holds(
    shard: ShardState, queue: QueueState, definition: QueueDefinition, stamp: Stamp
) -> tuple[tuple[Event, ...], int | None]:
    """Delete the held messages whose time has come, and remove the holds on those that are
    gone; see `pulse.Step`. Raises MessagesMissing for one that a rebuild found to be lost."""
    if not queue.holds:
        return (), None
    there, now_ms = dict(held_leases(queue)), stamp.now_ms
    for mark, lease in there.items():
        if mark.sequence in queue.quarantined and needs_release(queue, lease):
            raise MessagesMissing(queue.queue_id, mark.sequence)
    due = [mark for mark in there if 0 < mark.deleted_at_ms <= now_ms]
    leases = [there[mark] for mark in due[:_STEP_MESSAGES]]
    events: tuple[Event, ...] = ()
    if leases:
        leases, events = delete_in_flight(shard, queue, definition, leases, now_ms)
    gone = [lease.sequence for lease in leases]
    gone += queue.holds.keys() - {mark.sequence for mark in there}
    if gone:
        events += (HoldsEnded(queue.queue_id, sorted(gone)),)
    if len(gone) == len(queue.holds):
        return events, None
    next_ms = [mark.deleted_at_ms for mark in there if mark.deleted_at_ms > now_ms]
    if len(due) > len(leases):
        return events, now_ms
    return events, min([now_ms + LOOK_MS, *next_ms])


def delete_in_flight(
    shard: ShardState,
    queue: QueueState,
    definition: QueueDefinition,
    leases: list[Lease],
    now_ms: int,
) -> tuple[list[Lease], tuple[Event, ...]]:
    """Delete messages in flight as their consumer would have: all, or the first for the archive.
    Raises DamagedRecord."""
    archived: tuple[Event, ...] = ()
    if takes_deleted(shard, definition.settings):
        messages: dict[int, StoredMessage] = {}
        size = 0
        for count, lease in enumerate(leases, 1):
            for sequence, message in shard.rows.unless_quarantined(queue, [lease.sequence]):
                messages[sequence] = message
                size += len(message.data)
            if size >= _ARCHIVED_BYTES:
                leases = leases[:count]
                break
        archived = hand_over(shard, definition, leases, messages, reason=DELETED, now_ms=now_ms)
    book = order_of(definition.settings).book(shard, queue)
    book.leave_all(leases)
    deleted = MessagesDeleted(queue.queue_id, now_ms, leases)
    return leases, (*archived, *book.events(), deleted)


# -- events ----------------------------------------------------------------------------------------


class MessagesHeld(Event, frozen=True):
    """Waiting messages are in flight from now on, with leases that end at no time, and marked."""

    held_at_ms: int
    marks: list[Hold]
    leases: list[Lease]

    @override
    def apply(self, shard: ShardState) -> None:
        queue = shard.queue(self.queue_id)
        for lease in self.leases:
            if lease.sequence not in queue.entries:
                leave_line(shard, queue, lease)
            hide(shard, queue, lease, self.held_at_ms)
        for mark in self.marks:
            queue.holds[mark.sequence] = mark
            shard.plan_pulse(queue, mark.deleted_at_ms or self.held_at_ms)
        trim(queue)

    @override
    def record(self, changes: Changes) -> None:
        record_leases(changes, self.queue_id, self.leases)
        for mark in self.marks:
            changes.put(row_key(self.queue_id, HOLD, mark.sequence), encode_row(mark))


class HoldsEnded(Event, frozen=True):
    """These marks are removed; their messages are gone, or other events show them again."""

    sequences: list[int]

    @override
    def apply(self, shard: ShardState) -> None:
        holds = shard.queue(self.queue_id).holds
        for sequence in self.sequences:
            holds.pop(sequence, None)

    @override
    def record(self, changes: Changes) -> None:
        for sequence in self.sequences:
            changes.delete(row_key(self.queue_id, HOLD, sequence))


# -- the table -------------------------------------------------------------------------------------


def _load(rows: Rows, queue: QueueState, leases: list[Lease]) -> None:
    held = [lease.sequence for lease in leases if lease.is_held]
    if held:
        queue.holds = {mark.sequence: mark for _, mark in HOLDS.read(rows.store, queue.queue_id)}
        for sequence in held:  # its mark was damaged
            queue.holds.setdefault(sequence, Hold(sequence))


HOLDS = Table(
    HOLD,
    "holds",
    NUMBER_KEY,
    Hold,
    names_itself=has_its_sequence,
    load=_load,
    salvage=keep,
)
"""No check: a mark may outlive its message."""
TABLES: Tables = (HOLDS,)


# -- the same answer to a retry --------------------------------------------------------------------


def _short_changed(request: Request, answer: SelectedChanged) -> ShortAnswer:
    return answer.changed


def _changed_again(short: int, shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    assert isinstance(request.operation, HoldMessages | ReleaseMessages)
    return SelectedChanged(short, len(set(request.operation.sequences)) - short), ()


_CHANGED = Replay(_short_changed, (int,), _changed_again)

OPERATIONS: Operations = {
    HoldMessages: OperationKind(decide_hold_messages, SelectedChanged, _CHANGED),
    ReleaseMessages: OperationKind(decide_release_messages, SelectedChanged, _CHANGED),
}
