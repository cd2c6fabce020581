"""A table that only its feature knows is loaded, verified, salvaged and rebuilt."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from cluster.tests.driver import Driver, loaded
from cluster.tests.test_verify_rows import findings, store_of
from storage.healing.rebuild import rebuild
from storage.rows.damage import check_rows, table_name
from storage.tests.memory_store import MemoryStore
from visibility.contract.stored_message import Lease
from visibility.rows.overlay import RowReader
from visibility.rows.row_codec import encode_row
from visibility.rows.row_keys import ALIAS, MESSAGE, SPAN, message_key, row_key
from visibility.rows.row_values import QueueRow
from visibility.rules.features import TABLES, tables_by_prefix
from visibility.rules.tables import NUMBER_KEY, Finding, Table, has_its_sequence, keep
from visibility.state.queue_state import QueueState
from visibility.state.rows import Rows
from visibility.tests import prepared
from visibility.tests.prepared import KnownQueues

NOTE = b"\x26"
QUEUE_ID = 1


class Note(msgspec.Struct, frozen=True, array_like=True):
    """A text beside a message."""

    sequence: int
    text: str


class Notes:
    """A feature: its memory and its table."""

    def __init__(self) -> None:
        self.loaded: dict[int, dict[int, str]] = {}
        self.table = Table(
            NOTE,
            "notes",
            NUMBER_KEY,
            Note,
            names_itself=has_its_sequence,
            load=self._load,
            check=self._check,
            salvage=self._salvage,
        )

    def _load(self, rows: Rows, queue: QueueState, leases: list[Lease]) -> None:
        found = self.table.read(rows.store, queue.queue_id)
        self.loaded[queue.queue_id] = {note.sequence: note.text for _, note in found}

    def _check(self, rows: RowReader, queue_id: int) -> Iterator[Finding]:
        for key, note in self.table.read(rows, queue_id):
            if rows.get(message_key(queue_id, note.sequence)) is None:
                yield Finding(key, "its message is missing")

    def _salvage(self, own: QueueRow, note: Note) -> QueueRow:
        return msgspec.structs.replace(own, remembered_ms=max(own.remembered_ms, note.sequence))


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Notes:
    feature = Notes()
    monkeypatch.setitem(TABLES, NOTE, feature.table)
    return feature


@pytest.fixture
def rows() -> dict[bytes, bytes]:
    """A queue with three messages, the second of which has a note."""
    known = KnownQueues(prepared.queue_named("queue", QUEUE_ID))
    driver = Driver(known)
    for number in range(3):
        driver.submit(prepared.send(known.queue_of_id(QUEUE_ID), f"body {number}"))  # type: ignore[arg-type]
    return dict(driver.store.rows) | {row_key(QUEUE_ID, NOTE, 2): encode_row(Note(2, "look here"))}


def started(store: MemoryStore) -> QueueState:
    """The queue as a start loads it."""
    known = KnownQueues(prepared.queue_named("queue", QUEUE_ID))
    return loaded(store, known).queue(QUEUE_ID)


def damages(rows: dict[bytes, bytes]) -> list[str]:
    """The findings on single rows."""
    return [found.what for found in check_rows(store_of(rows)) if isinstance(found, Finding)]


def test_its_rows_are_loaded(notes: Notes, rows: dict[bytes, bytes]) -> None:
    started(store_of(rows))

    assert notes.loaded == {QUEUE_ID: {2: "look here"}}


def test_its_rows_are_verified(notes: Notes, rows: dict[bytes, bytes]) -> None:
    key = row_key(QUEUE_ID, NOTE, 2)
    assert findings(store_of(rows)) == []

    changed = damages(rows | {key: rows[key][:-1] + b"?"})
    elsewhere = damages(rows | {row_key(QUEUE_ID, NOTE, 3): rows[key]})
    astray = row_key(QUEUE_ID, NOTE, 9)
    without = findings(store_of(rows | {astray: encode_row(Note(9, ""))}))

    assert changed == ["checksum does not match"]
    assert elsewhere == ["it is the value of another key"]
    assert without == [Finding(astray, "its message is missing")]
    assert table_name(key) == "notes"


@pytest.mark.parametrize("table", [MESSAGE, SPAN])
def test_its_rows_are_kept_when_the_queue_is_rebuilt(
    notes: Notes, rows: dict[bytes, bytes], table: bytes
) -> None:
    damaged = next(key for key in rows if key[8:9] == table)
    target = MemoryStore()

    healed = rebuild(store_of(rows | {damaged: b"?"}), target.apply, {QUEUE_ID: False})

    assert [each.queue_id for each in healed] == [QUEUE_ID]
    assert target.rows[row_key(QUEUE_ID, NOTE, 2)] == rows[row_key(QUEUE_ID, NOTE, 2)]
    assert findings(target) == []
    assert started(target).remembered_ms == 2, "the queue's own row follows from them, too"
    assert notes.loaded == {QUEUE_ID: {2: "look here"}}


def test_a_damaged_row_costs_no_other(notes: Notes, rows: dict[bytes, bytes]) -> None:
    target = MemoryStore()

    rebuild(store_of(rows | {row_key(QUEUE_ID, NOTE, 2): b"?"}), target.apply, {QUEUE_ID: False})

    assert target.rows.keys() == rows.keys() - {row_key(QUEUE_ID, NOTE, 2)}


def test_two_features_with_the_same_prefix_are_refused(notes: Notes) -> None:
    other = Table(NOTE, "others", NUMBER_KEY, Note, salvage=keep)

    with pytest.raises(TypeError, match="notes and others have the prefix 26"):
        tables_by_prefix((notes.table,), (Table(ALIAS, "alias", NUMBER_KEY, int), other))
