"""Notes of the failures of a dead-letter queue, so that they need not be counted again.

`sqs_api/failures` counts them, since bodies are sealed; the shard keeps what it says, a note for
each span of sequences, and removes a note in the same Entry that changes its span. So notes are
true in every state of the rows, after a crash and on another host, too. Opening spans and noting
those opened before is one request: see `state/noted_spans.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from typing_extensions import override

from visibility.contract.model import Request
from visibility.contract.operations import Operation
from visibility.contract.outcomes import FailureNote, FailureNotesPage, SpansNoted
from visibility.rows.overlay import RowReader
from visibility.rows.row_changes import Changes
from visibility.rows.row_codec import decode_row, encode_row
from visibility.rows.row_keys import (
    FAILURE_NOTE,
    MESSAGE,
    QUARANTINED,
    SPAN_BITS,
    number_of,
    queue_key,
    row_key,
    table_range,
)
from visibility.rows.row_values import Quarantined, QueueRow
from visibility.rules.decided import Outcome
from visibility.rules.events import Event
from visibility.rules.operation_kinds import OperationKind, Operations
from visibility.rules.tables import NUMBER_KEY, Finding, Table, Tables
from visibility.state.noted_spans import FailureNotes
from visibility.state.queue_state import is_passed_by
from visibility.state.shard_state import ShardState
from visibility.state.stamp import Stamp

SPANS_MAX = 8
"""Spans of one request."""
NOTE_BYTES_MAX = 64 << 10
_PAGE_BYTES = 1 << 20


class ReadFailureNotes(Operation, frozen=True):
    """The notes of a queue from a span on; answers FailureNotesPage."""

    from_span: int = 0


class NoteFailures(Operation, frozen=True):
    """Keep notes of spans that were opened by the latest such request, and `opens` others; answers
    SpansNoted."""

    notes: list[FailureNote] = msgspec.field(default_factory=list)
    opens: list[int] = msgspec.field(default_factory=list)


class ForgetFailures(Operation, frozen=True):
    """Remove all notes of a queue; answers None."""


def decide_read_failure_notes(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """A page of notes."""
    operation = request.operation
    assert isinstance(operation, ReadFailureNotes)
    queue = shard.queue(request.queue.queue_id)
    if queue.failure_notes is None:
        return FailureNotesPage([], None), ()
    notes: list[FailureNote] = []
    size = 0
    begin = row_key(queue.queue_id, FAILURE_NOTE, operation.from_span)
    for key, value in shard.rows.store.scan(begin, table_range(queue.queue_id, FAILURE_NOTE)[1]):
        if size >= _PAGE_BYTES:
            return FailureNotesPage(notes, number_of(key)), ()
        notes.append(decode_row(FailureNote, key, value))
        size += len(value)
    return FailureNotesPage(notes, None), ()


def decide_note_failures(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Keep the notes of spans that have not changed since they were opened."""
    operation = request.operation
    assert isinstance(operation, NoteFailures)
    queue, known = shard.queue(request.queue.queue_id), FailureNotes()
    begins = queue.failure_notes is None
    if queue.failure_notes is not None:
        known = queue.failure_notes
    notes = [
        note
        for note in operation.notes[:SPANS_MAX]
        if note.span in known.opened
        and note.span not in queue.changed_spans  # by this Turn
        and note.span in queue.spans
        and len(note.data) <= NOTE_BYTES_MAX
    ]
    opens = operation.opens[:SPANS_MAX]
    noted = FailuresNoted(queue.queue_id, begins, notes, opens)
    return SpansNoted([note.span for note in notes]), (noted,)


def decide_forget_failures(shard: ShardState, request: Request, stamp: Stamp) -> Outcome:
    """Forget all notes."""
    queue = shard.queue(request.queue.queue_id)
    return None, () if queue.failure_notes is None else (FailuresForgotten(queue.queue_id),)


class FailuresNoted(Event, frozen=True):
    """Spans have notes, and others were opened. The first one removes what may be left of a
    version that did not know notes."""

    begins: bool
    notes: list[FailureNote]
    opens: list[int]

    @override
    def apply(self, shard: ShardState) -> None:
        queue = shard.queue(self.queue_id)
        if queue.failure_notes is None:
            queue.failure_notes = FailureNotes()
        for note in self.notes:
            queue.failure_notes.add(note.span)
        queue.failure_notes.open(self.opens)

    @override
    def record(self, changes: Changes) -> None:
        if self.begins:
            changes.delete_range(*table_range(self.queue_id, FAILURE_NOTE))
        for note in self.notes:
            changes.put(row_key(self.queue_id, FAILURE_NOTE, note.span), encode_row(note))


class FailuresForgotten(Event, frozen=True):
    """All notes of the queue are gone."""

    @override
    def apply(self, shard: ShardState) -> None:
        shard.queue(self.queue_id).failure_notes = None

    @override
    def record(self, changes: Changes) -> None:
        changes.delete_range(*table_range(self.queue_id, FAILURE_NOTE))


# -- the table -------------------------------------------------------------------------------------


def _check(rows: RowReader, queue_id: int) -> Iterator[Finding]:
    """Notes of spans with other messages than those of the note."""
    value = rows.get(queue_key(queue_id))
    if value is None or not decode_row(QueueRow, queue_key(queue_id), value).has_failure_notes:
        return
    for key, note in NOTES.read(rows, queue_id):
        if note.sequences != _sequences(rows, queue_id, note.span):
            yield Finding(key, "its messages are others")


def _sequences(rows: RowReader, queue_id: int, span: int) -> bytes:
    value = rows.get(place := row_key(queue_id, QUARANTINED, span))
    passed_by = decode_row(Quarantined, place, value) if value is not None else None
    begin, end = span << SPAN_BITS, span + 1 << SPAN_BITS
    found = rows.scan(row_key(queue_id, MESSAGE, begin), row_key(queue_id, MESSAGE, end))
    sequences = [number_of(key) for key, _ in found]
    return span_bits(
        sequence - begin
        for sequence in sequences
        if passed_by is None or not is_passed_by(passed_by, sequence)
    )


def span_bits(offsets: Iterable[int]) -> bytes:
    """`sequences` of a FailureNote: a bit for each offset of a message in its span."""
    bits = bytearray(1 << SPAN_BITS - 3)
    for offset in offsets:
        bits[offset >> 3] |= 1 << (offset & 7)
    return bytes(bits)


def _has_its_span(key: bytes, note: FailureNote) -> bool:
    return note.span == number_of(key)


NOTES = Table(
    FAILURE_NOTE,
    "failure note",
    NUMBER_KEY,
    FailureNote,
    names_itself=_has_its_span,
    check=_check,
)
"""A start loads none; a rebuild and `salvage` leave them out, and the failures are counted anew."""
TABLES: Tables = (NOTES,)

OPERATIONS: Operations = {
    ReadFailureNotes: OperationKind(decide_read_failure_notes, FailureNotesPage),
    NoteFailures: OperationKind(decide_note_failures, SpansNoted),
    ForgetFailures: OperationKind(decide_forget_failures, None),
}
