"""Notes of failures are true in every state of the rows: what changes a span removes its note."""

from __future__ import annotations

import msgspec
import pytest

from cluster.tests.driver import Driver
from cluster.tests.test_verify_rows import findings, store_of
from storage.healing.rebuild import rebuild
from storage.tests.memory_store import MemoryStore
from visibility.contract.model import Request
from visibility.contract.outcomes import FailureNote, FailureNotesPage, SpansNoted
from visibility.rows.row_codec import decode_row, encode_row
from visibility.rows.row_keys import FAILURE_NOTE, MESSAGE, message_key, queue_key, row_key
from visibility.rows.row_values import QueueRow
from visibility.rules.failure_notes import (
    NOTE_BYTES_MAX,
    SPANS_MAX,
    ForgetFailures,
    NoteFailures,
    ReadFailureNotes,
)
from visibility.rules.selected import DeleteSelected
from visibility.state import noted_spans
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues

QUEUE_ID = 1
QUEUE = prepared.queue_named("dead", QUEUE_ID)
THREE = b"\x0e" + bytes(511)
"""Sequences 1 to 3."""


def note(span: int = 0, sequences: bytes = THREE, data: bytes = b"sealed") -> FailureNote:
    return FailureNote(span, 1, sequences, 7, data)


class Noting:
    """A queue with three messages."""

    def __init__(self) -> None:
        self.known = KnownQueues(QUEUE)
        self.driver = Driver(self.known)
        for number in range(3):
            self.driver.submit(self.send(number))

    def send(self, number: int) -> Request:
        return prepared.send(QUEUE, f"body {number}")

    def keeping(self, *notes: FailureNote, opens: list[int] | None = None) -> Request:
        return prepared.prepared(QUEUE, NoteFailures(list(notes), opens or []))

    def keep(self, *notes: FailureNote, opens: list[int] | None = None) -> list[int]:
        answer = self.driver.submit(self.keeping(*notes, opens=opens)).answer
        assert isinstance(answer, SpansNoted)
        return answer.spans

    def noted(self) -> None:
        """The span is noted."""
        self.keep(opens=[0])
        assert self.keep(note()) == [0]

    def notes(self) -> list[int]:
        page = self.driver.submit(prepared.prepared(QUEUE, ReadFailureNotes())).answer
        assert isinstance(page, FailureNotesPage)
        return [each.span for each in page.notes]

    def delete(self, sequence: int) -> Request:
        return prepared.prepared(QUEUE, DeleteSelected(sequences=[sequence]))

    def restart(self) -> None:
        self.driver = Driver(self.known, store=self.driver.store)


@pytest.fixture
def noting() -> Noting:
    return Noting()


def test_a_note_stays_until_a_message_comes_or_goes_also_over_a_restart(noting: Noting) -> None:
    noting.noted()
    noting.driver.submit(prepared.receive(QUEUE, 1))
    noting.restart()
    assert noting.notes() == [0]

    noting.driver.submit(noting.send(4))
    assert noting.notes() == []
    noting.keep(opens=[0])
    assert noting.keep(note(sequences=b"\x1e" + bytes(511))) == [0]
    noting.restart()
    noting.driver.submit(noting.delete(3))

    assert noting.notes() == []
    assert findings(noting.driver.store) == []


def test_a_span_that_changed_since_it_was_opened_is_not_noted(noting: Noting) -> None:
    noting.keep(opens=[0])
    noting.driver.submit(noting.delete(2))

    assert noting.keep(note()) == []
    assert noting.keep(note()) == [], "one that was not opened at all"
    assert noting.notes() == []


def test_a_span_that_was_opened_before_a_restart_is_not_noted(noting: Noting) -> None:
    noting.keep(opens=[0])
    noting.restart()

    assert noting.keep(note()) == []


def test_changes_of_the_same_turn_count_before_and_after(noting: Noting) -> None:
    noting.keep(opens=[0])
    before = noting.driver.turn([noting.delete(1), noting.keeping(note())])[1].answer
    noting.keep(opens=[0])
    two = b"\x0c" + bytes(511)
    after = noting.driver.turn([noting.keeping(note(sequences=two)), noting.delete(2)])[0].answer

    assert (before, after) == (SpansNoted([]), SpansNoted([0]))
    assert noting.notes() == []


def test_opening_others_closes_those_of_before(noting: Noting) -> None:
    noting.keep(opens=[0])
    noting.keep(opens=[5])

    assert noting.keep(note()) == []


def test_what_is_no_span_of_the_queue_or_too_large_is_not_noted(noting: Noting) -> None:
    noting.keep(opens=[0, 5])

    assert noting.keep(note(5), note(data=bytes(NOTE_BYTES_MAX + 1)), opens=[0]) == []
    assert noting.keep(*[note()] * (SPANS_MAX + 1)) == [0] * SPANS_MAX


def test_pages_of_notes_are_bounded() -> None:
    noting = Noting()
    noting.noted()
    store, rows = noting.driver.store, {}
    for span in range(1, 20):
        rows[row_key(QUEUE_ID, FAILURE_NOTE, span)] = encode_row(
            note(span, data=bytes(NOTE_BYTES_MAX))
        )
    store.rows |= rows
    found: list[int] = []
    from_span: int | None = 0
    pages = 0
    while from_span is not None:
        page = noting.driver.submit(prepared.prepared(QUEUE, ReadFailureNotes(from_span))).answer
        assert isinstance(page, FailureNotesPage)
        found += [each.span for each in page.notes]
        from_span = page.next_span
        pages += 1

    assert found == list(range(20))
    assert pages == 2


def test_forgotten_notes_leave_no_row(noting: Noting) -> None:
    noting.noted()
    noting.driver.submit(prepared.prepared(QUEUE, ForgetFailures()))

    assert noting.notes() == []
    assert not [key for key in noting.driver.store.rows if key[8:9] == FAILURE_NOTE]
    entries = noting.driver.turns
    noting.driver.submit(prepared.prepared(QUEUE, ForgetFailures()))
    assert noting.driver.turns == entries + 1


def test_a_version_that_knew_no_notes_leaves_none_that_count(noting: Noting) -> None:
    """It writes the queue's own row without the field, and removes no note."""
    noting.noted()
    store = noting.driver.store
    own = decode_row(QueueRow, b"", store.rows[queue_key(QUEUE_ID)])
    assert own.has_failure_notes
    before = msgspec.structs.replace(own, has_failure_notes=False)
    store.rows[queue_key(QUEUE_ID)] = encode_row(before)
    noting.restart()

    assert noting.notes() == []
    assert findings(noting.driver.store) == []
    noting.keep(opens=[0])
    assert not [key for key in noting.driver.store.rows if key[8:9] == FAILURE_NOTE]


def test_a_removed_note_is_recorded_once_and_what_is_remembered_of_that_is_bounded(
    noting: Noting, monkeypatch: pytest.MonkeyPatch
) -> None:
    noting.noted()
    key = row_key(QUEUE_ID, FAILURE_NOTE, 0)
    removals: list[int] = []
    apply = noting.driver.store.apply

    def see(changes):  # type: ignore[no-untyped-def]
        removals.append(changes.ops[::2].count(key))
        apply(changes)

    monkeypatch.setattr(noting.driver.store, "apply", see)
    for number in range(3):
        noting.driver.submit(noting.send(number))
    assert removals == [1, 0, 0]

    monkeypatch.setattr(noted_spans, "GONE_MAX", 0)
    for number in range(3):
        noting.driver.submit(noting.send(number))
    assert removals[3:] == [0, 1, 1]


def test_a_note_of_other_messages_is_found(noting: Noting) -> None:
    noting.noted()
    rows = noting.driver.store.rows
    key = row_key(QUEUE_ID, FAILURE_NOTE, 0)
    assert findings(store_of(rows)) == []

    other = findings(store_of(rows | {key: encode_row(note(sequences=b"\x06" + bytes(511)))}))
    astray = findings(store_of(rows | {row_key(QUEUE_ID, FAILURE_NOTE, 3): rows[key]}))

    assert [(each.key, each.what) for each in other] == [(key, "its messages are others")]
    assert "it is the value of another key" in [each.what for each in astray]


@pytest.mark.parametrize("table", [MESSAGE, FAILURE_NOTE])
def test_a_rebuilt_queue_has_no_notes(noting: Noting, table: bytes) -> None:
    noting.noted()
    damaged = message_key(QUEUE_ID, 2) if table == MESSAGE else row_key(QUEUE_ID, table, 0)
    target = MemoryStore()

    rebuild(
        store_of(dict(noting.driver.store.rows) | {damaged: b"?"}),
        target.apply,
        {QUEUE_ID: False},
    )
    noting.driver = Driver(noting.known, store=target)

    assert noting.notes() == []
    assert findings(target) == []
    noting.keep(opens=[0])
    assert noting.keep(note(sequences=b"\x0a" + bytes(511) if table == MESSAGE else THREE)) == [0]
    assert findings(noting.driver.store) == []
